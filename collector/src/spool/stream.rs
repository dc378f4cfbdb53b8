//! One stream of the spool: segments of one class, sealed batches, and the batch that is open.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use activity_schema::batch::{BATCH_RAW_BYTES_MAX, BATCH_VERSION, BatchHeader, ClockState, SignedBatch};
use activity_schema::keys::Signer;
use activity_schema::merkle::{self, Frontier, Hash};
use activity_schema::{StreamId, Timestamp};

use uuid::Uuid;

use super::disk::{Disk, DiskFile};
use super::frame::{self, RingCursor, SEGMENT_MAGIC};
use super::unsynced::{SegmentFile, Unsynced};

/// A line ready to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub bytes: Vec<u8>,
    pub occurred_at: Timestamp,
}

/// A sealed batch and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRef {
    pub number: u64,
    pub first_sequence: u64,
    pub last_sequence: u64,
    pub hash: Hash,
    pub occurred_min: Timestamp,
    pub occurred_max: Timestamp,
    pub segment: PathBuf,
    /// Byte range of the batch's frames within the segment, seal included.
    pub range: (u64, u64),
    pub raw_bytes: u64,
    pub shed: bool,
    /// It is on disk for certain: it may be sent.
    pub synced: bool,
    /// The batch itself, while it is new: it need not be read back to be sent.
    pub fresh: Option<Arc<SignedBatch>>,
}

impl BatchRef {
    pub fn count(&self) -> u64 {
        self.last_sequence - self.first_sequence + 1
    }
}

#[derive(Debug)]
pub struct Segment {
    pub path: PathBuf,
    pub bytes: u64,
    pub shed: bool,
    /// A batch was sealed in it: it says where the stream goes on.
    pub sealed: bool,
}

/// The lines since the last seal.
#[derive(Debug, Default)]
pub struct OpenBatch {
    pub frontier: Frontier,
    pub raw_bytes: u64,
    pub occurred_min: Timestamp,
    pub occurred_max: Timestamp,
    pub start_offset: u64,
    pub opened_at_ns: u64,
    /// The frames, as they lie in the segment from `start_offset` on.
    pub frames: Vec<u8>,
    /// Failed fsyncs of the segment before the first of `frames` was written.
    pub failures: u32,
    /// Event ids of the losses told in it, as far as recovery found them.
    pub losses: Vec<Uuid>,
}

impl OpenBatch {
    pub fn count(&self) -> u64 {
        self.frontier.size()
    }

    pub fn add(&mut self, line: &[u8], occurred_at: Timestamp) {
        if self.count() == 0 {
            (self.occurred_min, self.occurred_max) = (occurred_at, occurred_at);
        }
        self.raw_bytes += line.len() as u64 + u64::from(self.count() > 0);
        self.occurred_min = self.occurred_min.min(occurred_at);
        self.occurred_max = self.occurred_max.max(occurred_at);
        self.frontier.push(merkle::leaf_hash(line));
    }
}

/// Sealed batches not yet released, shared with the reader.
pub(super) type BatchIndex = Arc<Mutex<VecDeque<BatchRef>>>;

pub(super) fn lock(index: &BatchIndex) -> MutexGuard<'_, VecDeque<BatchRef>> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct StreamLog<D: Disk> {
    pub disk: D,
    pub dir: PathBuf,
    pub stream: StreamId,
    pub segments: VecDeque<Segment>,
    pub file: Option<Arc<SegmentFile<D::File>>>,
    pub batches: BatchIndex,
    /// Number of the newest batch that is on disk for certain.
    pub synced: Arc<AtomicU64>,
    pub open: OpenBatch,
    pub next_sequence: u64,
    pub next_batch: u64,
    pub previous_hash: Hash,
    pub newest_sealed: Option<Timestamp>,
    /// Event ids of the losses that recovery found told in sealed batches.
    pub losses_told: Vec<Uuid>,
    pub cursors: BTreeMap<u8, u64>,
    /// Says how far the stream has come, apart from its segments.
    pub head: Option<D::File>,
}

/// What a header says beyond the lines.
#[derive(Debug, Clone)]
pub struct SealContext<'a> {
    pub header: &'a HeaderFacts,
    pub clock: ClockState,
    pub policy_digest: Hash,
    pub now: Timestamp,
    pub ring_names: &'a [&'static str],
    pub segment_bytes: u64,
}

/// Constants of an epoch.
#[derive(Debug, Clone)]
pub struct HeaderFacts {
    pub tenant: activity_schema::ids::TenantId,
    pub host: activity_schema::ids::HostId,
    pub boot_id: String,
}

impl<D: Disk> StreamLog<D> {
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.bytes).sum()
    }

    /// Time of the newest event that the stream is known to have had, released or not.
    pub fn newest(&self) -> Option<Timestamp> {
        self.newest_sealed.max((self.open.count() > 0).then_some(self.open.occurred_max))
    }

    /// Appends one frame of lines. On error nothing was appended and no sequence was used.
    pub fn append(&mut self, lines: &[Line], cursors: &[RingCursor], now_ns: u64) -> io::Result<()> {
        debug_assert!(lines.iter().map(|l| l.bytes.len() as u64).sum::<u64>() < BATCH_RAW_BYTES_MAX);
        self.ensure_segment()?;
        if self.open.count() == 0 {
            self.open.start_offset = self.active_bytes();
            self.open.opened_at_ns = now_ns;
            self.open.failures = self.file.as_ref().map_or(0, |f| f.failures());
        }
        self.append_frame(|out| frame::encode_lines(cursors, lines.iter().map(|l| &*l.bytes), out))?;
        for line in lines {
            self.open.add(&line.bytes, line.occurred_at);
        }
        for cursor in cursors {
            self.cursors.insert(cursor.ring, cursor.position);
        }
        self.next_sequence += lines.len() as u64;
        // The lines are there; without it, only their loss would not be noticed.
        let _ = self.head.as_ref().map(|head| head.write_at(0, &self.next_sequence.to_le_bytes()));
        Ok(())
    }

    /// Seals the open lines: header and signature. `None` when there are none. The batch may be sent once it is
    /// [synced](Unsynced::sync).
    pub fn seal(&mut self, context: &SealContext<'_>, signer: &Signer) -> io::Result<Option<Unsynced<D>>> {
        let count = self.open.count();
        if count == 0 {
            return Ok(None);
        }
        let ring_name = |ring: &u8| context.ring_names.get(usize::from(*ring)).map(|n| (*n).to_owned());
        let header = BatchHeader {
            batch_number: self.next_batch,
            boot_id: context.header.boot_id.clone(),
            class: self.stream.class,
            clock: context.clock,
            collector_id: self.stream.collector.clone(),
            count,
            epoch: self.stream.epoch.clone(),
            first_sequence: self.next_sequence - count,
            host: context.header.host.clone(),
            key_id: signer.id().clone(),
            last_sequence: self.next_sequence - 1,
            merkle_root: self.open.frontier.root(),
            occurred_max: self.open.occurred_max,
            occurred_min: self.open.occurred_min,
            policy_digest: context.policy_digest,
            previous_batch_hash: self.previous_hash,
            raw_bytes: self.open.raw_bytes,
            ring_cursors: self.cursors.iter().filter_map(|(r, p)| Some((ring_name(r)?, *p))).collect(),
            sealed_at: context.now,
            tenant: context.header.tenant.clone(),
            version: BATCH_VERSION,
        };
        let batch = SignedBatch::sign(header, None, signer);
        self.append_frame(|out| frame::encode_seal(&batch.header_bytes, &batch.signature, false, out))?;
        let file = self.file.clone().ok_or_else(no_segment)?;
        let OpenBatch { start_offset: start, frames, failures, .. } = std::mem::take(&mut self.open);
        let reference = self.sealed(&batch, (start, self.active_bytes()), false);
        // The next batch will be about as long.
        self.open.frames.reserve(frames.len());
        lock(&self.batches).push_back(reference);
        if self.active_bytes() >= context.segment_bytes {
            self.file = None;
        }
        let (index, synced) = (self.batches.clone(), self.synced.clone());
        let stream = self.stream.clone();
        Ok(Some(Unsynced { stream, batch, file, failures, start, frames, index, synced }))
    }

    /// Moves the heads past a sealed batch; used at seal and at recovery.
    pub fn sealed(&mut self, batch: &SignedBatch, range: (u64, u64), shed: bool) -> BatchRef {
        let h = &batch.header;
        self.previous_hash = batch.hash();
        self.next_batch = h.batch_number + 1;
        self.next_sequence = h.last_sequence + 1;
        self.newest_sealed = self.newest_sealed.max(Some(h.occurred_max));
        self.open = OpenBatch::default();
        if let Some(segment) = self.segments.back_mut() {
            segment.sealed = true;
        }
        BatchRef {
            number: h.batch_number,
            first_sequence: h.first_sequence,
            last_sequence: h.last_sequence,
            hash: self.previous_hash,
            occurred_min: h.occurred_min,
            occurred_max: h.occurred_max,
            segment: self.segments.back().map(|s| s.path.clone()).unwrap_or_default(),
            range,
            raw_bytes: h.raw_bytes,
            shed,
            synced: false,
            fresh: None,
        }
    }

    /// Number of the oldest batch that is not released.
    pub fn first_pending(&self) -> Option<u64> {
        lock(&self.batches).front().map(|b| b.number)
    }

    /// Batches that are not released, and when the oldest event in them occurred.
    pub fn pending(&self) -> (usize, Option<Timestamp>) {
        let batches = lock(&self.batches);
        (batches.len(), batches.front().map(|b| b.occurred_min))
    }

    /// Number of the newest batch that is on disk for certain.
    pub fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// Everything sealed is on disk: what was read back after a kill may not have been.
    pub fn sync_recovered(&mut self) -> io::Result<()> {
        let mut batches = lock(&self.batches);
        for segment in &self.segments {
            if batches.iter().any(|b| b.segment == segment.path) {
                self.disk.open(&segment.path)?.sync()?;
            }
        }
        batches.iter_mut().for_each(|b| b.synced = true);
        self.synced.store(self.next_batch - 1, Ordering::Release);
        Ok(())
    }

    /// Forgets batches up to `number`; removes segments that hold nothing else. The newest in which a batch was sealed
    /// stays: it carries the heads across a restart.
    pub fn release(&mut self, number: u64) -> io::Result<()> {
        let needed = {
            let mut batches = lock(&self.batches);
            while batches.front().is_some_and(|b| b.number <= number) {
                batches.pop_front();
            }
            batches.front().map(|b| b.segment.clone())
        };
        while self.segments.iter().skip(1).any(|s| s.sealed)
            && self.segments.front().map(|s| &s.path) != needed.as_ref()
        {
            if let Some(segment) = self.segments.pop_front() {
                self.disk.remove(&segment.path)?;
            }
        }
        Ok(())
    }

    /// Drops the lines of the oldest segment that still has any and holds no open batch; its headers stay.
    /// Returns the batches that lost their lines.
    pub fn shed_oldest(&mut self) -> io::Result<Option<Vec<BatchRef>>> {
        let newest = self.segments.len().saturating_sub(1);
        let Some(at) = self.segments.iter().position(|s| !s.shed) else { return Ok(None) };
        if at == newest {
            if self.open.count() > 0 || lock(&self.batches).back().is_none() {
                return Ok(None);
            }
            self.file = None;
        }
        let path = self.segments[at].path.clone();
        let bytes = self.disk.read(&path)?;
        let mut stub = SEGMENT_MAGIC.to_vec();
        let mut ranges = BTreeMap::new();
        super::recover::for_each_seal(&bytes, |header, signature| {
            let start = stub.len() as u64;
            frame::encode_seal(header, signature, true, &mut stub);
            if let Ok(header) = BatchHeader::parse(header) {
                ranges.insert(header.batch_number, (start, stub.len() as u64));
            }
        });
        self.disk.replace(&path, &stub)?;
        self.segments[at].bytes = stub.len() as u64;
        self.segments[at].shed = true;
        let mut shed = Vec::new();
        for batch in lock(&self.batches).iter_mut().filter(|b| b.segment == path && !b.shed) {
            if let Some(range) = ranges.get(&batch.number) {
                batch.shed = true;
                batch.range = *range;
                batch.fresh = None;
                shed.push(batch.clone());
            }
        }
        Ok(Some(shed))
    }

    fn active_bytes(&self) -> u64 {
        self.segments.back().map_or(0, |s| s.bytes)
    }

    fn ensure_segment(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let path = self.dir.join(format!("{:020}.seg", self.next_sequence));
        let file = self.disk.open(&path)?;
        let fresh = file.write_at(0, SEGMENT_MAGIC).and_then(|()| self.disk.sync_dir(&self.dir));
        if let Err(e) = fresh {
            let _ = self.disk.remove(&path);
            return Err(e);
        }
        self.segments.push_back(Segment {
            path,
            bytes: SEGMENT_MAGIC.len() as u64,
            shed: false,
            sealed: false,
        });
        self.file = Some(Arc::new(SegmentFile::new(file)));
        Ok(())
    }

    fn append_frame(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let (Some(file), Some(segment)) = (&self.file, self.segments.back_mut()) else {
            return Err(no_segment());
        };
        let frames = &mut self.open.frames;
        let before = frames.len();
        encode(frames);
        if let Err(e) = file.file.write_at(segment.bytes, &frames[before..]) {
            frames.truncate(before);
            file.file.truncate(segment.bytes)?;
            return Err(e);
        }
        segment.bytes += (frames.len() - before) as u64;
        Ok(())
    }
}

fn no_segment() -> io::Error {
    io::Error::other("no active segment")
}
