//! What the verification of a bundle found.

use activity_schema::ids::{CollectorId, Epoch};
use activity_schema::keys::KeyId;
use activity_schema::{Hash, Timestamp};
use serde::Serialize;

use super::Manifest;

/// Problems that are named; the rest is counted.
const PROBLEMS_MAX: usize = 64;
/// Most that is said of one, bytes: it may quote the bundle.
const PROBLEM_BYTES_MAX: usize = 1024;

/// What verification tells while it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BundleStep {
    /// So many bytes are read.
    Read(u64),
    /// A batch begins: its name, its hash, event lines in the bundle, and lines of the batch.
    Batch { name: String, hash: Hash, events: u64, of: u64 },
}

/// Something amiss.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BundleProblem {
    /// From 1.
    pub line: u64,
    /// The batch that is hit: its number, stream and leaf.
    pub batch: Option<String>,
    pub what: String,
}

/// Who says that a key belongs to a collector: the gateway, in its control journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BundleKey {
    pub collector_id: CollectorId,
    pub key_id: KeyId,
    pub epoch: Epoch,
    pub enrolled_at: Timestamp,
    /// Sequence of the record in the control journal.
    pub control_sequence: u64,
    pub revoked_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct BundleReport {
    /// Nothing is amiss (in strict mode also nothing is not established).
    pub ok: bool,
    pub manifest: Option<Manifest>,
    /// The gateway's signature over the whole bundle holds.
    pub signed: bool,
    pub batches: u64,
    pub events: u64,
    /// Lines of the batches that are in the bundle as hashes.
    pub hashes: u64,
    /// Lines of the batches whose key was erased.
    pub erased: u64,
    /// Batches that are newer than the checkpoint: their receipts hold them, not the log.
    pub beyond_checkpoint: u64,
    /// Batches or blocks that did not read when the bundle was made.
    pub damaged: u64,
    /// Where the first of them are.
    pub unreadable: Vec<String>,
    pub keys: Vec<BundleKey>,
    /// The first of them.
    pub problems: Vec<BundleProblem>,
    pub problems_count: u64,
    /// What the bundle alone cannot prove, in words.
    pub not_established: Vec<String>,
}

impl BundleReport {
    pub(super) fn problem(&mut self, line: u64, batch: Option<&str>, what: impl Into<String>) {
        self.problems_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            let mut what: String = what.into();
            what.truncate(what.floor_char_boundary(PROBLEM_BYTES_MAX));
            what.shrink_to_fit();
            self.problems.push(BundleProblem { line, batch: batch.map(str::to_owned), what });
        }
    }

    pub(super) fn not_established(&mut self, what: impl Into<String>) {
        self.not_established.push(what.into());
    }
}
