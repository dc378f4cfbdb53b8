//! The statement of a clean close: how every evidence file ended. What is cut off, taken away or put in afterwards
//! is found by it, also where the rest of the evidence would be whole without.
//!
//! ```text
//! closed: `Statement`, as `signed_text` writes it
//! ```
//!
//! Two places bear witness to each other: the file names the control journal's last record, which is `closed`; and a
//! journal that ends with that record demands the file. Order of a close: everything else durable; `closed.tmp`
//! durable; the record durable; rename. Order of an open: the record `opened` durable, then all else. So a crash
//! leaves either a statement that is whole and holds, or a journal that does not end with `closed`.

use std::io;
use std::path::{Path, PathBuf};

use activity_schema::keys::PublicKey;
use activity_schema::{Hash, Timestamp};
use serde::{Deserialize, Serialize};

use crate::control::{ControlError, ControlRecord, JournalScan};
use crate::env::Env;
use crate::signed_text;
use crate::storage::numbered_name;
use crate::store::Shared;
use crate::verify::list_files;

pub(crate) const NAME: &str = "closed";
const TEMPORARY: &str = "closed.tmp";
const TITLE: &[u8] = b"activity-store-closed-v1\n";
const VERSION: u32 = 1;
/// Bytes at the end of a file that are hashed. What is before them is proven by checksums, signatures or the log;
/// only how far a file reaches is not.
const TAIL_BYTES: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    at: Timestamp,
    /// Of the journal's `closed` record.
    control_hash: Hash,
    control_sequence: u64,
    /// All but the control journal, which its last record proves, sorted by name.
    files: Vec<FileEnd>,
    store_id: String,
    version: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEnd {
    /// Relative to the store.
    name: String,
    len: u64,
    /// SHA-256 of the last [`TAIL_BYTES`], or of all when there are fewer.
    tail: Hash,
}

/// Why a store could not be closed cleanly. Nothing is lost by it but the proof of its ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CloseError {
    #[error("{path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the control journal")]
    Control(#[from] ControlError),
    #[error("the statement does not serialise")]
    Json(#[from] serde_json::Error),
}

fn at(path: &Path) -> impl Fn(io::Error) -> CloseError + '_ {
    move |source| CloseError::Io { path: path.to_owned(), source }
}

/// States how everything ended. Called when no thread of the store writes any more.
pub(crate) fn close(shared: &Shared) -> Result<(), CloseError> {
    let _one_at_a_time = shared.maintenance.lock();
    let (env, dir) = (&shared.env, &shared.config.dir);
    let storage = &env.storage;
    sync_rest(shared)?;
    let mut journal = shared.control.lock();
    let framed = journal.frame(env, shared.signer(), vec![ControlRecord::Closed])?;
    let statement = Statement {
        at: env.now(),
        control_hash: framed.hash,
        control_sequence: framed.sequence,
        files: ends(env, dir)?,
        store_id: shared.meta.store_id.clone(),
        version: VERSION,
    };
    let bytes = signed_text::sign(TITLE, &statement, shared.signer())?;
    let (path, temporary) = (dir.join(NAME), dir.join(TEMPORARY));
    remove(env, &temporary).map_err(at(&temporary))?;
    storage.write_at(&temporary, 0, &bytes).map_err(at(&temporary))?;
    storage.sync(&temporary).map_err(at(&temporary))?;
    storage.sync_dir(dir).map_err(at(dir))?;
    journal.write(env, shared.signer(), framed)?;
    storage.rename(&temporary, &path).map_err(at(&path))?;
    storage.sync_dir(dir).map_err(at(dir))
}

/// Makes durable what failed calls may have left behind and nobody waits for.
fn sync_rest(shared: &Shared) -> Result<(), CloseError> {
    let storage = &shared.env.storage;
    let commit = shared.commit_dir();
    for name in storage.list(&commit).map_err(at(&commit))? {
        let path = commit.join(name);
        storage.sync(&path).map_err(at(&path))?;
    }
    storage.sync_dir(&commit).map_err(at(&commit))?;
    for tenant in shared.all_tenants() {
        for dir in [tenant.dir.join("segments"), tenant.dir.join("log")] {
            storage.sync_dir(&dir).map_err(at(&dir))?;
        }
    }
    Ok(())
}

fn remove(env: &Env, path: &Path) -> io::Result<()> {
    match env.storage.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The statement holds no longer; the journal already says so. What stays of it is passed over.
pub(crate) fn clear(env: &Env, dir: &Path) {
    for name in [NAME, TEMPORARY] {
        if let Err(error) = remove(env, &dir.join(name)) {
            tracing::warn!(%error, name, "an old statement stays");
        }
    }
}

/// Evidence files whose ends a statement names.
fn stated_files(env: &Env, dir: &Path) -> Vec<String> {
    let mut files = list_files(env, dir);
    files.retain(|name| name != NAME && !name.starts_with("control/"));
    files.sort_unstable();
    files
}

fn ends(env: &Env, dir: &Path) -> Result<Vec<FileEnd>, CloseError> {
    let end = |name: String| {
        let path = dir.join(&name);
        let (len, tail) = end_of(env, &path).map_err(at(&path))?;
        Ok(FileEnd { name, len, tail })
    };
    stated_files(env, dir).into_iter().map(end).collect()
}

fn end_of(env: &Env, path: &Path) -> io::Result<(u64, Hash)> {
    let len = env.storage.len(path)?;
    let tail = len.min(TAIL_BYTES);
    let bytes = env.storage.read_at(path, len - tail, usize::try_from(tail).unwrap_or(0))?;
    Ok((len, Hash::of(&[&bytes])))
}

fn read(env: &Env, dir: &Path, name: &str) -> Option<Vec<u8>> {
    // A file that does not read is as good as none.
    env.storage.read(&dir.join(name)).ok()
}

/// A statement as the gateway signed it.
fn parse(bytes: &[u8], key: PublicKey, store_id: Option<&str>) -> Option<Statement> {
    let statement: Statement = signed_text::read(TITLE, bytes, key)?;
    let own = store_id.is_none_or(|id| id == statement.store_id);
    (own && statement.version == VERSION).then_some(statement)
}

/// What the statement of a clean close says of a store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Closed then, and every end is as it was.
    AsStated(Timestamp),
    /// Not closed cleanly, or opened since.
    Open,
    /// File, and what is amiss.
    Changed(Vec<(String, String)>),
}

/// Compares a store with the statement of its last close.
pub(crate) fn judge(
    env: &Env,
    dir: &Path,
    key: PublicKey,
    store_id: Option<&str>,
    journal: &JournalScan,
) -> Ends {
    let changed = |file: &str, what: &str| Ends::Changed(vec![(file.to_owned(), what.to_owned())]);
    let file = read(env, dir, NAME);
    let statement = file.as_deref().map(|bytes| parse(bytes, key, store_id));
    let closed = journal.entries.last().filter(|(entry, _)| entry.record == ControlRecord::Closed);
    if let Some((entry, hash)) = closed {
        let holds = |s: &Statement| s.control_sequence == entry.sequence && s.control_hash == *hash;
        // A crash may come before the rename.
        let earlier = || parse(&read(env, dir, TEMPORARY)?, key, store_id);
        let statement = statement.clone().flatten().filter(holds).or_else(|| earlier().filter(holds));
        return match statement {
            Some(statement) => compare(env, dir, &statement),
            None if file.is_none() => {
                changed(NAME, "absent, though the control journal ends with the store's clean close")
            }
            None => changed(NAME, "it is not the statement that the gateway signed when it closed the store"),
        };
    }
    match statement {
        None => Ends::Open,
        Some(None) => changed(NAME, "it is not as the gateway signed it"),
        Some(Some(statement)) => {
            let at = (statement.control_sequence, statement.control_hash);
            if journal.entries.iter().any(|(entry, hash)| (entry.sequence, *hash) == at) {
                return Ends::Open;
            }
            let file = numbered_name(journal.last.map_or(1, |last| last.file), "log");
            let what = format!("record {}, with which the store was closed, is not in it", at.0);
            changed(&format!("control/{file}"), &what)
        }
    }
}

fn compare(env: &Env, dir: &Path, statement: &Statement) -> Ends {
    let mut changed = Vec::new();
    let mut bad = |name: &str, what: String| changed.push((name.to_owned(), what));
    for end in &statement.files {
        match end_of(env, &dir.join(&end.name)) {
            Ok((len, tail)) if len == end.len && tail == end.tail => {}
            Ok((len, _)) if len == end.len => bad(&end.name, "its end is not as the store was closed".into()),
            Ok((len, _)) => bad(&end.name, format!("{len} bytes, the store was closed with {}", end.len)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bad(&end.name, "absent, it was there when the store was closed".into());
            }
            Err(error) => bad(&end.name, format!("does not read: {error}")),
        }
    }
    for name in stated_files(env, dir) {
        if statement.files.binary_search_by(|end| end.name.as_str().cmp(&name)).is_err() {
            bad(&name, "it was not there when the store was closed".into());
        }
    }
    if changed.is_empty() { Ends::AsStated(statement.at) } else { Ends::Changed(changed) }
}
