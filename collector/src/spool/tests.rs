//! The spool against a model, on a disk that tears writes, forgets unsynced bytes and fills up.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small numbers of tests"
)]

mod faulty_disk;
mod losses;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use activity_schema::batch::{self, Leaf, lines_root};
use activity_schema::merkle::Hash;
use proptest::prelude::*;

use super::*;
use faulty_disk::FaultyDisk;

const CLOCK: ClockState = ClockState { error_ns: 1, offset_ns: 0, synchronised: true };
const SMALL: SpoolLimits = SpoolLimits::of_total(1 << 40);

fn identity(run: u32) -> EpochIdentity {
    EpochIdentity::of_a_test(&format!("epoch-{run:04}"))
}

fn open(disk: &FaultyDisk, run: u32, limits: SpoolLimits) -> io::Result<(Spool<FaultyDisk>, Recovery)> {
    Spool::open(disk.clone(), Path::new("/spool"), limits, identity(run), &[run as u8; 32], CLOCK)
}

fn line(n: u64) -> Line {
    Line { bytes: format!("{{\"line\":{n}}}").into_bytes(), occurred_at: Timestamp::from_nanos(n as i64) }
}

/// Every sealed line of a class still in the spool, by epoch, checked against its header.
fn sealed_lines(spool: &Spool<FaultyDisk>, class: Class) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for epoch in spool.epochs() {
        let (reader, mut previous) = (epoch.reader(), None);
        for reference in reader.pending(class) {
            let batch = reader.read(class, reference.number).unwrap();
            assert!(batch.is_signed_by(epoch.signer.public()));
            if let Some(hash) = previous {
                assert_eq!(batch.header.previous_batch_hash, hash, "the chain holds");
            }
            previous = Some(batch.hash());
            let Some(body) = &batch.body else { continue };
            let raw = batch::decompress(body, batch.header.raw_bytes).unwrap();
            let lines = batch::split_lines(&raw, batch.header.count).unwrap();
            assert_eq!(lines_root(lines.iter().map(|l| Leaf::Line(l))), batch.header.merkle_root);
            out.extend(lines.iter().map(|l| l.to_vec()));
        }
    }
    out
}

/// Seals a class and waits until the batch is on disk.
fn seal(spool: &mut Spool<FaultyDisk>, class: Class) -> io::Result<()> {
    let batches = spool.seal(class, CLOCK, Timestamp::from_nanos(9))?.into_iter().collect::<Vec<_>>();
    Unsynced::sync(&batches)?;
    batches.into_iter().for_each(|batch| drop(batch.finish()));
    Ok(())
}

/// Syncs what waits; whether that worked.
fn sync(waiting: &mut Vec<Unsynced<FaultyDisk>>) -> bool {
    let synced = Unsynced::sync(waiting).is_ok();
    if synced {
        waiting.drain(..).for_each(|batch| drop(batch.finish()));
    }
    synced
}

#[derive(Debug, Clone)]
enum Step {
    Append(u8),
    Seal,
    Sync,
    SyncFails(bool),
    Release,
    Full(bool),
    Kill { after: u32 },
    PowerCut { part: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1u8..6).prop_map(Step::Append),
        4 => Just(Step::Seal),
        4 => Just(Step::Sync),
        1 => any::<bool>().prop_map(Step::SyncFails),
        1 => Just(Step::Release),
        1 => any::<bool>().prop_map(Step::Full),
        1 => (0u32..6).prop_map(|after| Step::Kill { after }),
        1 => any::<u8>().prop_map(|part| Step::PowerCut { part }),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    /// Sealed and not released = still there, once, in order. Nothing is there that was not appended.
    #[test]
    fn sealed_is_durable_and_nothing_is_there_twice(steps in steps()) {
        let disk = FaultyDisk::default();
        let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
        let (mut next, mut run) = (1u64, 0u32);
        // Lines appended with success, and how many of them (a prefix) are sealed or released.
        let (mut appended, mut durable, mut released): (Vec<Vec<u8>>, usize, usize) = (vec![], 0, 0);
        // Sealed and not yet synced; lines up to the last of them.
        let (mut waiting, mut sealed) = (Vec::new(), 0);
        for step in steps {
            match step {
                Step::Append(n) => {
                    let lines: Vec<Line> = (next..next + u64::from(n)).map(line).collect();
                    next += u64::from(n);
                    if spool.append(Class::Critical, &lines, &[], 0).is_ok() {
                        appended.extend(lines.into_iter().map(|l| l.bytes));
                    }
                }
                Step::Seal => {
                    if let Ok(Some(batch)) = spool.seal(Class::Critical, CLOCK, Timestamp::from_nanos(9)) {
                        waiting.push(batch);
                        sealed = appended.len();
                    }
                }
                Step::Sync => {
                    if sync(&mut waiting) {
                        durable = durable.max(sealed);
                    }
                }
                Step::SyncFails(fails) => disk.0.lock().unwrap().sync_fails = fails,
                Step::Release => {
                    // The oldest epoch is sent first.
                    let target = spool.epochs().find_map(|e| {
                        e.reader().pending(Class::Critical).first().map(|b| (e.identity.epoch.clone(), b.clone()))
                    });
                    if let Some((epoch, b)) = target
                        && spool.release(&epoch, Class::Critical, b.number, Hash::default()).is_ok()
                    {
                        released += b.count() as usize;
                    }
                }
                Step::Full(full) => disk.0.lock().unwrap().full = full,
                Step::Kill { after } => {
                    disk.0.lock().unwrap().fail_after = Some(after);
                    let lines = vec![line(next)];
                    next += 1;
                    if spool.append(Class::Critical, &lines, &[], 0).is_ok() {
                        appended.push(lines[0].bytes.clone());
                        if let Ok(Some(batch)) = spool.seal(Class::Critical, CLOCK, Timestamp::from_nanos(9)) {
                            waiting.push(batch);
                            sealed = appended.len();
                        }
                        if sync(&mut waiting) {
                            durable = durable.max(sealed);
                        }
                    }
                    drop(spool);
                    waiting.clear();
                    disk.restart(None);
                    run += 1;
                    spool = open(&disk, run, SMALL).unwrap().0;
                    let survived = check(&mut spool, &appended, durable, released)?;
                    appended.truncate(survived);
                    (durable, sealed) = (survived, survived);
                }
                Step::PowerCut { part } => {
                    drop(spool);
                    waiting.clear();
                    disk.restart(Some(part));
                    run += 1;
                    spool = open(&disk, run, SMALL).unwrap().0;
                    let survived = check(&mut spool, &appended, durable, released)?;
                    appended.truncate(survived);
                    (durable, sealed) = (survived, survived);
                }
            }
        }
        disk.0.lock().unwrap().sync_fails = false;
        sync(&mut waiting);
        check(&mut spool, &appended, durable, released)?;
    }
}

/// Seals what is open and compares; returns how many of `appended` are still there.
fn check(
    spool: &mut Spool<FaultyDisk>,
    appended: &[Vec<u8>],
    durable: usize,
    released: usize,
) -> Result<usize, TestCaseError> {
    spool.disk.0.lock().unwrap().full = false;
    seal(spool, Class::Critical).unwrap();
    let there = sealed_lines(spool, Class::Critical);
    let survived = released + there.len();
    prop_assert!(survived >= durable, "{} of {} durable lines are there", survived, durable);
    prop_assert!(survived <= appended.len() + 1, "nothing is there twice");
    let n = survived.min(appended.len());
    prop_assert_eq!(&there[..n - released], &appended[released..n]);
    Ok(n)
}

#[test]
fn under_pressure_bulk_goes_before_standard_and_critical_stays() {
    let disk = FaultyDisk::default();
    let limits = SpoolLimits { bytes_max: 8 << 20, standard_bytes_max: 3 << 20, bulk_bytes_max: 3 << 20 };
    let (mut spool, _) = open(&disk, 0, limits).unwrap();
    let big = |n: u64| Line { bytes: vec![b'x'; 60_000], occurred_at: Timestamp::from_nanos(n as i64) };
    let mut shed: BTreeMap<Class, u64> = BTreeMap::new();
    for n in 0..400 {
        for class in [Class::Bulk, Class::Standard, Class::Critical] {
            if class == Class::Critical && n >= 60 {
                continue;
            }
            spool.append(class, &[big(n)], &[], 0).unwrap();
            seal(&mut spool, class).unwrap();
        }
        for s in spool.take_sheds() {
            *shed.entry(s.class).or_default() += s.batches.iter().map(BatchRef::count).sum::<u64>();
        }
        assert!(spool.bytes() <= limits.bytes_max, "the quota is hard");
    }
    assert_eq!(sealed_lines(&spool, Class::Critical).len(), 60);
    assert_eq!(shed.get(&Class::Critical), None);
    assert!(shed[&Class::Bulk] >= shed[&Class::Standard]);
    for class in [Class::Bulk, Class::Standard] {
        assert_eq!(sealed_lines(&spool, class).len() as u64 + shed[&class], 400, "shed is counted, exactly");
    }
    // A class that has nothing lower to shed is refused, and says so.
    let mut refused = 0;
    for n in 0..200 {
        if matches!(spool.append(Class::Critical, &[big(n)], &[], 0), Err(AppendError::Quota)) {
            refused += 1;
        } else {
            seal(&mut spool, Class::Critical).unwrap();
        }
    }
    assert!(refused > 0 && spool.bytes() <= limits.bytes_max);
}

/// The newest segments stay, and they are small where the spool is.
#[test]
fn a_spool_that_was_full_takes_lines_again_when_all_is_acknowledged() {
    for bytes_max in [512 << 10, 8 << 20] {
        let (mut spool, _) = open(&FaultyDisk::default(), 0, SpoolLimits::of_total(bytes_max)).unwrap();
        let line = |n: u64| Line { bytes: vec![b'x'; 500], occurred_at: Timestamp::from_nanos(n as i64) };
        for class in [Class::Standard, Class::Critical] {
            let mut n = 0;
            while spool.append(class, &[line(n)], &[], 0).is_ok() && n < bytes_max / 500 {
                n += 1;
                if n.is_multiple_of(128) {
                    seal(&mut spool, class).unwrap();
                }
            }
            seal(&mut spool, class).unwrap();
        }
        assert!(matches!(spool.append(Class::Critical, &[line(0)], &[], 0), Err(AppendError::Quota)));
        let epoch = spool.identity().epoch.clone();
        for class in [Class::Standard, Class::Critical] {
            let last = spool.current().reader().pending(class).last().unwrap().number;
            spool.release(&epoch, class, last, Hash::default()).unwrap();
            spool.append(class, &[line(1)], &[], 0).unwrap();
        }
        assert!(spool.bytes() < bytes_max / 2, "{} of {bytes_max}", spool.bytes());
    }
}

#[test]
fn a_flipped_byte_in_a_batch_sends_its_header_alone() {
    let disk = FaultyDisk::default();
    let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
    for n in 0..3 {
        spool.append(Class::Critical, &[line(n), line(n + 100)], &[], 0).unwrap();
        seal(&mut spool, Class::Critical).unwrap();
    }
    {
        let mut state = disk.0.lock().unwrap();
        let file = state.files.iter_mut().find(|(p, _)| p.extension().is_some_and(|e| e == "seg")).unwrap().1;
        file.bytes[8 + 20] ^= 1;
    }
    let reader = spool.current().reader();
    assert!(reader.read(Class::Critical, 1).unwrap().body.is_some(), "new batches are not read back");
    drop(spool);
    let (spool, recovery) = open(&disk, 1, SMALL).unwrap();
    let reader = spool.current().reader();
    assert!(reader.read(Class::Critical, 1).unwrap().body.is_none());
    assert!(reader.read(Class::Critical, 2).unwrap().body.is_some());
    assert_eq!(recovery.damage[0].2.corrupt_batches, [(1, 2)]);
    assert_eq!(sealed_lines(&spool, Class::Critical).len(), 4);
}

/// A hole in front of open lines: what is behind it cannot be sealed, and nothing stops the next epoch.
#[test]
fn a_flipped_byte_in_the_open_batch_begins_an_epoch() {
    let disk = FaultyDisk::default();
    let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
    for n in 0..3 {
        spool.append(Class::Critical, &[line(n)], &[], 0).unwrap();
    }
    drop(spool);
    {
        let mut state = disk.0.lock().unwrap();
        let file = state.files.iter_mut().find(|(p, _)| p.extension().is_some_and(|e| e == "seg")).unwrap().1;
        file.bytes[8 + 20] ^= 1;
    }
    let (spool, recovery) = open(&disk, 1, SMALL).unwrap();
    assert!(recovery.damage[0].2.broken);
    assert_eq!(spool.identity().epoch.as_str(), "epoch-0001");
    assert_eq!(spool.epochs().count(), 1, "the broken epoch has nothing left to send");
}

/// Everything is acknowledged and a new segment has begun: the one before still says where the stream goes on.
#[test]
fn open_lines_of_a_new_segment_are_kept_when_all_before_is_released() {
    let disk = FaultyDisk::default();
    let limits = SpoolLimits::of_total(64 << 20);
    let (mut spool, _) = open(&disk, 0, limits).unwrap();
    for n in 0..2 {
        let mut long = line(n);
        long.bytes.resize(600_000, b' ');
        spool.append(Class::Critical, &[long], &[], 0).unwrap();
        seal(&mut spool, Class::Critical).unwrap();
    }
    spool.append(Class::Critical, &[line(2)], &[], 0).unwrap();
    let epoch = spool.identity().epoch.clone();
    spool.release(&epoch, Class::Critical, 2, activity_schema::Hash::default()).unwrap();
    drop(spool);
    let (mut spool, recovery) = open(&disk, 1, limits).unwrap();
    assert_eq!(recovery.state, SpoolState::Intact, "{:?}", recovery.damage);
    assert_eq!(spool.next_sequence(Class::Critical), 4);
    let batch = spool.seal(Class::Critical, CLOCK, Timestamp::from_nanos(1)).unwrap().unwrap();
    assert_eq!(batch.finish().number, 3);
}

/// The oldest segment is gone without an acknowledgement: no gateway takes what is behind it.
#[test]
fn a_missing_first_segment_begins_an_epoch() {
    let disk = FaultyDisk::default();
    let limits = SpoolLimits::of_total(64 << 20);
    let (mut spool, _) = open(&disk, 0, limits).unwrap();
    for n in 0..4 {
        let mut long = line(n);
        long.bytes.resize(600_000, b' ');
        spool.append(Class::Critical, &[long], &[], 0).unwrap();
        seal(&mut spool, Class::Critical).unwrap();
    }
    drop(spool);
    {
        let mut state = disk.0.lock().unwrap();
        let is_segment = |p: &&PathBuf| p.extension().is_some_and(|e| e == "seg");
        let mut segments: Vec<_> = state.files.keys().filter(is_segment).cloned().collect();
        segments.retain(|p| p.parent().unwrap().ends_with("critical"));
        segments.sort();
        assert!(segments.len() > 1);
        state.files.remove(&segments[0]);
    }
    let (spool, recovery) = open(&disk, 1, limits).unwrap();
    assert!(recovery.damage[0].2.headless);
    assert_eq!(spool.identity().epoch.as_str(), "epoch-0001");
}

/// Nothing in what is left says so: whole frames, and seals that follow on each other.
#[test]
fn a_newest_segment_that_is_gone_or_cut_at_a_frame_is_counted_and_begins_an_epoch() {
    type Harm = fn(&mut BTreeMap<std::path::PathBuf, faulty_disk::FileState>);
    let gone: Harm = |files| files.retain(|path, _| path.extension().is_none_or(|e| e != "seg"));
    let cut: Harm = |files| {
        let file = files.iter_mut().find(|(path, _)| path.extension().is_some_and(|e| e == "seg")).unwrap().1;
        let (_, first) = frame::decode(&file.bytes[8..]).unwrap();
        file.bytes.truncate(8 + first);
    };
    for (harm, missing, newest) in [(gone, 4, None), (cut, 3, Some(Timestamp::from_nanos(0)))] {
        let disk = FaultyDisk::default();
        let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
        for n in 0..4 {
            spool.append(Class::Critical, &[line(n)], &[], 0).unwrap();
        }
        drop(spool);
        harm(&mut disk.0.lock().unwrap().files);
        let (spool, recovery) = open(&disk, 1, SMALL).unwrap();
        assert_eq!(recovery.state, SpoolState::TornTail);
        assert_eq!(recovery.damage[0].2.missing, Some((missing, newest)));
        assert_eq!(spool.identity().epoch.as_str(), "epoch-0001");
    }
    // What is acknowledged is not missing.
    let disk = FaultyDisk::default();
    let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
    spool.append(Class::Critical, &[line(1)], &[], 0).unwrap();
    seal(&mut spool, Class::Critical).unwrap();
    let epoch = spool.identity().epoch.clone();
    spool.release(&epoch, Class::Critical, 1, Hash::default()).unwrap();
    drop(spool);
    gone(&mut disk.0.lock().unwrap().files);
    let (_, recovery) = open(&disk, 1, SMALL).unwrap();
    assert_eq!(recovery.damage[0].2.missing, None);
}

/// What an operator has to look at is named, and not passed over.
#[test]
fn an_epoch_without_its_identity_or_its_key_is_named() {
    for file in ["epoch.json", "key"] {
        let disk = FaultyDisk::default();
        let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
        spool.append(Class::Critical, &[line(1)], &[], 0).unwrap();
        drop(spool);
        disk.0.lock().unwrap().files.retain(|path, _| path.file_name().is_none_or(|name| name != file));
        let Err(error) = open(&disk, 1, SMALL) else { panic!("{file} is not missed") };
        assert!(error.to_string().contains(&format!("epoch-0000/{file}")), "{error}");
    }
}

#[test]
fn ring_cursors_survive_and_another_boot_begins_an_epoch() {
    let disk = FaultyDisk::default();
    let (mut spool, recovery) = open(&disk, 0, SMALL).unwrap();
    assert_eq!(recovery.state, SpoolState::Fresh);
    spool.append(Class::Critical, &[line(1)], &[RingCursor { ring: 1, position: 640 }], 0).unwrap();
    drop(spool);
    let (spool, recovery) = open(&disk, 1, SMALL).unwrap();
    assert_eq!(
        (recovery.state, recovery.cursors.get(&(Class::Critical, 1))),
        (SpoolState::Intact, Some(&640))
    );
    assert_eq!(spool.next_sequence(Class::Critical), 2);
    drop(spool);
    let mut other = identity(2);
    other.boot_id = "later".into();
    let (spool, recovery) = Spool::open(disk, Path::new("/spool"), SMALL, other, &[9; 32], CLOCK).unwrap();
    assert_eq!((recovery.state, recovery.cursors.len()), (SpoolState::Foreign, 0));
    assert_eq!(spool.next_sequence(Class::Critical), 1);
    assert_eq!(spool.epochs().count(), 2, "the old epoch is still to be sent");
}

/// What is released is still what was last recorded: the time since then was watched by nobody.
#[test]
fn the_newest_event_is_known_when_all_is_released_and_after_another_boot() {
    let disk = FaultyDisk::default();
    let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
    spool.append(Class::Critical, &[line(5)], &[], 0).unwrap();
    seal(&mut spool, Class::Critical).unwrap();
    let epoch = spool.identity().epoch.clone();
    spool.release(&epoch, Class::Critical, 1, Hash::default()).unwrap();
    drop(spool);
    let (spool, recovery) = open(&disk, 1, SMALL).unwrap();
    assert_eq!(recovery.newest, Some(Timestamp::from_nanos(5)));
    drop(spool);
    let mut other = identity(2);
    other.boot_id = "later".into();
    let (_, recovery) = Spool::open(disk, Path::new("/spool"), SMALL, other, &[9; 32], CLOCK).unwrap();
    assert_eq!(recovery.newest, Some(Timestamp::from_nanos(5)));
}

#[test]
fn standard_has_half_of_the_spool_and_bulk_a_quarter() {
    for (class, share) in [(Class::Standard, 4 << 20), (Class::Bulk, 2 << 20)] {
        let (mut spool, _) = open(&FaultyDisk::default(), 0, SpoolLimits::of_total(8 << 20)).unwrap();
        let mut most = 0;
        while spool.take_sheds().is_empty() {
            most = most.max(spool.class_bytes(class));
            let line = Line { bytes: vec![b'x'; 60_000], occurred_at: Timestamp::from_nanos(1) };
            spool.append(class, &[line], &[], 0).unwrap();
            seal(&mut spool, class).unwrap();
        }
        assert!((share - 70_000..=share).contains(&most), "{class}: {most} of {share}");
    }
}

#[test]
fn a_batch_is_sealed_at_its_age_and_at_its_size() {
    const MS: u64 = 1_000_000;
    for (class, age_ms, events) in
        [(Class::Critical, 100, 256), (Class::Standard, 1_000, 4_096), (Class::Bulk, 1_000, 4_096)]
    {
        let (mut spool, _) = open(&FaultyDisk::default(), 0, SMALL).unwrap();
        assert!(!spool.seal_due(class, u64::MAX, 0, 0), "nothing is open");
        spool.append(class, &[line(1)], &[], 5).unwrap();
        assert_eq!(spool.next_seal_at_ns(), Some(5 + age_ms * MS));
        let due = |spool: &Spool<_>, at_ns| spool.seal_due(class, at_ns, 0, 0);
        assert!(!due(&spool, 4 + age_ms * MS) && due(&spool, 5 + age_ms * MS), "{class}");
        assert!(
            !spool.seal_due(class, 5, events - 1, 100) && spool.seal_due(class, 5, events, 100),
            "{class}"
        );
        let lines: Vec<Line> = (2..events).map(line).collect();
        spool.append(class, &lines, &[], 5).unwrap();
        assert!(!due(&spool, 5), "{class}");
        spool.append(class, &[line(events)], &[], 5).unwrap();
        assert!(due(&spool, 5), "{class}: {events} events");
    }
    let (mut spool, _) = open(&FaultyDisk::default(), 0, SMALL).unwrap();
    spool.append(Class::Bulk, &[line(1)], &[], 5).unwrap();
    let room = 1_048_576 - line(1).bytes.len() as u64 - 1;
    assert!(!spool.seal_due(Class::Bulk, 5, 1, room) && spool.seal_due(Class::Bulk, 5, 1, room + 1));
}

#[test]
fn a_frame_of_more_than_16_mib_is_not_read() {
    const MAX: usize = 16_777_216;
    let mut bytes = vec![0; MAX + 9];
    bytes[..4].copy_from_slice(&(MAX as u32).to_le_bytes());
    bytes[4] = 1;
    assert_eq!(frame::decode(&bytes), Err(frame::FrameError::Checksum { len: MAX + 8 }));
    bytes[..4].copy_from_slice(&(MAX as u32 + 1).to_le_bytes());
    assert_eq!(frame::decode(&bytes), Err(frame::FrameError::Torn));
}
