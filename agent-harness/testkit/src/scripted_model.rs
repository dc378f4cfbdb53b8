//! A server that speaks the Anthropic Messages API, OpenAI Responses and chat completions, and answers
//! from a script.
//!
//! Each request takes the script's next turn, faults included. Requests that the real API would
//! refuse are answered as it would, and take no turn.

mod script;
mod stream;
mod validate;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use script::{Faults, Script, ScriptError, ToolUse, Turn};
pub use stream::{frames, sse_bytes};

/// Largest request taken, as the real API's limit.
const REQUEST_BYTES_MAX: usize = 32 * 1024 * 1024;

pub(crate) type Body = BoxBody<Bytes, io::Error>;

/// The APIs that are spoken, by their paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptedApi {
    /// `/v1/messages`
    Messages,
    /// `/v1/responses`
    Responses,
    /// `/v1/chat/completions`
    Chat,
}

impl ScriptedApi {
    fn of_path(path: &str) -> Option<Self> {
        match path {
            "/v1/messages" => Some(Self::Messages),
            "/v1/responses" => Some(Self::Responses),
            "/v1/chat/completions" => Some(Self::Chat),
            _ => None,
        }
    }
}

/// A request that was valid, as the server saw it.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    pub body: Value,
    pub api_key: String,
}

#[derive(Debug, Default)]
struct State {
    next_turn: usize,
    seen: Vec<SeenRequest>,
    refused: Vec<String>,
}

/// A running server. Dropping it stops accepting and ends its connections.
#[derive(Debug)]
pub struct ScriptedModel {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl ScriptedModel {
    /// Serves `script` on `listen`; port 0 takes a free one.
    pub async fn start(script: Script, listen: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let task = tokio::spawn(accept(listener, Arc::new(script), Arc::clone(&state)));
        Ok(Self { address, state, task })
    }

    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Valid requests, in order of arrival.
    #[must_use]
    pub fn seen(&self) -> Vec<SeenRequest> {
        lock(&self.state).seen.clone()
    }

    /// Why requests were refused as invalid.
    #[must_use]
    pub fn refused(&self) -> Vec<String> {
        lock(&self.state).refused.clone()
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, script: Arc<Script>, state: Arc<Mutex<State>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        // Chunk boundaries are part of the script.
        let _ = stream.set_nodelay(true);
        let (script, state) = (Arc::clone(&script), Arc::clone(&state));
        let service = service_fn(move |request| {
            let (script, state) = (Arc::clone(&script), Arc::clone(&state));
            async move { Ok::<_, Infallible>(answer(request, &script, &state).await) }
        });
        connections.spawn(async move {
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A cut stream is an error here by intention.
            let _ = connection.await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: Request<Incoming>, script: &Script, state: &Mutex<State>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Some(api) = ScriptedApi::of_path(parts.uri.path()) else {
        return refusal(StatusCode::NOT_FOUND, "not_found_error", "no such path");
    };
    if parts.method != Method::POST {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "use POST");
    }
    let Ok(body) = Limited::new(body, REQUEST_BYTES_MAX).collect().await else {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", "request exceeds 32 MB");
    };
    let body = match validate::check(api, &parts.headers, &body.to_bytes()) {
        Ok(body) => body,
        Err(fault) => {
            lock(state).refused.push(fault.message.clone());
            return refusal(fault.status, fault.kind, &fault.message);
        }
    };
    let number = {
        let mut state = lock(state);
        state.seen.push(SeenRequest { body: body.clone(), api_key: validate::api_key(&parts.headers) });
        state.next_turn += 1;
        state.next_turn
    };
    let Some(turn) = script.turn(number) else {
        let message = format!("the script has no turn {number}");
        lock(state).refused.push(message.clone());
        return refusal(StatusCode::BAD_REQUEST, "invalid_request_error", &message);
    };
    if let Some(ms) = turn.faults.stall_ms_before_headers {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    if let Some(status) = turn.faults.status {
        return scripted_status(status, &turn.faults);
    }
    let model = body["model"].as_str().unwrap_or_default();
    if body["stream"] == json!(true) || api != ScriptedApi::Messages {
        stream::respond(api, turn, number, model)
    } else {
        json_response(StatusCode::OK, &stream::message(turn, number, model))
    }
}

fn scripted_status(status: u16, faults: &Faults) -> Response<Body> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = match status.as_u16() {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let mut response = refusal(status, kind, "as scripted");
    if let Some(value) = faults.retry_after.as_deref().and_then(|value| value.parse().ok()) {
        response.headers_mut().insert(http::header::RETRY_AFTER, value);
    }
    response
}

fn refusal(status: StatusCode, kind: &str, message: &str) -> Response<Body> {
    json_response(status, &json!({"type": "error", "error": {"type": kind, "message": message}}))
}

fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    let body = http_body_util::Full::new(Bytes::from(body.to_string()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
