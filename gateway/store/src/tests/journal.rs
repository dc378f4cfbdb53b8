//! A journal whose records were changed after they were durable is not taken for one that a crash cut short.

use std::path::{Path, PathBuf};

use activity_schema::Timestamp;

use super::basic::{config, ingest};
use super::kit::{Collector, T0};
use crate::store::OpenError;
use crate::{ControlRecord, Query, Revocation, Store, StoreConfig, VerifyOptions, verify_store};

const JOURNAL: &str = "store/control/00000000000000000001.log";

/// A store that was killed: nothing says how its files ended. Returns its folder.
fn killed(dir: &Path) -> PathBuf {
    killed_before(dir, |_| {})
}

/// `last` is called before the last record and the last batch.
fn killed_before(dir: &Path, last: impl Fn(&Path)) -> PathBuf {
    let store = Store::open(config(dir)).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    for n in 0..3 {
        if n == 2 {
            last(dir);
        }
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
    let temp = tempfile::tempdir().unwrap();
    let end = temp.path().join("end");
    let dir = killed_before(temp.path(), |dir| {
        std::fs::copy(dir.join("store/control/end"), &end).unwrap();
    });
    // As the crash found it: the end is written when the append is whole.
    std::fs::copy(&end, dir.join("store/control/end")).unwrap();
    edit(&dir.join(JOURNAL), |bytes| bytes.truncate(bytes.len() - 5));
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
        edit(&dir.join(JOURNAL), |bytes| change(bytes));
        assert!(named(&dir, "damaged"), "{what}: verify names it");
        refused_and_taken_by_decision(&dir, what);
    }
}

fn refused_and_taken_by_decision(dir: &Path, what: &str) {
    let Err(error) = Store::open(config(dir)) else { panic!("{what}: it opens") };
    assert!(matches!(error, OpenError::ControlDamaged { .. }), "{what}: {error}");
    let text = error.to_string();
    assert!(text.contains("control/") && text.contains("--accept-control-damage"), "{text}");
    assert!(Store::open_read_only(&dir.join("store")).is_ok(), "{what}: it can be read");
    let accept = || StoreConfig { accept_control_damage: true, ..config(dir) };
    let store = Store::open(accept()).unwrap();
    store.record_control(revocation("again")).unwrap();
    let left = revocations(&store);
    drop(store);
    // The decision is on the record: it need not be made again.
    let store = Store::open(config(dir)).unwrap();
    assert_eq!(revocations(&store), left, "{what}");
    store.record_control(revocation("and again")).unwrap();
    assert_eq!(revocations(&store), left + 1, "{what}");
}

/// Where the records of a journal begin.
fn records(bytes: &[u8]) -> Vec<usize> {
    let found = crate::frame::Scan::new(bytes, 0);
    found
        .filter_map(|f| if let crate::frame::Found::Frame { offset, .. } = f { Some(offset) } else { None })
        .collect()
}

#[test]
fn records_that_were_durable_do_not_pass_for_an_append_that_a_crash_cut_short() {
    for (what, change) in [
        (
            "its last records are zeros",
            (|b| {
                let at = records(b)[1];
                b[at..].fill(0)
            }) as fn(&mut Vec<u8>),
        ),
        ("its last record is zeros", |b| {
            let at = records(b)[2];
            b[at..].fill(0)
        }),
        ("all of it is zeros", |b| b.fill(0)),
        ("a cut last record", |b| b.truncate(b.len() - 5)),
        ("its last record is gone", |b| b.truncate(records(b)[2])),
        ("empty", |b| b.clear()),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let dir = killed(temp.path());
        edit(&dir.join(JOURNAL), change);
        assert!(named(&dir, "was durable, is not in it"), "{what}: verify names it");
        refused_and_taken_by_decision(&dir, what);
    }
}

#[test]
fn behind_a_clean_close_not_even_zeros_are_taken_for_a_crash() {
    for tail in [&[0; 16][..], &[0], &[0; 4096], &[9, 0, 0, 0, 1, 2, 3]] {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(config(dir.path())).unwrap());
        edit(&dir.path().join(JOURNAL), |bytes| bytes.extend_from_slice(tail));
        assert!(named(dir.path(), "damaged bytes at the end"), "{tail:?}");
        assert!(!verify_store(&dir.path().join("store"), &VerifyOptions::default(), &mut |_| {}).ok);
        refused_and_taken_by_decision(dir.path(), "something behind the close");
    }
}

#[test]
fn a_control_folder_that_was_deleted_is_refused_and_so_is_a_lost_end() {
    for gone in ["store/control", JOURNAL, "store/control/end"] {
        let temp = tempfile::tempdir().unwrap();
        let dir = killed(temp.path());
        remove(&dir.join(gone));
        assert!(named(&dir, ""), "{gone}: verify names it");
        refused_and_taken_by_decision(&dir, gone);
    }
}

#[test]
fn a_store_does_not_begin_anew_beside_evidence() {
    let temp = tempfile::tempdir().unwrap();
    let dir = killed(temp.path());
    remove(&dir.join("store/control"));
    remove(&dir.join("store/meta.json"));
    assert!(matches!(Store::open(config(&dir)), Err(OpenError::MetaLost(_))));
    drop(Store::open(StoreConfig { accept_control_damage: true, ..config(&dir) }).unwrap());
    assert!(Store::open(config(&dir)).is_ok());
}

fn remove(path: &Path) {
    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
}

#[test]
fn a_record_lost_after_a_clean_close_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    store.record_control(revocation("stolen")).unwrap();
    drop(store);
    edit(&dir.path().join(JOURNAL), |bytes| bytes.truncate(bytes.len() - 5));
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
