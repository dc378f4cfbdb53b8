//! Whatever is changed, cut or taken away is found and named.

use std::path::Path;

use super::basic::{config, ingest, seal_all};
use super::kit::{Collector, T0};
use crate::verify::{VerifyOptions, evidence_files, verify_store};
use crate::{ControlRecord, Enrolment, Instances, Store, VerifyReport};

fn enrol(store: &Store, c: &Collector) {
    store
        .record_control(ControlRecord::Enrolled(Enrolment {
            tenant: c.tenant.clone(),
            collector_id: c.id.clone(),
            host: c.host.clone(),
            instances: Instances::One(c.instance.clone()),
            signing_key: c.signer.public(),
            epoch: c.epoch.clone(),
            certificate_serial: "01".into(),
            enrolled_at: activity_schema::Timestamp::from_nanos(T0),
        }))
        .unwrap();
}

/// A store with everything in it: sealed and open batches, two tenants, withheld lines, control records.
pub(super) fn make(dir: &Path) -> String {
    let store = Store::open(config(dir)).unwrap();
    let mut collectors = [Collector::new("tenant-a", "c1"), Collector::new("tenant-b", "c2")];
    collectors.iter().for_each(|c| enrol(&store, c));
    for round in 0..2 {
        for c in &mut collectors {
            for batch in 0..3 {
                let at = T0 + (round * 10 + batch) * 1_000_000_000;
                let mut lines: Vec<_> = (0..5).map(|i| c.line(i, "process.exec", at, |_| {})).collect();
                lines[2] = b"{\"bad\":1}".to_vec();
                let batch = c.batch(&lines, (at, at));
                ingest(&store, c, vec![batch]).unwrap();
            }
        }
        if round == 0 {
            seal_all(&store);
        }
    }
    let note = crate::threads::checkpoint_all;
    note(store.shared());
    store.checkpoint(&collectors[0].tenant).unwrap()
}

fn check(dir: &Path, kept: Option<&str>) -> VerifyReport {
    let options = VerifyOptions { checkpoint: kept.map(str::to_owned), ..VerifyOptions::default() };
    verify_store(&dir.join("store"), &options, &mut |_| {})
}

pub(super) fn copy_to(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_to(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn an_untouched_store_verifies_and_says_what_it_cannot_prove() {
    let dir = tempfile::tempdir().unwrap();
    let kept = make(dir.path());
    let report = check(dir.path(), Some(&kept));
    assert!(report.ok && report.problems.is_empty(), "{:#?}", report.problems);
    assert_eq!(report.tenants.len(), 2);
    assert!(report.tenants.iter().all(|t| t.batches == 6 && t.events == 24 && t.elided == 6));
    assert!(report.not_established.iter().any(|what| what.contains("signer not pinned")));
    let without = check(dir.path(), None);
    assert!(without.not_established.iter().any(|what| what.contains("tail not provable")));
    let foreign = VerifyOptions {
        trust: Some(activity_schema::keys::Signer::from_seed(&[9; 32]).public()),
        ..VerifyOptions::default()
    };
    assert!(!verify_store(&dir.path().join("store"), &foreign, &mut |_| {}).ok);
}

#[test]
fn one_flipped_byte_in_any_evidence_file_is_found_in_that_file() {
    let dir = tempfile::tempdir().unwrap();
    let kept = make(dir.path());
    let files = evidence_files(&dir.path().join("store"));
    assert!(files.len() >= 2 + 1 + 2 * 4, "{files:?}");
    for file in &files {
        let good = std::fs::read(file).unwrap();
        let name = file.strip_prefix(dir.path().join("store")).unwrap().to_str().unwrap().to_owned();
        let step = (good.len() / 60).max(1);
        let places = (0..good.len()).step_by(step).chain(good.len().saturating_sub(12)..good.len());
        for at in places {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            std::fs::write(file, &bad).unwrap();
            let report = check(dir.path(), Some(&kept));
            let named = report.problems.iter().any(|p| p.file == name || p.what.contains(&name));
            assert!(named, "byte {at} of {name}: {:#?}", report.problems);
        }
        for cut in [0, 1, good.len() / 2 + 1, good.len() - 1] {
            std::fs::write(file, &good[..cut]).unwrap();
            let report = check(dir.path(), Some(&kept));
            let problems = &report.problems;
            assert!(
                problems.iter().any(|p| p.file == name || p.what.contains(&name)),
                "{name} cut to {cut}: {problems:#?}"
            );
        }
        std::fs::write(file, &good).unwrap();
    }
    assert!(check(dir.path(), Some(&kept)).ok);
}

/// Damage named in a store that was closed cleanly, without a checkpoint kept from before.
fn damaged(dir: &Path) -> Vec<String> {
    let problems = check(dir, None).problems;
    problems.into_iter().filter(|p| p.severity == crate::Severity::Damage).map(|p| p.file).collect()
}

#[test]
fn a_removed_or_added_evidence_file_is_found() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store = dir.path().join("store");
    for file in evidence_files(&store) {
        let good = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(!damaged(dir.path()).is_empty(), "{file:?} is gone unseen");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!damaged(dir.path()).is_empty(), "{file:?} is a FIFO, and nobody waits for it");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, good).unwrap();
    }
    let added = store.join("commit/00000000000000000009.log.damaged");
    std::fs::write(&added, b"").unwrap();
    assert!(damaged(dir.path()).contains(&"commit/00000000000000000009.log.damaged".to_owned()));
    std::fs::remove_file(&added).unwrap();
    assert_eq!(damaged(dir.path()), Vec::<String>::new());
}

/// An alarm on evidence that is well teaches people to ignore alarms.
#[test]
fn a_store_that_goes_on_while_it_is_verified_verifies() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c3");
    enrol(&store, &c);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !done.load(std::sync::atomic::Ordering::Relaxed)) {
                let batch = c.processes(5, T0 + n * 1_000_000_000);
                ingest(&store, &c, vec![batch]).unwrap();
            }
        });
        let found: Vec<_> = (0..40).map(|_| damaged(dir.path())).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(found, vec![Vec::<String>::new(); 40]);
    });
}

#[test]
fn a_closed_store_proves_where_each_file_ended() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let report = check(dir.path(), None);
    assert!(report.closed_at.is_some() && !report.not_established.iter().any(|w| w.contains("not closed")));
    for file in evidence_files(&dir.path().join("store")) {
        let good = std::fs::read(&file).unwrap();
        for cut in (0..good.len()).step_by((good.len() / 150).max(1)).chain([good.len() - 1]) {
            std::fs::write(&file, &good[..cut]).unwrap();
            assert!(!damaged(dir.path()).is_empty(), "{file:?} cut to {cut}");
        }
        let end = [good.as_slice(), b"\0"].concat();
        std::fs::write(&file, end).unwrap();
        let problems = check(dir.path(), None).problems;
        assert!(!problems.is_empty(), "{file:?} grew");
        std::fs::write(&file, good).unwrap();
    }
}

/// Removes the last whole records of the control journal, or notes of a tenant's checkpoints.
#[test]
fn whole_records_and_notes_removed_from_an_end_are_found() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let journal = dir.path().join("store/control/00000000000000000001.log");
    let good = std::fs::read(&journal).unwrap();
    let ends: Vec<usize> = crate::frame::Scan::new(&good, 0)
        .map(|found| match found {
            crate::frame::Found::Frame { offset, .. } => offset,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ends.len(), 3, "two enrolments, and the close");
    for end in ends {
        std::fs::write(&journal, &good[..end]).unwrap();
        assert!(damaged(dir.path()).contains(&"control/00000000000000000001.log".to_owned()), "{end}");
    }
    std::fs::write(&journal, good).unwrap();
    let notes = dir.path().join("store/tenants/tenant-a/log/checkpoints");
    let good = std::fs::read(&notes).unwrap();
    let (all, _) = crate::log::split_notes(&good);
    assert!(all.len() >= 2);
    for kept in 0..all.len() {
        std::fs::write(&notes, all[..kept].concat()).unwrap();
        assert!(damaged(dir.path()).contains(&"tenants/tenant-a/log/checkpoints".to_owned()), "{kept}");
    }
}

/// Until the commit files of the last run are sealed and gone.
fn wait_until_sealed(dir: &Path) {
    while std::fs::read_dir(dir.join("store/commit")).unwrap().next().is_some() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn opening_spends_the_statement_and_tells_what_was_changed_before() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let statement = dir.path().join("store/closed");
    let spent = std::fs::read(&statement).unwrap();
    let running = Store::open(config(dir.path())).unwrap();
    assert_eq!(running.findings(), Vec::<String>::new());
    assert!(!statement.exists());
    wait_until_sealed(dir.path());
    let report = check(dir.path(), None);
    assert!(report.ok && report.closed_at.is_none());
    assert!(report.not_established.iter().any(|what| what.contains("not closed cleanly")));
    // As after a crash right after the record.
    std::fs::write(&statement, &spent).unwrap();
    assert!(check(dir.path(), None).ok);
    drop(running);
    assert!(check(dir.path(), None).closed_at.is_some());
    std::fs::write(&statement, &spent).unwrap();
    assert_eq!(damaged(dir.path()), ["closed"]);
    let notes = dir.path().join("store/tenants/tenant-a/log/checkpoints");
    std::fs::remove_file(&notes).unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    assert!(store.findings().iter().any(|what| what.contains("closed")), "{:?}", store.findings());
    assert!(store.findings().iter().any(|what| what.contains("no checkpoint")), "{:?}", store.findings());
}

#[test]
fn without_a_clean_close_lost_checkpoints_are_found_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let running = Store::open(config(dir.path())).unwrap();
    wait_until_sealed(dir.path());
    let notes = dir.path().join("store/tenants/tenant-a/log/checkpoints");
    let good = std::fs::read(&notes).unwrap();
    for cut in [0, 1, 40] {
        std::fs::write(&notes, &good[..cut]).unwrap();
        assert_eq!(damaged(dir.path()), ["tenants/tenant-a/log/checkpoints"]);
    }
    std::fs::remove_file(&notes).unwrap();
    assert_eq!(damaged(dir.path()), ["tenants/tenant-a/log/checkpoints"]);
    drop(running);
}

#[test]
fn a_store_with_any_one_damaged_frame_reopens_skips_it_and_names_it() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let whole = Collector::new("tenant-a", "c1");
    let commit: Vec<_> = evidence_files(&dir.path().join("store"))
        .into_iter()
        .filter(|f| f.to_str().unwrap().contains("/commit/"))
        .collect();
    assert_eq!(commit.len(), 1);
    let good = std::fs::read(&commit[0]).unwrap();
    for at in (crate::commit::HEADER_BYTES..good.len()).step_by(97) {
        let copy = tempfile::tempdir().unwrap();
        copy_to(&dir.path().join("store"), &copy.path().join("store"));
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(
            copy.path().join("store").join(commit[0].strip_prefix(dir.path().join("store")).unwrap()),
            bad,
        )
        .unwrap();
        let store = Store::open(config(copy.path())).unwrap();
        let count = |tenant: &str| {
            let tenant = activity_schema::ids::TenantId::new(tenant).unwrap();
            store.query(&tenant, &crate::Query::default()).unwrap().events.len()
        };
        let lost = 48 - count("tenant-a") - count("tenant-b");
        assert!(lost == 4 || lost == 0, "byte {at}: {lost} events lost");
        assert!(!store.findings().is_empty(), "byte {at}");
        let streams = store.streams(&whole.tenant, &whole.id);
        assert_eq!(streams.len(), 1);
        drop(store);
        let report = check(copy.path(), None);
        if lost > 0 {
            assert!(
                report.problems.iter().any(|p| p.what.contains("are in no file")),
                "{:#?}",
                report.problems
            );
        }
    }
}
