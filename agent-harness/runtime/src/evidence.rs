//! The three places where a session leaves evidence: the record, the collector, the output.

use std::time::{Duration, Instant};

use iteron_lifecycle::{Event, EventOutcome, Lifecycle, ModelPayload, ScopeHandle, SessionPayload};
use iteron_protocol::{Outcome, OutputEvent};
use iteron_record::{Entry, Record};

/// Unix time in milliseconds: reading the clock is the caller's.
pub type WallClock = fn() -> i64;

pub(crate) const CLIENT: &str = "iteron";
pub(crate) const CLIENT_VERSION: &str = env!("CARGO_PKG_VERSION");
pub(crate) const PROVIDER: &str = "anthropic";

pub(crate) struct Evidence<'a> {
    pub record: Option<Record>,
    pub record_broken: bool,
    pub lifecycle: Option<Lifecycle>,
    pub session_scope: Option<ScopeHandle>,
    pub clock: WallClock,
    pub output: &'a mut dyn FnMut(OutputEvent),
}

impl Evidence<'_> {
    /// Appends to the record, where there is one. A failure is remembered; see `record_broken`.
    pub(crate) fn record(&mut self, entry: Entry) {
        let Some(record) = &mut self.record else { return };
        if self.record_broken {
            return;
        }
        if let Err(error) = record.append((self.clock)(), entry) {
            self.record_broken = true;
            tracing::error!(%error, path = %record.path().display(), "the session record is broken");
        }
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

    pub(crate) fn show(&mut self, event: OutputEvent) {
        (self.output)(event);
    }
}

pub(crate) fn session_payload(reason: Option<&'static str>) -> SessionPayload {
    SessionPayload { client: CLIENT, client_version: CLIENT_VERSION, backend: Some(PROVIDER), reason }
}

pub(crate) fn model_payload(model: &str, attempt: u32) -> ModelPayload {
    ModelPayload { provider: PROVIDER, model: model.to_owned(), attempt, ..ModelPayload::default() }
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
