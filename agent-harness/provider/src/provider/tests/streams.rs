//! Answers from bytes, however they come.

use proptest::prelude::*;

use super::*;

async fn read_chunks(api: Api, chunks: Vec<Bytes>) -> (Result<Answer, ProviderError>, String) {
    let mut text = String::new();
    let mut observe = |progress: Progress<'_>| {
        if let Progress::Text { text: delta } = progress {
            text.push_str(delta);
        }
    };
    let chunks = stream::iter(chunks.into_iter().map(Ok));
    let answer = read(api, chunks, &Limits::default(), &mut observe).await;
    (answer, text)
}

/// Split UTF-8, input split in the middle of its escapes, usage that comes twice, events nobody knows.
#[tokio::test]
async fn an_answer_is_the_same_wherever_its_bytes_are_cut() {
    for api in Api::ALL {
        let bytes = Bytes::from(sse_bytes(
            api,
            &turn(
                r#"{"thinking": "hm — 日", "text": "naïve ☃ \"quoted\"\n\ndata: no event",
                "tool_use": [{"name": "shell", "input": {"command": "printf 'é\\n' | \"x\""}},
                             {"name": "shell", "input": {}}],
                "faults": {"unknown_event": true, "duplicate_usage": true, "delta_bytes": 1}}"#,
            ),
        ));
        let (whole, text) = read_chunks(api, vec![bytes.clone()]).await;
        let whole = whole.unwrap();
        assert_eq!(text, "naïve ☃ \"quoted\"\n\ndata: no event", "{api:?}");
        let calls: Vec<_> =
            whole.calls.iter().map(|(_, name, input)| (name.as_str(), input.clone())).collect();
        let command = ToolInput::Valid(json!({"command": "printf 'é\\n' | \"x\""}));
        assert_eq!(calls, [("shell", command), ("shell", ToolInput::Valid(json!({})))], "{api:?}");
        assert_eq!(whole.stop_reason, "tool_use");
        // What is unknown is left out, and so is thinking that could not be sent back.
        let expected = if api == Api::Messages { 4 } else { 3 };
        assert_eq!(whole.blocks.len(), expected, "{api:?}: {:?}", whole.blocks);

        for at in 0..=bytes.len() {
            let (cut, cut_text) = read_chunks(api, vec![bytes.slice(..at), bytes.slice(at..)]).await;
            assert_eq!(cut.unwrap(), whole, "{api:?}, cut at {at}");
            assert_eq!(cut_text, text, "{api:?}, cut at {at}");
        }
        let single = (0..bytes.len()).map(|at| bytes.slice(at..=at)).collect();
        assert_eq!(read_chunks(api, single).await.0.unwrap(), whole);
        let crlf = String::from_utf8(bytes.to_vec()).unwrap().replace('\n', "\r\n");
        assert_eq!(read_chunks(api, vec![crlf.into()]).await.0.unwrap(), whole);
    }
}

/// Field case 46: the same work costs the same whichever way a provider counts. Its scripts say 100 tokens
/// of input besides 5 from the cache.
#[tokio::test]
async fn field_case_46_cached_tokens_are_counted_once_whichever_convention_is_used() {
    for (api, cache_write_tokens) in [(Api::Messages, 3), (Api::Responses, 0), (Api::Chat, 0)] {
        for faults in ["{}", r#"{"duplicate_usage": true}"#] {
            let bytes = sse_bytes(api, &turn(&format!(r#"{{"text": "ok", "faults": {faults}}}"#)));
            let usage = read_chunks(api, vec![bytes.into()]).await.0.unwrap().usage;
            let expected =
                Usage { input_tokens: 100, output_tokens: 20, cache_read_tokens: 5, cache_write_tokens };
            assert_eq!(usage, expected, "{api:?} {faults}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_ends_early_at_any_byte_is_no_answer() {
    for api in Api::ALL {
        let script = turn(r#"{"text": "half", "tool_use": [{"name": "s", "input": {"a": 1}}]}"#);
        let bytes = Bytes::from(sse_bytes(api, &script));
        // Whole but for the blank line that ends the last event.
        for at in 0..bytes.len() - 1 {
            let (answer, _) = read_chunks(api, vec![bytes.slice(..at)]).await;
            assert!(matches!(answer, Err(ProviderError::StreamCut)), "{api:?}, ended at {at}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn every_api_stops_in_the_same_words() {
    for api in Api::ALL {
        for (script, expected) in [
            (r#"{"text": "x"}"#, "end_turn"),
            (r#"{"tool_use": [{"name": "s", "input": {}}]}"#, "tool_use"),
            (r#"{"text": "x", "stop_reason": "max_tokens"}"#, "max_tokens"),
            (r#"{"text": "x", "stop_reason": "refusal"}"#, "refusal"),
        ] {
            let answer = read_chunks(api, vec![sse_bytes(api, &turn(script)).into()]).await.0.unwrap();
            assert_eq!(answer.stop_reason, expected, "{api:?} {script}");
        }
    }
}

#[tokio::test]
async fn tool_input_that_is_no_object_is_marked_and_stands_as_an_empty_one() {
    for api in Api::ALL {
        for raw in ["{\\\"a\\\":", "[1]", "7"] {
            let script = format!(r#"{{"tool_use": [{{"name": "s", "input": {{}}, "raw_input": "{raw}"}}]}}"#);
            let bytes = sse_bytes(api, &turn(&script));
            let answer = read_chunks(api, vec![bytes.into()]).await.0.unwrap();
            assert!(matches!(answer.calls[0].2, ToolInput::Invalid(_)), "{api:?} {raw}");
            assert!(matches!(&answer.blocks[0], Block::ToolUse { input, .. } if *input == json!({})));
        }
    }
}

#[tokio::test]
async fn events_out_of_order_are_refused() {
    let item =
        r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"message","content":[]}}"#;
    let twice = format!("{item}§{item}");
    for (api, stream, what) in [
        (Api::Messages, r#"{"type":"message_stop"}"#, "before message_start"),
        (
            Api::Messages,
            r#"{"type":"message_start","message":{}}§{"type":"message_stop"}"#,
            "without a stop_reason",
        ),
        (
            Api::Messages,
            r#"{"type":"message_start","message":{}}§{"type":"message_start","message":{}}"#,
            "second",
        ),
        (
            Api::Messages,
            r#"{"type":"message_start","message":{}}§{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}"#,
            "did not begin",
        ),
        (Api::Messages, r#"{"type":"message_start"}"#, "documented JSON"),
        (
            Api::Responses,
            r#"{"type":"response.output_item.added","output_index":0}§{"type":"response.completed","response":{}}"#,
            "not done",
        ),
        (Api::Responses, twice.as_str(), "done twice"),
        (Api::Responses, r#"{"type":"response.failed","response":{}}"#, "without an error"),
        (Api::Responses, "nonsense", "documented JSON"),
        (Api::Chat, "[DONE]", "without a finish_reason"),
        (
            Api::Chat,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"finish_reason":"tool_calls"}]}§[DONE]"#,
            "without an id",
        ),
        (Api::Chat, r#"{"choices":7}"#, "documented JSON"),
    ] {
        let bytes: String = stream.split('§').map(|data| format!("data: {data}\n\n")).collect();
        let error = read_chunks(api, vec![bytes.into()]).await.0.unwrap_err();
        assert!(matches!(error, ProviderError::Protocol(text) if text.contains(what)), "{stream}: {error}");
    }
}

/// A peer that sends one line without end costs no more than its bytes.
#[tokio::test]
async fn a_line_of_48_mib_in_small_pieces_is_read_in_the_time_that_its_bytes_take() {
    let piece = Bytes::from(vec![b'x'; 4096]);
    let mut chunks = vec![Bytes::from_static(b"data: ")];
    chunks.extend(std::iter::repeat_n(piece, 48 * 256));
    let begun = Instant::now();
    let (answer, _) = read_chunks(Api::Messages, chunks).await;
    assert!(matches!(answer, Err(ProviderError::StreamCut)), "{answer:?}");
    // Looked at anew with every piece, it would be 300 GB.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// A valid stream in which bytes are changed, taken out, put in or doubled, in pieces of any size.
fn damaged() -> impl Strategy<Value = (Api, Vec<Bytes>)> {
    let script = r#"{"thinking": "hm", "text": "naïve", "tool_use": [{"name": "s", "input": {"a": "é\\n"}}],
        "faults": {"unknown_event": true, "duplicate_usage": true}}"#;
    let edit = (any::<prop::sample::Index>(), 0_u8..4, any::<u8>());
    (0..Api::ALL.len(), prop::collection::vec(edit, 0..8), 1_usize..200).prop_map(
        move |(api, edits, size)| {
            let mut bytes = sse_bytes(Api::ALL[api], &turn(script));
            for (at, kind, byte) in edits {
                let at = at.index(bytes.len());
                match kind {
                    0 => bytes[at] = byte,
                    1 => drop(bytes.remove(at)),
                    2 => bytes.insert(at, byte),
                    _ => bytes.extend_from_within(at..),
                }
            }
            (Api::ALL[api], bytes.chunks(size).map(Bytes::copy_from_slice).collect())
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    /// Whatever a peer sends: an answer with an object for each call's input, or an error, and no panic.
    #[test]
    fn whatever_a_peer_sends_is_an_answer_or_an_error((api, chunks) in damaged()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        if let (Ok(answer), _) = runtime.block_on(read_chunks(api, chunks)) {
            for block in &answer.blocks {
                if let Block::ToolUse { input, .. } = block {
                    prop_assert!(input.is_object());
                }
            }
            let calls = answer.blocks.iter().filter(|block| matches!(block, Block::ToolUse { .. })).count();
            prop_assert_eq!(calls, answer.calls.len());
        }
    }
}
