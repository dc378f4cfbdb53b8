//! Coverage: what an answer can vouch for, and what it cannot.

use serde::{Deserialize, Serialize};

use crate::event::wire_enum;
use crate::time::Timestamp;

wire_enum!(/// State of one event class over an interval (design, "Words").
    CoverageState { Covered = "covered", Pending = "pending", Lossy = "lossy", Unobserved = "unobserved", Unsupported = "unsupported" });

wire_enum!(/// Families of events whose visibility is declared by `telemetry.config`.
    EventClass { Session = "session", Tool = "tool", Process = "process", Network = "network", File = "file",
        Dns = "dns", Runtime = "runtime", Resource = "resource", System = "system", Security = "security" });

wire_enum!(/// Why records are missing.
    LossReason { RingFull = "ring_full", NetlinkOverrun = "netlink_overrun", AuditLost = "audit_lost",
        SpoolQuota = "spool_quota", SpoolCorrupt = "spool_corrupt", DiskFull = "disk_full", RateLimit = "rate_limit",
        CollectorDown = "collector_down", GatewayQuarantine = "gateway_quarantine", MapEvicted = "map_evicted" });

impl EventClass {
    /// The class that an event name belongs to; `telemetry.*` belongs to none.
    pub fn of(name: &str) -> Option<EventClass> {
        let mut words = name.split('.');
        let (first, second) = (words.next()?, words.next()?);
        Some(match (first, second) {
            ("session" | "mission" | "task", _) => EventClass::Session,
            ("agent", _) => EventClass::Tool,
            ("process", _) => EventClass::Process,
            ("network", "dns") => EventClass::Dns,
            ("network", _) => EventClass::Network,
            ("file", _) => EventClass::File,
            ("runtime", "resource" | "pressure") => EventClass::Resource,
            ("runtime", _) => EventClass::Runtime,
            ("system", "security") => EventClass::Security,
            ("system", _) => EventClass::System,
            _ => return None,
        })
    }
}

/// A half-open interval `[from, to)` in one state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageSpan {
    pub from: Timestamp,
    pub to: Timestamp,
    pub state: CoverageState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Records known to be missing; a lower bound unless `exact`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<bool>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature that serde asks for")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// One event class of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCoverage {
    pub class: EventClass,
    /// The worst state of the interval.
    pub state: CoverageState,
    /// The source that watches it, when one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    pub spans: Vec<CoverageSpan>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceCoverage {
    pub instance_id: String,
    pub classes: Vec<ClassCoverage>,
    /// Largest clock error bound of the interval, nanoseconds; `None` when never declared.
    pub clock_error_ns_max: Option<i64>,
    pub last_heartbeat: Option<Timestamp>,
}

/// An instance whose events were imported: derived from what others recorded. Nobody of ours watched it, so that there
/// is no coverage of it, and it takes nothing from that of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedInstance {
    pub instance_id: String,
    /// Times of its events, roughly: those of its batches.
    pub first: Timestamp,
    pub last: Timestamp,
}

/// Goes before and after every answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageReport {
    pub from: Timestamp,
    pub to: Timestamp,
    /// No requested class is lossy, unobserved or pending. Unsupported classes count only when asked for.
    pub complete: bool,
    /// Why not, in words, worst first; empty when complete.
    pub reasons: Vec<String>,
    /// Lines kept as hashes only (withheld, aged out, erased) within the interval.
    pub elided_lines: u64,
    pub forks: u64,
    pub instances: Vec<InstanceCoverage>,
    /// Those with imported events within the interval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<ImportedInstance>,
}
