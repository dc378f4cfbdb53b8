//! Counters since the store was opened.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::types::Counters;

macro_rules! metrics {
    ($($name:ident),+ $(,)?) => {
        #[derive(Default)]
        pub(crate) struct Metrics { $(pub $name: Counter),+ }
        impl Metrics {
            pub(crate) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.get()),+ }
            }
        }
    };
}

metrics!(
    batches_stored,
    batches_duplicate,
    batches_forked,
    batches_gap,
    batches_refused,
    batches_unread,
    events_stored,
    events_withheld,
    events_unknown,
    event_id_conflicts,
    receipts_unknown,
    bytes_received,
    commits,
    commit_failures,
    bytes_committed,
    segments_sealed,
    bytes_sealed,
    seal_failures,
    queries,
    blocks_opened,
    frames_damaged,
    tail_bytes_truncated,
);

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
