//! Order between events of different clocks.

use activity_schema::Timestamp;

const NS_PER_MS: f64 = 1e6;

/// An instant with the clock that gave it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Instant {
    pub at: Timestamp,
    /// Events of one clock are ordered by it, whatever its error against true time.
    pub clock: String,
    /// Half width of the bound, nanoseconds; `None` when it was never declared.
    pub error_ns: Option<i64>,
}

impl Instant {
    /// Whether no order between the two can be claimed: different clocks whose bounds overlap or are unknown.
    pub(super) fn is_concurrent_with(&self, other: &Instant) -> bool {
        if self.clock == other.clock {
            return false;
        }
        let (Some(a), Some(b)) = (self.error_ns, other.error_ns) else { return true };
        let distance = self.at.as_nanos().abs_diff(other.at.as_nanos());
        let reach = a.unsigned_abs().saturating_add(b.unsigned_abs());
        distance <= reach
    }
}

/// Milliseconds of `source.clock_error_ms` as nanoseconds, rounded up.
pub(super) fn error_ns(ms: f64) -> i64 {
    let ns = (ms * NS_PER_MS).ceil();
    #[expect(clippy::cast_possible_truncation, reason = "float casts saturate; NaN becomes 0")]
    let ns = ns as i64;
    ns.max(0)
}

/// Marks every place of a list, sorted by time, that cannot be ordered against a neighbour.
///
/// Only neighbours need comparing: if a place overlaps one further away, it also overlaps a nearer one or that one
/// is of the same clock and already in order.
pub(super) fn mark_concurrent(places: &[Option<&Instant>]) -> Vec<bool> {
    let mut marks = vec![false; places.len()];
    for i in 1..places.len() {
        let mut before = (0..i).rev().take(NEIGHBOURS_COMPARED_MAX);
        let Some(b) = places[i] else { continue };
        let clash = before.find(|j| places[*j].is_some_and(|a| a.is_concurrent_with(b)));
        if let Some(j) = clash {
            marks[i] = true;
            marks[j] = true;
        }
    }
    marks
}

/// How far back a place is compared; a wide bound can reach over several neighbours of another clock.
const NEIGHBOURS_COMPARED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn instant(ms: i64, clock: &str, error_ms: Option<f64>) -> Instant {
        Instant {
            at: Timestamp::from_nanos(ms * 1_000_000),
            clock: clock.into(),
            error_ns: error_ms.map(error_ns),
        }
    }

    #[test]
    fn overlapping_bounds_of_two_clocks_are_concurrent_and_one_clock_is_always_ordered() {
        let guest = instant(10, "guest", Some(2.0));
        assert!(guest.is_concurrent_with(&instant(13, "host", Some(1.0))));
        assert!(!guest.is_concurrent_with(&instant(14, "host", Some(1.0))));
        assert!(!guest.is_concurrent_with(&instant(10, "guest", Some(2.0))));
        assert!(guest.is_concurrent_with(&instant(900, "host", None)), "an unknown bound orders nothing");
        let places = [
            instant(1, "guest", Some(1.0)),
            instant(50, "guest", Some(1.0)),
            instant(51, "host", Some(1.0)),
            instant(90, "host", Some(1.0)),
        ];
        let places: Vec<Option<&Instant>> = places.iter().map(Some).collect();
        assert_eq!(mark_concurrent(&places), [false, true, true, false]);
    }
}
