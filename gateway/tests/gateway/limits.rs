use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use activity_schema::api::BATCHES_MEDIA_TYPE;
use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::*;

/// Most bytes of one `POST /v1/batches`.
const REQUEST_BYTES_MAX: usize = 8_388_608;

#[tokio::test(flavor = "multi_thread")]
async fn oversize_malformed_and_mistyped_bodies_are_refused_with_a_reason() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let batch = collector.batch(2);
    let ask = async |kind: &str, body: Bytes| {
        let mut connection =
            Connection::open(world.collectors(), Some(collector.credentials())).await.unwrap();
        connection.ask(Method::POST, "/v1/batches", kind, body).await.unwrap()
    };
    // Refused by what is declared; not a byte of it is waited for.
    let address = world.collectors();
    let declared = declare(address, collector.credentials(), "/v1/batches", REQUEST_BYTES_MAX + 1).await;
    assert!(declared.starts_with("HTTP/1.1 413"), "{declared}");
    let declared = declare(address, &anonymous(&world), "/v1/enroll", 65_537).await;
    assert!(declared.starts_with("HTTP/1.1 413"), "{declared}");
    // Undeclared, it is refused when the limit is passed.
    let mut stream = tls(world.collectors(), Some(collector.credentials())).await.unwrap();
    let head = format!(
        "POST /v1/batches HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: {BATCHES_MEDIA_TYPE}\r\ntransfer-encoding: chunked\r\n\r\n{REQUEST_BYTES_MAX:x}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![0; REQUEST_BYTES_MAX]).await.unwrap();
    stream.write_all(b"\r\n1\r\n0\r\n").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
    let json = ask("application/json", frames(std::slice::from_ref(&batch))).await;
    assert_eq!(json.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let empty = ask(BATCHES_MEDIA_TYPE, Bytes::new()).await;
    assert_eq!(empty.status, StatusCode::BAD_REQUEST);
    let whole = frames(std::slice::from_ref(&batch));
    let torn = ask(BATCHES_MEDIA_TYPE, [&whole[..], &whole[..whole.len() / 2]].concat().into()).await;
    assert_eq!(torn.status, StatusCode::BAD_REQUEST);
    let text = String::from_utf8_lossy(&torn.body).into_owned();
    assert!(text.contains("frame 1 is malformed"), "{text}");
    let many = ask(BATCHES_MEDIA_TYPE, frames(&vec![batch.clone(); 257])).await;
    assert_eq!(many.status, StatusCode::PAYLOAD_TOO_LARGE);
    let import = "/v1/import?tenant=acme&host=h&instance=i";
    let declared = declare(world.operators(), &world.admin(), import, 67_108_865).await;
    assert!(declared.starts_with("HTTP/1.1 413") && declared.contains("67108864 bytes"), "{declared}");
    // Nothing of a refused request was stored.
    let results = collector.send(&world, &[batch]).await.results().results;
    assert!(matches!(results[..], [activity_schema::api::BatchResult::Stored { .. }]), "{results:?}");
}

/// Sends a head that declares a body, no body, and reads the answer.
async fn declare(address: SocketAddr, who: &Credentials, path: &str, length: usize) -> String {
    let mut stream = tls(address, Some(who)).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: {BATCHES_MEDIA_TYPE}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_loris_is_cut_off_and_others_are_served_meanwhile() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let start = Instant::now();
    // Half a handshake, half a header: neither ever goes on.
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(world.collectors()).await.unwrap());
    }
    let mut slow = tls(world.collectors(), Some(collector.credentials())).await.unwrap();
    slow.write_all(b"POST /v1/batches HTTP/1.1\r\nhost: loc").await.unwrap();
    let batch = collector.batch(1);
    collector.send(&world, &[batch]).await.results();
    assert!(start.elapsed() < Duration::from_secs(5), "served while others are slow");
    let mut rest = Vec::new();
    let cut = tokio::time::timeout(Duration::from_secs(25), async {
        let _ = slow.read_to_end(&mut rest).await;
        for stream in &mut silent {
            let _ = stream.read_to_end(&mut rest).await;
        }
    });
    cut.await.expect("slow clients are cut off in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_certificate_take_nothing_from_those_with_one() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let mut strangers = Vec::new();
    for _ in 0..80 {
        strangers.push(tls(world.collectors(), Some(&anonymous(&world))).await);
    }
    let batch = collector.batch(1);
    collector.send(&world, &[batch]).await.results();
    assert!(reaches(&world.server.gateway.metrics.connections_refused, 80 - 64).await, "64 are held");
}

/// Whether a counter comes to a value and stays there.
async fn reaches(counter: &AtomicU64, value: u64) -> bool {
    for _ in 0..500 {
        if counter.load(Ordering::Relaxed) >= value {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    counter.load(Ordering::Relaxed) == value
}

/// The world allows 64 where a gateway allows what its configuration says.
#[tokio::test(flavor = "multi_thread")]
async fn connections_with_a_certificate_are_bounded() {
    let world = World::start().await;
    let admin = world.admin();
    let mut held = Vec::new();
    for _ in 0..65 {
        held.push(tls(world.operators(), Some(&admin)).await);
    }
    assert!(reaches(&world.server.gateway.metrics.connections_refused, 1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_at_once_are_256() {
    let world = World::start().await;
    let metrics = &world.server.gateway.metrics;
    let mut silent = Vec::new();
    for _ in 0..256 {
        silent.push(TcpStream::connect(world.collectors()).await.unwrap());
    }
    assert!(reaches(&metrics.connections_total, 256).await);
    assert_eq!(metrics.connections_refused.load(Ordering::Relaxed), 0);
    silent.push(TcpStream::connect(world.collectors()).await.unwrap());
    assert!(reaches(&metrics.connections_refused, 1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_1_2_is_refused_and_no_session_is_resumed() {
    let world = World::start().await;
    let connect = async |config: Arc<rustls::ClientConfig>| {
        let stream = TcpStream::connect(world.operators()).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(config);
        connector.connect("localhost".try_into().unwrap(), stream).await
    };
    let old = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(activity_gateway::pki::roots_of(&world.ca()).unwrap())
        .with_no_client_auth();
    assert!(connect(Arc::new(old)).await.is_err());
    let config = Arc::new(client_config(&world.admin()));
    for _ in 0..2 {
        let mut stream = connect(config.clone()).await.unwrap();
        let request = b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        let kind = stream.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(rustls::HandshakeKind::Full));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_administrators_certificate_lives_365_days() {
    let world = World::start().await;
    let admin = activity_gateway::pki::certificates(&world.path("pki/admin.pem")).unwrap();
    let not_after = activity_gateway::identity::Peer::from_certificate(&admin[0]).unwrap().not_after;
    let lives_s = not_after.nanos_since(activity_gateway::clock::now()) / 1_000_000_000;
    assert!((365 * 86_400 - 600..=365 * 86_400).contains(&lives_s), "{lives_s}");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_a_foreign_authority_are_refused() {
    let world = World::start().await;
    let other = World::start().await;
    let foreign = Credentials { ca: world.ca(), ..other.admin() };
    let mut refused = match Connection::open(world.operators(), Some(&foreign)).await {
        Ok(connection) => connection,
        Err(_) => return,
    };
    assert!(refused.get("/v1/status").await.is_err(), "a certificate of another authority opens nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_is_spoken_where_it_is_wished() {
    let world = World::start().await;
    let mut config = client_config(&world.admin());
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(world.operators()).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let uri = format!("https://localhost:{}/v1/status", world.operators().port());
    let request = http::Request::get(uri).body(http_body_util::Empty::<Bytes>::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::OK, http::Version::HTTP_2));
}
