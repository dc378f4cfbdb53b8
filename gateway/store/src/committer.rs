//! The one writer of the commit log. Takes all batches that wait, judges them in order, writes them as a group,
//! fsyncs once, and only then lets receipts go.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use activity_schema::api::BatchResult;
use activity_schema::ids::{StreamId, TenantId};
use activity_schema::receipt::Receipt;
use activity_schema::uplink::{StreamHead, Verdict, judge};
use activity_schema::{Hash, Timestamp, merkle};
use tokio::sync::oneshot;

use crate::check::{BatchRefusal, Checked, Content};
use crate::commit::CommitWriter;
use crate::control::ControlRecord;
use crate::coverage::Seen;
use crate::env::day_of;
use crate::frame::{FRAME_HEADER_BYTES, Kind, put_frame};
use crate::keyring::KeyringError;
use crate::record::{
    Clear, FLAG_FORK, FLAG_HEADER_ONLY, Head, Places, PlainSection, SectionId, batch_payload,
};
use crate::store::Shared;
use crate::tenant::{FORKS_MAX, OpenBatch, Stored, StreamState, Tenant, few};

/// One caller's batches on their way.
pub(crate) struct Job {
    pub tenant: Arc<Tenant>,
    pub batches: Vec<Judged>,
    pub reply: oneshot::Sender<Result<Vec<BatchResult>, CommitError>>,
    pub queued_at: Instant,
}

/// A batch as the callers' side leaves it.
pub(crate) enum Judged {
    Checked(Box<Checked>),
    Refused(BatchRefusal),
    /// Its lines were not looked at: it could not be stored, or its request held too much before it.
    Unread {
        stream: StreamId,
        number: u64,
        hash: Hash,
    },
}

/// Why a group did not become durable. Nothing of it was acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CommitError {
    #[error("the commit log could not be written")]
    Io(#[source] Arc<io::Error>),
    #[error("a key could not be had")]
    Key(#[source] Arc<KeyringError>),
}

/// Frames of one group beyond which the rest waits for the next, bytes.
const GROUP_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A batch that has its place and is framed, but not yet durable.
struct Placed {
    open: OpenBatch,
    checked: Checked,
    leaf: Hash,
    fork: bool,
}

/// A tenant within the group being built.
struct InGroup {
    tenant: Arc<Tenant>,
    origin: String,
    next_leaf: u64,
    received_at: Timestamp,
    /// Streams as they will be when the group is durable; filled on first use.
    streams: BTreeMap<StreamId, Pending>,
    placed: Vec<Placed>,
}

impl InGroup {
    fn pending(&mut self, stream: &StreamId) -> &mut Pending {
        self.streams.entry(stream.clone()).or_insert_with(|| {
            let state = self.tenant.state.read();
            let known = state.streams.get(stream);
            Pending {
                head: known.map(|s| s.head.clone()).unwrap_or_default(),
                receipts: BTreeMap::new(),
                forks: known.map_or(0, |s| s.forks.len()),
            }
        })
    }
}

/// A stream within the group being built.
struct Pending {
    head: StreamHead,
    /// Batch hash → its receipt, of batches in this group.
    receipts: BTreeMap<Hash, (Receipt, bool)>,
    forks: usize,
}

/// Builds, writes and applies groups. Lives on the committer's thread.
pub(crate) struct Committer<'a> {
    shared: &'a Shared,
    writer: CommitWriter,
}

impl<'a> Committer<'a> {
    pub(crate) fn new(shared: &'a Shared, writer: CommitWriter) -> Self {
        Committer { shared, writer }
    }

    /// Ends the commit file when it is due, or has anything at all and `force`; returns the file that ended.
    pub(crate) fn rotate_if_due(&mut self, force: bool) -> Option<u64> {
        if !self.writer.has_groups() {
            return None;
        }
        let config = &self.shared.config;
        let age = self.shared.env.now().nanos_since(self.writer.created());
        let age_max = i64::try_from(config.commit_rotate_age.as_nanos()).unwrap_or(i64::MAX);
        let due = self.writer.next_offset() >= config.commit_rotate_bytes || age >= age_max;
        (force || due).then(|| self.writer.rotate(&self.shared.env).0)
    }

    /// Commits jobs from the front of `jobs`, as many as fit a group.
    pub(crate) fn commit(&mut self, jobs: &mut std::collections::VecDeque<Job>) {
        self.writer.prepare(&self.shared.env);
        let mut frames = Vec::new();
        let mut group = BTreeMap::new();
        let mut answers = Vec::new();
        while frames.len() < GROUP_BYTES_MAX
            && let Some(job) = jobs.pop_front()
        {
            let results = self.place_job(&mut group, &mut frames, &job.tenant, job.batches);
            answers.push((job.reply, results));
        }
        let batches: u64 = group.values().map(|g: &InGroup| g.placed.len() as u64).sum();
        let written = if batches == 0 { Ok(()) } else { self.write(&mut frames, batches) };
        if batches > 0 {
            self.shared.commits_fail.store(written.is_err(), Ordering::Relaxed);
        }
        match &written {
            Ok(()) => self.alarm(group.into_values().flat_map(|g| self.apply(g)).collect()),
            Err(error) => {
                self.shared.metrics.commit_failures.add(1);
                tracing::error!(%error, batches, "a group of batches is not durable and is not acknowledged");
            }
        }
        for (reply, results) in answers {
            let result = match &written {
                Ok(()) => results,
                Err(error) => Err(CommitError::Io(Arc::clone(error))),
            };
            // The caller may have gone; what is durable stays.
            let _ = reply.send(result);
        }
    }

    /// After a failure, looks whether the disk takes bytes again: a gateway that is not ready may get no batch to try
    /// it with.
    pub(crate) fn probe(&self) {
        if !self.shared.commits_fail.load(Ordering::Relaxed) {
            return;
        }
        let (storage, path) = (&self.shared.env.storage, self.shared.commit_dir().join("probe.tmp"));
        let written = storage.write_at(&path, 0, b"probe").and_then(|()| storage.sync(&path));
        // It may not be there.
        let _ = storage.remove(&path);
        self.shared.commits_fail.store(written.is_err(), Ordering::Relaxed);
    }

    fn write(&mut self, frames: &mut Vec<u8>, batches: u64) -> Result<(), Arc<io::Error>> {
        self.writer.append(&self.shared.env, frames, batches).map_err(Arc::new)?;
        let metrics = &self.shared.metrics;
        metrics.commits.add(1);
        metrics.bytes_committed.add(frames.len() as u64);
        *self.shared.last_commit.lock() = Some(self.shared.env.now());
        Ok(())
    }

    fn place_job(
        &self,
        group: &mut BTreeMap<TenantId, InGroup>,
        frames: &mut Vec<u8>,
        tenant: &Arc<Tenant>,
        batches: Vec<Judged>,
    ) -> Result<Vec<BatchResult>, CommitError> {
        let entry = group.entry(tenant.id.clone()).or_insert_with(|| self.enter(tenant));
        let mut results = Vec::with_capacity(batches.len());
        for batch in batches {
            results.push(match batch {
                Judged::Checked(checked) => self.place(entry, frames, *checked)?,
                Judged::Unread { stream, number, hash } => self.pass_over(entry, &stream, number, hash),
                Judged::Refused(refusal) => {
                    self.shared.metrics.batches_refused.add(1);
                    BatchResult::Refused { reason: refusal.to_string() }
                }
            });
        }
        Ok(results)
    }

    fn enter(&self, tenant: &Arc<Tenant>) -> InGroup {
        let (origin, next_leaf) = {
            let log = tenant.log.lock();
            (log.origin().to_owned(), log.size())
        };
        // Never behind an earlier receipt, though the wall clock may step back.
        let last = tenant.state.read().last_received_at.unwrap_or(Timestamp::MIN);
        let received_at = self.shared.env.now().max(last);
        InGroup {
            tenant: Arc::clone(tenant),
            origin,
            next_leaf,
            received_at,
            streams: BTreeMap::new(),
            placed: Vec::new(),
        }
    }

    /// Judges one batch and, when it is to be stored, frames it.
    fn place(
        &self,
        group: &mut InGroup,
        frames: &mut Vec<u8>,
        checked: Checked,
    ) -> Result<BatchResult, CommitError> {
        let metrics = &self.shared.metrics;
        let (stream, number) = (checked.header.stream(), checked.header.batch_number);
        if let Some(answer) = self.answer_again(group, &stream, number, checked.hash) {
            return Ok(answer);
        }
        let tenant = Arc::clone(&group.tenant);
        let pending = group.pending(&stream);
        // The very batch is not stored, so whatever is stored under its number is another one.
        let fork = match judge(&pending.head, None, &checked.header, checked.hash) {
            Verdict::Gap { next_batch_number } => {
                metrics.batches_gap.add(1);
                return Ok(BatchResult::Gap { next_batch_number });
            }
            Verdict::Extend => false,
            Verdict::Fork | Verdict::Duplicate => true,
        };
        if fork && pending.forks >= FORKS_MAX {
            metrics.batches_refused.add(1);
            return Ok(BatchResult::Refused { reason: BatchRefusal::Forks.to_string() });
        }
        let stored = Stored { leaf_index: group.next_leaf, received_at: group.received_at };
        let receipt = self.shared.receipt(&group.origin, checked.hash, stored);
        let withheld = checked.content.elided.len() as u64;
        let placed =
            self.frame(group.next_leaf, group.received_at, &tenant, frames, checked, &receipt, fork)?;
        let pending = group.pending(&stream);
        if fork {
            pending.forks += 1;
        } else {
            pending.head = StreamHead {
                batch_number: placed.checked.header.batch_number,
                last_sequence: placed.checked.header.last_sequence,
                batch_hash: placed.checked.hash,
            };
        }
        pending.receipts.insert(placed.checked.hash, (receipt.clone(), fork));
        group.next_leaf += 1;
        group.placed.push(placed);
        Ok(if fork { BatchResult::Fork { receipt } } else { BatchResult::Stored { receipt, withheld } })
    }

    /// The answer to a batch that was not read: it is stored already, or must come again behind what is.
    fn pass_over(&self, group: &mut InGroup, stream: &StreamId, number: u64, hash: Hash) -> BatchResult {
        self.answer_again(group, stream, number, hash).unwrap_or_else(|| {
            self.shared.metrics.batches_gap.add(1);
            BatchResult::Gap { next_batch_number: group.pending(stream).head.batch_number + 1 }
        })
    }

    /// The receipt of a batch that is stored or in this group.
    fn answer_again(
        &self,
        group: &mut InGroup,
        stream: &StreamId,
        number: u64,
        hash: Hash,
    ) -> Option<BatchResult> {
        let (receipt, fork) = match group.pending(stream).receipts.get(&hash).cloned() {
            Some(known) => known,
            None => {
                let (stored, fork) = self.shared.find_stored(&group.tenant, stream, number, hash)?;
                (self.shared.receipt(&group.origin, hash, stored), fork)
            }
        };
        self.shared.metrics.batches_duplicate.add(1);
        Some(if fork { BatchResult::Fork { receipt } } else { BatchResult::Duplicate { receipt } })
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one frame")]
    fn frame(
        &self,
        leaf_index: u64,
        received_at: Timestamp,
        tenant: &Tenant,
        frames: &mut Vec<u8>,
        checked: Checked,
        receipt: &Receipt,
        fork: bool,
    ) -> Result<Placed, CommitError> {
        let mut flags = if fork { FLAG_FORK } else { 0 };
        if checked.content.places == Places::None {
            flags |= FLAG_HEADER_ONLY;
        }
        let sections = self.sections(tenant, received_at, &checked.content)?;
        let clear =
            Clear { tenant: tenant.id.clone(), leaf_index, received_at, batch_hash: checked.hash, flags };
        let head = Head {
            header_bytes: checked.header_bytes.clone(),
            signature: checked.signature,
            receipt_signature: receipt.signature,
            places: checked.content.places.clone(),
            elided: checked.content.elided.clone(),
        };
        let keys = tenant.keys.of_file(&self.writer.id());
        let payload = batch_payload(&self.shared.env, &keys, &clear, &head, &sections)
            .map_err(|_| CommitError::Io(Arc::new(io::ErrorKind::NotFound.into())))?;
        let offset = self.writer.next_offset() + frames.len() as u64 + FRAME_HEADER_BYTES as u64;
        put_frame(frames, Kind::Batch, &payload);
        let open = OpenBatch {
            file: self.writer.number(),
            file_id: self.writer.id(),
            offset,
            len: payload.len(),
            leaf_index,
            received_at,
            hash: checked.hash,
            flags,
            stream: checked.header.stream(),
            batch_number: checked.header.batch_number,
            last_sequence: checked.header.last_sequence,
            host: checked.header.host.clone(),
            summary: checked.content.facts.summary,
            terms: checked.content.facts.terms.clone(),
            instances: few(checked.content.facts.instances.clone()),
            telemetry: !checked.content.facts.telemetry.is_empty(),
        };
        Ok(Placed { open, leaf: merkle::leaf_hash(&checked.hash.0), checked, fork })
    }

    /// Sections with their keys made durable before anything is sealed under them.
    fn sections(
        &self,
        tenant: &Tenant,
        received_at: Timestamp,
        content: &Content,
    ) -> Result<Vec<PlainSection>, CommitError> {
        let mut sections = Vec::with_capacity(content.sections.len());
        for (retention, raw_bytes, compressed) in &content.sections {
            let id = SectionId { retention: *retention, day: day_of(received_at) };
            tenant.keys.data_key(id, true).map_err(|e| CommitError::Key(Arc::new(e)))?;
            sections.push(PlainSection { id, raw_bytes: *raw_bytes, compressed: compressed.clone() });
        }
        Ok(sections)
    }

    /// The group is durable: make it visible. Returns what the control journal must know.
    fn apply(&self, group: InGroup) -> Vec<ControlRecord> {
        let leaves: Vec<Hash> = group.placed.iter().map(|p| p.leaf).collect();
        if leaves.is_empty() {
            return Vec::new();
        }
        let log_size = {
            let mut log = group.tenant.log.lock();
            log.append(&self.shared.env, &leaves);
            log.size()
        };
        let mut alarms = Vec::new();
        let mut state = group.tenant.state.write();
        state.last_received_at = Some(group.received_at);
        state.log_size = log_size;
        for placed in group.placed {
            let Placed { open, checked, fork, .. } = placed;
            self.count(&checked, fork);
            state.coverage.batch(&Seen {
                header: &checked.header,
                received_at: open.received_at,
                flags: open.flags,
                elided: &checked.content.elided,
                instances: &checked.content.facts.instances,
            });
            if !fork {
                checked.content.facts.telemetry.iter().for_each(|line| state.coverage.telemetry(line));
                for receipt in &checked.content.facts.unknown_receipts {
                    state.coverage.unknown_receipt(&open.stream.collector, receipt);
                }
            }
            alarms.extend(alarms_of(&open, &checked, fork));
            let host = checked.header.host.clone();
            let stream = state.streams.entry(open.stream.clone()).or_insert_with(|| StreamState::new(host));
            stream.admit(&open, &checked.header, fork);
            state.open.insert(open.leaf_index, Arc::new(open));
        }
        alarms
    }

    /// A group's alarms, with one fsync.
    fn alarm(&self, alarms: Vec<ControlRecord>) {
        let count = alarms.len();
        if let Err(error) = self.shared.record_control(alarms) {
            // A forked batch itself carries the flag.
            tracing::error!(%error, count, "alarms are not in the control journal");
        }
    }

    fn count(&self, checked: &Checked, fork: bool) {
        let metrics = &self.shared.metrics;
        if fork {
            metrics.batches_forked.add(1)
        } else {
            metrics.batches_stored.add(1)
        }
        metrics.events_stored.add(checked.content.facts.summary.events);
        metrics.events_withheld.add(checked.content.elided.len() as u64);
        metrics.events_unknown.add(checked.content.facts.unknown);
        metrics.receipts_unknown.add(checked.content.facts.unknown_receipts.len() as u64);
        metrics.event_id_conflicts.add(checked.content.facts.conflicts.len() as u64);
        metrics.bytes_received.add(checked.received_bytes);
    }
}

fn alarms_of(open: &OpenBatch, checked: &Checked, fork: bool) -> Vec<ControlRecord> {
    let tenant = &checked.header.tenant;
    let mut alarms = Vec::new();
    if fork {
        alarms.push(ControlRecord::Forked {
            tenant: tenant.clone(),
            stream: open.stream.clone(),
            batch_number: open.batch_number,
            leaf_index: open.leaf_index,
            batch_hash: open.hash,
        });
        return alarms;
    }
    alarms.extend(checked.content.facts.unknown_receipts.iter().map(|receipt| {
        ControlRecord::ReceiptUnknown {
            tenant: tenant.clone(),
            stream: open.stream.clone(),
            leaf_index: open.leaf_index,
            receipt: receipt.clone(),
        }
    }));
    if let Some(first) = checked.content.facts.conflicts.first() {
        // One record a batch. A fork repeats the ids of its stream; its own alarm says so.
        alarms.push(ControlRecord::Conflict {
            tenant: tenant.clone(),
            stream: open.stream.clone(),
            leaf_index: open.leaf_index,
            event_id: *first,
            count: checked.content.facts.conflicts.len() as u64,
        });
    }
    alarms
}

impl StreamState {
    /// Takes a batch that is durable.
    pub(crate) fn admit(&mut self, open: &OpenBatch, header: &activity_schema::BatchHeader, fork: bool) {
        self.last_received_at = self.last_received_at.max(open.received_at);
        if fork {
            let stored = Stored { leaf_index: open.leaf_index, received_at: open.received_at };
            self.forks.insert(open.hash, stored);
            return;
        }
        self.open.insert(header.batch_number, open.leaf_index);
        if header.batch_number > self.head.batch_number {
            self.head = StreamHead {
                batch_number: header.batch_number,
                last_sequence: header.last_sequence,
                batch_hash: open.hash,
            };
        }
    }
}
