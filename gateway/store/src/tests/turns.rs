//! What one collector can take of the time in which batches are checked.

use std::sync::Arc;

use activity_schema::SignedBatch;
use activity_schema::api::BatchResult;

use super::basic::{config, ingest};
use super::kit::{Collector, T0};
use crate::{IngestError, Store};

/// Batches of nearly a mebibyte each.
fn heavy(c: &mut Collector, count: i64) -> Vec<SignedBatch> {
    let batches: Vec<_> = (0..count).map(|n| c.processes(800, T0 + n * 1_000_000_000)).collect();
    assert!(batches.iter().all(|b| b.header.raw_bytes > 1 << 19));
    batches
}

#[test]
fn what_cannot_extend_its_stream_is_a_gap_before_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let batches = heavy(&mut c, 6);
    let unread = || store.health().counters.batches_unread;
    let results = ingest(&store, &c, batches[1..].to_vec()).unwrap();
    assert!(results.iter().all(|r| matches!(r, BatchResult::Gap { next_batch_number: 1 })), "{results:?}");
    assert_eq!(unread(), 5);
    let sent = [&batches[..2], &batches[3..]].concat();
    let results = ingest(&store, &c, sent).unwrap();
    assert!(results[..2].iter().all(|r| matches!(r, BatchResult::Stored { .. })), "{results:?}");
    assert!(results[2..].iter().all(|r| matches!(r, BatchResult::Gap { next_batch_number: 3 })));
    assert_eq!(unread(), 8);
    let results = ingest(&store, &c, batches).unwrap();
    assert!(results[..2].iter().all(|r| matches!(r, BatchResult::Duplicate { .. })));
    assert!(results[2..].iter().all(|r| matches!(r, BatchResult::Stored { .. })));
    assert_eq!(unread(), 8);
}

#[test]
fn of_a_request_16_mib_of_lines_are_read_and_the_rest_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let mut rest = heavy(&mut c, 32);
    let mut requests = 0;
    while !rest.is_empty() {
        let results = ingest(&store, &c, rest.clone()).unwrap();
        let stored = results.iter().take_while(|r| matches!(r, BatchResult::Stored { .. })).count();
        let next = rest[0].header.batch_number + stored as u64;
        let again = |r: &BatchResult| matches!(r, BatchResult::Gap { next_batch_number } if *next_batch_number == next);
        assert!(results[stored..].iter().all(again), "{results:?}");
        let raw: u64 = rest.drain(..stored).map(|b| b.header.raw_bytes).sum();
        assert!(raw <= 16 << 20 && (raw > 15 << 20 || rest.is_empty()), "{raw}");
        requests += 1;
    }
    assert!(requests > 1);
}

#[test]
fn a_small_batch_passes_four_heavy_requests_of_a_collector_and_a_fifth_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let (mut flood, mut small) = (Collector::new("tenant-a", "c1"), Collector::new("tenant-b", "c2"));
    let (heavy, small_batch) = (heavy(&mut flood, 8), small.processes(1, T0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // One turn, and nobody has it before all wait for it.
        let turns = &store.shared().checking;
        turns.forget_permits(turns.available_permits() - 1);
        let turn = Arc::clone(turns).acquire_owned().await.unwrap();
        let send = |c: &Collector, batches: Vec<SignedBatch>| {
            let (store, caller) = (store.clone(), c.caller());
            tokio::spawn(async move { store.ingest(&caller, batches).await })
        };
        let mut waiting: Vec<_> = (0..4).map(|_| send(&flood, heavy.clone())).collect();
        tokio::task::yield_now().await;
        let fifth = send(&flood, heavy.clone()).await.unwrap();
        assert!(matches!(fifth, Err(IngestError::Overloaded { .. })), "{fifth:?}");
        waiting.push(send(&small, vec![small_batch]));
        tokio::task::yield_now().await;
        drop(turn);
        for request in waiting {
            request.await.unwrap().unwrap();
        }
    });
    // In the order in which they came to the committer.
    let first_place = |c: &Collector| {
        let tenant = store.shared().tenant(&c.tenant).unwrap();
        let state = tenant.state.read();
        state.open.values().map(|open| (open.file, open.offset)).min().unwrap()
    };
    assert!(first_place(&small) < first_place(&flood));
}
