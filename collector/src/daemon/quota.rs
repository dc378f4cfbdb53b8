//! How much agents may declare.

use std::collections::BTreeMap;

/// Declared events a second, and how many may come at once.
const EVENTS_PER_SECOND: u64 = 1_000;
const EVENTS_BURST: u64 = 2_000;
/// A quota for each sandbox, so that none of them silences another. There are as many as sandboxes.
#[derive(Default)]
pub struct Quotas(BTreeMap<String, Quota>);

impl Quotas {
    /// Takes `n` from the quota of an instance, if it has that much.
    pub fn take(&mut self, instance: &str, n: u64, now_ns: u64) -> bool {
        if let Some(quota) = self.0.get_mut(instance) {
            return quota.take(n, now_ns);
        }
        self.0.entry(instance.to_owned()).or_insert(Quota::new(now_ns)).take(n, now_ns)
    }
}

/// A token bucket over the boot clock.
struct Quota {
    tokens: u64,
    at_ns: u64,
}

impl Quota {
    fn new(now_ns: u64) -> Self {
        Quota { tokens: EVENTS_BURST, at_ns: now_ns }
    }

    fn take(&mut self, n: u64, now_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.at_ns).saturating_mul(EVENTS_PER_SECOND) / 1_000_000_000;
        if earned > 0 {
            self.tokens = (self.tokens + earned).min(EVENTS_BURST);
            // What a part of an event has waited already counts for the next.
            self.at_ns += earned * 1_000_000_000 / EVENTS_PER_SECOND;
        }
        if self.tokens < n {
            return false;
        }
        self.tokens -= n;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn an_agent_may_declare_2000_events_at_once_and_1000_a_second() {
        let full = || Quota::new(7 * SECOND_NS);
        assert!(full().take(2_000, 7 * SECOND_NS) && !full().take(2_001, 7 * SECOND_NS));
        let mut quota = full();
        assert!(!quota.take(2_001, 100 * SECOND_NS), "more than 2,000 are never saved up");
        let mut now_ns = 100 * SECOND_NS;
        assert!(quota.take(2_000, now_ns));
        // Two events in less than two milliseconds, one in more: 1,000 a second all the same.
        for _ in 0..3_000 {
            assert!(quota.take(1, now_ns + 1_000_000) && !quota.take(1, now_ns + 1_000_000));
            assert!(quota.take(2, now_ns + 3_000_000) && !quota.take(1, now_ns + 3_999_999));
            now_ns += 3_000_000;
        }
        assert!(quota.take(1, now_ns + 1_500_000));
        assert!(quota.take(1, now_ns + 2_400_000), "the half that was left over counts");
    }

    #[test]
    fn a_sandbox_that_declares_too_much_silences_no_other() {
        let mut quotas = Quotas::default();
        assert!(quotas.take("loud", 2_000, SECOND_NS) && !quotas.take("loud", 1, SECOND_NS));
        assert!(quotas.take("quiet", 1, SECOND_NS));
    }
}
