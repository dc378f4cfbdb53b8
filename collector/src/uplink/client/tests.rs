use std::convert::Infallible;

use http::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixListener;
use tokio::time::Instant;

use super::*;

/// A connection to a gateway that answers a path with a status and a body, or never.
pub(in crate::uplink) async fn gateway_that_answers(
    answer: impl Fn(&str) -> Option<(u16, Bytes)> + Send + 'static,
) -> Client {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.uri().path());
        async move {
            let Some((status, body)) = answer else { return std::future::pending().await };
            let response = Response::builder().status(status).body(Full::new(body)).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    tokio::spawn(server.serve_connection(TokioIo::new(theirs), service));
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.unwrap();
    tokio::spawn(connection);
    Client { sender }
}

/// TLS of a client, and of the server that it trusts.
fn tls() -> (Arc<rustls::ClientConfig>, Arc<rustls::ServerConfig>) {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(own.cert.der().clone()).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .unwrap();
    (Arc::new(client), Arc::new(server))
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_waited_for_10_s_and_an_answer_30_s() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gateway.sock");
    let _silent = UnixListener::bind(&path).unwrap();
    let endpoint = Endpoint::parse(&format!("unix:{}", path.display()), None).unwrap();
    let start = Instant::now();
    assert!(matches!(Client::connect(&endpoint, tls().0).await, Err(ClientError::Timeout)));
    assert_eq!(start.elapsed().as_millis() / 100, 100);

    let gateway = gateway_that_answers(|_| None).await;
    let start = Instant::now();
    assert!(matches!(gateway.streams().await, Err(ClientError::Timeout)));
    assert_eq!(start.elapsed().as_millis() / 100, 300);
}

#[tokio::test]
async fn an_answer_of_more_than_4_mib_is_not_read() {
    for (bytes, is_read) in [(4_194_304, true), (4_194_305, false)] {
        let mut answer = br#"{"streams":[]}"#.to_vec();
        answer.resize(bytes, b' ');
        let answer = Bytes::from(answer);
        let gateway = gateway_that_answers(move |_| Some((200, answer.clone()))).await;
        match gateway.streams().await {
            Ok(_) => assert!(is_read, "{bytes}"),
            Err(ClientError::Body) => assert!(!is_read, "{bytes}"),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A frame of HTTP/2: 24 bits length, type, flags, stream (RFC 9113, 4.1).
#[tokio::test(start_paused = true)]
async fn a_silent_gateway_is_pinged_after_15_s() {
    const PREFACE_BYTES: usize = 24;
    const PING: u8 = 6;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gateway.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (client, server) = tls();
    let pinged = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tokio_rustls::TlsAcceptor::from(server).accept(stream).await.unwrap();
        let start = Instant::now();
        stream.read_exact(&mut [0; PREFACE_BYTES]).await.unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            if head[3] == PING {
                return start.elapsed();
            }
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            stream.read_exact(&mut vec![0; length]).await.unwrap();
        }
    });
    let endpoint = Endpoint::parse(&format!("unix:{}", path.display()), None).unwrap();
    let _client = Client::connect(&endpoint, client).await.unwrap();
    assert_eq!(pinged.await.unwrap().as_millis() / 100, 150);
}

#[test]
fn a_gateway_url_is_https_or_a_unix_socket_and_holds_no_credential() {
    let parsed = |url| Endpoint::parse(url, None);
    assert!(parsed("https://gateway.example:7443").is_ok() && parsed("unix:/run/gateway.sock").is_ok());
    for url in ["https://me:hunter2@gateway.example:7443", "https://me@gateway.example:7443"] {
        let error = parsed(url).unwrap_err().to_string();
        assert!(!error.contains("me@") && !error.contains("hunter2"), "{error}");
    }
    for url in
        ["http://gateway.example:7443", "https://gateway.example", "https://gateway.example:1/x", "unix:"]
    {
        assert!(matches!(parsed(url), Err(ClientError::Url(_))), "{url}");
    }
}
