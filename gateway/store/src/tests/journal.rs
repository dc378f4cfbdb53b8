//! A journal whose records were changed after they were durable is not taken for one that a crash cut short.

use std::path::{Path, PathBuf};

use activity_schema::Timestamp;

use super::basic::{config, ingest};
use super::kit::{Collector, T0};
use crate::store::OpenError;
use crate::{ControlRecord, Query, Revocation, Store, StoreConfig, VerifyOptions, verify_store};

/// A store that was killed: nothing says how its files ended. Returns its folder.
fn killed(dir: &Path) -> PathBuf {
    let store = Store::open(config(dir)).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    for n in 0..3 {
        store.record_control(revocation(&format!("reason {n}"))).unwrap();
        let batch = c.processes(4, T0 + n * 1_000_000_000);
        ingest(&store, &c, vec![batch]).unwrap();
    }
    let copy = dir.join("killed");
    super::tamper::copy_to(&dir.join("store"), &copy.join("store"));
    copy
}

fn revocation(reason: &str) -> ControlRecord {
    ControlRecord::Revoked(Revocation {
        tenant: Collector::new("tenant-a", "c1").tenant,
        collector_id: Collector::new("tenant-a", "stolen").id,
        key_id: None,
        certificate_serial: None,
        reason: reason.into(),
        revoked_at: Timestamp::from_nanos(T0),
    })
}

fn edit(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(file).unwrap();
    change(&mut bytes);
    std::fs::write(file, bytes).unwrap();
}

fn revocations(store: &Store) -> usize {
    let records = store.control_records(1, 100).into_iter();
    records.filter(|(_, record)| matches!(record, ControlRecord::Revoked(_))).count()
}

fn named(dir: &Path, what: &str) -> bool {
    let report = verify_store(&dir.join("store"), &VerifyOptions::default(), &mut |_| {});
    report.problems.iter().any(|p| p.file.starts_with("control/") && p.what.contains(what))
}

#[test]
fn an_append_that_a_crash_cut_short_is_cut_off_and_the_rest_stays() {
    let dir = tempfile::tempdir().unwrap();
    let dir = killed(dir.path());
    let journal = dir.join("store/control/00000000000000000001.log");
    edit(&journal, |bytes| bytes.truncate(bytes.len() - 5));
    let store = Store::open(config(&dir)).unwrap();
    assert_eq!(revocations(&store), 2);
    assert!(store.findings().iter().any(|f| f.contains("are no record")), "{:?}", store.findings());
}

#[test]
fn a_journal_with_garbage_is_refused_for_writing_named_and_taken_only_by_decision() {
    for (what, change) in [
        ("all of it", Box::new(|b: &mut Vec<u8>| b.fill(0x5a)) as Box<dyn Fn(&mut Vec<u8>)>),
        ("its first record", Box::new(|b| b[20] ^= 1)),
        (
            "its middle",
            Box::new(|b| {
                let at = b.len() / 2;
                b[at..at + 30].fill(0x5a);
            }),
        ),
        (
            "its last record",
            Box::new(|b| {
                let at = b.len() - 9;
                b[at] ^= 1;
            }),
        ),
        (
            "its end",
            Box::new(|b| {
                let at = b.len() - 700;
                b[at..].fill(0x5a);
            }),
        ),
        ("something behind it", Box::new(|b| b.extend([0x5a; 40]))),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let dir = killed(temp.path());
        edit(&dir.join("store/control/00000000000000000001.log"), |bytes| change(bytes));
        let Err(error) = Store::open(config(&dir)) else { panic!("{what}: it opens") };
        assert!(matches!(error, OpenError::ControlDamaged { .. }), "{what}: {error}");
        let text = error.to_string();
        assert!(
            text.contains("00000000000000000001.log") && text.contains("--accept-control-damage"),
            "{text}"
        );
        assert!(named(&dir, "damaged"), "{what}: verify names it");
        assert!(Store::open_read_only(&dir.join("store")).is_ok(), "{what}: it can be read");
        let accept = || StoreConfig { accept_control_damage: true, ..config(&dir) };
        let store = Store::open(accept()).unwrap();
        store.record_control(revocation("again")).unwrap();
        let left = revocations(&store);
        drop(store);
        // The decision is on the record: it need not be made again.
        let store = Store::open(config(&dir)).unwrap();
        assert_eq!(revocations(&store), left, "{what}");
        store.record_control(revocation("and again")).unwrap();
        assert_eq!(revocations(&store), left + 1, "{what}");
    }
}

#[test]
fn a_record_lost_after_a_clean_close_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    store.record_control(revocation("stolen")).unwrap();
    drop(store);
    edit(&dir.path().join("store/control/00000000000000000001.log"), |bytes| bytes.truncate(bytes.len() - 5));
    assert!(matches!(Store::open(config(dir.path())), Err(OpenError::ControlDamaged { .. })));
}

#[test]
fn an_acknowledged_group_whose_end_is_damaged_is_not_cut_off_in_silence() {
    let temp = tempfile::tempdir().unwrap();
    let dir = killed(temp.path());
    let commit = std::fs::read_dir(dir.join("store/commit")).unwrap().next().unwrap().unwrap().path();
    edit(&commit, |bytes| {
        let at = bytes.len() - 60;
        bytes[at..].fill(0x5a);
    });
    let store = Store::open(config(&dir)).unwrap();
    let tenant = Collector::new("tenant-a", "c1").tenant;
    assert!(store.findings().iter().any(|f| f.contains("they were acknowledged")), "{:?}", store.findings());
    let answer = store.query(&tenant, &Query::default()).unwrap();
    assert!(answer.damaged > 0 && answer.events.len() == 8, "{} {}", answer.damaged, answer.events.len());
    drop(store);
    let kept = commit.with_extension("tail");
    assert!(std::fs::metadata(&kept).unwrap().len() > 60);
    let report = verify_store(&dir.join("store"), &VerifyOptions::default(), &mut |_| {});
    assert!(report.problems.iter().any(|p| p.file.ends_with(".tail")), "{:#?}", report.problems);
}
