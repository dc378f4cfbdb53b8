//! Clock error bounds over time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most statements kept a collector (three hours of heartbeats exactly); beyond it the older half is merged
/// pairwise to the larger bound.
const RUNS_MAX: usize = 1024;

/// Statements "the error bound is so much", by time. A statement holds until the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockBounds {
    /// Start → (end, largest bound, nanoseconds); ends before the next start.
    #[serde(with = "crate::pairs")]
    runs: BTreeMap<i64, (i64, i64)>,
}

impl ClockBounds {
    pub(crate) fn note(&mut self, at: i64, error_ns: i64) {
        let error_ns = error_ns.max(0);
        match self.runs.range_mut(..=at).next_back() {
            Some((_, (end, bound))) if *end >= at => *bound = (*bound).max(error_ns),
            _ => {
                self.runs.insert(at, (at, error_ns));
            }
        }
        if self.runs.len() > RUNS_MAX {
            self.merge_older_half();
        }
    }

    /// The largest bound stated within `[from, to)` or in force at `from`.
    pub(crate) fn max_within(&self, from: i64, to: i64) -> Option<i64> {
        let before = self.runs.range(..=from).next_back().map(|(_, (_, bound))| *bound);
        let within = self.runs.range(from..to.max(from)).map(|(_, (_, bound))| *bound).max();
        before.max(within)
    }

    fn merge_older_half(&mut self) {
        let keep = self.runs.keys().nth(RUNS_MAX / 2).copied().unwrap_or(i64::MAX);
        let newer = self.runs.split_off(&keep);
        let older: Vec<_> = std::mem::replace(&mut self.runs, newer).into_iter().collect();
        for pair in older.chunks(2) {
            let (start, (mut end, mut bound)) = pair[0];
            if let Some((_, (end_next, bound_next))) = pair.get(1) {
                (end, bound) = (*end_next, bound.max(*bound_next));
            }
            self.runs.insert(start, (end, bound));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_in_force_and_stated_within() {
        let mut clock = ClockBounds::default();
        assert_eq!(clock.max_within(0, 100), None);
        clock.note(10, 5);
        clock.note(20, 9);
        clock.note(30, 2);
        assert_eq!(clock.max_within(0, 10), None);
        assert_eq!(clock.max_within(0, 20), Some(5));
        assert_eq!(clock.max_within(25, 28), Some(9), "the statement at 20 is in force");
        assert_eq!(clock.max_within(30, 40), Some(2));
    }

    #[test]
    fn merging_never_lowers_a_bound() {
        let mut clock = ClockBounds::default();
        for t in 0..10_000_i64 {
            clock.note(t, t % 97);
        }
        assert!(clock.runs.len() <= RUNS_MAX);
        for t in (0..9_900).step_by(113) {
            assert!(clock.max_within(t, t + 97) >= Some(96));
        }
    }
}
