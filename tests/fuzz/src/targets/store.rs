//! A store folder as a disk may give it back: one evidence file is edited, then the store is verified and opened.
//! See [`crate::edit`] for the form of an input.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use activity_store::{LIMIT_MAX, Query, Store, StoreConfig, VerifyOptions, evidence_files, verify_store};

use crate::edit::{self, Edit, Format};
use crate::{fixture, stored};

struct Whole {
    dir: tempfile::TempDir,
    files: Vec<PathBuf>,
    lines: BTreeSet<Vec<u8>>,
}

pub fn run(data: &[u8]) {
    let Some(edit) = Edit::parse(data) else { return };
    let whole = whole();
    let file = &whole.files[edit.file(whole.files.len())];
    let before = fs::read(whole.dir.path().join(file)).expect("it is in the folder");
    let after = edit.apply(&before, format_of(file));
    let dir = stored::folder();
    copy(whole.dir.path(), dir.path());
    fs::write(dir.path().join(file), &after).expect("the copy can be written");

    let report = verify_store(dir.path(), &VerifyOptions::default(), &mut |_| {});
    assert!(after != before || report.ok, "an untouched store verifies: {report:?}");
    if let Ok(store) = Store::open_read_only(dir.path()) {
        only_what_was_stored(whole, &store);
    }
    let config = || StoreConfig { dir: dir.path().to_owned(), reserve_bytes: 0, ..StoreConfig::default() };
    let Ok(store) = Store::open(config()) else { return };
    let found = only_what_was_stored(whole, &store);
    store.close();
    drop(store);
    let store = Store::open(config()).expect("what was opened once is opened again");
    assert_eq!(only_what_was_stored(whole, &store), found, "a second opening finds what the first did");
}

/// Lines that a store gives back; none of them may be another than was stored, and none come twice.
fn only_what_was_stored(whole: &Whole, store: &Store) -> BTreeSet<Vec<u8>> {
    let query = Query { limit: LIMIT_MAX, ..Query::default() };
    let Ok(answer) = store.query(&fixture::tenant(), &query) else { return BTreeSet::new() };
    let found: BTreeSet<Vec<u8>> = answer.events.iter().map(|event| event.line.to_vec()).collect();
    assert_eq!(found.len(), answer.events.len(), "no line twice");
    assert!(found.is_subset(&whole.lines), "no line that was not stored");
    found
}

fn format_of(file: &Path) -> Format {
    match file.components().next().and_then(|first| first.as_os_str().to_str()) {
        Some("commit") => Format::StoreFrames { copy: 64 },
        Some("control") if file.extension().is_some() => Format::StoreFrames { copy: 0 },
        _ if file.extension().is_some_and(|extension| extension == "seg") => Format::StoreFrames { copy: 48 },
        _ => Format::Plain,
    }
}

fn whole() -> &'static Whole {
    static WHOLE: OnceLock<Whole> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let dir = stored::folder();
        stored::fill(dir.path());
        let names = evidence_files(dir.path()).into_iter();
        let files = names.map(|file| file.strip_prefix(dir.path()).expect("below the folder").to_owned());
        let lines = fixture::lines().map(|line| line.as_bytes().to_vec()).collect();
        Whole { files: files.collect(), lines, dir }
    })
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            fs::create_dir_all(&target).expect("the copy can be written");
            // The index is made of the rest.
            if entry.file_name() != "index" {
                copy(&source, &target);
            }
        } else {
            fs::copy(&source, &target).expect("the copy can be written");
        }
    }
}

/// Every evidence file left as it is, written whole, and changed in every way.
pub fn seeds() -> Vec<Vec<u8>> {
    let whole = whole();
    edit::seeds(whole.files.iter().map(|file| fs::read(whole.dir.path().join(file)).expect("it is there")))
}
