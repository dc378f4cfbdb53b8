//! The gateway's decision about one batch, given what it has stored of the stream.

use crate::batch::BatchHeader;
use crate::merkle::Hash;

/// The newest batch of a stream that is stored (or in the same group commit before this one).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamHead {
    /// 0 when nothing is stored.
    pub batch_number: u64,
    pub last_sequence: u64,
    pub batch_hash: Hash,
}

/// What to do with a batch whose signature is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Extends the stream: store it and move the head.
    Extend,
    /// The very batch is stored: acknowledge with its receipt.
    Duplicate,
    /// Another batch was stored under this number, or the chain disagrees: store beside, alarm, acknowledge.
    Fork,
    /// A batch before this one is missing.
    Gap { next_batch_number: u64 },
}

/// Judges a batch. `stored` is the hash stored under the batch's number, where there is one.
pub fn judge(head: &StreamHead, stored: Option<Hash>, header: &BatchHeader, hash: Hash) -> Verdict {
    let next = head.batch_number + 1;
    if header.batch_number > next {
        return Verdict::Gap { next_batch_number: next };
    }
    if header.batch_number < next {
        return if stored == Some(hash) { Verdict::Duplicate } else { Verdict::Fork };
    }
    let extends =
        header.previous_batch_hash == head.batch_hash && header.first_sequence == head.last_sequence + 1;
    if extends { Verdict::Extend } else { Verdict::Fork }
}
