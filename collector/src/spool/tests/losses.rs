//! The ledger of losses, through the spool.

use super::*;

fn loss() -> Loss {
    let between = (Timestamp::from_nanos(1), Timestamp::from_nanos(2));
    let reason = activity_schema::coverage::LossReason::DiskFull;
    Loss { event_id: uuid::Uuid::from_u128(7), ..Loss::of(reason, "spool", &[], between).counted(3, true) }
}

#[test]
fn losses_survive_a_full_disk_and_keep_their_ids() {
    let disk = FaultyDisk::default();
    let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
    disk.0.lock().unwrap().full = true;
    let loss = loss();
    spool.ledger.add(loss.clone());
    spool.ledger.add(Loss { count: 2, event_id: uuid::Uuid::from_u128(8), ..loss });
    assert!(!spool.ledger.unpersisted);
    drop(spool);
    disk.restart(None);
    let (mut spool, _) = open(&disk, 1, SMALL).unwrap();
    let again = spool.ledger.to_emit();
    assert_eq!((again.len(), again[0].count, again[0].event_id.as_u128()), (1, 5, 7));
    spool.append(Class::Critical, &[line(1)], &[], 0).unwrap();
    spool.loss_told(again[0].event_id);
    let batch = spool.seal(Class::Critical, CLOCK, Timestamp::from_nanos(1)).unwrap().unwrap();
    spool.forget_told_losses();
    assert!(!spool.ledger.is_empty(), "kept until fsynced");
    Unsynced::sync(std::slice::from_ref(&batch)).unwrap();
    batch.finish();
    spool.forget_told_losses();
    assert!(spool.ledger.is_empty());
}

#[test]
fn a_full_ledger_fits_its_place() {
    let disk = FaultyDisk::default();
    let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
    for n in 0..200 {
        let mut loss = Loss { event_id: uuid::Uuid::from_u128(n), sequences: Some((1, 2)), ..loss() };
        loss.key.event_names = vec!["runtime.instance.something".to_owned(); 24];
        loss.key.instance = Some("i".repeat(128));
        loss.key.stream = Some("s".repeat(128));
        spool.ledger.add(loss);
        assert!(spool.ledger.keep(), "{n}");
    }
    let kept = losses_kept(&disk);
    assert_eq!((kept.len(), kept.iter().map(|l| l.count).sum::<u64>()), (48, 200 * 3));
    assert_eq!(kept.iter().filter(|l| !l.exact).count(), 1, "one holds all that found no place");
}

/// The losses in the newest slot of `loss.state`: two slots of 64 KiB.
fn losses_kept(disk: &FaultyDisk) -> Vec<Loss> {
    let bytes = disk.read(Path::new("/spool/loss.state")).unwrap();
    assert_eq!(bytes.len(), 2 * 65_536);
    let newest = bytes.chunks(65_536).max_by_key(|slot| u64::from_le_bytes(slot[..8].try_into().unwrap()));
    let slot = newest.unwrap();
    let len = u32::from_le_bytes(slot[8..12].try_into().unwrap()) as usize;
    serde_json::from_slice(&slot[16..16 + len]).unwrap()
}

/// While the disk does not take what was told, the ledger stays within its place.
#[test]
fn losses_that_are_told_and_not_on_disk_stay_bounded_and_counted() {
    let disk = FaultyDisk::default();
    let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
    for n in 0..200 {
        spool.ledger.add(Loss { event_id: uuid::Uuid::from_u128(n), sequences: Some((1, 2)), ..loss() });
        for loss in spool.ledger.to_emit() {
            spool.append(Class::Critical, &[line(n as u64)], &[], 0).unwrap();
            spool.loss_told(loss.event_id);
        }
        assert!(spool.ledger.keep(), "{n}");
    }
    let kept = losses_kept(&disk);
    assert_eq!((kept.len(), kept.iter().map(|l| l.count).sum::<u64>()), (48, 200 * 3));
    seal(&mut spool, Class::Critical).unwrap();
    spool.forget_told_losses();
    assert_eq!(spool.ledger.to_emit().iter().map(|l| l.count).collect::<Vec<_>>(), [153 * 3]);
}

/// A loss whose event is in the spool is not told a second time with other bytes.
#[test]
fn a_loss_that_was_told_before_a_kill_is_recognised() {
    let told = |n: u8| {
        let example = include_str!("../../../../fixtures/events.jsonl");
        let line = example.lines().find(|l| l.contains("\"telemetry.loss\"")).unwrap();
        let mut event = activity_schema::Event::parse(line.as_bytes()).unwrap();
        event.event_id = uuid::Uuid::from_u128(u128::from(n));
        Line { bytes: event.to_line(), occurred_at: event.occurred_at }
    };
    let disk = FaultyDisk::default();
    let (mut spool, _) = open(&disk, 0, SMALL).unwrap();
    let loss = |n: u8| Loss {
        event_id: uuid::Uuid::from_u128(u128::from(n)),
        sequences: Some((u64::from(n), u64::from(n))),
        ..loss()
    };
    (1..=3).for_each(|n| spool.ledger.add(loss(n)));
    spool.append(Class::Critical, &[told(1)], &[], 0).unwrap();
    seal(&mut spool, Class::Critical).unwrap();
    spool.append(Class::Critical, &[told(2)], &[], 0).unwrap();
    drop(spool);
    let (mut spool, _) = open(&disk, 1, SMALL).unwrap();
    let ids: Vec<u128> = spool.ledger.to_emit().iter().map(|l| l.event_id.as_u128()).collect();
    assert_eq!(ids, [3], "one is sealed, two is open, three is still to be told");
    spool.loss_told(uuid::Uuid::from_u128(3));
    seal(&mut spool, Class::Critical).unwrap();
    spool.forget_told_losses();
    assert!(spool.ledger.is_empty());
}
