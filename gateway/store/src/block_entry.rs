//! What an index keeps of one block: enough to pass over it, to find it, and to know its stream's head.
//!
//! ```text
//! summary (see `summary`) | varint first leaf | varint leaf span | bytes filter
//! varint offset | varint length | varint block | bytes stream | bytes host | u8 flags
//! varint first batch number | varint last batch number | varint last sequence | 32 last batch hash
//! i64 LE first received at (ns) | i64 LE last received at | varint count of instances, each bytes
//! varint count of forked batches, each: 32 hash | varint leaf index | i64 LE received at
//! varint count of batches | varint count of segment terms (see `terms`), each u64 LE
//! ```
//! Flags: bit 0 batches of a fork, bit 1 holds lines that coverage hears of.

use activity_schema::ids::{HostId, StreamId};
use activity_schema::{Hash, Timestamp};

use crate::segment::BlockRef;
use crate::summary::Summary;
use crate::tenant::{SegmentMeta, Stored};
use crate::terms::Filter;
use crate::wire::{Reader, WireError, put_bytes, put_len, put_varint};

pub(crate) const ENTRY_FORK: u8 = 1;
pub(crate) const ENTRY_TELEMETRY: u8 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockEntry {
    pub summary: Summary,
    pub first_leaf: u64,
    pub last_leaf: u64,
    pub filter: Vec<u8>,
    pub offset: u64,
    pub len: usize,
    pub block: u32,
    pub stream: StreamId,
    pub host: HostId,
    pub flags: u8,
    pub first_number: u64,
    pub last_number: u64,
    pub last_sequence: u64,
    pub last_hash: Hash,
    pub received_min: Timestamp,
    pub received_max: Timestamp,
    pub instances: Vec<String>,
    pub forks: Vec<(Hash, Stored)>,
    pub batches: u64,
    /// Terms of the kinds that filters of segments hold.
    pub segment_terms: Vec<u64>,
}

/// The front of an entry, read without copying, as a query passes over thousands.
pub(crate) struct EntryView<'a> {
    pub summary: Summary,
    pub first_leaf: u64,
    pub last_leaf: u64,
    pub filter: Filter<'a>,
    rest: Reader<'a>,
}

impl<'a> EntryView<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let summary = Summary::read(&mut reader)?;
        let first_leaf = reader.varint()?;
        let last_leaf = first_leaf.checked_add(reader.varint()?).ok_or(WireError)?;
        let filter = Filter::new(reader.bytes()?);
        Ok(EntryView { summary, first_leaf, last_leaf, filter, rest: reader })
    }

    pub(crate) fn place(&self, segment: &SegmentMeta) -> Result<BlockRef, WireError> {
        let mut rest = self.rest.clone();
        Ok(BlockRef {
            segment: segment.number,
            file_id: segment.file_id,
            offset: rest.varint()?,
            len: rest.len()?,
            block: u32::try_from(rest.varint()?).map_err(|_| WireError)?,
            occurred_min: self.summary.occurred_min,
        })
    }
}

impl BlockEntry {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.filter.len() + 256);
        self.summary.put(&mut out);
        put_varint(&mut out, self.first_leaf);
        put_varint(&mut out, self.last_leaf - self.first_leaf);
        put_bytes(&mut out, &self.filter);
        put_varint(&mut out, self.offset);
        put_len(&mut out, self.len);
        put_varint(&mut out, u64::from(self.block));
        put_bytes(&mut out, self.stream.to_string().as_bytes());
        put_bytes(&mut out, self.host.as_str().as_bytes());
        out.push(self.flags);
        put_varint(&mut out, self.first_number);
        put_varint(&mut out, self.last_number);
        put_varint(&mut out, self.last_sequence);
        out.extend_from_slice(&self.last_hash.0);
        out.extend_from_slice(&self.received_min.as_nanos().to_le_bytes());
        out.extend_from_slice(&self.received_max.as_nanos().to_le_bytes());
        put_len(&mut out, self.instances.len());
        for instance in &self.instances {
            put_bytes(&mut out, instance.as_bytes());
        }
        put_len(&mut out, self.forks.len());
        for (hash, stored) in &self.forks {
            out.extend_from_slice(&hash.0);
            put_varint(&mut out, stored.leaf_index);
            out.extend_from_slice(&stored.received_at.as_nanos().to_le_bytes());
        }
        put_varint(&mut out, self.batches);
        put_len(&mut out, self.segment_terms.len());
        self.segment_terms.iter().for_each(|term| out.extend_from_slice(&term.to_le_bytes()));
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let view = EntryView::read(bytes)?;
        let mut reader = Reader::new(bytes);
        Summary::read(&mut reader)?;
        reader.varint()?;
        reader.varint()?;
        let filter = reader.bytes()?.to_vec();
        let offset = reader.varint()?;
        let len = reader.len()?;
        let block = u32::try_from(reader.varint()?).map_err(|_| WireError)?;
        let stream = reader.text()?.parse().map_err(|_| WireError)?;
        let host = HostId::new(reader.text()?).map_err(|_| WireError)?;
        let flags = reader.u8()?;
        let (first_number, last_number, last_sequence) =
            (reader.varint()?, reader.varint()?, reader.varint()?);
        let last_hash = reader.hash()?;
        let received_min = Timestamp::from_nanos(reader.i64()?);
        let received_max = Timestamp::from_nanos(reader.i64()?);
        let mut instances = Vec::new();
        for _ in 0..reader.len()? {
            instances.push(reader.text()?.to_owned());
        }
        let mut forks = Vec::new();
        for _ in 0..reader.len()? {
            let hash = reader.hash()?;
            let leaf_index = reader.varint()?;
            forks.push((hash, Stored { leaf_index, received_at: Timestamp::from_nanos(reader.i64()?) }));
        }
        let batches = reader.varint()?;
        let mut segment_terms = Vec::new();
        for _ in 0..reader.len()? {
            segment_terms.push(u64::from_le_bytes(reader.array()?));
        }
        Ok(BlockEntry {
            summary: view.summary,
            first_leaf: view.first_leaf,
            last_leaf: view.last_leaf,
            filter,
            offset,
            len,
            block,
            stream,
            host,
            flags,
            first_number,
            last_number,
            last_sequence,
            last_hash,
            received_min,
            received_max,
            instances,
            forks,
            batches,
            segment_terms,
        })
    }

    pub(crate) fn place(&self, segment: &SegmentMeta) -> BlockRef {
        BlockRef {
            segment: segment.number,
            file_id: segment.file_id,
            offset: self.offset,
            len: self.len,
            block: self.block,
            occurred_min: self.summary.occurred_min,
        }
    }

    pub(crate) fn is_fork(&self) -> bool {
        self.flags & ENTRY_FORK != 0
    }

    pub(crate) fn has_telemetry(&self) -> bool {
        self.flags & ENTRY_TELEMETRY != 0
    }
}
