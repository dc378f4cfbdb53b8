//! Acknowledged ⊆ stored, nothing twice, and no way out of either: killed between any two calls to the disk, with
//! unsynced bytes lost in any subset, with calls that fail.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use activity_schema::SignedBatch;
use activity_schema::api::BatchResult;
use parking_lot::Mutex;

use super::basic::ingest;
use super::kit::{Collector, T0};
use super::sim::{Fault, SimClock, SimDisk, SimEntropy};
use crate::env::Env;
use crate::index::Index;
use crate::keyring::{FileKeyring, Keyring};
use crate::types::{Query, StoreConfig};
use crate::verify::{VerifyOptions, verify_with};
use crate::{ControlRecord, Enrolment, Instances, Store};

const DIR: &str = "/sim";

fn env_of(disk: &Arc<SimDisk>, seed: u64) -> Env {
    Env {
        storage: Arc::clone(disk) as Arc<dyn crate::storage::Storage>,
        clock: Arc::new(SimClock(Mutex::new(T0))),
        entropy: Arc::new(SimEntropy(Mutex::new(seed))),
    }
}

fn open(disk: &Arc<SimDisk>, seed: u64, rotate: u64) -> Result<Store, crate::OpenError> {
    let env = env_of(disk, seed);
    let config = StoreConfig {
        dir: PathBuf::from(DIR),
        commit_rotate_bytes: rotate,
        commit_rotate_age: Duration::from_secs(3600),
        checkpoint_interval: Duration::from_millis(20),
        reserve_bytes: 0,
        accept_control_damage: false,
    };
    let keyring = FileKeyring::open(env.clone(), Path::new(DIR).join("keys"), false)?;
    Store::open_with(config, env, Arc::new(keyring), Index::memory(), None)
}

fn enrol(store: &Store, collector: &Collector) -> bool {
    store
        .record_control(ControlRecord::Enrolled(Enrolment {
            tenant: collector.tenant.clone(),
            collector_id: collector.id.clone(),
            host: collector.host.clone(),
            instances: Instances::One(collector.instance.clone()),
            signing_key: collector.signer.public(),
            epoch: collector.epoch.clone(),
            certificate_serial: "01".into(),
            enrolled_at: activity_schema::Timestamp::from_nanos(T0),
        }))
        .is_ok()
}

/// What a collector did: batches in order, and how many of them were acknowledged.
struct Sent {
    collector: Collector,
    batches: Vec<SignedBatch>,
    acknowledged: usize,
}

impl Sent {
    fn new(tenant: &str, name: &str, batches: i64) -> Self {
        let mut collector = Collector::new(tenant, name);
        let batches = (0..batches)
            .map(|i| collector.processes(3 + i.unsigned_abs() % 5, T0 + i * 1_000_000_000))
            .collect();
        Sent { collector, batches, acknowledged: 0 }
    }

    /// Sends the next few, as long as the store takes them.
    fn send(&mut self, store: &Store, count: usize) {
        let to = (self.acknowledged + count).min(self.batches.len());
        let Ok(results) = ingest(store, &self.collector, self.batches[self.acknowledged..to].to_vec()) else {
            return;
        };
        assert!(
            results.iter().all(|r| matches!(r, BatchResult::Stored { .. } | BatchResult::Duplicate { .. })),
            "{results:?}"
        );
        self.acknowledged = to;
    }

    fn check(&self, store: &Store, stored_at_least: usize) {
        let streams = store.streams(&self.collector.tenant, &self.collector.id);
        let head = streams.first().map_or(0, |s| s.batch_number);
        assert!(
            head >= stored_at_least as u64,
            "{head} of {stored_at_least} acknowledged batches are stored"
        );
        let query = Query { instance: Some(self.collector.instance.to_string()), ..Query::default() };
        let answer = store.query(&self.collector.tenant, &query).unwrap();
        assert_eq!(answer.damaged, 0);
        let expected: u64 =
            self.batches[..usize::try_from(head).unwrap()].iter().map(|b| b.header.count).sum();
        assert_eq!(answer.events.len() as u64, expected, "each event of {head} batches once");
    }
}

fn run(store: &Store, sent: &mut [Sent], seed: u64) {
    for step in 0..14 {
        for (at, one) in sent.iter_mut().enumerate() {
            one.send(store, 1 + ((seed >> (step % 16)) as usize + at) % 3);
            // The control journal is killed between any two calls as well.
            enrol(store, &one.collector);
        }
        if (seed >> step) & 3 == 0 {
            store.shared().queue.request_seal();
        }
    }
}

fn verify(disk: &Arc<SimDisk>, strict: bool) {
    let env = env_of(disk, 1);
    let keyring: Arc<dyn Keyring> =
        Arc::new(FileKeyring::open(env.clone(), Path::new(DIR).join("keys"), true).unwrap());
    let report = verify_with(&env, Path::new(DIR), &keyring, &VerifyOptions::default(), &mut |_| {});
    assert!(report.ok, "{:#?}", report.problems);
    if strict {
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }
}

fn after_crash(disk: &Arc<SimDisk>, sent: &mut [Sent], seed: u64, rotate: u64) {
    let store = open(disk, seed ^ 77, rotate).expect("reopens unattended");
    for one in sent.iter() {
        one.check(&store, one.acknowledged);
    }
    // Everybody sends everything again: nothing is refused, nothing is stored twice.
    for one in sent.iter_mut() {
        assert!(enrol(&store, &one.collector));
        one.acknowledged = 0;
        while one.acknowledged < one.batches.len() {
            one.send(&store, 4);
        }
        one.check(&store, one.batches.len());
    }
    drop(store);
    verify(disk, true);
    let store = open(disk, seed ^ 99, rotate).unwrap();
    assert_eq!(store.findings(), Vec::<String>::new());
    sent.iter().for_each(|one| one.check(&store, one.batches.len()));
}

fn seeds(fixed: u64) -> impl Iterator<Item = u64> {
    (0..fixed).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ 0x00ac_7171)
}

#[test]
fn killed_between_any_two_calls_it_reopens_with_all_that_was_acknowledged_once() {
    for (n, seed) in seeds(160).enumerate() {
        let rotate = [900, 4_000, 1 << 20][n % 3];
        let disk = Arc::new(SimDisk::new(seed));
        // From the first call of a new store's life to well into its work.
        disk.set_fault(Fault::Kill(1 + (n as u64 * 7) % 400));
        let mut sent = [
            Sent::new("tenant-a", "c1", 20),
            Sent::new("tenant-a", "c2", 20),
            Sent::new("tenant-b", "c1", 20),
        ];
        if let Ok(store) = open(&disk, seed, rotate) {
            let enrolled: Vec<bool> = sent.iter().map(|s| enrol(&store, &s.collector)).collect();
            if enrolled.iter().all(|e| *e) {
                run(&store, &mut sent, seed);
            }
        }
        let calls = disk.calls();
        let crashed = Arc::new(disk.crash());
        let shown = format!("seed {seed:#x} case {n} calls {calls}");
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            after_crash(&crashed, &mut sent, seed, rotate);
        }));
        assert!(result.is_ok(), "{shown}");
    }
}

#[test]
fn killed_again_while_it_recovers_it_still_reopens() {
    for (n, seed) in seeds(60).enumerate() {
        let disk = Arc::new(SimDisk::new(seed));
        let mut sent = [Sent::new("tenant-a", "c1", 20), Sent::new("tenant-b", "c1", 20)];
        disk.set_fault(Fault::Kill(150 + n as u64 * 5));
        if let Ok(store) = open(&disk, seed, 2_000)
            && sent.iter().all(|s| enrol(&store, &s.collector))
        {
            run(&store, &mut sent, seed);
        }
        let again = Arc::new(disk.crash());
        again.set_fault(Fault::Kill(1 + n as u64 * 3));
        drop(open(&again, seed ^ 5, 2_000));
        let crashed = Arc::new(again.crash());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            after_crash(&crashed, &mut sent, seed, 2_000);
        }));
        assert!(result.is_ok(), "seed {seed:#x} case {n}");
    }
}

#[test]
fn calls_that_fail_cost_no_acknowledged_batch_and_the_store_goes_on() {
    for (n, seed) in seeds(40).enumerate() {
        let kind = [io::ErrorKind::StorageFull, io::ErrorKind::Other][n % 2];
        let disk = Arc::new(SimDisk::new(seed));
        let mut sent = [Sent::new("tenant-a", "c1", 20), Sent::new("tenant-b", "c1", 20)];
        let store = open(&disk, seed, 1 << 20).unwrap();
        assert!(sent.iter().all(|s| enrol(&store, &s.collector)));
        disk.set_fault(Fault::Random(4 + seed % 9, kind));
        for _ in 0..12 {
            sent.iter_mut().for_each(|one| {
                one.send(&store, 2);
                enrol(&store, &one.collector);
            });
        }
        disk.set_fault(Fault::None);
        let crashed = Arc::new(disk.crash());
        for one in &mut sent {
            let resent = one.acknowledged;
            while one.acknowledged < one.batches.len() {
                one.send(&store, 3);
            }
            one.check(&store, one.batches.len());
            one.acknowledged = resent;
        }
        drop(store);
        verify(&disk, false);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            after_crash(&crashed, &mut sent, seed, 1 << 20);
        }));
        assert!(result.is_ok(), "seed {seed:#x} case {n}");
    }
}

#[test]
fn a_thread_that_panics_shows_in_health() {
    let disk = Arc::new(SimDisk::new(8));
    let store = open(&disk, 8, 1 << 20).unwrap();
    assert_eq!(store.health().thread_ended, None);
    // The cadence of checkpoints calls the disk by itself.
    let mut sent = Sent::new("tenant-a", "c1", 1);
    sent.send(&store, 1);
    disk.set_fault(Fault::Panic);
    let ended = (0..1_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        store.health().thread_ended
    });
    disk.set_fault(Fault::None);
    assert_eq!(ended, Some("checkpoint"));
}

#[test]
fn fc29_a_failed_fsync_shows_in_health_until_the_disk_takes_bytes_again() {
    let disk = Arc::new(SimDisk::new(7));
    let store = open(&disk, 7, 1 << 20).unwrap();
    let mut sent = Sent::new("tenant-a", "c1", 4);
    sent.send(&store, 1);
    assert!(!store.health().commits_fail);
    disk.set_fault(Fault::Random(1, io::ErrorKind::Other));
    assert!(ingest(&store, &sent.collector, sent.batches[1..2].to_vec()).is_err());
    assert!(store.health().commits_fail);
    disk.set_fault(Fault::None);
    // Nobody sends anything: the store finds out by itself.
    let healed = (0..1_000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        !store.health().commits_fail
    });
    assert!(healed);
    sent.send(&store, 3);
    sent.check(&store, 4);
}
