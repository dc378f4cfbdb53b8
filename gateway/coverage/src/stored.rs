//! Which sequences of a stream are stored: disjoint runs, normally one.

use serde::{Deserialize, Serialize};

/// Most runs kept a stream. The gateway's judge admits no holes, so more than one run is already a fault;
/// beyond this many the oldest run after the first is forgotten, which only ever says less.
const RUNS_MAX: usize = 1024;

/// Sequences `first..=last`, and the source times at the two edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    first: u64,
    last: u64,
    /// `occurred_min` of the batch at the head.
    head_min: i64,
    /// `occurred_max` of the batch at the tail.
    tail_max: i64,
}

/// Sequences that are missing although later ones are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Source time before it; `None` when nothing of the stream is stored before.
    pub(crate) after: Option<i64>,
    pub(crate) before: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Stored {
    /// Ascending, disjoint and not adjacent.
    runs: Vec<Run>,
}

impl Stored {
    /// Adds `first..=last`; whether the contiguous prefix grew.
    pub(crate) fn insert(&mut self, first: u64, last: u64, head_min: i64, tail_max: i64) -> bool {
        if first == 0 || last < first {
            return false;
        }
        let prefix = self.contiguous_to();
        let mut new = Run { first, last, head_min, tail_max };
        let from = self.runs.partition_point(|run| run.last.saturating_add(1) < new.first);
        let to = self.runs.partition_point(|run| run.first <= new.last.saturating_add(1));
        for run in &self.runs[from..to] {
            new = join(new, *run);
        }
        self.runs.splice(from..to, [new]);
        if self.runs.len() > RUNS_MAX {
            self.runs.remove(1);
        }
        self.contiguous_to() > prefix
    }

    /// Everything from 1 to here is stored.
    pub(crate) fn contiguous_to(&self) -> u64 {
        self.runs.first().filter(|run| run.first == 1).map_or(0, |run| run.last)
    }

    pub(crate) fn last(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.last)
    }

    pub(crate) fn holes(&self) -> impl Iterator<Item = Hole> {
        let before_first = self.runs.first().filter(|run| run.first > 1);
        let leading =
            before_first.map(|run| Hole { first: 1, last: run.first - 1, after: None, before: run.head_min });
        let between = self.runs.windows(2).map(|pair| Hole {
            first: pair[0].last + 1,
            last: pair[1].first - 1,
            after: Some(pair[0].tail_max),
            before: pair[1].head_min,
        });
        leading.into_iter().chain(between)
    }
}

/// The hull of two runs that touch; the edge times are those of whichever reaches furthest.
fn join(a: Run, b: Run) -> Run {
    Run {
        first: a.first.min(b.first),
        last: a.last.max(b.last),
        head_min: match a.first.cmp(&b.first) {
            std::cmp::Ordering::Less => a.head_min,
            std::cmp::Ordering::Greater => b.head_min,
            std::cmp::Ordering::Equal => a.head_min.min(b.head_min),
        },
        tail_max: match a.last.cmp(&b.last) {
            std::cmp::Ordering::Greater => a.tail_max,
            std::cmp::Ordering::Less => b.tail_max,
            std::cmp::Ordering::Equal => a.tail_max.max(b.tail_max),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_in_any_order() {
        let mut stored = Stored::default();
        assert!(!stored.insert(5, 9, 50, 90));
        assert_eq!(stored.contiguous_to(), 0);
        assert_eq!(stored.holes().collect::<Vec<_>>(), [Hole { first: 1, last: 4, after: None, before: 50 }]);
        assert!(stored.insert(1, 2, 10, 20));
        assert_eq!(
            stored.holes().collect::<Vec<_>>(),
            [Hole { first: 3, last: 4, after: Some(20), before: 50 }]
        );
        assert!(stored.insert(3, 4, 30, 40));
        assert_eq!((stored.contiguous_to(), stored.last(), stored.holes().count()), (9, 9, 0));
        assert!(!stored.insert(5, 9, 50, 90), "a duplicate changes nothing");
        assert!(!stored.insert(0, 3, 0, 0) && !stored.insert(12, 11, 0, 0), "ranges that are none");
    }

    #[test]
    fn runs_are_bounded_and_forgetting_opens_holes() {
        let mut stored = Stored::default();
        for i in 0..5_000_u64 {
            stored.insert(1 + i * 2, 1 + i * 2, 0, 0);
        }
        assert_eq!(stored.runs.len(), RUNS_MAX);
        assert_eq!((stored.contiguous_to(), stored.last()), (1, 9_999));
    }
}
