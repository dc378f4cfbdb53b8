//! A turn as the API streams it, with its faults.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Body;
use super::script::Turn;

/// Bytes of a tool's input in one `input_json_delta`: small, so that escapes are split.
const INPUT_DELTA_BYTES: usize = 11;
const TEXT_DELTA_CHARS: usize = 8;

/// The streaming answer to a request.
pub(crate) fn respond(turn: &Turn, number: usize, model: &str) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(1);
    let plan = plan(turn, &frames(turn, number, model));
    tokio::spawn(async move {
        for step in plan {
            let frame = match step {
                Step::Pause(duration) => {
                    tokio::time::sleep(duration).await;
                    continue;
                }
                Step::Send(bytes) => Ok(Frame::data(bytes)),
                Step::Cut => Err(io::Error::new(io::ErrorKind::ConnectionReset, "as scripted")),
            };
            if sender.send(frame).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(StreamBody::new(Receiver(receiver)).boxed());
    let kind = http::HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// The turn's events in order, each as the bytes of one SSE message; the last may be an error.
#[must_use]
pub fn frames(turn: &Turn, number: usize, model: &str) -> Vec<Vec<u8>> {
    let mut events = events(turn, number, model);
    if let Some(kind) = &turn.faults.error_event {
        events.truncate(turn.faults.error_at_event);
        events.push(json!({"type": "error", "error": {"type": kind, "message": "as scripted"}}));
    }
    if let Some(count) = turn.faults.end_after_events {
        events.truncate(count);
    }
    events.iter().map(frame).collect()
}

/// The whole stream of a turn without time faults.
#[must_use]
pub fn sse_bytes(turn: &Turn) -> Vec<u8> {
    frames(turn, 1, "scripted").concat()
}

/// The answer to a request that does not stream.
pub(crate) fn message(turn: &Turn, number: usize, model: &str) -> Value {
    let mut content = Vec::new();
    if let Some(text) = &turn.text {
        content.push(json!({"type": "text", "text": text}));
    }
    for (id, call) in turn.calls(number) {
        content.push(json!({"type": "tool_use", "id": id, "name": call.name, "input": call.input}));
    }
    json!({
        "id": format!("msg_scripted_{number}"), "type": "message", "role": "assistant", "model": model,
        "content": content, "stop_reason": turn.stop_reason(), "stop_sequence": null,
        "usage": usage(turn, turn.output_tokens.unwrap_or(20)),
    })
}

fn usage(turn: &Turn, output_tokens: u64) -> Value {
    json!({
        "input_tokens": turn.input_tokens.unwrap_or(100), "output_tokens": output_tokens,
        "cache_creation_input_tokens": 3, "cache_read_input_tokens": 5,
    })
}

fn events(turn: &Turn, number: usize, model: &str) -> Vec<Value> {
    let mut start = json!({
        "id": format!("msg_scripted_{number}"), "type": "message", "role": "assistant", "model": model,
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage(turn, 1),
    });
    if turn.faults.no_usage {
        start["usage"] = Value::Null;
    }
    let mut events = vec![json!({"type": "message_start", "message": start})];
    let mut index = 0;
    if let Some(thinking) = &turn.thinking {
        let deltas = vec![
            json!({"type": "thinking_delta", "thinking": thinking}),
            json!({"type": "signature_delta", "signature": "c2NyaXB0ZWQ="}),
        ];
        let start = json!({"type": "thinking", "thinking": "", "signature": ""});
        block(&mut events, &mut index, &start, deltas);
    }
    if let Some(text) = &turn.text {
        let letters: Vec<char> = text.chars().collect();
        let deltas = letters
            .chunks(TEXT_DELTA_CHARS)
            .map(|chunk| json!({"type": "text_delta", "text": chunk.iter().collect::<String>()}));
        block(&mut events, &mut index, &json!({"type": "text", "text": ""}), deltas.collect());
    }
    if turn.faults.unknown_event {
        events.push(json!({"type": "ping"}));
        events.push(json!({"type": "future_event", "index": 99, "payload": {"deep": [1]}}));
        let delta = vec![json!({"type": "future_delta", "value": 1})];
        block(&mut events, &mut index, &json!({"type": "future_block", "x": 1}), delta);
    }
    for (id, call) in turn.calls(number) {
        let input = call.raw_input.clone().unwrap_or_else(|| call.input.to_string());
        let start = json!({"type": "tool_use", "id": id, "name": call.name, "input": {}});
        let deltas = pieces(&input)
            .into_iter()
            .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        block(&mut events, &mut index, &start, deltas.collect());
    }
    let mut last = json!({
        "type": "message_delta",
        "delta": {"stop_reason": turn.stop_reason(), "stop_sequence": null},
    });
    if !turn.faults.no_usage {
        last["usage"] = json!({"output_tokens": turn.output_tokens.unwrap_or(20)});
    }
    if turn.faults.duplicate_usage {
        events.push(last.clone());
    }
    events.push(last);
    events.push(json!({"type": "message_stop"}));
    events
}

fn block(events: &mut Vec<Value>, index: &mut u32, start: &Value, deltas: Vec<Value>) {
    events.push(json!({"type": "content_block_start", "index": *index, "content_block": start}));
    for delta in deltas {
        events.push(json!({"type": "content_block_delta", "index": *index, "delta": delta}));
    }
    events.push(json!({"type": "content_block_stop", "index": *index}));
    *index += 1;
}

/// The text in pieces of about [`INPUT_DELTA_BYTES`], cut between characters.
fn pieces(text: &str) -> Vec<&str> {
    let mut rest = text;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let at = (INPUT_DELTA_BYTES..rest.len()).find(|at| rest.is_char_boundary(*at));
        let (piece, after) = rest.split_at(at.unwrap_or(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

fn frame(event: &Value) -> Vec<u8> {
    let name = event["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {event}\n\n").into_bytes()
}

enum Step {
    Send(Bytes),
    Pause(Duration),
    Cut,
}

fn plan(turn: &Turn, frames: &[Vec<u8>]) -> Vec<Step> {
    let faults = &turn.faults;
    let stall_offset = faults.stall_ms.map(|ms| {
        let before = frames.iter().take(faults.stall_at_event).map(Vec::len).sum::<usize>();
        (before, Duration::from_millis(ms))
    });
    let all = frames.concat();
    let end = faults.cut_after_bytes.unwrap_or(all.len()).min(all.len());
    let every = faults.split_every.unwrap_or(usize::MAX).max(1);
    let mut steps = Vec::new();
    let mut chunk_start = 0;
    for at in 0..end {
        let stall = stall_offset.filter(|(offset, _)| *offset == at);
        let split = stall.is_some() || faults.split_at.contains(&at) || at - chunk_start >= every;
        if split && at > chunk_start {
            steps.push(Step::Send(Bytes::copy_from_slice(&all[chunk_start..at])));
            chunk_start = at;
        }
        if let Some((_, duration)) = stall {
            steps.push(Step::Pause(duration));
        }
    }
    steps.push(Step::Send(Bytes::copy_from_slice(&all[chunk_start..end])));
    if faults.cut_after_bytes.is_some() {
        // Lets the bytes before the cut reach the peer.
        steps.push(Step::Pause(Duration::from_millis(20)));
        steps.push(Step::Cut);
    }
    steps
}

/// A channel as a stream.
struct Receiver<T>(mpsc::Receiver<T>);

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}
