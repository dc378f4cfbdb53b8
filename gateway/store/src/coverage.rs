//! The one place where the store speaks to the coverage engine.

use std::collections::BTreeMap;

use activity_coverage::{
    BatchFacts, BatchKind, CollectorState, CoverageIndex, CoverageRequest, WithheldLine,
};
use activity_schema::coverage::CoverageReport;
use activity_schema::ids::CollectorId;
use activity_schema::{BatchHeader, Event, Timestamp};
use serde::{Deserialize, Serialize};

use crate::commit::FileId;
use crate::receipts::UnknownReceipt;
use crate::record::{Elided, FLAG_FORK, FLAG_HEADER_ONLY};
use crate::types::CoverageQuery;

/// Coverage of one tenant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coverage {
    index: CoverageIndex,
}

/// Raised when the engine's state changes its form: older snapshots are then rebuilt.
const SNAPSHOT_VERSION: u32 = 2;

/// Segments by number, with the id of the very file.
pub(crate) type Files = BTreeMap<u64, FileId>;

#[derive(Serialize, Deserialize)]
struct Snapshot {
    version: u32,
    /// What it has heard of.
    segments: Files,
    index: CoverageIndex,
}

/// Whether coverage hears of events of this name.
pub(crate) fn is_heard(name: &str) -> bool {
    name.starts_with("telemetry.") || name == DESTROYED
}

/// A cheap test whether a line may be one that coverage hears of.
pub(crate) fn may_be_heard(line: &[u8]) -> bool {
    [&b"\"telemetry."[..], DESTROYED.as_bytes()].iter().any(|text| memchr::memmem::find(line, text).is_some())
}

const DESTROYED: &str = "runtime.lifecycle.destroyed";

/// A stored batch as coverage sees it.
pub(crate) struct Seen<'a> {
    pub header: &'a BatchHeader,
    pub received_at: Timestamp,
    pub flags: u8,
    pub elided: &'a [Elided],
    pub instances: &'a [String],
}

impl Coverage {
    pub(crate) fn batch(&mut self, seen: &Seen<'_>) {
        let h = seen.header;
        let kind = if seen.flags & FLAG_FORK != 0 {
            BatchKind::Fork
        } else if seen.flags & FLAG_HEADER_ONLY != 0 {
            BatchKind::Shed
        } else {
            BatchKind::Stored
        };
        let withheld = seen.elided.iter().filter_map(|e| e.withheld.as_ref()).map(|w| WithheldLine {
            instance: w.instance.clone(),
            class: w.class,
            occurred_at: w.occurred_at,
        });
        self.index.apply_batch(&BatchFacts {
            stream: h.stream(),
            host: h.host.clone(),
            first_sequence: h.first_sequence,
            last_sequence: h.last_sequence,
            count: h.count,
            occurred_min: h.occurred_min,
            occurred_max: h.occurred_max,
            received_at: seen.received_at,
            sealed_at: h.sealed_at,
            clock: h.clock,
            kind,
            withheld: withheld.collect(),
            elided: seen.elided.iter().filter(|e| e.withheld.is_none()).count() as u64,
            instances: seen.instances.to_vec(),
        });
    }

    /// Takes up a snapshot; returns the segments that it has heard of. One that heard of a file that is not there, or
    /// no longer as it was, is of no use: it would vouch for what is gone.
    pub(crate) fn restore(&mut self, bytes: Option<&[u8]>, files: &Files) -> Files {
        let snapshot = bytes.and_then(|bytes| serde_json::from_slice::<Snapshot>(bytes).ok());
        let is_there = |(number, id): (&u64, &FileId)| files.get(number) == Some(id);
        match snapshot {
            Some(found) if found.version == SNAPSHOT_VERSION && found.segments.iter().all(is_there) => {
                self.index = found.index;
                found.segments
            }
            _ => Files::new(),
        }
    }

    /// A snapshot that has heard of these segments.
    pub(crate) fn snapshot(&self, segments: Files) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&Snapshot { version: SNAPSHOT_VERSION, segments, index: self.index.clone() })
    }

    /// Takes a line that it hears of.
    pub(crate) fn telemetry(&mut self, line: &[u8]) {
        if let Ok(event) = Event::parse(line) {
            self.index.apply_event(&event);
        }
    }

    /// A heartbeat named a receipt that this store did not give.
    pub(crate) fn unknown_receipt(&mut self, collector: &CollectorId, receipt: &UnknownReceipt) {
        self.index.apply_unknown_receipt(collector.as_str(), receipt.heartbeat, receipt.occurred_at);
    }

    /// From when on nothing is taken from the collector, if it is revoked.
    pub(crate) fn revoke(&mut self, collector: &CollectorId, at: Option<Timestamp>) {
        self.index.revoke(collector.as_str(), at);
    }

    pub(crate) fn report(&self, query: &CoverageQuery, now: Timestamp) -> CoverageReport {
        self.index.report(&CoverageRequest {
            instance: query.instance.clone(),
            from: query.from,
            to: query.to.unwrap_or(now),
            now,
            classes: query.classes.clone(),
        })
    }

    pub(crate) fn collectors(&self) -> Vec<CollectorState> {
        self.index.collectors()
    }
}
