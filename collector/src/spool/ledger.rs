//! Losses that are not yet durable as `telemetry.loss` events.
//!
//! The ledger lives in preallocated space, so that a full disk cannot lose a loss. An entry gets its event id when
//! it is made; it is removed only after the event is fsynced, and a crash in between repeats the same id.

use std::io;
use std::path::Path;

use activity_schema::Timestamp;
use activity_schema::coverage::LossReason;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::disk::Disk;
use super::slots::Slots;

/// More different losses than this at once are folded into the last entry's count, as a lower bound.
const ENTRIES_MAX: usize = 48;

/// What was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossKey {
    pub reason: LossReason,
    /// Priority class, where one is known.
    pub class: Option<activity_schema::Class>,
    /// Sandbox, where one is known; `None` taints all of the collector's.
    pub instance: Option<String>,
    pub event_names: Vec<String>,
    /// Kernel ring, spool, socket …
    pub source: String,
    /// Stream text for sequenced losses.
    pub stream: Option<String>,
    pub cgroup: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    pub event_id: Uuid,
    pub key: LossKey,
    pub count: u64,
    pub exact: bool,
    pub first_time: Timestamp,
    pub last_time: Timestamp,
    /// Sequence range, for sequenced losses.
    pub sequences: Option<(u64, u64)>,
    /// The batch that its event is in, which waits for fsync; a further loss opens another entry.
    #[serde(skip)]
    pub emitted_in: Option<u64>,
}

impl Loss {
    /// Records of these names (none: of any), of an unknown number and no known sandbox.
    #[must_use]
    pub fn of(reason: LossReason, source: &str, names: &[&str], between: (Timestamp, Timestamp)) -> Self {
        Loss {
            event_id: Uuid::nil(),
            key: LossKey {
                reason,
                class: None,
                instance: None,
                event_names: names.iter().map(|n| (*n).to_owned()).collect(),
                source: source.to_owned(),
                stream: None,
                cgroup: None,
            },
            count: 0,
            exact: false,
            first_time: between.0,
            last_time: between.1,
            sequences: None,
            emitted_in: None,
        }
    }

    #[must_use]
    pub fn counted(self, count: u64, exact: bool) -> Self {
        Loss { count, exact, ..self }
    }

    #[must_use]
    pub fn of_instance(mut self, instance: Option<String>) -> Self {
        self.key.instance = instance;
        self
    }

    /// Records of a stream that had their sequences.
    #[must_use]
    pub fn of_stream(
        mut self,
        class: activity_schema::Class,
        stream: String,
        sequences: Option<(u64, u64)>,
    ) -> Self {
        self.key.class = Some(class);
        self.key.stream = Some(stream);
        self.sequences = sequences;
        self
    }
}

pub struct Ledger<D: Disk> {
    slots: Slots<D::File>,
    entries: Vec<Loss>,
    /// The last write to the slots failed: state on disk may be behind.
    pub unpersisted: bool,
}

impl<D: Disk> Ledger<D> {
    /// Entries of a run that was cut short are there again, to be emitted under the same ids.
    pub fn open(disk: &D, path: &Path) -> io::Result<Self> {
        let (slots, state) = Slots::open::<D, Vec<Loss>>(disk, path)?;
        Ok(Ledger { slots, entries: state.unwrap_or_default(), unpersisted: false })
    }

    /// Adds a loss; merged into an open entry of the same key when neither is sequenced.
    pub fn add(&mut self, loss: Loss) {
        let open = self.entries.iter_mut().find(|e| {
            e.emitted_in.is_none() && e.key == loss.key && e.sequences.is_none() && loss.sequences.is_none()
        });
        if let Some(entry) = open {
            entry.count = entry.count.saturating_add(loss.count);
            entry.exact &= loss.exact;
            entry.first_time = entry.first_time.min(loss.first_time);
            entry.last_time = entry.last_time.max(loss.last_time);
        } else if self.entries.len() < ENTRIES_MAX {
            self.entries.push(loss);
        } else {
            self.fold(loss);
        }
        self.persist();
    }

    /// Too many kinds of loss at once: the last open entry takes the count and gives up its precision.
    fn fold(&mut self, loss: Loss) {
        if let Some(entry) = self.entries.iter_mut().rev().find(|e| e.emitted_in.is_none()) {
            entry.count = entry.count.saturating_add(loss.count);
            entry.exact = false;
            entry.key.instance = None;
            entry.key.event_names.clear();
            entry.key.class = None;
            entry.key.cgroup = None;
            entry.key.stream = None;
            entry.sequences = None;
            entry.first_time = entry.first_time.min(loss.first_time);
            entry.last_time = entry.last_time.max(loss.last_time);
        } else {
            self.entries.push(loss);
        }
    }

    /// Entries to write as events now. Of a full ledger one stays open: further losses are folded into it.
    pub fn to_emit(&self) -> Vec<Loss> {
        let waiting = self.entries.iter().filter(|e| e.emitted_in.is_some()).count();
        let open = self.entries.iter().filter(|e| e.emitted_in.is_none());
        open.take((ENTRIES_MAX - 1).saturating_sub(waiting)).cloned().collect()
    }

    /// The event of this entry was appended to a batch.
    pub(super) fn emitted(&mut self, event_id: Uuid, batch_number: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.event_id == event_id) {
            entry.emitted_in = Some(batch_number);
        }
    }

    /// After a kill: the losses `told` are in sealed batches, those of `open` in the batch that has this number.
    pub(super) fn recognise(&mut self, told: &[Uuid], open: &[Uuid], batch_number: u64) {
        self.entries.retain(|e| !told.contains(&e.event_id));
        open.iter().for_each(|id| self.emitted(*id, batch_number));
        self.persist();
    }

    /// Batches up to `batch_number` are fsynced.
    pub(super) fn synced(&mut self, batch_number: u64) {
        let before = self.entries.len();
        self.entries.retain(|e| e.emitted_in.is_none_or(|number| number > batch_number));
        if self.entries.len() != before {
            self.persist();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes anew what could not be written; tells whether all is.
    pub fn keep(&mut self) -> bool {
        if self.unpersisted {
            self.persist();
        }
        !self.unpersisted
    }

    fn persist(&mut self) {
        self.unpersisted = self.slots.write(&self.entries, false).is_err();
    }
}
