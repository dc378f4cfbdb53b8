//! What verification found.

use activity_schema::ids::TenantId;
use activity_schema::{Hash, Timestamp};
use serde::Serialize;

/// How far verification has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub file: String,
    pub bytes_done: u64,
    pub bytes_total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A crash explains it as well as a change does: an end that was cut short and never acknowledged.
    Unfinished,
    /// The evidence is not what was acknowledged.
    Damage,
}

/// Something amiss, with the file that it is in, relative to the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub severity: Severity,
    pub file: String,
    pub tenant: Option<TenantId>,
    /// Log index of the batch that is hit.
    pub leaf_index: Option<u64>,
    pub what: String,
}

/// What was verified of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TenantVerified {
    pub tenant: TenantId,
    pub origin: String,
    pub batches: u64,
    pub events: u64,
    /// Lines kept as hashes.
    pub elided: u64,
    /// Lines whose key was erased.
    pub erased: u64,
    pub forks: u64,
    pub headers_alone: u64,
    pub streams: u64,
    pub log_size: u64,
    pub log_root: Hash,
    pub checkpoints: u64,
    /// Size of the newest checkpoint.
    pub checkpoint_size: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct VerifyReport {
    /// Nothing is damaged (in strict mode also nothing unfinished or not established).
    pub ok: bool,
    pub store_id: Option<String>,
    pub gateway_key: Option<String>,
    /// When the store was closed cleanly, and every file still ends as it did then.
    pub closed_at: Option<Timestamp>,
    pub files: u64,
    pub control_records: u64,
    pub tenants: Vec<TenantVerified>,
    pub problems: Vec<Problem>,
    /// What the store alone cannot prove, in words.
    pub not_established: Vec<String>,
}
