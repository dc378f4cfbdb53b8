//! The batch: the unit that is signed, sent, acknowledged and proven (contract, "Batch").

mod body;
mod codec;
#[cfg(test)]
pub(crate) mod tests;

pub use body::{
    BodyError, compress, compress_at, decompress, decompress_again, decompress_within, join_lines,
    join_lines_again, split_lines,
};
pub use codec::{DecodeError, FRAME_BYTES_MAX};

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::event::wire_enum;
use crate::ids::{CollectorId, Epoch, HostId, StreamId, TenantId};
use crate::keys::{KeyId, PublicKey, Purpose, Signer};
use crate::merkle::{self, Hash};
use crate::time::Timestamp;

/// Most events in a batch.
pub const BATCH_EVENTS_MAX: u64 = 4096;
/// Most raw bytes (lines and separators) in a batch.
pub const BATCH_RAW_BYTES_MAX: u64 = 1024 * 1024;
/// The format version that this crate writes and reads.
pub const BATCH_VERSION: u32 = 1;
/// Longest header, bytes.
pub const HEADER_BYTES_MAX: usize = 4096;
/// Integers in RFC 8785 JSON are exact up to here.
pub const INTEGER_MAX: i64 = (1 << 53) - 1;

wire_enum!(/// Priority of an event, given by the catalogue; each has a stream of its own.
    Class { Critical = "critical", Standard = "standard", Bulk = "bulk" });

/// State of the collector's wall clock when the batch was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockState {
    /// Estimated error bound of the wall clock, nanoseconds; at most [`INTEGER_MAX`].
    pub error_ns: i64,
    /// Estimated offset of the wall clock, nanoseconds.
    pub offset_ns: i64,
    pub synchronised: bool,
}

/// The signed statement about a run of events of one stream.
///
/// On the wire: RFC 8785 JSON. The fields stand in the order of their names, so that compact serialisation is
/// canonical; a reader re-serialises and compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchHeader {
    /// Contiguous within the stream, from 1.
    pub batch_number: u64,
    pub boot_id: String,
    pub class: Class,
    pub clock: ClockState,
    pub collector_id: CollectorId,
    pub count: u64,
    pub epoch: Epoch,
    pub first_sequence: u64,
    pub host: HostId,
    pub key_id: KeyId,
    pub last_sequence: u64,
    pub merkle_root: Hash,
    pub occurred_max: Timestamp,
    pub occurred_min: Timestamp,
    pub policy_digest: Hash,
    /// Batch hash of the batch before in the stream; zeros for the first.
    pub previous_batch_hash: Hash,
    /// Bytes of the lines and their separators; caps decompression.
    pub raw_bytes: u64,
    /// Kernel ring positions up to which the stream holds everything, by ring name.
    pub ring_cursors: BTreeMap<String, u64>,
    pub sealed_at: Timestamp,
    pub tenant: TenantId,
    pub version: u32,
}

/// Why a header is not one.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("the header is {0} bytes, the longest admitted is {HEADER_BYTES_MAX}")]
    TooLong(usize),
    #[error("the header is not valid: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the header is not canonical JSON (RFC 8785)")]
    NotCanonical,
    #[error("header field {0} is out of range")]
    Range(&'static str),
    #[error("batch format version {0} is not known here, only {BATCH_VERSION}")]
    Version(u32),
}

impl BatchHeader {
    pub fn stream(&self) -> StreamId {
        StreamId { collector: self.collector_id.clone(), epoch: self.epoch.clone(), class: self.class }
    }

    /// The canonical bytes that are signed.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(900);
        let written = serde_json::to_writer(&mut out, self);
        debug_assert!(written.is_ok(), "a header is plain data");
        out
    }

    /// Parses, checks that the bytes are canonical and that the numbers agree with one another.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.len() > HEADER_BYTES_MAX {
            return Err(HeaderError::TooLong(bytes.len()));
        }
        let header: BatchHeader = serde_json::from_slice(bytes)?;
        if header.version != BATCH_VERSION {
            return Err(HeaderError::Version(header.version));
        }
        let require = |ok: bool, field| if ok { Ok(()) } else { Err(HeaderError::Range(field)) };
        let within = |n: u64| i64::try_from(n).is_ok_and(|n| n <= INTEGER_MAX);
        require((1..=BATCH_EVENTS_MAX).contains(&header.count), "count")?;
        require(header.first_sequence >= 1 && within(header.first_sequence), "first_sequence")?;
        require(within(header.last_sequence), "last_sequence")?;
        require(
            header.last_sequence.checked_sub(header.first_sequence) == Some(header.count - 1),
            "last_sequence",
        )?;
        require(header.batch_number >= 1 && header.batch_number <= header.first_sequence, "batch_number")?;
        require((1..=BATCH_RAW_BYTES_MAX).contains(&header.raw_bytes), "raw_bytes")?;
        require(header.occurred_min <= header.occurred_max, "occurred_max")?;
        require((0..=INTEGER_MAX).contains(&header.clock.error_ns), "clock.error_ns")?;
        require((-INTEGER_MAX..=INTEGER_MAX).contains(&header.clock.offset_ns), "clock.offset_ns")?;
        require(header.boot_id.len() <= 64, "boot_id")?;
        require(
            header.ring_cursors.len() <= 16 && header.ring_cursors.keys().all(|k| k.len() <= 32),
            "ring_cursors",
        )?;
        require(header.ring_cursors.values().all(|n| within(*n)), "ring_cursors")?;
        if header.to_bytes() != bytes {
            return Err(HeaderError::NotCanonical);
        }
        Ok(header)
    }
}

/// A header as it was signed, with its signature and, unless shed or elided, its compressed lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedBatch {
    pub header: BatchHeader,
    pub header_bytes: Bytes,
    pub signature: [u8; 64],
    /// zstd of the lines; `None` for a header alone.
    pub body: Option<Bytes>,
}

impl SignedBatch {
    /// Signs a header. `header.key_id` must be the signer's.
    pub fn sign(header: BatchHeader, body: Option<Bytes>, signer: &Signer) -> Self {
        debug_assert_eq!(&header.key_id, signer.id());
        let header_bytes = Bytes::from(header.to_bytes());
        let signature = signer.sign(Purpose::Batch, &header_bytes);
        SignedBatch { header, header_bytes, signature, body }
    }

    pub fn is_signed_by(&self, key: PublicKey) -> bool {
        key.verify(Purpose::Batch, &self.header_bytes, &self.signature)
    }

    /// `SHA-256(header ‖ signature)`: the batch's name in the chain, in receipts and in the log.
    pub fn hash(&self) -> Hash {
        batch_hash(&self.header_bytes, &self.signature)
    }

    /// The tenant log's leaf hash: leaf data is the batch hash.
    pub fn log_leaf(&self) -> Hash {
        merkle::leaf_hash(&self.hash().0)
    }
}

pub fn batch_hash(header_bytes: &[u8], signature: &[u8; 64]) -> Hash {
    Hash::of(&[header_bytes, signature])
}

/// A place in a batch's tree: the line, or what is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf<'a> {
    Line(&'a [u8]),
    /// The line was withheld, aged out or erased; its leaf hash keeps the root provable.
    Elided(Hash),
}

impl Leaf<'_> {
    pub fn hash(&self) -> Hash {
        match self {
            Leaf::Line(line) => merkle::leaf_hash(line),
            Leaf::Elided(hash) => *hash,
        }
    }
}

/// Root over a batch's places; equals the header's `merkle_root` when nothing was changed.
pub fn lines_root<'a>(leaves: impl IntoIterator<Item = Leaf<'a>>) -> Hash {
    let mut frontier = merkle::Frontier::default();
    for leaf in leaves {
        frontier.push(leaf.hash());
    }
    frontier.root()
}
