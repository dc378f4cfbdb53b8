//! A sealed batch on its way to the disk. Syncing blocks, so it is done apart from the recording: whoever holds an
//! [`Unsynced`] may do it on another thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use activity_schema::StreamId;
use activity_schema::batch::{self, SignedBatch};
use bytes::Bytes;

use super::Sealed;
use super::disk::{Disk, DiskFile};
use super::frame::{self, Frame, SEGMENT_MAGIC};
use super::stream::{BatchIndex, lock};

/// So many new batches of a stream are kept ready to be sent; the others are read back.
const FRESH_MAX: usize = 8;

/// A segment that is being written.
pub struct SegmentFile<F> {
    pub file: F,
    /// Failed fsyncs. After one the kernel takes for written what is not, so every byte that was written before it
    /// and is not known to be on disk is written again.
    failures: AtomicU32,
}

impl<F: DiskFile> SegmentFile<F> {
    pub fn new(file: F) -> Self {
        SegmentFile { file, failures: AtomicU32::new(0) }
    }

    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Acquire)
    }

    fn sync(&self) -> io::Result<()> {
        let result = self.file.sync();
        if result.is_err() {
            self.failures.fetch_add(1, Ordering::AcqRel);
        }
        result
    }
}

/// Must be finished in the order of sealing. Dropped, its batch stays in the spool and is sent after a restart.
pub struct Unsynced<D: Disk> {
    pub(super) stream: StreamId,
    pub(super) batch: SignedBatch,
    pub(super) file: Arc<SegmentFile<D::File>>,
    /// The file's failures when the batch's first byte was written.
    pub(super) failures: u32,
    /// Where `frames` begin in the segment.
    pub(super) start: u64,
    pub(super) frames: Vec<u8>,
    pub(super) index: BatchIndex,
    pub(super) synced: Arc<AtomicU64>,
}

impl<D: Disk> Unsynced<D> {
    /// Waits until these batches are on disk, with one fsync for each file. After an error, try again.
    pub fn sync(group: &[Self]) -> io::Result<()> {
        for batch in group.iter().filter(|b| b.failures != b.file.failures()) {
            batch.file.file.write_at(0, SEGMENT_MAGIC)?;
            batch.file.file.write_at(batch.start, &batch.frames)?;
        }
        for (n, batch) in group.iter().enumerate() {
            if !group[n + 1..].iter().any(|later| Arc::ptr_eq(&later.file, &batch.file)) {
                batch.file.sync()?;
            }
        }
        Ok(())
    }

    /// The batch is on disk: from now on it may be sent.
    pub fn finish(self) -> Sealed {
        let Unsynced { stream, mut batch, frames, index, synced, .. } = self;
        let (number, raw_bytes) = (batch.header.batch_number, batch.header.raw_bytes);
        let raw = raw_lines(&frames, batch.header.count, raw_bytes);
        batch.body = raw.and_then(|raw| batch::compress(&raw).ok()).map(Bytes::from);
        let mut batches = lock(&index);
        let fresh = batches.iter().filter(|b| b.fresh.is_some()).count();
        if let Some(reference) = batches.iter_mut().rev().find(|b| b.number == number) {
            reference.synced = true;
            if fresh < FRESH_MAX && !reference.shed && batch.body.is_some() {
                reference.fresh = Some(Arc::new(batch));
            }
        }
        drop(batches);
        synced.fetch_max(number, Ordering::Release);
        Sealed { epoch: stream.epoch, class: stream.class, number, bytes: raw_bytes }
    }
}

/// The lines in a batch's frames, if they are all there.
fn raw_lines(mut frames: &[u8], count: u64, raw_bytes: u64) -> Option<Vec<u8>> {
    let mut raw = Vec::with_capacity(usize::try_from(raw_bytes).unwrap_or(0));
    let mut found = 0;
    while let Ok((Frame::Lines { lines, .. }, len)) = frame::decode(frames) {
        for line in lines {
            if found > 0 {
                raw.push(b'\n');
            }
            raw.extend_from_slice(line);
            found += 1;
        }
        frames = &frames[len..];
    }
    (found == count).then_some(raw)
}
