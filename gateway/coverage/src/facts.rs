//! What the store tells the engine, and what it asks.

use activity_schema::batch::ClockState;
use activity_schema::coverage::EventClass;
use activity_schema::ids::{HostId, StreamId};
use activity_schema::{Epoch, Timestamp};
use serde::{Deserialize, Serialize};

/// What became of a batch at the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchKind {
    /// Header and lines are stored.
    Stored,
    /// The header alone: the collector shed the lines.
    Shed,
    /// Other bytes under a range that was stored before.
    Fork,
}

/// A line that the gateway kept as a hash only, because it was not admissible. Unknown parts taint everything
/// that they could be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithheldLine {
    pub instance: Option<String>,
    pub class: Option<EventClass>,
    pub occurred_at: Option<Timestamp>,
}

/// One stored batch. The same batch may be told again, also with a larger `elided` after retention ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchFacts {
    pub stream: StreamId,
    pub host: HostId,
    pub first_sequence: u64,
    pub last_sequence: u64,
    pub count: u64,
    pub occurred_min: Timestamp,
    pub occurred_max: Timestamp,
    /// The gateway's clock.
    pub received_at: Timestamp,
    pub sealed_at: Timestamp,
    pub clock: ClockState,
    pub kind: BatchKind,
    /// Lines refused by the gateway; not part of `elided`.
    pub withheld: Vec<WithheldLine>,
    /// Lines that retention or erasure reduced to hashes.
    pub elided: u64,
    /// Instances seen in its lines.
    pub instances: Vec<String>,
}

/// What an answer must vouch for: `[from, to)`, as known at `now`. Of an instance that was destroyed, up to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoverageRequest {
    /// `None`: every instance of the tenant that was known before `to`.
    pub instance: Option<String>,
    /// `None`: of each instance from its first declaration on, else from the first that was heard of it.
    pub from: Option<Timestamp>,
    pub to: Timestamp,
    pub now: Timestamp,
    /// Empty: all that the instance's configs declare; unsupported ones are then listed but not counted.
    pub classes: Vec<EventClass>,
}

/// A collector as the index knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CollectorState {
    pub collector: String,
    pub host: Option<String>,
    /// The epoch that began last.
    pub epoch: Option<Epoch>,
    pub last_heartbeat: Option<Timestamp>,
    /// Up to here a heartbeat vouches and everything that it names is stored.
    pub covered_to: Option<Timestamp>,
    /// Heartbeat interval in force, nanoseconds.
    pub interval_ns: i64,
    /// Stopped on request and not heard of as running since.
    pub stopped_since: Option<Timestamp>,
    /// Revoked, by the gateway's clock, and not enrolled again.
    pub revoked_since: Option<Timestamp>,
    /// Instances that it declared.
    pub instances: Vec<String>,
    pub streams: Vec<StreamState>,
}

impl CollectorState {
    /// No heartbeat for more than two intervals, without a stop or a revocation.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        self.stopped_since.is_none()
            && self.revoked_since.is_none()
            && self
                .last_heartbeat
                .is_none_or(|t| now.nanos_since(t) > self.interval_ns.saturating_mul(crate::MISSED_MAX))
    }
}

/// One stream of a collector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamState {
    pub stream: StreamId,
    /// Everything from 1 to here is stored.
    pub contiguous_to: u64,
    /// The highest sequence that is stored.
    pub stored_to: u64,
    /// The highest sequence that a heartbeat declared.
    pub declared_to: u64,
}
