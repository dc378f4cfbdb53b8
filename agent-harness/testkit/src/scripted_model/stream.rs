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

use super::script::Turn;
use super::{Body, ScriptedApi};

mod chat;
mod messages;
mod responses;

/// Bytes of a tool's input in one `input_json_delta`: small, so that escapes are split.
const INPUT_DELTA_BYTES: usize = 11;
const TEXT_DELTA_CHARS: usize = 8;

/// The streaming answer to a request.
pub(crate) fn respond(api: ScriptedApi, turn: &Turn, number: usize, model: &str) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(1);
    let plan = plan(turn, &frames(api, turn, number, model));
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
pub fn frames(api: ScriptedApi, turn: &Turn, number: usize, model: &str) -> Vec<Vec<u8>> {
    let mut events = match api {
        ScriptedApi::Messages => messages::events(turn, number, model),
        ScriptedApi::Responses => responses::events(turn, number, model),
        ScriptedApi::Chat => chat::events(turn, number, model),
    };
    if let Some(kind) = &turn.faults.error_event {
        events.truncate(turn.faults.error_at_event);
        events.push(match api {
            ScriptedApi::Messages => {
                json!({"type": "error", "error": {"type": kind, "message": "as scripted"}})
            }
            ScriptedApi::Responses => {
                json!({"type": "response.failed", "response": {"error": {"code": kind, "message": "as scripted"}}})
            }
            ScriptedApi::Chat => json!({"error": {"code": kind, "message": "as scripted"}}),
        });
    }
    if let Some(count) = turn.faults.end_after_events {
        events.truncate(count);
    }
    events.iter().map(|event| frame(api, event)).collect()
}

/// The whole stream of a turn without time faults.
#[must_use]
pub fn sse_bytes(api: ScriptedApi, turn: &Turn) -> Vec<u8> {
    frames(api, turn, 1, "scripted").concat()
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
        "usage": messages::usage(turn, turn.output_tokens.unwrap_or(20)),
    })
}

/// The text in pieces of about `bytes`, or [`INPUT_DELTA_BYTES`], cut between characters.
fn pieces(text: &str, bytes: Option<usize>) -> Vec<&str> {
    let bytes = bytes.unwrap_or(INPUT_DELTA_BYTES).max(1);
    let mut rest = text;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let at = (bytes..rest.len()).find(|at| rest.is_char_boundary(*at));
        let (piece, after) = rest.split_at(at.unwrap_or(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// The last word of chat completions is no JSON: it stands as a string here.
fn frame(api: ScriptedApi, event: &Value) -> Vec<u8> {
    match (api, event) {
        (ScriptedApi::Chat, Value::String(word)) => format!("data: {word}\n\n").into_bytes(),
        (ScriptedApi::Chat, _) => format!("data: {event}\n\n").into_bytes(),
        _ => {
            let name = event["type"].as_str().unwrap_or_default();
            format!("event: {name}\ndata: {event}\n\n").into_bytes()
        }
    }
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
        (before + faults.stall_at_byte, Duration::from_millis(ms))
    });
    let all = frames.concat();
    let of_events = |count: usize| frames.iter().take(count).map(Vec::len).sum::<usize>();
    let cut = faults.cut_after_bytes.or(faults.cut_after_events.map(of_events));
    let end = cut.unwrap_or(all.len()).min(all.len());
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
    if cut.is_some() {
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
