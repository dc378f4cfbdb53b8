//! What providers and the ways to them do wrong.

use super::*;

/// The event after which some text was streamed.
const fn after_text(api: Api) -> usize {
    match api {
        Api::Messages => 3,
        Api::Responses => 5,
        Api::Chat => 2,
    }
}

#[tokio::test]
async fn a_rate_limit_is_waited_out() {
    let script =
        r#"[{"faults": {"status": 429, "retry_after": "0.2"}}, {"faults": {"status": 529}}, {"text": "ok"}]"#;
    for api in Api::ALL {
        let begun = Instant::now();
        let (answer, seen, server) = ask(api, script, quick()).await;
        assert_eq!(answer.unwrap().stop_reason, "end_turn");
        assert_eq!(
            seen,
            ["attempt 1", "rate_limited retried", "attempt 2", "overloaded retried", "attempt 3", "text"],
            "{api:?}"
        );
        assert!(begun.elapsed() >= Duration::from_millis(200), "Retry-After was not obeyed");
        assert_eq!(server.seen().len(), 3);
        assert_eq!(server.seen()[0].api_key, "test-key");
        assert!(server.refused().is_empty(), "{:?}", server.refused());
    }
}

#[tokio::test]
async fn attempts_are_bounded_and_faults_of_the_request_are_final() {
    for api in Api::ALL {
        let (answer, seen, _server) =
            ask(api, r#"{"turns": [{"faults": {"status": 500}}], "repeat": true}"#, quick()).await;
        assert!(matches!(answer, Err(ProviderError::Status { status: 500, .. })));
        assert_eq!(seen.iter().filter(|word| word.starts_with("attempt")).count(), 3);
        assert_eq!(seen.last().unwrap(), "server_error final");
        let (_, seen, _server) = ask(api, r#"[{"faults": {"status": 401}}]"#, quick()).await;
        assert_eq!(seen, ["attempt 1", "authentication final"]);
        let script = r#"[{"faults": {"status": 429, "retry_after": "3600"}}]"#;
        let (_, seen, _server) = ask(api, script, quick()).await;
        assert_eq!(seen, ["attempt 1", "rate_limited final"]);
    }
}

/// An error after partial text, a connection that is reset after a call, an end without its last word,
/// silence after the headers, after one byte, and in the middle.
#[tokio::test]
async fn nothing_is_asked_again_once_an_answer_began() {
    for api in Api::ALL {
        let at = after_text(api);
        for (faults, word) in [
            (json!({"error_event": "overloaded_error", "error_at_event": at}), "overloaded final"),
            (json!({"error_event": "rate_limit_exceeded", "error_at_event": at}), "rate_limited final"),
            (json!({"cut_after_bytes": 400}), "stream_cut final"),
            (json!({"end_after_events": at}), "stream_cut final"),
            (json!({"stall_ms": 5000, "stall_at_event": 0}), "idle_timeout final"),
            (json!({"stall_ms": 5000, "stall_at_event": 0, "stall_at_byte": 1}), "idle_timeout final"),
            (json!({"stall_ms": 5000, "stall_at_event": at}), "idle_timeout final"),
        ] {
            let script = json!([{"text": "some text that is streamed", "faults": faults}, {"text": "no"}]);
            let begun = Instant::now();
            let (answer, seen, server) = ask(api, &script.to_string(), quick()).await;
            assert!(answer.is_err(), "{api:?} {faults}");
            assert_eq!(seen.last().unwrap(), word, "{api:?} {faults}");
            assert_eq!(server.seen().len(), 1, "{api:?} {faults}");
            assert!(begun.elapsed() < Duration::from_secs(4), "{faults}: {:?}", begun.elapsed());
        }
    }
}

/// The call is whole, and the answer is not: it is not made.
#[tokio::test]
async fn a_connection_that_is_reset_after_a_call_gives_no_call() {
    for api in Api::ALL {
        let call = json!({"tool_use": [{"name": "s", "input": {"a": 1}}]});
        let whole = sse_bytes(api, &turn(&call.to_string()));
        let events = whole.windows(2).filter(|pair| *pair == b"\n\n").count();
        let mut call = call;
        // Before the event that ends the answer, and for Messages before the one that says why.
        call["faults"] = json!({"cut_after_events": events - if api == Api::Messages { 2 } else { 1 }});
        let (answer, seen, server) = ask(api, &json!([call, {"text": "no"}]).to_string(), quick()).await;
        assert!(matches!(answer, Err(ProviderError::StreamCut)), "{api:?}: {answer:?}");
        assert_eq!((seen.last().unwrap().as_str(), server.seen().len()), ("stream_cut final", 1));
    }
}

#[tokio::test]
async fn silence_before_the_answer_is_retried() {
    let script = r#"[{"faults": {"stall_ms_before_headers": 5000}}, {"text": "ok"}]"#;
    for api in Api::ALL {
        let (answer, seen, _server) = ask(api, script, quick()).await;
        assert!(answer.is_ok());
        assert_eq!(seen, ["attempt 1", "timeout retried", "attempt 2", "text"]);
    }
}

#[tokio::test]
async fn an_answer_without_usage_and_with_what_is_unknown_is_an_answer() {
    let script = r#"[{"text": "ok", "faults": {"no_usage": true, "unknown_event": true, "split_every": 3}}]"#;
    for api in Api::ALL {
        let (answer, _, _server) = ask(api, script, quick()).await;
        assert_eq!(answer.unwrap().usage, Usage::default(), "{api:?}");
    }
}

#[tokio::test]
async fn an_answer_beyond_the_limit_is_given_up() {
    let script = format!(r#"[{{"text": "{}"}}]"#, "x".repeat(20_000));
    let limits = Limits { answer_bytes_max: 10_000, ..quick() };
    for api in Api::ALL {
        let (answer, seen, _server) = ask(api, &script, limits).await;
        assert!(matches!(answer, Err(ProviderError::TooLarge(10_000))), "{answer:?}");
        assert_eq!(seen.last().unwrap(), "too_large final");
    }
}

#[tokio::test]
async fn nobody_listening_is_a_connect_error() {
    let (_, seen) = ask_with(config(Api::Messages, "http://127.0.0.1:1", quick())).await;
    assert_eq!(seen.last().unwrap(), "connect final");
}

/// A peer knows the key, and may say it: in a refusal, or in the stream.
#[tokio::test]
async fn a_key_that_a_peer_repeats_is_in_no_error() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let refusal = r#"{"error":{"message":"Incorrect API key provided: test-key.","type":null,"code":"invalid_api_key"}}"#;
    let event = r#"{"type":"error","code":"test-key","message":"of test-key"}"#;
    for (head, body) in [
        ("401 Unauthorized\r\ncontent-type: application/json", refusal.to_owned()),
        ("401 Unauthorized\r\ncontent-type: text/plain", "no test-key".to_owned()),
        ("200 OK\r\ncontent-type: text/event-stream", format!("data: {event}\n\n")),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 8192]).await;
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        let (answer, _) = ask_with(config(Api::Responses, &base, quick())).await;
        let error = answer.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("test-key"), "{error:?}");
        assert!(error.to_string().contains("(key)"), "{error}");
    }
}

#[tokio::test]
async fn tls_is_checked_against_the_roots() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = identity.cert.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(identity.signing_key.serialize_der()).unwrap();
    let crypto = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            let answer = [head.as_bytes(), &sse_bytes(Api::Messages, &turn(r#"{"text": "ok"}"#))].concat();
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
        }
    });
    let url = format!("https://localhost:{port}");
    let config = ProviderConfig::new(Api::Messages, &url, ApiKey::new("k").unwrap(), quick()).unwrap();
    let request = question(&Provider::new(config.clone()).unwrap());
    let with_roots = |roots| Provider {
        config: config.clone(),
        transport: Transport::with_roots(roots, Duration::from_secs(5)).unwrap(),
    };
    let mut roots = rustls::RootCertStore::empty();
    let refused = with_roots(roots.clone()).ask(&request, |_| {}).await;
    assert!(matches!(refused, Err(ProviderError::Transport(_))), "{refused:?}");
    roots.add(certificate).unwrap();
    assert!(with_roots(roots).ask(&request, |_| {}).await.is_ok());
}
