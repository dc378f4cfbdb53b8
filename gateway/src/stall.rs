//! Notices that ingest stands still while the process lives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Requests under way, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    under_way: Arc<Mutex<Requests>>,
}

#[derive(Debug, Default)]
struct Requests {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

/// One request under way; ends when dropped.
#[derive(Debug)]
pub struct UnderWay {
    watch: Watch,
    number: u64,
}

impl Watch {
    pub fn begin(&self, now: Instant) -> UnderWay {
        let mut requests = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let number = requests.next;
        requests.next += 1;
        requests.since.insert(number, now);
        UnderWay { watch: self.clone(), number }
    }

    /// How long the oldest request has been under way.
    pub fn oldest(&self, now: Instant) -> Duration {
        let requests = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        requests.since.values().next().map_or(Duration::ZERO, |since| now.saturating_duration_since(*since))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut requests = self.watch.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        requests.since.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_counts_until_it_ends() {
        let watch = Watch::default();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let slow = watch.begin(at(0));
        drop(watch.begin(at(1)));
        assert_eq!(watch.oldest(at(7)), Duration::from_secs(7));
        drop(slow);
        assert_eq!(watch.oldest(at(9)), Duration::ZERO);
    }
}
