//! The store's public data: configuration, callers, queries, answers.

use std::path::PathBuf;
use std::time::Duration;

use activity_schema::api::StreamAcked;
use activity_schema::coverage::{CoverageReport, EventClass};
use activity_schema::event::{Plane, Status, Trust};
use activity_schema::ids::{CollectorId, Epoch, HostId, InstanceId, TenantId};
use activity_schema::keys::{KeyId, PublicKey, signature_base64};
use activity_schema::receipt::Receipt;
use activity_schema::{Hash, Timestamp};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub dir: PathBuf,
    /// A commit file is sealed into segments when it is this long, bytes.
    pub commit_rotate_bytes: u64,
    /// A commit file with batches is sealed when it is this old.
    pub commit_rotate_age: Duration,
    /// Cadence of checkpoints, also when nothing arrives.
    pub checkpoint_interval: Duration,
    /// Free space below which ingest answers `Full`, bytes.
    pub reserve_bytes: u64,
    /// Opens for writing although records of the control journal are lost. The decision goes on the record.
    pub accept_control_damage: bool,
}

impl Default for StoreConfig {
    fn default() -> Self {
        StoreConfig {
            dir: PathBuf::from("/var/lib/activity/store"),
            commit_rotate_bytes: 64 * 1024 * 1024,
            commit_rotate_age: Duration::from_secs(600),
            checkpoint_interval: Duration::from_secs(60),
            reserve_bytes: 512 * 1024 * 1024,
            accept_control_damage: false,
        }
    }
}

/// Who sent a request, as the connection proved it.
#[derive(Debug, Clone)]
pub struct Caller {
    pub tenant: TenantId,
    pub host: HostId,
    pub collector_id: CollectorId,
    pub instances: Instances,
    /// Keys enrolled for this collector, with the epoch that each signs for.
    pub keys: Vec<(KeyId, PublicKey, Epoch)>,
}

/// Which instances a collector may speak of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instances {
    /// A guest: its own.
    One(InstanceId),
    /// A host: every instance that it announces on itself.
    Host,
}

/// Which events are asked for. Conditions are joined by *and*, values of a list by *or*; an empty list asks for
/// all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Query {
    /// First `occurred_at`, inclusive.
    pub from: Option<Timestamp>,
    /// Last `occurred_at`, exclusive.
    pub to: Option<Timestamp>,
    pub instance: Option<String>,
    pub session: Option<String>,
    pub mission: Option<String>,
    pub task: Option<String>,
    pub tool_call: Option<String>,
    pub command: Option<String>,
    pub process: Option<String>,
    /// Exact names, or `prefix.*`.
    pub events: Vec<String>,
    pub planes: Vec<Plane>,
    pub outcomes: Vec<Status>,
    pub trusts: Vec<Trust>,
    /// An address or a network, as `10.0.0.0/8`.
    pub peer: Option<String>,
    /// Basename.
    pub executable: Option<String>,
    /// Most events of an answer; 0 means [`LIMIT_DEFAULT`], never more than [`LIMIT_MAX`].
    pub limit: usize,
    /// `next_cursor` of the answer before, with the same conditions.
    pub cursor: Option<String>,
    /// Event classes that coverage is asked for.
    pub classes: Vec<EventClass>,
    /// Only batches from this log index on: what arrived since an answer whose `log_size` this was.
    pub since_leaf: Option<u64>,
}

pub const LIMIT_DEFAULT: usize = 10_000;
pub const LIMIT_MAX: usize = 100_000;

/// What coverage is asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoverageQuery {
    pub instance: Option<String>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub classes: Vec<EventClass>,
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub coverage: CoverageReport,
    /// By `occurred_at`, then log index and position.
    pub events: Vec<StoredEvent>,
    pub next_cursor: Option<String>,
    /// Batches in the tenant's log when the answer was made.
    pub log_size: u64,
    /// Lines that may match but are gone: their retention class's key was erased.
    pub erased_lines: u64,
    /// Batches or blocks that may hold matches but do not read (damage); verification names them all.
    pub damaged: u64,
    /// Where the first of them are.
    pub unreadable: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The signed bytes, without newline.
    pub line: Bytes,
    pub leaf_index: u64,
    pub position: u32,
    pub received_at: Timestamp,
    pub batch_hash: Hash,
}

/// Proof of one event: line → batch root → signed header → log → signed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventProof {
    pub line: String,
    pub position: u64,
    /// From the line to the header's `merkle_root`.
    pub line_path: Vec<Hash>,
    /// The signed header, RFC 8785 JSON.
    pub header: String,
    #[serde(with = "signature_base64")]
    pub signature: [u8; 64],
    pub receipt: Receipt,
    pub leaf_index: u64,
    /// From the batch to the checkpoint's root.
    pub log_path: Vec<Hash>,
    pub checkpoint: String,
}

/// A collector as the store has seen it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CollectorStatus {
    pub collector_id: CollectorId,
    pub host: HostId,
    pub streams: Vec<StreamAcked>,
    pub last_received_at: Option<Timestamp>,
    /// What its heartbeats say.
    pub telemetry: Option<activity_coverage::CollectorState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Health {
    /// Age of the oldest batch that waits for its commit.
    pub ingest_stalled: Duration,
    pub disk_free: u64,
    /// Free space is below the reserve: ingest is refused.
    pub full: bool,
    /// The store is open for reading only.
    pub read_only: bool,
    /// The commit log could not be written or fsynced; nothing is acknowledged until it can.
    pub commits_fail: bool,
    /// A thread of the store that panicked: what it did is done by nobody until the gateway is started again.
    pub thread_ended: Option<&'static str>,
    pub last_commit: Option<Timestamp>,
    pub counters: Counters,
}

/// Since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    pub batches_stored: u64,
    pub batches_duplicate: u64,
    pub batches_forked: u64,
    pub batches_gap: u64,
    pub batches_refused: u64,
    /// Answered as a gap before their lines were looked at.
    pub batches_unread: u64,
    pub events_stored: u64,
    pub events_withheld: u64,
    /// Of a name that is not in the catalogue.
    pub events_unknown: u64,
    pub event_id_conflicts: u64,
    /// Heartbeats with a receipt that this store did not give.
    pub receipts_unknown: u64,
    pub bytes_received: u64,
    pub commits: u64,
    pub commit_failures: u64,
    pub bytes_committed: u64,
    pub segments_sealed: u64,
    pub bytes_sealed: u64,
    pub seal_failures: u64,
    pub queries: u64,
    pub blocks_opened: u64,
    pub frames_damaged: u64,
    pub tail_bytes_truncated: u64,
}
