//! When a collector ran, and up to where a heartbeat vouches for it.

use std::collections::{BTreeMap, BTreeSet};

use activity_schema::{Class, Epoch};
use serde::{Deserialize, Serialize};

use crate::classes::index;
use crate::stored::Stored;

/// Heartbeats of an epoch that wait for batches (three hours). Beyond it every second of the older half is
/// forgotten: a later one vouches for its time as well.
const WAITING_MAX: usize = 1024;
/// Proven heartbeats remembered an epoch. Only the newest before each break is needed; the others serve breaks
/// that are told late.
const PROVEN_MAX: usize = 256;
/// Breaks remembered an epoch; what lies before a forgotten one is no longer vouched for.
const BREAKS_MAX: usize = 1024;

/// Sequences that must be stored before a heartbeat vouches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Needs {
    /// Of the heartbeat's own epoch, by priority.
    pub(crate) own: [u64; 3],
    /// Of other epochs of the collector that still drain.
    pub(crate) others: Vec<(Epoch, Class, u64)>,
}

/// One epoch of a collector: its streams and what was said in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EpochState {
    config_first: Option<i64>,
    /// First heartbeat, start or restart.
    life_first: Option<i64>,
    /// Starts, and restarts on a spool that was not intact.
    breaks: BTreeSet<i64>,
    /// Times of heartbeats whose sequences are stored, ascending.
    proven: Vec<i64>,
    /// By time and own sequence.
    #[serde(with = "crate::pairs")]
    waiting: BTreeMap<(i64, u64), Needs>,
    /// Some heartbeat named streams of another epoch.
    pub(crate) waits_for_others: bool,
    pub(crate) streams: [Stored; 3],
    /// Highest sequence that a heartbeat declared, by priority.
    pub(crate) declared: [u64; 3],
}

/// A run of an epoch without a break: `[start, covered_to)` is vouched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) start: i64,
    pub(crate) covered_to: Option<i64>,
}

impl EpochState {
    pub(crate) fn note_config(&mut self, at: i64) {
        self.config_first = Some(self.config_first.map_or(at, |t| t.min(at)));
    }

    pub(crate) fn note_life(&mut self, at: i64) {
        self.life_first = Some(self.life_first.map_or(at, |t| t.min(at)));
    }

    /// Returns the time before which nothing is vouched for any longer, when a bound was reached.
    #[must_use]
    pub(crate) fn note_break(&mut self, at: i64) -> Option<i64> {
        self.note_life(at);
        self.breaks.insert(at);
        if self.breaks.len() > BREAKS_MAX { self.breaks.pop_first() } else { None }
    }

    pub(crate) fn note_heartbeat(&mut self, at: i64, own_sequence: u64, needs: Option<Needs>) {
        self.note_life(at);
        let Some(needs) = needs else { return };
        for (declared, need) in self.declared.iter_mut().zip(needs.own) {
            *declared = (*declared).max(need);
        }
        self.waits_for_others |= !needs.others.is_empty();
        self.waiting.insert((at, own_sequence), needs);
        if self.waiting.len() > WAITING_MAX {
            self.thin_waiting();
        }
    }

    pub(crate) fn first(&self) -> Option<i64> {
        match (self.config_first, self.life_first) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(crate) fn has(&self, needs: &[u64; 3]) -> bool {
        self.streams.iter().zip(needs).all(|(stream, need)| stream.contiguous_to() >= *need)
    }

    pub(crate) fn contiguous_to(&self, priority: Class) -> u64 {
        self.streams[index(priority)].contiguous_to()
    }

    pub(crate) fn waits(&self) -> impl Iterator<Item = (&(i64, u64), &Needs)> {
        self.waiting.iter()
    }

    /// The heartbeats of these keys are proven.
    pub(crate) fn prove(&mut self, keys: &[(i64, u64)]) {
        for key in keys {
            if self.waiting.remove(key).is_some() {
                let at = self.proven.partition_point(|t| *t < key.0);
                if self.proven.get(at) != Some(&key.0) {
                    self.proven.insert(at, key.0);
                }
            }
        }
        if self.proven.len() > PROVEN_MAX {
            self.thin_proven();
        }
    }

    /// Breaks that part the epoch: a start at its very beginning is none.
    fn effective_breaks(&self) -> impl Iterator<Item = i64> {
        let first = self.life_first.unwrap_or(i64::MAX);
        self.breaks.iter().copied().filter(move |at| *at > first)
    }

    pub(crate) fn segments(&self) -> Vec<Segment> {
        let starts: Vec<i64> = self.first().into_iter().chain(self.effective_breaks()).collect();
        let ends = starts.iter().skip(1).copied().map(Some).chain([None]);
        let newest_within = |start: i64, end: Option<i64>| {
            let upto = end.map_or(self.proven.len(), |end| self.proven.partition_point(|t| *t < end));
            self.proven[..upto].last().copied().filter(|t| *t >= start)
        };
        starts
            .iter()
            .zip(ends)
            .map(|(start, end)| Segment { start: *start, covered_to: newest_within(*start, end) })
            .collect()
    }

    fn thin_waiting(&mut self) {
        let older: Vec<_> = self.waiting.keys().take(WAITING_MAX / 2).copied().collect();
        for key in older.iter().step_by(2) {
            self.waiting.remove(key);
        }
    }

    /// Forgets every second of the older half, but never the last before a break.
    fn thin_proven(&mut self) {
        let half = self.proven.len() / 2;
        let mut kept = Vec::with_capacity(self.proven.len());
        for (i, at) in self.proven.iter().copied().enumerate() {
            let next = self.proven.get(i + 1).copied();
            let last_before_break =
                next.is_some_and(|next| self.breaks.range(at + 1..=next).next().is_some());
            if i >= half || i % 2 == 1 || last_before_break {
                kept.push(at);
            }
        }
        if kept.len() > PROVEN_MAX {
            kept.drain(..kept.len() - PROVEN_MAX);
        }
        self.proven = kept;
    }
}

/// The life of a collector over all its epochs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Life {
    /// Vouched for: ascending, disjoint.
    pub(crate) covered: Vec<(i64, i64)>,
    /// Newest moment that is vouched for or at which a run began: from here on it is pending or silent.
    pub(crate) tail: Option<i64>,
}

impl Life {
    pub(crate) fn of<'a>(epochs: impl Iterator<Item = &'a EpochState>) -> Life {
        let segments: Vec<Segment> = epochs.flat_map(EpochState::segments).collect();
        let tail = segments.iter().map(|s| s.covered_to.unwrap_or(s.start).max(s.start)).max();
        let mut spans: Vec<(i64, i64)> = segments
            .iter()
            .filter_map(|s| s.covered_to.map(|to| (s.start, to)))
            .filter(|(from, to)| from < to)
            .collect();
        spans.sort_unstable();
        let mut covered: Vec<(i64, i64)> = Vec::with_capacity(spans.len());
        for (from, to) in spans {
            match covered.last_mut() {
                Some((_, end)) if *end >= from => *end = (*end).max(to),
                _ => covered.push((from, to)),
            }
        }
        Life { covered, tail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(epoch: &mut EpochState, at: i64) {
        epoch.note_heartbeat(at, 1, Some(Needs::default()));
        epoch.prove(&[(at, 1)]);
    }

    #[test]
    fn a_break_told_late_still_parts_the_epoch() {
        let mut epoch = EpochState::default();
        for at in [0, 10, 20, 30] {
            beat(&mut epoch, at);
        }
        assert_eq!(epoch.segments(), [Segment { start: 0, covered_to: Some(30) }]);
        assert_eq!(epoch.note_break(15), None);
        let parted =
            [Segment { start: 0, covered_to: Some(10) }, Segment { start: 15, covered_to: Some(30) }];
        assert_eq!(epoch.segments(), parted);
    }

    #[test]
    fn thinning_keeps_the_last_heartbeat_before_a_break() {
        let mut epoch = EpochState::default();
        for at in 0..5_000 {
            beat(&mut epoch, at * 10);
            if at % 1_000 == 0 {
                assert_eq!(epoch.note_break(at * 10 + 5), None);
            }
        }
        assert!(epoch.proven.len() <= PROVEN_MAX);
        let ends: Vec<_> = epoch.segments().iter().map(|s| s.covered_to).collect();
        assert_eq!(ends, [0, 10_000, 20_000, 30_000, 40_000, 49_990].map(Some));
    }

    #[test]
    fn waiting_heartbeats_are_bounded_and_the_newest_stay() {
        let mut epoch = EpochState::default();
        for at in 0..100_000 {
            epoch.note_heartbeat(at, 1, Some(Needs { own: [at.unsigned_abs(), 0, 0], others: Vec::new() }));
        }
        assert!(epoch.waiting.len() <= WAITING_MAX);
        assert_eq!(epoch.waiting.keys().next_back(), Some(&(99_999, 1)));
    }
}
