//! The coverage engine: for every instance, event class and moment, what this store can vouch for.
//!
//! Pure data: no IO, no clock. The store tells every batch ([`CoverageIndex::apply_batch`]) and every
//! `telemetry.*` event ([`CoverageIndex::apply_event`]); both may be told again and in any order.

mod facts;

pub use facts::{BatchFacts, BatchKind, CollectorState, CoverageRequest, StreamState, WithheldLine};

use activity_schema::Event;
use activity_schema::coverage::CoverageReport;
use serde::{Deserialize, Serialize};

/// So many heartbeat intervals without proof are `pending`; longer is silence (contract, "2 missed = silent").
pub const MISSED_MAX: i64 = 2;

/// Coverage of one tenant, kept up to date batch by batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CoverageIndex {}

impl CoverageIndex {
    /// Takes note of a stored, shed or forked batch.
    pub fn apply_batch(&mut self, facts: &BatchFacts) {
        let _ = facts;
    }

    /// Takes note of a stored `telemetry.*` event; others cost one comparison.
    pub fn apply_event(&mut self, event: &Event<'_>) {
        let _ = event;
    }

    /// Coverage of the interval, worst reason first.
    pub fn report(&self, request: &CoverageRequest) -> CoverageReport {
        CoverageReport {
            from: request.from,
            to: request.to,
            complete: false,
            reasons: vec!["no instance is known".to_owned()],
            elided_lines: 0,
            forks: 0,
            instances: Vec::new(),
        }
    }

    /// Every instance that a collector declared or that a stored line names, sorted.
    pub fn instances(&self) -> Vec<String> {
        Vec::new()
    }

    /// Every collector that was heard of, sorted by name.
    pub fn collectors(&self) -> Vec<CollectorState> {
        Vec::new()
    }
}
