//! An answer with events as NDJSON: coverage, events as they were signed, a last line.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use activity_store::Answer;
use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::combinators::UnsyncBoxBody;

use crate::wire::{Head, NDJSON, Summary, Tail};

/// Streams an answer without copying its events.
pub fn ndjson(answer: Answer) -> Response {
    let summary = Summary { complete: answer.coverage.complete, reasons: answer.coverage.reasons.clone() };
    let tail = Tail {
        next_cursor: answer.next_cursor,
        log_size: answer.log_size,
        events: answer.events.len() as u64,
        erased_lines: answer.erased_lines,
        damaged: answer.damaged,
        unreadable: answer.unreadable,
        coverage: summary,
    };
    let mut parts = VecDeque::with_capacity(answer.events.len() * 2 + 2);
    parts.push_back(line(&Head { coverage: answer.coverage }));
    for event in answer.events {
        parts.push_back(event.line);
        parts.push_back(Bytes::from_static(b"\n"));
    }
    parts.push_back(line(&tail));
    let mut response = Response::new(Body::new(UnsyncBoxBody::new(Parts(parts))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response
}

fn line(value: &impl serde::Serialize) -> Bytes {
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes.into()
}

struct Parts(VecDeque<Bytes>);

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}
