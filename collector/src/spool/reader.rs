//! The uplink's view of the spool: sealed batches, read back and compressed.

use std::io;

use activity_schema::batch::{self, BatchHeader, SignedBatch};
use activity_schema::merkle::{Frontier, Hash};
use activity_schema::{Class, merkle};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk::Disk;
use super::frame::{self, Frame};
use super::stream::{BatchIndex, BatchRef, lock};

/// Why a batch cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("batch {number} is not in the spool")]
    Absent { number: u64 },
    #[error("cannot read batch {number} from the spool")]
    Io {
        number: u64,
        #[source]
        source: io::Error,
    },
    #[error("batch {number} has no readable seal in the spool")]
    Seal { number: u64 },
}

/// Shared with the writer; holds no file open.
#[derive(Clone)]
pub struct SpoolReader<D: Disk> {
    pub(super) disk: D,
    pub(super) batches: BTreeMap<Class, BatchIndex>,
}

impl<D: Disk> SpoolReader<D> {
    /// Reads one batch. Lines that cannot be read back whole make it a header alone: the chain holds, and the
    /// gateway counts the lines as missing.
    pub fn read(&self, class: Class, number: u64) -> Result<Arc<SignedBatch>, ReadError> {
        let reference = self.find(class, number).ok_or(ReadError::Absent { number })?;
        if let Some(fresh) = reference.fresh {
            return Ok(fresh);
        }
        let bytes = match self.read_range(&reference) {
            Ok(bytes) => bytes,
            // Shed or released between the look-up and the read: look again.
            Err(_) => {
                let again = self.find(class, number).ok_or(ReadError::Absent { number })?;
                self.read_range(&again).map_err(|source| ReadError::Io { number, source })?
            }
        };
        assemble(&bytes, number).map(Arc::new)
    }

    /// Hash of a batch that is still in the spool.
    pub fn hash(&self, class: Class, number: u64) -> Option<Hash> {
        self.find(class, number).map(|b| b.hash)
    }

    /// What may be sent: sealed, on disk, not released.
    pub fn pending(&self, class: Class) -> Vec<BatchRef> {
        let Some(index) = self.batches.get(&class) else { return Vec::new() };
        lock(index).iter().take_while(|b| b.synced).cloned().collect()
    }

    fn find(&self, class: Class, number: u64) -> Option<BatchRef> {
        let batches = lock(self.batches.get(&class)?);
        let first = batches.front()?.number;
        batches.get(usize::try_from(number.checked_sub(first)?).ok()?).cloned()
    }

    fn read_range(&self, reference: &BatchRef) -> io::Result<Vec<u8>> {
        let (from, to) = reference.range;
        let len = usize::try_from(to - from).map_err(io::Error::other)?;
        self.disk.read_range(&reference.segment, from, len)
    }
}

fn assemble(bytes: &[u8], number: u64) -> Result<SignedBatch, ReadError> {
    let (mut at, mut raw, mut tree, mut whole) = (0, Vec::new(), Frontier::default(), true);
    while at < bytes.len() {
        match frame::decode(&bytes[at..]) {
            Ok((Frame::Lines { lines, .. }, len)) => {
                for line in lines {
                    if tree.size() > 0 {
                        raw.push(b'\n');
                    }
                    raw.extend_from_slice(line);
                    tree.push(merkle::leaf_hash(line));
                }
                at += len;
            }
            Ok((Frame::Seal { header, signature } | Frame::Shed { header, signature }, _)) => {
                let parsed = BatchHeader::parse(header).map_err(|_| ReadError::Seal { number })?;
                whole &= parsed.count == tree.size() && parsed.merkle_root == tree.root();
                let body = if whole { batch::compress(&raw).ok().map(Bytes::from) } else { None };
                let header_bytes = Bytes::copy_from_slice(header);
                return Ok(SignedBatch { header: parsed, header_bytes, signature, body });
            }
            Err(frame::FrameError::Checksum { len } | frame::FrameError::Malformed { len }) => {
                whole = false;
                at += len;
            }
            Err(frame::FrameError::Torn) => break,
        }
    }
    Err(ReadError::Seal { number })
}
