//! Streams cut at every byte, and the faults of a provider over a real connection.

use std::time::Instant;

use futures_util::stream;
use iteron_context::Conversation;
use iteron_testkit::scripted_model::{Script, ScriptedModel, Turn, sse_bytes};
use serde_json::json;

use super::*;
use crate::{ApiKey, ToolInput};

fn turn(text: &str) -> Turn {
    Script::from_json(&format!("[{text}]")).unwrap().turns.remove(0)
}

async fn read_chunks(chunks: Vec<Bytes>) -> (Result<Answer, ProviderError>, String) {
    let mut text = String::new();
    let mut observe = |progress: Progress<'_>| {
        if let Progress::Text { text: delta } = progress {
            text.push_str(delta);
        }
    };
    let answer = read(stream::iter(chunks.into_iter().map(Ok)), &Limits::default(), &mut observe).await;
    (answer, text)
}

#[tokio::test]
async fn an_answer_is_the_same_wherever_its_bytes_are_cut() {
    let bytes = Bytes::from(sse_bytes(&turn(
        r#"{"thinking": "hm — 日", "text": "naïve ☃ \"quoted\"\n\ndata: no event",
            "tool_use": [{"name": "shell", "input": {"command": "printf 'é\\n' | \"x\""}},
                         {"name": "shell", "input": {}}],
            "faults": {"unknown_event": true, "duplicate_usage": true}}"#,
    )));
    let (whole, text) = read_chunks(vec![bytes.clone()]).await;
    let whole = whole.unwrap();
    assert_eq!(text, "naïve ☃ \"quoted\"\n\ndata: no event");
    assert_eq!(whole.calls.len(), 2);
    assert_eq!(whole.calls[0].2, ToolInput::Valid(json!({"command": "printf 'é\\n' | \"x\""})));
    assert_eq!(whole.calls[1].2, ToolInput::Valid(json!({})));
    assert_eq!((whole.usage.input_tokens, whole.usage.output_tokens), (100, 20));
    assert_eq!((whole.usage.cache_read_tokens, whole.usage.cache_write_tokens), (5, 3));
    assert_eq!(whole.blocks.len(), 4, "the unknown block is left out: {:?}", whole.blocks);

    for at in 0..=bytes.len() {
        let (cut, cut_text) = read_chunks(vec![bytes.slice(..at), bytes.slice(at..)]).await;
        assert_eq!(cut.unwrap(), whole, "cut at {at}");
        assert_eq!(cut_text, text, "cut at {at}");
    }
    let single = (0..bytes.len()).map(|at| bytes.slice(at..=at)).collect();
    assert_eq!(read_chunks(single).await.0.unwrap(), whole);
    let crlf = String::from_utf8(bytes.to_vec()).unwrap().replace('\n', "\r\n");
    assert_eq!(read_chunks(vec![crlf.into()]).await.0.unwrap(), whole);
}

#[tokio::test]
async fn a_stream_that_ends_early_at_any_byte_is_no_answer() {
    let bytes =
        Bytes::from(sse_bytes(&turn(r#"{"text": "half", "tool_use": [{"name": "s", "input": {"a": 1}}]}"#)));
    // Whole but for the blank line that ends the last event.
    for at in 0..bytes.len() - 1 {
        let (answer, _) = read_chunks(vec![bytes.slice(..at)]).await;
        assert!(matches!(answer, Err(ProviderError::StreamCut)), "ended at {at}: {answer:?}");
    }
}

#[tokio::test]
async fn tool_input_that_is_no_object_is_marked_and_stands_as_an_empty_one() {
    for raw in ["{\\\"a\\\":", "[1]", "7"] {
        let script = format!(r#"{{"tool_use": [{{"name": "s", "input": {{}}, "raw_input": "{raw}"}}]}}"#);
        let answer = read_chunks(vec![sse_bytes(&turn(&script)).into()]).await.0.unwrap();
        assert!(matches!(answer.calls[0].2, ToolInput::Invalid(_)), "{raw}");
        assert!(
            matches!(&answer.blocks[0], iteron_context::Block::ToolUse { input, .. } if *input == json!({}))
        );
    }
}

#[tokio::test]
async fn events_out_of_order_are_refused() {
    for (stream, what) in [
        (r#"{"type":"message_stop"}"#, "before message_start"),
        (r#"{"type":"message_start","message":{}}§{"type":"message_stop"}"#, "without a stop_reason"),
        (r#"{"type":"message_start","message":{}}§{"type":"message_start","message":{}}"#, "second"),
        (
            r#"{"type":"message_start","message":{}}§{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}"#,
            "did not begin",
        ),
        (r#"{"type":"message_start"}"#, "documented JSON"),
    ] {
        let bytes: String = stream.split('§').map(|data| format!("data: {data}\n\n")).collect();
        let error = read_chunks(vec![bytes.into()]).await.0.unwrap_err();
        assert!(matches!(error, ProviderError::Protocol(text) if text.contains(what)), "{error}");
    }
}

/// Asks a server with `script`; gives the answer and what was observed, one word each.
async fn ask(script: &str, limits: Limits) -> (Result<Answer, ProviderError>, Vec<String>, ScriptedModel) {
    let listen = "127.0.0.1:0".parse().unwrap();
    let server = ScriptedModel::start(Script::from_json(script).unwrap(), listen).await.unwrap();
    let config = ProviderConfig::new(&server.base_url(), ApiKey::new("test-key").unwrap(), limits).unwrap();
    let (answer, seen) = ask_with(config).await;
    (answer, seen, server)
}

async fn ask_with(config: ProviderConfig) -> (Result<Answer, ProviderError>, Vec<String>) {
    let mut conversation = Conversation::new("system");
    conversation.push_user("hello").unwrap();
    let request = MessagesRequest::new("scripted", 1024, &[], &conversation);
    let mut seen = Vec::new();
    let provider = Provider::new(config).unwrap();
    let answer = provider
        .ask(&request, |progress| {
            seen.push(match progress {
                Progress::Attempt { attempt } => format!("attempt {attempt}"),
                Progress::Text { .. } => "text".to_owned(),
                Progress::Failed { class, retry_in, .. } => {
                    format!("{} {}", class.as_str(), if retry_in.is_some() { "retried" } else { "final" })
                }
            });
        })
        .await;
    seen.dedup();
    (answer, seen)
}

fn quick() -> Limits {
    Limits {
        idle_timeout: Duration::from_millis(300),
        backoff_first: Duration::from_millis(10),
        attempts_max: 3,
        ..Limits::default()
    }
}

#[tokio::test]
async fn a_rate_limit_is_waited_out() {
    let script =
        r#"[{"faults": {"status": 429, "retry_after": "0.2"}}, {"faults": {"status": 529}}, {"text": "ok"}]"#;
    let begun = Instant::now();
    let (answer, seen, server) = ask(script, quick()).await;
    assert_eq!(answer.unwrap().stop_reason, "end_turn");
    assert_eq!(
        seen,
        ["attempt 1", "rate_limited retried", "attempt 2", "overloaded retried", "attempt 3", "text"]
    );
    assert!(begun.elapsed() >= Duration::from_millis(200), "Retry-After was not obeyed");
    assert_eq!(server.seen().len(), 3);
    assert_eq!(server.seen()[0].api_key, "test-key");
    assert!(server.refused().is_empty(), "{:?}", server.refused());
}

#[tokio::test]
async fn attempts_are_bounded_and_faults_of_the_request_are_final() {
    let (answer, seen, _server) =
        ask(r#"{"turns": [{"faults": {"status": 500}}], "repeat": true}"#, quick()).await;
    assert!(matches!(answer, Err(ProviderError::Status { status: 500, .. })));
    assert_eq!(seen.iter().filter(|word| word.starts_with("attempt")).count(), 3);
    assert_eq!(seen.last().unwrap(), "server_error final");
    let (_, seen, _server) = ask(r#"[{"faults": {"status": 401}}]"#, quick()).await;
    assert_eq!(seen, ["attempt 1", "authentication final"]);
    let (_, seen, _server) = ask(r#"[{"faults": {"status": 429, "retry_after": "3600"}}]"#, quick()).await;
    assert_eq!(seen, ["attempt 1", "rate_limited final"]);
}

#[tokio::test]
async fn nothing_is_asked_again_once_an_answer_began() {
    for (faults, word) in [
        (r#"{"error_event": "overloaded_error", "error_at_event": 3}"#, "overloaded final"),
        (r#"{"cut_after_bytes": 600}"#, "stream_cut final"),
        (r#"{"end_after_events": 3}"#, "stream_cut final"),
        (r#"{"stall_ms": 5000, "stall_at_event": 3}"#, "idle_timeout final"),
    ] {
        let script =
            format!(r#"[{{"text": "some text that is streamed", "faults": {faults}}}, {{"text": "no"}}]"#);
        let begun = Instant::now();
        let (answer, seen, server) = ask(&script, quick()).await;
        assert!(answer.is_err(), "{faults}");
        assert_eq!(seen.last().unwrap(), word, "{faults}");
        assert_eq!(server.seen().len(), 1, "{faults}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{faults}: {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn silence_before_the_answer_is_retried() {
    let script = r#"[{"faults": {"stall_ms_before_headers": 5000}}, {"text": "ok"}]"#;
    let (answer, seen, _server) = ask(script, quick()).await;
    assert!(answer.is_ok());
    assert_eq!(seen, ["attempt 1", "timeout retried", "attempt 2", "text"]);
}

#[tokio::test]
async fn an_answer_without_usage_and_with_what_is_unknown_is_an_answer() {
    let script = r#"[{"text": "ok", "faults": {"no_usage": true, "unknown_event": true, "split_every": 3}}]"#;
    let (answer, _, _server) = ask(script, quick()).await;
    assert_eq!(answer.unwrap().usage, iteron_protocol::Usage::default());
}

#[tokio::test]
async fn an_answer_beyond_the_limit_is_given_up() {
    let script = format!(r#"[{{"text": "{}"}}]"#, "x".repeat(20_000));
    let limits = Limits { answer_bytes_max: 10_000, ..quick() };
    let (answer, seen, _server) = ask(&script, limits).await;
    assert!(matches!(answer, Err(ProviderError::TooLarge(10_000))), "{answer:?}");
    assert_eq!(seen.last().unwrap(), "too_large final");
}

#[tokio::test]
async fn nobody_listening_is_a_connect_error() {
    let config = ProviderConfig::new("http://127.0.0.1:1", ApiKey::new("k").unwrap(), quick()).unwrap();
    let (_, seen) = ask_with(config).await;
    assert_eq!(seen.last().unwrap(), "connect final");
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
            let answer = [head.as_bytes(), &sse_bytes(&turn(r#"{"text": "ok"}"#))].concat();
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
        }
    });
    let url = format!("https://localhost:{port}");
    let config = ProviderConfig::new(&url, ApiKey::new("k").unwrap(), quick()).unwrap();
    let mut conversation = Conversation::new("system");
    conversation.push_user("hello").unwrap();
    let request = MessagesRequest::new("scripted", 1024, &[], &conversation);
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
