//! The three places where a session leaves evidence: the record, the collector, the front end.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use iteron_lifecycle::{Event, EventOutcome, Lifecycle, ModelPayload, ScopeHandle, SessionPayload};
use iteron_protocol::{Outcome, OutputEvent};
use iteron_record::{AppendError, Entry, HeadKey, Record, Syncer};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Unix time in milliseconds: reading the clock is the caller's.
pub type WallClock = fn() -> i64;

pub(crate) const CLIENT: &str = "iteron";
pub(crate) const CLIENT_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Once a run is cancelled, a front end that does not read holds it up no longer than this a line.
const SHOW_WAIT: Duration = Duration::from_millis(20);

/// What everybody waits for is worth more.
const LAST_SHOW_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct Evidence {
    record: Option<Recording>,
    broken: watch::Sender<bool>,
    pub lifecycle: Option<Lifecycle>,
    pub session_scope: OnceLock<ScopeHandle>,
    clock: WallClock,
    output: mpsc::Sender<OutputEvent>,
}

struct Recording {
    record: Mutex<Record>,
    syncer: Arc<Syncer>,
    key: HeadKey,
}

impl Evidence {
    pub(crate) fn new(
        record: Option<(Record, Syncer, HeadKey)>,
        lifecycle: Option<Lifecycle>,
        clock: WallClock,
        output: mpsc::Sender<OutputEvent>,
    ) -> Self {
        let record = record.map(|(record, syncer, key)| Recording {
            record: Mutex::new(record),
            syncer: Arc::new(syncer),
            key,
        });
        let session_scope = OnceLock::new();
        Self { record, broken: watch::Sender::new(false), lifecycle, session_scope, clock, output }
    }

    /// Appends to the record, where there is one, and gives the entry's number. A failure is
    /// remembered; see [`Self::is_broken`].
    pub(crate) fn record(&self, entry: Entry) -> Option<u64> {
        self.write(|record, _, at_ms| record.append(at_ms, entry))
    }

    fn write<T>(
        &self,
        write: impl FnOnce(&mut Record, &HeadKey, i64) -> Result<T, AppendError>,
    ) -> Option<T> {
        let recording = self.record.as_ref()?;
        if self.is_broken() {
            return None;
        }
        let mut record = recording.record.lock().unwrap_or_else(PoisonError::into_inner);
        match write(&mut record, &recording.key, (self.clock)()) {
            Ok(written) => Some(written),
            Err(error) => {
                tracing::error!(%error, path = %record.path().display(), "the session record is broken");
                self.broken.send_replace(true);
                None
            }
        }
    }

    /// The public key by which the record's heads are signed.
    pub(crate) fn record_key(&self) -> Option<String> {
        self.record.as_ref().map(|recording| recording.key.public())
    }

    /// Appends what closes something, signs that, and waits until both are on disk.
    pub(crate) async fn record_end(&self, entry: Entry) {
        debug_assert!(entry.is_terminal());
        self.record(entry);
        self.write(|record, key, at_ms| record.sign(at_ms, key));
        let Some(Recording { syncer, .. }) = &self.record else { return };
        let syncer = Arc::clone(syncer);
        // On a thread of its own: a slow disk must not hold up control.
        let synced = tokio::task::spawn_blocking(move || syncer.sync()).await;
        if let Ok(Err(error)) = synced {
            tracing::error!(%error, "the session record cannot be synced");
            self.broken.send_replace(true);
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        *self.broken.borrow()
    }

    /// Tells when the record breaks.
    pub(crate) fn breaks(&self) -> watch::Receiver<bool> {
        self.broken.subscribe()
    }

    pub(crate) fn tell(&self, event: &Event) {
        if let Some(lifecycle) = &self.lifecycle {
            lifecycle.emit(event);
        }
    }

    pub(crate) async fn tell_and_wait(&self, event: &Event, wait: Duration) {
        if let Some(lifecycle) = &self.lifecycle {
            lifecycle.emit_and_wait(event, Instant::now() + wait).await;
        }
    }

    /// Shows an event, at the pace of whoever reads; once `cancel` is cancelled, not for long.
    pub(crate) async fn show(&self, event: OutputEvent, cancel: &CancellationToken) {
        let out_of_patience = async {
            cancel.cancelled().await;
            sleep(SHOW_WAIT).await;
        };
        tokio::select! {
            biased;
            permit = self.output.reserve() => if let Ok(permit) = permit {
                permit.send(event);
            },
            () = out_of_patience => tracing::warn!("an event could not be shown: nobody reads"),
        }
    }

    /// Shows the session's last event, to a slow reader too.
    pub(crate) async fn show_last(&self, event: OutputEvent) {
        if timeout(LAST_SHOW_WAIT, self.output.send(event)).await.is_err() {
            tracing::warn!("the last event could not be shown: nobody reads");
        }
    }

    /// Shows an event if that does not have to wait; gives it back otherwise.
    pub(crate) fn try_show(&self, event: OutputEvent) -> Option<OutputEvent> {
        match self.output.try_send(event) {
            Err(mpsc::error::TrySendError::Full(event)) => Some(event),
            _ => None,
        }
    }
}

pub(crate) fn session_payload(backend: &'static str, reason: Option<&'static str>) -> SessionPayload {
    SessionPayload { client: CLIENT, client_version: CLIENT_VERSION, backend: Some(backend), reason }
}

pub(crate) fn model_payload(provider: &'static str, model: &str, attempt: u32) -> ModelPayload {
    ModelPayload { provider, model: model.to_owned(), attempt, ..ModelPayload::default() }
}

pub(crate) fn session_outcome(outcome: Outcome) -> EventOutcome {
    match outcome {
        Outcome::Completed => EventOutcome::Success { exit_code: None },
        Outcome::Interrupted => EventOutcome::Unknown { reason: outcome.reason() },
        Outcome::TaskFailed { .. } | Outcome::ProviderFailed { .. } | Outcome::HarnessFailed => {
            EventOutcome::Failure { exit_code: None, reason: outcome.reason() }
        }
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
