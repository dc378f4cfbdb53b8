//! Bounds of a connection, over a pipe in memory and with time that is not waited for.

use http_body_util::Empty;
use hyper::client::conn::http2;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::gateway::tests::Lab;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame: length, type, flags, stream (RFC 9113, 4.1).
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// The client's end of a served connection, and the server.
fn connect(lab: &Lab, peer: Option<Peer>) -> (DuplexStream, JoinHandle<()>) {
    let (client, server) = tokio::io::duplex(1 << 20);
    let router = axum::Router::new().fallback(async || "here");
    let tls = crate::listen::server_config(&lab.gateway.authority(), clock::now()).unwrap();
    let service = Service {
        gateway: lab.gateway.clone(),
        router,
        door: Door::Tls,
        connections_max: 1,
        drain_max: Duration::from_secs(1),
        tls: watch::channel(tls).1,
        stop: watch::channel(false).1,
    };
    let connection = Connection { peer: peer.map(Arc::new) };
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let served = tokio::spawn(async move {
        // The sender of `stop` must live.
        let (_stop, stop) = watch::channel(false);
        let service = Service { stop, ..service };
        serve(Box::new(server), connection, &service, permit).await;
    });
    (client, served)
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_ended_after_120_s_and_one_without_a_certificate_after_60_s() {
    let lab = Lab::new();
    for (peer, life_s) in [(Some(local_admin(0)), 120), (None, 60)] {
        let (client, served) = connect(&lab, peer);
        let (mut sender, connection) =
            http2::handshake::<_, _, Empty<bytes::Bytes>>(TokioExecutor::new(), TokioIo::new(client))
                .await
                .unwrap();
        let client = tokio::spawn(connection);
        let start = Instant::now();
        let request = http::Request::get("http://localhost/").body(Empty::new()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
        served.await.unwrap();
        let lived = start.elapsed();
        // Looked at every 5 s.
        assert!((life_s * 1_000..=(life_s + 5) * 1_000 + 100).contains(&lived.as_millis()), "{lived:?}");
        client.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_is_waited_for_15_s() {
    let lab = Lab::new();
    let (mut client, served) = connect(&lab, Some(local_admin(0)));
    let start = Instant::now();
    client.write_all(b"GET / HTTP/1.1\r\nhost: loc").await.unwrap();
    served.await.unwrap();
    assert_eq!(start.elapsed().as_millis() / 100, 150);
}

#[tokio::test(start_paused = true)]
async fn a_head_of_http_1_has_64_kib() {
    let lab = Lab::new();
    for (bytes, status) in [(65_000, "200"), (66_000, "431")] {
        let (mut client, _served) = connect(&lab, Some(local_admin(0)));
        let head = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(bytes - 45));
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{bytes}");
    }
}

/// The type, flags, stream and payload of the next frame.
async fn frame(client: &mut DuplexStream) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    client.read_exact(&mut head).await.unwrap();
    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    client.read_exact(&mut payload).await.unwrap();
    (head[3], payload)
}

#[tokio::test(start_paused = true)]
async fn a_client_of_http_2_is_told_of_32_streams_and_heads_of_16_kib() {
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    const MAX_HEADER_LIST_SIZE: u16 = 6;
    let lab = Lab::new();
    let (mut client, _served) = connect(&lab, Some(local_admin(0)));
    client.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
    let (kind, payload) = frame(&mut client).await;
    assert_eq!(kind, SETTINGS[3]);
    let told = |wanted: u16| {
        payload.chunks(6).find(|one| one[..2] == wanted.to_be_bytes()).map(|one| one[2..].to_vec())
    };
    assert_eq!(told(MAX_CONCURRENT_STREAMS), Some(32u32.to_be_bytes().to_vec()));
    assert_eq!(told(MAX_HEADER_LIST_SIZE), Some(16_384u32.to_be_bytes().to_vec()));
}

/// CVE-2023-44487.
#[tokio::test(start_paused = true)]
async fn a_client_that_resets_more_than_32_streams_is_cut_off() {
    const GOAWAY: u8 = 7;
    const ENHANCE_YOUR_CALM: u8 = 11;
    let lab = Lab::new();
    for (resets, cut_off) in [(32u8, false), (33, true)] {
        let (mut client, _served) = connect(&lab, Some(local_admin(0)));
        let mut bytes = [PREFACE, SETTINGS].concat();
        for stream in (1..).step_by(2).take(usize::from(resets)) {
            // HEADERS with END_HEADERS and END_STREAM: GET, http, / (RFC 7541, appendix A); then RST_STREAM, CANCEL.
            bytes.extend_from_slice(&[0, 0, 3, 1, 5, 0, 0, 0, stream, 0x82, 0x86, 0x84]);
            bytes.extend_from_slice(&[0, 0, 4, 3, 0, 0, 0, 0, stream, 0, 0, 0, 8]);
        }
        bytes.extend_from_slice(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        client.write_all(&bytes).await.unwrap();
        let end = loop {
            // An answered PING says that all before it was taken.
            match frame(&mut client).await {
                (GOAWAY, payload) => break Some(payload[7]),
                (6, _) => break None,
                _ => {}
            }
        };
        assert_eq!(end, cut_off.then_some(ENHANCE_YOUR_CALM), "{resets}");
    }
}
