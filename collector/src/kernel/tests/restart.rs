//! A collector that dies leaves programs, rings and counters; the next one goes on where it had committed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::harness::{Cgroup, LOAD, attach, config, pin_dir, spawn};
use crate::kernel::{KernelSource, Record, RecordKind, RingId, RingPosition, RingSizes};

const FORKS: usize = 400;

/// Appends what it reads and commits after each append, until it is killed.
#[test]
#[ignore = "the reader that another test kills"]
fn reader() {
    let Ok(orders) = std::env::var(LOAD) else { return };
    let (pins, journal) = orders.split_once(' ').unwrap();
    let mut source = attach(&config(RingSizes::HOST, Some(PathBuf::from(pins)))).unwrap();
    let mut journal = OpenOptions::new().append(true).open(journal).unwrap();
    loop {
        step(&mut source, &mut journal, RingPosition(0));
        sleep(Duration::from_millis(1));
    }
}

/// One record of the process ring for each line: position, kind, cgroup, tgid.
fn step(source: &mut KernelSource, journal: &mut File, known: RingPosition) {
    let mut lines = String::new();
    let mut end = None;
    // A few at a time, so that a kill finds some read and not committed.
    source.drain(RingId::Process, 7, &mut |position, record| {
        let record: Record<'_> = record.unwrap();
        let common = *record.common();
        if position > known {
            let kind = record.kind() as u8;
            lines += &format!("{} {kind} {} {}\n", position.0, common.cgroup_id, common.tgid);
        }
        end = Some(position);
    });
    journal.write_all(lines.as_bytes()).unwrap();
    if let Some(end) = end {
        source.commit(RingId::Process, end);
    }
}

fn entries(journal: &Path) -> Vec<[u64; 4]> {
    let text = fs::read_to_string(journal).unwrap();
    // A kill in the middle of a write leaves a torn line, which the spool would find by its checksum.
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    whole
        .lines()
        .map(|line| {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            numbers.try_into().unwrap()
        })
        .collect()
}

#[test]
fn a_killed_reader_loses_and_doubles_nothing() {
    let Some(pins) = pin_dir() else { return };
    let Some(first) = attach(&config(RingSizes::HOST, Some(pins.clone()))) else { return };
    let (_, report) = KernelSource::attach(&config(RingSizes::HOST, Some(pins.clone()))).unwrap();
    assert!(report.reused_pins, "{report:?}");
    drop(first);
    let cgroup = Cgroup::new();
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    File::create(&journal).unwrap();
    let mut load = spawn(Some(&cgroup), "load::load", &format!("forks {FORKS}"));
    for _ in 0..4 {
        let orders = format!("{} {}", pins.display(), journal.display());
        let mut reader = spawn(None, "restart::reader", &orders);
        sleep(Duration::from_millis(120));
        reader.kill().unwrap();
        reader.wait().unwrap();
        // Drop what the killed reader may have written in part, as the spool does.
        let whole = entries(&journal)
            .iter()
            .map(|entry| format!("{} {} {} {}\n", entry[0], entry[1], entry[2], entry[3]))
            .collect::<String>();
        fs::write(&journal, whole).unwrap();
    }
    assert!(load.wait().unwrap().success());

    let (mut source, report) = KernelSource::attach(&config(RingSizes::HOST, Some(pins.clone()))).unwrap();
    assert!(report.reused_pins);
    let known = entries(&journal).last().map_or(RingPosition(0), |entry| RingPosition(entry[0]));
    let mut file = OpenOptions::new().append(true).open(&journal).unwrap();
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        step(&mut source, &mut file, known);
    }
    // Each reader started from the committed position and may have repeated records that had been appended; the
    // position tells.
    let mut by_position: BTreeMap<u64, [u64; 4]> = BTreeMap::new();
    for entry in entries(&journal) {
        let other = by_position.insert(entry[0], entry);
        assert!(other.is_none_or(|other| other == entry), "one position, one record");
    }
    let count = |kind: RecordKind| {
        by_position
            .values()
            .filter(|entry| entry[1] == u64::from(kind as u8) && entry[2] == cgroup.id)
            .count()
    };
    assert_eq!(count(RecordKind::Fork), FORKS);
    assert_eq!(count(RecordKind::Exit), FORKS + 1);
    assert!(source.losses().is_empty());
    source.detach();
    assert_eq!(fs::read_dir(&pins).unwrap().count(), 0, "a graceful end leaves no pins");
    fs::remove_dir(&pins).unwrap();
}

/// Where one program did not run, a restart is no restart without a gap.
#[test]
fn pins_that_are_gone_in_part_are_not_taken_for_all() {
    let Some(pins) = pin_dir() else { return };
    let Some(source) = attach(&config(RingSizes::GUEST, Some(pins.clone()))) else { return };
    drop(source);
    let (source, report) = KernelSource::attach(&config(RingSizes::GUEST, Some(pins.clone()))).unwrap();
    assert!(report.reused_pins);
    drop(source);
    let set = fs::read_dir(&pins).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(set.join("link_on_exec")).unwrap();
    let (source, report) = KernelSource::attach(&config(RingSizes::GUEST, Some(pins.clone()))).unwrap();
    assert!(!report.reused_pins);
    source.detach();
    let _ = fs::remove_dir(&pins);
}

#[test]
fn losses_are_told_once_across_restarts() {
    let Some(pins) = pin_dir() else { return };
    let small = RingSizes { process: 1 << 12, ..RingSizes::GUEST };
    let Some(mut source) = attach(&config(small, Some(pins.clone()))) else { return };
    let cgroup = Cgroup::new();
    let storm = |forks: usize| {
        let mut child = spawn(Some(&cgroup), "load::load", &format!("forks {forks}"));
        assert!(child.wait().unwrap().success());
    };
    let lost = |source: &mut KernelSource| -> u64 {
        let of = |loss: &&crate::kernel::KernelLoss| {
            loss.cgroup_id == Some(cgroup.id) && loss.kind == RecordKind::Fork
        };
        source.losses().iter().filter(of).map(|loss| loss.count).sum()
    };
    storm(100);
    let told = lost(&mut source);
    assert!(told > 0);
    source.commit_losses();
    drop(source);
    storm(50);
    let mut source = attach(&config(small, Some(pins.clone()))).unwrap();
    // The ring was full from the first storm on, so that all of the second is lost.
    assert_eq!(lost(&mut source), 50);
    // Told and not kept: a collector that dies now tells it again.
    drop(source);
    let mut source = attach(&config(small, Some(pins.clone()))).unwrap();
    assert_eq!(lost(&mut source), 50);
    source.detach();
    let _ = fs::remove_dir(&pins);
}
