use std::fs;
use std::io::Cursor;

use iteron_protocol::Outcome;
use tempfile::TempDir;

use super::*;

fn entries() -> Vec<Entry> {
    vec![
        Entry::Submitted {
            submission_id: None,
            prompt: "list the files — \"quoted\", \\ and ,\"hash\":\"".into(),
        },
        Entry::Recovered { torn_bytes: 3 },
        Entry::SessionEnded { outcome: Outcome::Completed, turns: 1 },
    ]
}

/// A record with three entries, closed, and its bytes.
fn written() -> (TempDir, std::path::PathBuf, Vec<u8>) {
    let dir = TempDir::new().unwrap();
    let (mut record, opened) = Record::open(dir.path(), &"s".parse().unwrap(), |_| ()).unwrap();
    assert_eq!(opened, Opened { entries: 0, torn_bytes: 0 });
    for (at, entry) in entries().into_iter().enumerate() {
        record.append(i64::try_from(at).unwrap(), entry).unwrap();
    }
    let path = record.path().to_owned();
    drop(record);
    let bytes = fs::read(&path).unwrap();
    (dir, path, bytes)
}

#[test]
fn a_reopened_record_goes_on_in_the_same_chain() {
    let (dir, path, before) = written();
    let (mut record, opened) = Record::open(dir.path(), &"s".parse().unwrap(), |_| ()).unwrap();
    assert_eq!(opened, Opened { entries: 3, torn_bytes: 0 });
    record.append(9, entries().remove(0)).unwrap();
    let after = fs::read(&path).unwrap();
    assert!(after.starts_with(&before));
    assert_eq!(verify(Cursor::new(after)).unwrap().entries, 4);
}

#[test]
fn a_tail_torn_at_any_byte_is_cut_and_reported() {
    let (dir, path, bytes) = written();
    for keep in 0..bytes.len() {
        fs::write(&path, &bytes[..keep]).unwrap();
        let (record, opened) = Record::open(dir.path(), &"s".parse().unwrap(), |_| ()).unwrap();
        drop(record);
        let intact = bytes[..keep].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        assert_eq!(opened.torn_bytes, u64::try_from(keep - intact).unwrap(), "kept {keep}");
        assert_eq!(fs::read(&path).unwrap(), &bytes[..intact]);
    }
}

#[test]
fn a_changed_byte_anywhere_is_found() {
    let (_dir, _path, bytes) = written();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x01;
        match verify(Cursor::new(&changed)) {
            Err(_) => {}
            // Without its last newline the line counts as torn, and that is reported too.
            Ok(found) => assert!(found.torn_bytes > 0 && at == bytes.len() - 1, "byte {at}"),
        }
    }
}

#[test]
fn a_removed_or_swapped_line_is_found() {
    let (_dir, _path, bytes) = written();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    for order in [vec![0, 2], vec![1, 0, 2], vec![1, 2], vec![0, 0, 1, 2]] {
        let joined = order.iter().map(|at| lines[*at]).collect::<Vec<_>>().concat();
        assert!(verify(Cursor::new(joined)).is_err(), "{order:?}");
    }
}

#[test]
fn a_record_has_one_writer_and_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    let id = "s".parse().unwrap();
    let (record, _) = Record::open(dir.path(), &id, |_| ()).unwrap();
    assert!(matches!(Record::open(dir.path(), &id, |_| ()), Err(OpenError::Locked { .. })));
    let mode = fs::metadata(record.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

fn signed_by(key: &HeadKey) -> (TempDir, std::path::PathBuf, Vec<u8>) {
    let dir = TempDir::new().unwrap();
    let (mut record, _) = Record::open(dir.path(), &"s".parse().unwrap(), |_| ()).unwrap();
    assert_eq!(record.sign(0, key).unwrap(), None, "there was nothing to sign");
    for entry in entries() {
        record.append(1, entry).unwrap();
    }
    assert_eq!(record.sign(2, key).unwrap(), Some(4));
    record.append(3, entries().remove(0)).unwrap();
    let path = record.path().to_owned();
    drop(record);
    let bytes = fs::read(&path).unwrap();
    (dir, path, bytes)
}

#[test]
fn a_signed_head_says_who_vouches_and_how_far() {
    let key = HeadKey::from_seed([1; 32]);
    let (_dir, _path, bytes) = signed_by(&key);
    let found = verify(Cursor::new(&bytes)).unwrap();
    assert_eq!((found.entries, found.signed_through), (5, 3));
    assert_eq!(found.signed_by, [key.public()]);
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x01;
        let found = verify(Cursor::new(&changed));
        assert!(found.is_err() || found.unwrap().torn_bytes > 0, "byte {at}");
    }
}

/// Whoever writes the record anew has the chain, but not the key.
#[test]
fn a_signature_is_good_for_its_own_line_only() {
    let key = HeadKey::from_seed([1; 32]);
    let (_dir, _path, bytes) = signed_by(&key);
    let lines: Vec<Line> = {
        let mut lines = Vec::new();
        replay(Cursor::new(&bytes), |line| lines.push(line)).unwrap();
        lines
    };
    let forged = |change: &dyn Fn(&mut Vec<Entry>)| {
        let mut entries: Vec<Entry> = lines.iter().map(|line| line.entry.clone()).collect();
        change(&mut entries);
        let dir = TempDir::new().unwrap();
        let (mut record, _) = Record::open(dir.path(), &"s".parse().unwrap(), |_| ()).unwrap();
        for (line, entry) in lines.iter().zip(entries) {
            record.append(line.at_ms, entry).unwrap();
        }
        verify(Cursor::new(fs::read(record.path()).unwrap()))
    };
    assert!(forged(&|_| ()).is_ok(), "what is forged here is not what it was");
    let other = Entry::Recovered { torn_bytes: 4 };
    let changed = forged(&|entries| entries[1] = other.clone());
    assert!(matches!(changed, Err(VerifyError::Signature { line: 4 })), "{changed:?}");
    let moved = forged(&|entries| entries.swap(3, 4));
    assert!(matches!(moved, Err(VerifyError::Signature { line: 5 })), "{moved:?}");
    let stranger = forged(&|entries| {
        if let Entry::HeadSigned { public_key, .. } = &mut entries[3] {
            *public_key = HeadKey::from_seed([2; 32]).public();
        }
    });
    assert!(matches!(stranger, Err(VerifyError::Signature { line: 4 })), "{stranger:?}");
}
