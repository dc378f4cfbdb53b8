//! Bounds of the store, at their numbers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use activity_schema::Timestamp;
use activity_schema::api::BatchResult;
use parking_lot::Mutex;
use uuid::Uuid;

use super::basic::{config, ingest};
use super::kit::{Collector, T0};
use super::sim::SimEntropy;
use crate::commit::CommitWriter;
use crate::committer::Committer;
use crate::control::ControlError;
use crate::env::{Clock, Env};
use crate::index::Index;
use crate::keyring::FileKeyring;
use crate::queue::NoRoom;
use crate::receipts::UnknownReceipt;
use crate::storage::{Disk, Storage};
use crate::store::OpenError;
use crate::types::{Query, StoreConfig};
use crate::{ControlRecord, IngestError, Revocation, Store};

const MIB: u64 = 1 << 20;

/// A disk that says how much is free, and on which only the length of a very long write counts.
#[derive(Default)]
struct Edge {
    disk: Disk,
    free: AtomicU64,
}

impl Storage for Edge {
    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let kept = &bytes[bytes.len().saturating_sub(MIB as usize)..];
        self.disk.write_at(path, offset + (bytes.len() - kept.len()) as u64, kept)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.disk.truncate(path, len)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.disk.sync(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.read(path)
    }
    fn read_at(&self, path: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.disk.read_at(path, offset, len)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        self.disk.len(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.free.load(Ordering::Relaxed))
    }
}

/// A clock that stands still until it is set.
struct Hands(Mutex<i64>);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(*self.0.lock())
    }
}

/// A store with the default configuration.
struct Lab {
    store: Store,
    disk: Arc<Edge>,
    clock: Arc<Hands>,
    dir: tempfile::TempDir,
}

fn lab() -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Edge { free: AtomicU64::new(u64::MAX), ..Edge::default() });
    let clock = Arc::new(Hands(Mutex::new(T0)));
    let env =
        Env { storage: disk.clone(), clock: clock.clone(), entropy: Arc::new(SimEntropy(Mutex::new(1))) };
    let config = StoreConfig { dir: dir.path().join("store"), ..StoreConfig::default() };
    let keyring = FileKeyring::open(env.clone(), dir.path().join("keys"), false).unwrap();
    std::fs::create_dir(&config.dir).unwrap();
    let store = Store::open_with(config, env, Arc::new(keyring), Index::memory(), None).unwrap();
    Lab { store, disk, clock, dir }
}

#[test]
fn a_store_of_another_format_version_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(config(dir.path())).unwrap());
    let path = dir.path().join("store/meta.json");
    let meta = std::fs::read_to_string(&path).unwrap();
    assert!(meta.contains("\"format_version\":1,"), "{meta}");
    std::fs::write(&path, meta.replace("\"format_version\":1,", "\"format_version\":2,")).unwrap();
    assert!(matches!(Store::open(config(dir.path())), Err(OpenError::Version(2))));
}

#[test]
fn batches_of_512_mib_may_be_under_way_of_a_tenant_448_and_more_are_asked_back_after_1_s() {
    let lab = lab();
    let enter = |tenant: &str, bytes| lab.store.shared().queue.enter(&tenant.parse().unwrap(), None, bytes);
    let most = enter("tenant-b", 448 * MIB - 10).unwrap();
    assert!(matches!(enter("tenant-b", 11), Err(NoRoom::Overloaded)), "one tenant");
    let others = enter("tenant-c", 64 * MIB).unwrap();
    assert!(matches!(enter("tenant-a", 11), Err(NoRoom::Overloaded)), "all together");
    let rest = enter("tenant-a", 10).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let batch = c.processes(1, T0);
    let refused = ingest(&lab.store, &c, vec![batch.clone()]);
    assert!(
        matches!(refused, Err(IngestError::Overloaded { retry_after }) if retry_after == Duration::from_secs(1)),
        "{refused:?}"
    );
    drop((most, others, rest));
    assert!(enter("tenant-b", 513 * MIB).is_ok(), "one request is always let in");
    ingest(&lab.store, &c, vec![batch]).unwrap();
}

#[test]
fn below_512_mib_of_free_space_collectors_are_asked_back_after_10_s() {
    let lab = lab();
    let mut c = Collector::new("tenant-a", "c1");
    let batch = c.processes(1, T0);
    lab.disk.free.store(512 * MIB - 1, Ordering::Relaxed);
    let refused = ingest(&lab.store, &c, vec![batch.clone()]);
    assert!(
        matches!(refused, Err(IngestError::Full { retry_after }) if retry_after == Duration::from_secs(10)),
        "{refused:?}"
    );
    lab.disk.free.store(512 * MIB, Ordering::Relaxed);
    ingest(&lab.store, &c, vec![batch]).unwrap();
}

#[test]
fn a_commit_file_ends_at_64_mib_or_after_10_min() {
    const MINUTE: i64 = 60_000_000_000;
    let lab = lab();
    let shared = lab.store.shared();
    let writer = |number, bytes: u64| {
        let mut writer = CommitWriter::new(&shared.env, &shared.commit_dir(), number, (0, 0));
        writer.append(&shared.env, &mut vec![0; bytes as usize], 1).unwrap();
        writer
    };
    let around = writer(800, 63 * MIB).next_offset() - 63 * MIB;
    for (bytes, ended) in [(64 * MIB - 1, None), (64 * MIB, Some(900))] {
        let mut committer = Committer::new(shared, writer(900, bytes - around));
        assert_eq!(committer.rotate_if_due(false), ended, "{bytes} bytes");
    }
    let mut committer = Committer::new(shared, writer(901, 1));
    *lab.clock.0.lock() += 10 * MINUTE - 1;
    assert_eq!(committer.rotate_if_due(false), None);
    *lab.clock.0.lock() += 1;
    assert_eq!(committer.rotate_if_due(false), Some(901));
}

#[test]
fn a_checkpoint_is_made_when_nothing_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let interval = Duration::from_millis(10);
    let store = Store::open(StoreConfig { checkpoint_interval: interval, ..config(dir.path()) }).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let batch = c.processes(1, T0);
    ingest(&store, &c, vec![batch]).unwrap();
    let covers = || store.checkpoint(&c.tenant).is_some_and(|note| note.lines().nth(1) == Some("1"));
    assert!((0..1_000).any(|_| covers() || {
        std::thread::sleep(interval);
        false
    }));
}

#[test]
fn of_a_stream_1024_forks_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let first = c.processes(1, T0);
    ingest(&store, &c, vec![first]).unwrap();
    let forks = (1..=1_025)
        .map(|n| {
            (c.next_number, c.next_sequence, c.previous) = (1, 1, activity_schema::Hash::default());
            c.processes(1, T0 + n)
        })
        .collect();
    let results = ingest(&store, &c, forks).unwrap();
    assert!(results[..1_024].iter().all(|r| matches!(r, BatchResult::Fork { .. })));
    assert!(matches!(results[1_024], BatchResult::Refused { .. }), "{:?}", results[1_024]);
}

fn revocation(reason_bytes: usize) -> ControlRecord {
    let c = Collector::new("tenant-a", "c1");
    ControlRecord::Revoked(Revocation {
        tenant: c.tenant,
        collector_id: c.id,
        key_id: None,
        certificate_serial: None,
        reason: "x".repeat(reason_bytes),
        revoked_at: Timestamp::from_nanos(T0),
    })
}

#[test]
fn a_control_record_has_256_kib_and_a_journal_file_16_mib() {
    const RECORD: usize = 262_144;
    let lab = lab();
    let Err(ControlError::TooLong(bytes)) = lab.store.record_control(revocation(RECORD)) else { panic!() };
    let longest = 2 * RECORD - bytes;
    assert!(matches!(lab.store.record_control(revocation(longest + 1)), Err(ControlError::TooLong(262_145))));
    let files = || {
        let mut files = lab.disk.list(&lab.dir.path().join("store/control")).unwrap();
        files.retain(|name| name.ends_with(".log"));
        files
    };
    lab.store.record_control(revocation(longest)).unwrap();
    while files().len() < 2 {
        // Sequences get longer.
        lab.store.record_control(revocation(longest - 9)).unwrap();
    }
    let first = lab.disk.len(&lab.dir.path().join("store/control").join(&files()[0])).unwrap();
    assert!((16 * MIB + 1..=16 * MIB + RECORD as u64 + 100).contains(&first), "{first}");
}

#[test]
fn of_unknown_receipts_4096_are_remembered() {
    let lab = lab();
    let c = Collector::new("tenant-a", "c1");
    let unknown = |n| ControlRecord::ReceiptUnknown {
        tenant: c.tenant.clone(),
        stream: c.stream().parse().unwrap(),
        leaf_index: n,
        receipt: UnknownReceipt {
            heartbeat: Uuid::from_u128(u128::from(n)),
            occurred_at: Timestamp::from_nanos(T0),
            receipt_hash: activity_schema::Hash::default(),
        },
    };
    for (records, remembered) in [(0..4_096, 4_096), (4_096..4_097, 4_096)] {
        lab.store.shared().record_control(records.map(unknown).collect()).unwrap();
        assert_eq!(lab.store.shared().control.lock().unknown_receipts().len(), remembered);
    }
}

#[test]
fn an_answer_has_10_000_events_and_at_most_100_000() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    for n in 0..101 {
        let batch = c.processes(1_000, T0 + n * 1_000_000_000);
        let results = ingest(&store, &c, vec![batch]).unwrap();
        assert!(matches!(results[..], [BatchResult::Stored { .. }]), "{results:?}");
    }
    for (limit, events) in [(0, 10_000), (99_999, 99_999), (usize::MAX, 100_000)] {
        let answer = store.query(&c.tenant, &Query { limit, ..Query::default() }).unwrap();
        assert_eq!((answer.events.len(), answer.next_cursor.is_some()), (events, true));
    }
}
