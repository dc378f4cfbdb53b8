//! A collector's agent socket that records what arrives, in order, and can be slow or refuse.
//!
//! It holds the payload allowlists on its own, so that a key that is not on them fails a test.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// How the collector behaves.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    pub scope_delay: Duration,
    pub event_delay: Duration,
    /// Refuse this many event requests with 429 first.
    pub refuse_events: u32,
    /// Close the connection after every answer.
    pub close_after_answer: bool,
}

/// One thing that arrived.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub at: Instant,
    pub what: What,
}

#[derive(Debug, Clone)]
pub enum What {
    Event(Value),
    /// A scope request; for `open`, the name of its process at that moment (proc_pid_comm(5)).
    Scope {
        body: Value,
        process_name: Option<String>,
        peer_pid: Option<i32>,
    },
}

#[derive(Debug, Default)]
struct State {
    arrivals: Vec<Arrival>,
    faults: Vec<String>,
    scopes: u32,
    refused: u32,
}

#[derive(Debug)]
pub struct FakeCollector {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl FakeCollector {
    /// Listens on `path`, which must not exist.
    pub fn start(path: &Path, behaviour: Behaviour) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let state = Arc::new(Mutex::new(State::default()));
        let task = tokio::spawn(accept(listener, Arc::new(behaviour), Arc::clone(&state)));
        Ok(Self { path: path.to_owned(), state, task })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        lock(&self.state).arrivals.clone()
    }

    /// The events that arrived, in order.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        let event = |arrival: Arrival| match arrival.what {
            What::Event(event) => Some(event),
            What::Scope { .. } => None,
        };
        self.arrivals().into_iter().filter_map(event).collect()
    }

    /// The names of the events that arrived, in order.
    #[must_use]
    pub fn event_names(&self) -> Vec<String> {
        let name = |event: Value| event["event_name"].as_str().unwrap_or_default().to_owned();
        self.events().into_iter().map(name).collect()
    }

    /// What broke the protocol.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        lock(&self.state).faults.clone()
    }
}

impl Drop for FakeCollector {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, behaviour: Arc<Behaviour>, state: Arc<Mutex<State>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let peer_pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let (behaviour, state) = (Arc::clone(&behaviour), Arc::clone(&state));
        let service = service_fn(move |request| {
            let (behaviour, state) = (Arc::clone(&behaviour), Arc::clone(&state));
            async move { Ok::<_, Infallible>(answer(request, &behaviour, &state, peer_pid).await) }
        });
        connections.spawn(async move {
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    request: Request<Incoming>,
    behaviour: &Behaviour,
    state: &Mutex<State>,
    peer_pid: Option<i32>,
) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let mut response = match (parts.method.as_str(), parts.uri.path()) {
        ("POST", "/v1/events") => {
            let response = take_events(&body, behaviour, state);
            tokio::time::sleep(behaviour.event_delay).await;
            response
        }
        ("POST", "/v1/scopes") => {
            let response = take_scope(&body, state, peer_pid);
            tokio::time::sleep(behaviour.scope_delay).await;
            response
        }
        _ => reply(StatusCode::NOT_FOUND, &json!({"error": "no such path"})),
    };
    if behaviour.close_after_answer {
        let close = http::HeaderValue::from_static("close");
        response.headers_mut().insert(http::header::CONNECTION, close);
    }
    response
}

fn take_events(body: &[u8], behaviour: &Behaviour, state: &Mutex<State>) -> Response<Full<Bytes>> {
    let at = Instant::now();
    let mut state = lock(state);
    if state.refused < behaviour.refuse_events {
        state.refused += 1;
        let mut response = reply(StatusCode::TOO_MANY_REQUESTS, &json!({"error": "slow down"}));
        response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("0"));
        return response;
    }
    let mut accepted = Vec::new();
    let mut rejected = Vec::new();
    for (index, line) in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate() {
        match serde_json::from_slice::<Value>(line).map_err(|error| error.to_string()).and_then(checked) {
            Ok(event) => {
                state.arrivals.push(Arrival { at, what: What::Event(event) });
                accepted.push(json!({"event_id": format!("event-{}", state.arrivals.len())}));
            }
            Err(reason) => {
                state.faults.push(reason.clone());
                rejected.push(json!({"index": index, "reason": reason}));
            }
        }
    }
    reply(StatusCode::OK, &json!({"accepted": accepted, "rejected": rejected}))
}

fn checked(event: Value) -> Result<Value, String> {
    let name = event["event_name"].as_str().unwrap_or_default();
    let allowed = allowed_keys(name).ok_or_else(|| format!("unknown event {name}"))?;
    for key in event["payload"].as_object().into_iter().flatten().map(|(key, _)| key) {
        if !allowed.contains(&key.as_str()) {
            return Err(format!("payload key {key} is not allowed in {name}"));
        }
    }
    for key in event.as_object().into_iter().flatten().map(|(key, _)| key.as_str()) {
        if !["event_name", "correlation", "outcome", "actor", "target", "payload"].contains(&key) {
            return Err(format!("unknown key {key}"));
        }
    }
    let status = event["outcome"]["status"].as_str();
    if status.is_some_and(|status| !["started", "success", "failure", "denied", "unknown"].contains(&status))
    {
        return Err(format!("unknown outcome in {name}"));
    }
    for key in ["agent_id", "session_id"] {
        if event["correlation"][key].as_str().is_none_or(str::is_empty) {
            return Err(format!("{name} has no {key}"));
        }
    }
    Ok(event)
}

fn allowed_keys(name: &str) -> Option<&'static [&'static str]> {
    match name {
        "session.started" | "session.ended" => {
            Some(&["backend", "profile", "client", "client_version", "reason"])
        }
        "agent.tool.invoked"
        | "agent.tool.completed"
        | "agent.tool.failed"
        | "agent.tool.denied"
        | "agent.tool.cancelled" => Some(&[
            "tool_name",
            "tool_class",
            "input_bytes",
            "output_bytes",
            "duration_ms",
            "exit_code",
            "claim",
            "decision",
            "join",
        ]),
        "agent.model.requested" | "agent.model.completed" | "agent.model.failed" => Some(&[
            "provider",
            "model",
            "input_tokens",
            "output_tokens",
            "cache_read_tokens",
            "cache_write_tokens",
            "duration_ms",
            "attempt",
            "error_class",
        ]),
        _ => None,
    }
}

fn take_scope(body: &[u8], state: &Mutex<State>, peer_pid: Option<i32>) -> Response<Full<Bytes>> {
    let at = Instant::now();
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        lock(state).faults.push("a scope request is not JSON".into());
        return reply(StatusCode::BAD_REQUEST, &json!({"error": "not JSON"}));
    };
    let process_name =
        body["pid"].as_u64().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    let mut state = lock(state);
    let answer = match body["op"].as_str() {
        Some("open") => {
            state.scopes += 1;
            let process = format!("process-{}", body["pid"]);
            json!({"scope_id": format!("scope-{}", state.scopes), "join": "registered", "process_id": process})
        }
        Some("close") => json!({}),
        _ => {
            state.faults.push(format!("unknown scope request {body}"));
            return reply(StatusCode::BAD_REQUEST, &json!({"error": "unknown op"}));
        }
    };
    state.arrivals.push(Arrival { at, what: What::Scope { body, process_name, peer_pid } });
    reply(StatusCode::OK, &answer)
}

fn reply(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
