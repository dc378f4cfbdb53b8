//! What the runtime holds: emit, open, close, and leave.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use iteron_protocol::{Join, TelemetryCounts, ToolCallId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use crate::connection::{Connection, PostError};
use crate::event::{Correlation, Event};
use crate::events_lane::{self, Counts, QUEUE_EVENTS_MAX, Queued};
use crate::scopes_lane::{self, QUEUE_REQUESTS_MAX, ScopeKind, ScopeRequest};

/// Longest wait at the end for what is still queued.
const SHUTDOWN_WAIT: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
#[error("the collector at {path} cannot be reached: {reason}")]
pub struct ConnectError {
    path: PathBuf,
    reason: String,
}

#[derive(Debug, Clone)]
pub struct LifecycleConfig {
    pub socket: PathBuf,
    /// What every event carries.
    pub correlation: Correlation,
}

/// A scope that was asked for, whether or not an answer came in time.
#[derive(Debug, Clone, Copy)]
pub struct ScopeHandle {
    number: u64,
    pub join: Join,
}

/// The connection to the collector. Its methods wait for nothing unless they are given a deadline.
#[derive(Debug)]
pub struct Lifecycle {
    correlation: Correlation,
    /// Nothing any more once it was shut down.
    lanes: RwLock<Option<Lanes>>,
    counts: Arc<Counts>,
    next_scope: AtomicU64,
}

#[derive(Debug)]
struct Lanes {
    events: mpsc::Sender<Queued>,
    scopes: mpsc::Sender<ScopeRequest>,
    tasks: [JoinHandle<()>; 2],
}

impl Lifecycle {
    /// Connects both lanes, so that an absent collector is noticed at once.
    pub async fn connect(config: LifecycleConfig) -> Result<Self, ConnectError> {
        let LifecycleConfig { socket, correlation } = config;
        let failed = |error: PostError| {
            let reason = match &error {
                PostError::NotSent(source) => source.to_string(),
                other => other.to_string(),
            };
            ConnectError { path: socket.clone(), reason }
        };
        let mut for_events = Connection::new(socket.clone());
        let mut for_scopes = Connection::new(socket.clone());
        for_events.open().await.map_err(failed)?;
        for_scopes.open().await.map_err(failed)?;
        let (events, queued_events) = mpsc::channel(QUEUE_EVENTS_MAX);
        let (scopes, queued_scopes) = mpsc::channel(QUEUE_REQUESTS_MAX);
        let counts = Arc::new(Counts::default());
        let (session_id, agent_id) = (correlation.session_id.clone(), correlation.agent_id.clone());
        let tasks = [
            tokio::spawn(events_lane::run(for_events, queued_events, Arc::clone(&counts))),
            tokio::spawn(scopes_lane::run(for_scopes, queued_scopes, session_id, agent_id)),
        ];
        let lanes = RwLock::new(Some(Lanes { events, scopes, tasks }));
        Ok(Self { correlation, lanes, counts, next_scope: AtomicU64::new(1) })
    }

    /// Queues an event, or counts it as dropped.
    pub fn emit(&self, event: &Event) {
        self.enqueue(event, None);
    }

    /// Queues an event and waits until it and all before it were dealt with, at most to `deadline`.
    pub async fn emit_and_wait(&self, event: &Event, deadline: Instant) {
        let (done, delivered) = oneshot::channel();
        if self.enqueue(event, Some(done)) {
            let _ = timeout_at(deadline.into(), delivered).await;
        }
    }

    /// Asks for a scope over the process `pid` and waits for the answer, at most to `deadline`.
    /// An answer that comes later is not lost: closing the handle closes that scope too.
    pub async fn open_scope(
        &self,
        kind: ScopeKind,
        tool_call_id: Option<ToolCallId>,
        pid: u32,
        parent: Option<ScopeHandle>,
        deadline: Instant,
    ) -> ScopeHandle {
        let number = self.next_scope.fetch_add(1, Ordering::Relaxed);
        let (done, opened) = oneshot::channel();
        let parent = parent.map(|parent| parent.number);
        let request = ScopeRequest::Open { number, kind, tool_call_id, pid, parent, done };
        let mut join = Join::Inferred;
        if self.request_scope(request)
            && let Ok(Ok(answer)) = timeout_at(deadline.into(), opened).await
        {
            join = answer;
        }
        ScopeHandle { number, join }
    }

    /// Closes a scope in the background.
    pub fn close_scope(&self, scope: ScopeHandle) {
        if !self.request_scope(ScopeRequest::Close { number: scope.number }) {
            tracing::warn!("a scope could not be closed: the queue is full");
        }
    }

    /// Delivers what is queued, within a bound, and says what became of all events.
    /// What is told afterwards is dropped, and counted.
    pub async fn shutdown(&self) -> TelemetryCounts {
        let lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner).take();
        let tasks = lanes.into_iter().flat_map(|Lanes { tasks, .. }| tasks);
        let deadline = tokio::time::Instant::now() + SHUTDOWN_WAIT;
        for mut task in tasks {
            if timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
            }
        }
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        let (accepted, rejected) = (load(&counts.accepted), load(&counts.rejected));
        let unconfirmed = load(&counts.unconfirmed);
        let told = accepted + rejected + unconfirmed;
        TelemetryCounts {
            accepted,
            rejected,
            unconfirmed,
            dropped: load(&counts.emitted).saturating_sub(told),
        }
    }

    fn request_scope(&self, request: ScopeRequest) -> bool {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        lanes.as_ref().is_some_and(|lanes| lanes.scopes.try_send(request).is_ok())
    }

    fn enqueue(&self, event: &Event, done: Option<oneshot::Sender<()>>) -> bool {
        self.counts.emitted.fetch_add(1, Ordering::Relaxed);
        match event.encode(&self.correlation) {
            Ok(line) => {
                let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
                lanes.as_ref().is_some_and(|lanes| lanes.events.try_send(Queued { line, done }).is_ok())
            }
            Err(error) => {
                tracing::error!(%error, "cannot encode an event");
                false
            }
        }
    }
}
