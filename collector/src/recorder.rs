//! The only way into the spool: stamps events, checks them against the catalogue, numbers and appends them, and
//! accounts for everything that could not be kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use activity_schema::admit::{Refusal, admit};
use activity_schema::catalog;
use activity_schema::coverage::LossReason;
use activity_schema::event::{
    Correlation, EVENT_BYTES_MAX, Entity, Event, Integrity, Layer, Number, Outcome, Payload, SchemaVersion,
    Sensitivity, Source, Trust,
};
use activity_schema::{Class, Text, Timestamp};
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use uuid::Uuid;

use crate::clock::ClockReading;
use crate::sandbox::Instance;
use crate::spool::{AppendError, Disk, Line, Loss, RingCursor, Shed, Spool, Unsynced};

/// Lines held before they are appended; a drain pass is cut at this.
const PENDING_LINES_MAX: usize = 256;
/// Raw bytes held before they are appended.
const PENDING_BYTES_MAX: usize = 512 * 1024;

/// An event before it is stamped.
#[derive(Debug, Clone)]
pub struct Draft<'a> {
    pub name: &'a str,
    pub occurred_at: Timestamp,
    pub instance: &'a Instance,
    pub trust: Trust,
    /// Overrides the instance's layer, for declared events.
    pub layer: Option<Layer>,
    pub ids: Ids<'a>,
    pub actor: Option<Entity<'a>>,
    pub target: Option<Entity<'a>>,
    pub outcome: Option<Outcome<'a>>,
    pub payload: Payload<'a>,
}

/// Correlation beyond tenant, host and instance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ids<'a> {
    pub agent_id: Option<&'a str>,
    pub session_id: Option<&'a str>,
    pub mission_id: Option<&'a str>,
    pub task_id: Option<&'a str>,
    pub tool_call_id: Option<&'a str>,
    pub command_id: Option<&'a str>,
    pub process_id: Option<&'a str>,
    pub trace_id: Option<&'a str>,
    pub span_id: Option<&'a str>,
}

impl<'a> Draft<'a> {
    /// An observed event with nothing but its payload.
    pub fn observed(
        name: &'a str,
        occurred_at: Timestamp,
        instance: &'a Instance,
        payload: Payload<'a>,
    ) -> Self {
        Draft {
            name,
            occurred_at,
            instance,
            trust: Trust::Observed,
            layer: None,
            ids: Ids::default(),
            actor: None,
            target: None,
            outcome: None,
            payload,
        }
    }
}

#[derive(Default)]
struct Pending {
    lines: Vec<Line>,
    bytes: usize,
}

/// The log hears of a spool that cannot be written once in this time.
const TELL_EVERY_NS: u64 = 10_000_000_000;
/// Until sealing is tried again on a disk that did not take it.
const SEAL_AGAIN_NS: u64 = 1_000_000_000;

pub struct Recorder<D: Disk> {
    spool: Spool<D>,
    rng: StdRng,
    clock: ClockReading,
    clock_id: String,
    streams: [String; 3],
    pending: [Pending; 3],
    sealed: Vec<Unsynced<D>>,
    own: Arc<Instance>,
    /// Nothing is told of other instances, which the enrolment does not cover.
    pub only_own: bool,
    /// Events that the catalogue refused: a defect here or a bad submission.
    pub refused: u64,
    pub drops_total: u64,
    /// Until then the log has been told that the spool cannot be written, boot clock.
    told_until_ns: u64,
    /// Sealing failed and is not tried until then, boot clock.
    seal_again_ns: u64,
}

impl<D: Disk> Recorder<D> {
    pub fn new(spool: Spool<D>, own: Arc<Instance>, clock: ClockReading) -> Self {
        let streams = [Class::Critical, Class::Standard, Class::Bulk].map(|c| spool.stream_text(c));
        let clock_id = format!("boot:{}", spool.identity().boot_id);
        Recorder {
            spool,
            rng: StdRng::from_os_rng(),
            clock,
            clock_id,
            streams,
            pending: Default::default(),
            sealed: Vec::new(),
            own,
            only_own: false,
            refused: 0,
            drops_total: 0,
            told_until_ns: 0,
            seal_again_ns: 0,
        }
    }

    pub fn spool(&self) -> &Spool<D> {
        &self.spool
    }

    pub fn spool_mut(&mut self) -> &mut Spool<D> {
        &mut self.spool
    }

    pub fn clock(&self) -> &ClockReading {
        &self.clock
    }

    pub fn set_clock(&mut self, clock: ClockReading) {
        self.clock = clock;
    }

    pub fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Stamps and queues an event. Refused when the catalogue does not allow it. What the enrolment does not cover is
    /// passed over.
    pub fn record(&mut self, draft: Draft<'_>) -> Result<Uuid, Refusal> {
        let event_id = self.event_id();
        self.record_as(event_id, draft)
    }

    fn event_id(&mut self) -> Uuid {
        let ms = u64::try_from(self.clock.wall.as_nanos() / 1_000_000).unwrap_or(0);
        let mut random = [0; 10];
        self.rng.fill_bytes(&mut random);
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }

    fn record_as(&mut self, event_id: Uuid, draft: Draft<'_>) -> Result<Uuid, Refusal> {
        if self.only_own && draft.instance.instance_id != self.own.instance_id {
            return Ok(event_id);
        }
        let Some(row) = catalog::row(draft.name) else {
            self.refused += 1;
            return Err(Refusal::UnknownName);
        };
        let slot = slot(row.class);
        if self.pending[slot].lines.len() >= PENDING_LINES_MAX
            || self.pending[slot].bytes >= PENDING_BYTES_MAX
        {
            self.flush_class(row.class, None);
        }
        let sequence = self.spool.next_sequence(row.class) + self.pending[slot].lines.len() as u64;
        let identity = self.spool.identity();
        let text = |t: Option<&'_ str>| t.map(|t| Text::from(t.to_owned()));
        let event = Event {
            schema_version: SchemaVersion::V1,
            event_id,
            event_name: draft.name.into(),
            plane: row.plane,
            occurred_at: draft.occurred_at,
            observed_at: self.clock.wall,
            source: Source {
                collector: self.streams[slot].as_str().into(),
                layer: draft.layer.unwrap_or(draft.instance.layer),
                runtime: draft.instance.runtime,
                trust: draft.trust,
                clock_id: Some(self.clock_id.as_str().into()),
                clock_error_ms: Number::new(self.clock.error_ms()),
            },
            correlation: Correlation {
                tenant_id: identity.tenant.as_str().into(),
                host_id: identity.host.as_str().into(),
                instance_id: draft.instance.instance_id.as_str().into(),
                agent_id: draft.ids.agent_id.unwrap_or(&draft.instance.agent_id).into(),
                session_id: text(draft.ids.session_id),
                mission_id: text(draft.ids.mission_id),
                task_id: text(draft.ids.task_id),
                tool_call_id: text(draft.ids.tool_call_id),
                command_id: text(draft.ids.command_id),
                process_id: text(draft.ids.process_id),
                parent_event_id: None,
                trace_id: text(draft.ids.trace_id),
                span_id: text(draft.ids.span_id),
            },
            actor: draft.actor,
            target: draft.target,
            outcome: draft.outcome,
            sensitivity: Sensitivity::Metadata,
            retention_class: row.retention,
            payload: draft.payload,
            integrity: Integrity {
                collector_sequence: sequence,
                source_hash: None,
                source_previous_hash: None,
                timeline_hash: None,
                timeline_previous_hash: None,
                signature: None,
                key_id: None,
            },
        };
        // Ids that an agent declares may have any form.
        let envelope = event.check_patterns().map_err(|error| Refusal::Envelope(error.to_string()));
        if let Err(refusal) = envelope.and_then(|()| admit(&event)) {
            self.refused += 1;
            return Err(refusal);
        }
        let line = Line { bytes: event.to_line(), occurred_at: draft.occurred_at };
        if line.bytes.len() > EVENT_BYTES_MAX {
            self.refused += 1;
            return Err(Refusal::LineTooLong);
        }
        let pending = &mut self.pending[slot];
        pending.bytes += line.bytes.len();
        pending.lines.push(line);
        Ok(event_id)
    }

    /// Appends everything queued. `cursor` goes with every class's last frame: the stream of each class then says
    /// itself how far of the ring it holds.
    pub fn flush(&mut self, cursor: Option<RingCursor>) {
        for class in Class::ALL {
            self.flush_class(*class, cursor);
        }
    }

    fn flush_class(&mut self, class: Class, cursor: Option<RingCursor>) {
        let pending = std::mem::take(&mut self.pending[slot(class)]);
        if pending.lines.is_empty() {
            return;
        }
        let (lines, now_ns) = (pending.lines.len() as u64, self.clock.boot_ns);
        if self.spool.seal_due(class, now_ns, lines, pending.bytes as u64) {
            self.seal(class);
        }
        let cursors: &[RingCursor] = cursor.as_slice();
        if let Err(error) = self.spool.append(class, &pending.lines, cursors, now_ns) {
            self.lost_at_append(class, &error, &pending);
        }
        self.account_sheds();
    }

    fn tell(&mut self, error: &std::io::Error, what: &str) {
        if self.clock.boot_ns >= self.told_until_ns {
            self.told_until_ns = self.clock.boot_ns + TELL_EVERY_NS;
            tracing::error!(%error, "{what}");
        }
    }

    /// What could not be appended is lost: exactly, of each sandbox and each event name.
    fn lost_at_append(&mut self, class: Class, error: &AppendError, pending: &Pending) {
        let reason = match error {
            AppendError::Quota => LossReason::SpoolQuota,
            AppendError::Io(source) => {
                self.tell(source, "the spool cannot be written; what is lost is counted");
                LossReason::DiskFull
            }
        };
        let mut lost: BTreeMap<(Option<String>, String), (u64, Timestamp, Timestamp)> = BTreeMap::new();
        for line in &pending.lines {
            let event = Event::parse(&line.bytes);
            // A loss whose event is lost waits in the ledger and is told again.
            if event.as_ref().is_ok_and(|event| event.event_name == "telemetry.loss") {
                continue;
            }
            let kind = event.map_or_else(
                |_| (None, String::new()),
                |event| (Some(event.correlation.instance_id.to_string()), event.event_name.to_string()),
            );
            let at = line.occurred_at;
            let (count, first, last) = lost.entry(kind).or_insert((0, at, at));
            *count += 1;
            (*first, *last) = ((*first).min(at), (*last).max(at));
        }
        for ((instance, name), (count, first, last)) in lost {
            let names = [name.as_str()];
            let names = if name.is_empty() { &[][..] } else { &names[..] };
            let mut loss = Loss::of(reason, "spool", names, (first, last)).counted(count, true);
            loss.key.class = Some(class);
            self.lose(loss.of_instance(instance));
        }
    }

    fn account_sheds(&mut self) {
        for Shed { class, stream, batches } in self.spool.take_sheds() {
            let Some((first, last)) = batches.first().zip(batches.last()) else { continue };
            let oldest = batches.iter().map(|b| b.occurred_min).min().unwrap_or(first.occurred_min);
            let newest = batches.iter().map(|b| b.occurred_max).max().unwrap_or(last.occurred_max);
            let count = batches.iter().map(crate::spool::BatchRef::count).sum();
            let sequences = Some((first.first_sequence, last.last_sequence));
            self.lose(
                Loss::of(LossReason::SpoolQuota, "spool", &[], (oldest, newest))
                    .counted(count, true)
                    .of_stream(class, stream, sequences),
            );
        }
    }

    /// Accounts for a loss; it becomes a `telemetry.loss` event at the next [`Recorder::emit_losses`].
    pub fn lose(&mut self, loss: Loss) {
        self.drops_total = self.drops_total.saturating_add(loss.count);
        let event_id = self.event_id();
        self.spool.ledger.add(Loss { event_id, ..loss });
    }

    /// Writes what the ledger holds as events. They leave it only when they are fsynced.
    pub fn emit_losses(&mut self, instances: &[Arc<Instance>]) {
        for loss in self.spool.ledger.to_emit() {
            let named = loss.key.instance.as_ref();
            let instance = named
                .and_then(|id| instances.iter().find(|i| i.instance_id == *id))
                .unwrap_or(&self.own)
                .clone();
            let draft = Draft::observed("telemetry.loss", self.clock.wall, &instance, loss_payload(&loss));
            let before = self.spool.next_sequence(Class::Critical);
            if self.record_as(loss.event_id, draft).is_ok() {
                self.flush_class(Class::Critical, None);
                if self.spool.next_sequence(Class::Critical) > before {
                    self.spool.loss_told(loss.event_id);
                }
            }
        }
    }

    /// Seals what is due; batches sealed since the last call, to be synced.
    pub fn seal_due(&mut self) -> Vec<Unsynced<D>> {
        self.spool.forget_told_losses();
        for class in Class::ALL {
            if self.clock.boot_ns >= self.seal_again_ns
                && self.spool.seal_due(*class, self.clock.boot_ns, 0, 0)
            {
                self.seal(*class);
            }
        }
        std::mem::take(&mut self.sealed)
    }

    /// When [`Recorder::seal_due`] has something to do, boot clock.
    pub fn next_seal_at_ns(&self) -> Option<u64> {
        self.spool.next_seal_at_ns().map(|at| at.max(self.seal_again_ns))
    }

    /// Seals everything, due or not; [`Recorder::seal_due`] tells the batches.
    pub fn seal_all(&mut self) {
        self.flush(None);
        for class in Class::ALL {
            self.seal(*class);
        }
    }

    fn seal(&mut self, class: Class) {
        match self.spool.seal(class, self.clock.state, self.clock.wall) {
            Ok(sealed) => self.sealed.extend(sealed),
            // The lines stay open; the next seal takes them along.
            Err(error) => {
                self.seal_again_ns = self.clock.boot_ns + SEAL_AGAIN_NS;
                self.tell(&error, "a batch cannot be sealed; its events wait");
            }
        }
    }
}

fn slot(class: Class) -> usize {
    match class {
        Class::Critical => 0,
        Class::Standard => 1,
        Class::Bulk => 2,
    }
}

fn loss_payload(loss: &Loss) -> Payload<'static> {
    let mut p = Payload::new();
    p.set_some("stream", loss.key.stream.clone());
    p.set_some("class", loss.key.class.map(Class::as_str));
    if !loss.key.event_names.is_empty() {
        p.set("event_names", loss.key.event_names.clone());
    }
    p.set("loss_source", loss.key.source.clone());
    p.set_some("cgroup", loss.key.cgroup.clone());
    p.set("dropped_count", loss.count);
    p.set_some("first_missing_sequence", loss.sequences.map(|(first, _)| first));
    p.set_some("last_missing_sequence", loss.sequences.map(|(_, last)| last));
    p.set("first_time", loss.first_time.to_string());
    p.set("last_time", loss.last_time.to_string());
    p.set("reason", loss.key.reason.as_str());
    p.set("precision", if loss.exact { "exact" } else { "lower_bound" });
    p
}

#[cfg(test)]
mod tests;
