//! A spool folder as a disk may give it back: one of its files is edited, then the collector starts on it.
//! See [`crate::edit`] for the form of an input.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use activity_collector::spool::{Line, Loss, LossKey, RingCursor};
use activity_schema::coverage::LossReason;
use activity_schema::{Class, Event, Hash, Timestamp};
use activity_tests::sim::disk::MemoryDisk;
use uuid::Uuid;

use crate::edit::{self, Edit, Format};
use crate::fixture::{self, CLOCK};

/// What a start on the edited folder begins when it cannot go on, and the start after it.
const EPOCHS: [&str; 2] = ["01980000-0000-7000-8000-000000000002", "01980000-0000-7000-8000-000000000003"];

pub fn run(data: &[u8]) {
    let Some(edit) = Edit::parse(data) else { return };
    let disk = folder().copy();
    let paths = disk.paths();
    let path = &paths[edit.file(paths.len())];
    let whole = activity_collector::spool::Disk::read(&disk, path).expect("it is in the folder");
    disk.put(path, &edit.apply(&whole, format_of(path)));
    let Ok((mut spool, _)) = fixture::reopen(&disk, EPOCHS[0]) else { return };
    fixture::sealed_lines(&spool, |_| {});
    for loss in spool.ledger.to_emit() {
        let _ = (loss.first_time.to_string(), loss.last_time.to_string());
    }
    // Whatever was found, what is recorded from now on is sealed, read back, and there after another start.
    for class in Class::ALL {
        let line = line(fixture::lines().next().expect("there are fixtures"));
        spool.append(*class, std::slice::from_ref(&line), &[], CLOCK.boot_ns).expect("there is room");
        fixture::seal(&mut spool, *class);
        let (reader, epoch) = (spool.current().reader(), spool.identity().epoch.clone());
        let newest = reader.pending(*class).pop().expect("a batch was sealed");
        let sealed = reader.read(*class, newest.number).expect("what is sealed is read");
        assert!(sealed.body.is_some() && sealed.is_signed_by(spool.current().signer.public()));
        let (again, _) =
            fixture::reopen(&disk.copy(), EPOCHS[1]).expect("what was opened once is opened again");
        let found = again
            .epochs()
            .filter(|e| e.identity.epoch == epoch)
            .find_map(|e| e.reader().hash(*class, newest.number));
        assert_eq!(found, Some(newest.hash), "sealed is durable");
    }
}

fn format_of(path: &Path) -> Format {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("seg") => Format::SpoolSegment,
        Some("state") => Format::Slots,
        _ => Format::Plain,
    }
}

/// A spool in use: two classes, sealed and open lines, acknowledgements, ring positions, a loss.
fn folder() -> &'static MemoryDisk {
    static FOLDER: OnceLock<MemoryDisk> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let disk = MemoryDisk::default();
        let mut spool = fixture::spool(&disk);
        let lines: Vec<Line> = fixture::lines().map(line).collect();
        for (n, some) in lines.chunks(6).take(9).enumerate() {
            let class = Class::ALL[n % 2];
            let cursor = RingCursor { ring: 1, position: 64 * (n as u64 + 1) };
            spool.append(class, some, &[cursor], CLOCK.boot_ns).expect("there is room");
            if n < 7 {
                fixture::seal(&mut spool, class);
            }
        }
        let epoch = spool.identity().epoch.clone();
        spool.release(&epoch, Class::Critical, 1, Hash::of(&[b"receipt"])).expect("batch 1 is there");
        spool.ledger.add(loss());
        disk
    })
}

fn loss() -> Loss {
    Loss {
        event_id: Uuid::from_u128(7),
        key: LossKey {
            reason: LossReason::RingFull,
            class: Some(Class::Critical),
            instance: Some("sandbox-1".to_owned()),
            event_names: vec!["process.exec".to_owned()],
            source: "process".to_owned(),
            stream: None,
            cgroup: None,
        },
        count: 3,
        exact: true,
        first_time: CLOCK.wall,
        last_time: CLOCK.wall,
        sequences: None,
        emitted_in: None,
    }
}

/// A line for the spool.
pub fn line(line: &str) -> Line {
    let occurred_at: Timestamp = Event::parse(line.as_bytes()).expect("a fixture is valid").occurred_at;
    Line { bytes: line.as_bytes().to_vec(), occurred_at }
}

/// Every file left as it is, written whole, emptied, and changed in every way. A stream of which less is left than was
/// acknowledged must not begin anew in its epoch.
pub fn seeds() -> Vec<Vec<u8>> {
    let disk = folder();
    let paths: Vec<PathBuf> = disk.paths();
    let files =
        paths.iter().map(|path| activity_collector::spool::Disk::read(disk, path).expect("it is there"));
    edit::seeds(files)
}
