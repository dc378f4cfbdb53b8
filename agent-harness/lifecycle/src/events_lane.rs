//! The task that carries events to the collector, in order and in batches.
//!
//! What was certainly not taken is sent again; what may have been taken is not, since the
//! collector gives out the ids and could not tell a repeat. It is counted as unconfirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::connection::{Connection, PostError};

/// Events waiting: some minutes of a busy agent, under a megabyte.
pub(crate) const QUEUE_EVENTS_MAX: usize = 1024;
/// Events in one request, small enough to be answered well within the timeout.
const BATCH_EVENTS_MAX: usize = 64;
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// An encoded event, and whom to tell once it was dealt with.
#[derive(Debug)]
pub(crate) struct Queued {
    pub line: Vec<u8>,
    pub done: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub emitted: AtomicU64,
    pub accepted: AtomicU64,
    pub rejected: AtomicU64,
    pub unconfirmed: AtomicU64,
}

#[derive(Deserialize)]
struct Verdict {
    #[serde(default)]
    accepted: Vec<serde::de::IgnoredAny>,
    #[serde(default)]
    rejected: Vec<Rejected>,
}

#[derive(Deserialize)]
struct Rejected {
    index: u64,
    #[serde(default)]
    reason: String,
}

/// Runs until every sender is gone and the queue is empty, or nobody answers any more.
pub(crate) async fn run(mut connection: Connection, mut queue: mpsc::Receiver<Queued>, counts: Arc<Counts>) {
    while let Some(first) = queue.recv().await {
        let mut batch = vec![first];
        while batch.len() < BATCH_EVENTS_MAX
            && let Ok(next) = queue.try_recv()
        {
            batch.push(next);
        }
        let lines: Vec<&[u8]> = batch.iter().map(|queued| queued.line.as_slice()).collect();
        let body = Bytes::from(lines.join(&b'\n'));
        if !deliver(&mut connection, body, lines.len(), &queue, &counts).await {
            return;
        }
        for queued in batch {
            if let Some(done) = queued.done {
                // A caller that stopped waiting has its reasons.
                let _ = done.send(());
            }
        }
    }
}

/// Delivers one batch; false when the session is over and the collector still cannot be reached.
async fn deliver(
    connection: &mut Connection,
    body: Bytes,
    events: usize,
    queue: &mpsc::Receiver<Queued>,
    counts: &Counts,
) -> bool {
    let events = u64::try_from(events).unwrap_or(u64::MAX);
    let mut backoff = BACKOFF_FIRST;
    loop {
        let pause = match connection.post("/v1/events", body.clone()).await {
            Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => {
                answer.retry_after.unwrap_or(backoff).clamp(BACKOFF_FIRST, BACKOFF_MAX)
            }
            Ok(answer) if answer.status.is_success() => {
                count_verdict(&answer.body, events, counts);
                return true;
            }
            Ok(answer) => {
                tracing::warn!(status = answer.status.as_u16(), "the collector refused a batch of events");
                counts.rejected.fetch_add(events, Ordering::Relaxed);
                return true;
            }
            Err(error) if error.is_unsent() => {
                tracing::debug!(%error, "the collector cannot be reached");
                backoff
            }
            Err(error) => {
                report_unconfirmed(&error, events, counts);
                return true;
            }
        };
        if queue.is_closed() {
            return false;
        }
        sleep(pause).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

fn count_verdict(body: &[u8], events: u64, counts: &Counts) {
    let Ok(verdict) = serde_json::from_slice::<Verdict>(body) else {
        tracing::warn!("the collector's answer to events is not the documented one");
        counts.unconfirmed.fetch_add(events, Ordering::Relaxed);
        return;
    };
    for Rejected { index, reason } in &verdict.rejected {
        tracing::warn!(index, reason, "the collector rejected an event");
    }
    let rejected = u64::try_from(verdict.rejected.len()).unwrap_or(u64::MAX).min(events);
    let accepted = u64::try_from(verdict.accepted.len()).unwrap_or(u64::MAX).min(events - rejected);
    counts.rejected.fetch_add(rejected, Ordering::Relaxed);
    counts.accepted.fetch_add(accepted, Ordering::Relaxed);
    counts.unconfirmed.fetch_add(events - rejected - accepted, Ordering::Relaxed);
}

fn report_unconfirmed(error: &PostError, events: u64, counts: &Counts) {
    tracing::debug!(%error, events, "events were sent but not confirmed");
    counts.unconfirmed.fetch_add(events, Ordering::Relaxed);
}
