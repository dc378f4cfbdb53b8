//! What is known to be missing: bounded, told once by name, coarser when old.

use std::collections::BTreeMap;

use activity_schema::coverage::LossReason;
use activity_schema::{Class, Epoch};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::classes::ClassSet;

/// Most marks kept a collector and kind; beyond it the older half is merged into coarser ones.
pub(crate) const MARKS_MAX: usize = 8192;
/// Old marks are merged in runs of this many.
const FOLD: usize = 8;

/// Why records are missing or doubtful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Cause {
    RingFull,
    NetlinkOverrun,
    AuditLost,
    SpoolQuota,
    SpoolCorrupt,
    DiskFull,
    RateLimit,
    CollectorDown,
    GatewayQuarantine,
    MapEvicted,
    /// A loss record without a reason that is known here.
    Unexplained,
    /// A header without its lines.
    Shed,
    /// Sequences that are not stored although later ones are.
    Hole,
    Fork,
    AgedOut,
    /// A line that the gateway refused and holds as a hash.
    Withheld,
    ClockStep,
    ClockAhead,
    CanaryMissing,
    /// An acknowledged batch is not stored.
    ReceiptUnknown,
}

impl Cause {
    /// In the order of declaration, so that `cause as usize` indexes it.
    pub(crate) const ALL: [Cause; 20] = [
        Cause::RingFull,
        Cause::NetlinkOverrun,
        Cause::AuditLost,
        Cause::SpoolQuota,
        Cause::SpoolCorrupt,
        Cause::DiskFull,
        Cause::RateLimit,
        Cause::CollectorDown,
        Cause::GatewayQuarantine,
        Cause::MapEvicted,
        Cause::Unexplained,
        Cause::Shed,
        Cause::Hole,
        Cause::Fork,
        Cause::AgedOut,
        Cause::Withheld,
        Cause::ClockStep,
        Cause::ClockAhead,
        Cause::CanaryMissing,
        Cause::ReceiptUnknown,
    ];

    pub(crate) fn of_loss(reason: Option<LossReason>) -> Cause {
        match reason {
            Some(LossReason::RingFull) => Cause::RingFull,
            Some(LossReason::NetlinkOverrun) => Cause::NetlinkOverrun,
            Some(LossReason::AuditLost) => Cause::AuditLost,
            Some(LossReason::SpoolQuota) => Cause::SpoolQuota,
            Some(LossReason::SpoolCorrupt) => Cause::SpoolCorrupt,
            Some(LossReason::DiskFull) => Cause::DiskFull,
            Some(LossReason::RateLimit) => Cause::RateLimit,
            Some(LossReason::CollectorDown) => Cause::CollectorDown,
            Some(LossReason::GatewayQuarantine) => Cause::GatewayQuarantine,
            Some(LossReason::MapEvicted) => Cause::MapEvicted,
            None => Cause::Unexplained,
        }
    }

    /// Nobody was there to see, as opposed to records that were dropped.
    pub(crate) fn is_unobserved(self) -> bool {
        matches!(self, Cause::SpoolCorrupt | Cause::CollectorDown)
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Cause::RingFull => "ring_full",
            Cause::NetlinkOverrun => "netlink_overrun",
            Cause::AuditLost => "audit_lost",
            Cause::SpoolQuota => "spool_quota",
            Cause::SpoolCorrupt => "spool_corrupt",
            Cause::DiskFull => "disk_full",
            Cause::RateLimit => "rate_limit",
            Cause::CollectorDown => "collector_down",
            Cause::GatewayQuarantine | Cause::Withheld => "gateway_quarantine",
            Cause::MapEvicted => "map_evicted",
            Cause::Unexplained => "loss without a known reason",
            Cause::Shed => "shed by the collector",
            Cause::Hole => "missing in the stream",
            Cause::Fork => "stored twice with different bytes",
            Cause::AgedOut => "aged out",
            Cause::ClockStep => "the wall clock was stepped over it",
            Cause::ClockAhead => "the collector's clock was ahead of the gateway's",
            Cause::CanaryMissing => "the canary did not show that the probes fire",
            Cause::ReceiptUnknown => "the collector holds a receipt for a batch that is not stored",
        }
    }
}

/// The name under which a mark is told once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum MarkId {
    Event(Uuid),
    Batch {
        epoch: Epoch,
        priority: Class,
        first: u64,
        last: u64,
        cause: Cause,
        item: i64,
    },
    /// Merged from marks whose names are forgotten.
    Merged(u64),
}

/// Sequences of one of the collector's streams.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Sequences {
    pub(crate) epoch: Epoch,
    pub(crate) priority: Class,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// Something missing within `[from, to)`, source time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) from: i64,
    pub(crate) to: i64,
    /// `None`: every instance of the collector. An instance that the collector never declared means the same.
    pub(crate) instance: Option<String>,
    /// The instance is where it happened. Otherwise it may be no more than who reported it.
    pub(crate) placed: bool,
    pub(crate) classes: ClassSet,
    pub(crate) cause: Cause,
    pub(crate) count: u64,
    pub(crate) exact: bool,
    pub(crate) sequences: Option<Sequences>,
    /// Marks that were merged into this one.
    pub(crate) weight: u64,
}

impl Mark {
    pub(crate) fn overlaps(&self, from: i64, to: i64) -> bool {
        self.from < to && from < self.to
    }

    /// A mark that vouches for less than both: hull of time, all that either touches.
    fn join(self, other: Mark) -> Mark {
        let sequences = match (self.sequences, other.sequences) {
            (Some(a), Some(b)) if (&a.epoch, a.priority) == (&b.epoch, b.priority) => {
                Some(Sequences { first: a.first.min(b.first), last: a.last.max(b.last), ..a })
            }
            _ => None,
        };
        Mark {
            from: self.from.min(other.from),
            to: self.to.max(other.to),
            instance: if self.instance == other.instance { self.instance } else { None },
            placed: self.placed && other.placed,
            classes: self.classes.union(other.classes),
            cause: self.cause,
            count: self.count.saturating_add(other.count),
            exact: self.exact && other.exact,
            sequences,
            weight: self.weight.saturating_add(other.weight),
        }
    }
}

/// Marks of one collector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marks {
    #[serde(with = "crate::pairs")]
    by_id: BTreeMap<MarkId, Mark>,
    merged: u64,
}

impl Marks {
    /// Adds a mark, or replaces the one of the same name when this one counts more.
    pub(crate) fn put(&mut self, id: MarkId, mark: Mark) {
        match self.by_id.get_mut(&id) {
            Some(known) if known.count >= mark.count => return,
            Some(known) => *known = mark,
            None => {
                self.by_id.insert(id, mark);
            }
        }
        if self.by_id.len() > MARKS_MAX {
            self.merge_older_half();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mark> {
        self.by_id.values()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Folds neighbours that speak of the same thing; when that is not enough, neighbours of the same cause.
    fn merge_older_half(&mut self) {
        let mut all: Vec<(MarkId, Mark)> = std::mem::take(&mut self.by_id).into_iter().collect();
        all.sort_by_key(|(_, mark)| (mark.to, mark.from));
        let newer = all.split_off(MARKS_MAX / 2);
        let older: Vec<Mark> = all.into_iter().map(|(_, mark)| mark).collect();
        let same_thing = |mark: &Mark| {
            let stream = mark.sequences.as_ref().map(|s| (s.epoch.clone(), s.priority));
            (mark.cause, mark.classes, mark.instance.clone(), mark.placed, stream)
        };
        let mut folded = fold(older, same_thing);
        if folded.len() > MARKS_MAX / 4 {
            folded = fold(folded, |mark: &Mark| mark.cause);
        }
        self.by_id = newer.into_iter().collect();
        for mark in folded {
            self.merged += 1;
            self.by_id.insert(MarkId::Merged(self.merged), mark);
        }
    }
}

fn fold<K: Ord>(marks: Vec<Mark>, key: impl Fn(&Mark) -> K) -> Vec<Mark> {
    let mut groups: BTreeMap<K, Vec<Mark>> = BTreeMap::new();
    for mark in marks {
        groups.entry(key(&mark)).or_default().push(mark);
    }
    let mut out = Vec::new();
    for mut group in groups.into_values() {
        group.sort_by_key(|mark| (mark.from, mark.to));
        let mut rest = group.into_iter().peekable();
        while rest.peek().is_some() {
            out.extend(rest.by_ref().take(FOLD).reduce(Mark::join));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(at: i64, instance: &str) -> Mark {
        Mark {
            from: at,
            to: at + 1,
            instance: Some(instance.to_owned()),
            placed: true,
            classes: ClassSet::all(),
            cause: Cause::RingFull,
            count: 1,
            exact: true,
            sequences: None,
            weight: 1,
        }
    }

    #[test]
    fn causes_index_themselves() {
        for (i, cause) in Cause::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, i);
        }
    }

    #[test]
    fn told_twice_counts_once() {
        let mut marks = Marks::default();
        let id = MarkId::Event(Uuid::from_u128(7));
        marks.put(id.clone(), mark(5, "i"));
        marks.put(id.clone(), mark(5, "i"));
        assert_eq!(marks.iter().map(|m| m.count).sum::<u64>(), 1);
        marks.put(id, Mark { count: 3, ..mark(5, "i") });
        assert_eq!(marks.iter().map(|m| m.count).sum::<u64>(), 3, "retention went on");
    }

    #[test]
    fn merging_is_bounded_keeps_counts_and_never_uncovers() {
        for instances in [1, 9_000_i64] {
            let mut marks = Marks::default();
            for at in 0..40_000_i64 {
                let id = MarkId::Event(Uuid::from_u128(at.unsigned_abs().into()));
                marks.put(id, mark(at * 10, &format!("i{}", at % instances)));
            }
            assert!(marks.len() <= 8_192);
            assert_eq!(marks.iter().map(|m| m.count).sum::<u64>(), 40_000);
            assert_eq!(marks.iter().map(|m| m.weight).sum::<u64>(), 40_000);
            for at in (0..40_000_i64).step_by(997) {
                let instance = format!("i{}", at % instances);
                let touched = marks.iter().any(|m| {
                    m.overlaps(at * 10, at * 10 + 1) && m.instance.as_ref().is_none_or(|i| *i == instance)
                });
                assert!(touched, "loss at {at} is forgotten");
            }
        }
    }
}
