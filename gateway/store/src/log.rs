//! A tenant's Merkle log (RFC 6962): one leaf a batch.
//!
//! ```text
//! log/origin        random name of the log, as receipts and checkpoints carry it
//! log/leaves        32 bytes a leaf: the leaf hash of the batch hash
//! log/checkpoints   signed notes (C2SP), one after another, each five lines; append only
//! ```
//!
//! A leaf is written after its batch is fsynced in the commit log, and is itself made durable before a checkpoint
//! speaks of it and before its commit file goes. So a leaf without a batch is damage, never an accident. The first
//! checkpoint, of the empty log, is durable before the tenant's first batch is acknowledged: leaves without any
//! checkpoint are damage too.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use activity_schema::Hash;
use activity_schema::checkpoint::Checkpoint;
use activity_schema::keys::Signer;
use activity_schema::merkle::{self, Frontier};

use crate::env::Env;

/// Lines of a note: origin, size, root, blank, signature.
const NOTE_LINES: usize = 5;
pub(crate) const LEAF_BYTES: usize = 32;

pub(crate) struct TenantLog {
    dir: PathBuf,
    origin: String,
    frontier: Frontier,
    /// Leaves that are in the tree and not yet in the file.
    unwritten: Vec<Hash>,
    unsynced: bool,
    /// The names of the log's files are durable.
    names_synced: bool,
    checkpoints_len: u64,
    latest: Option<String>,
    /// The log had leaves and no checkpoint when it was opened: somebody took the checkpoints away.
    pub checkpoints_lost: bool,
}

impl TenantLog {
    /// Opens or begins the log in `dir` (which exists).
    pub(crate) fn open(env: &Env, dir: PathBuf, read_only: bool) -> io::Result<Self> {
        let origin = origin(env, &dir, read_only)?;
        let leaves = read_leaves(env, &dir)?;
        let notes = env.storage.read_if_present(&dir.join("checkpoints"))?.unwrap_or_default();
        let (whole, latest) = whole_notes(&notes);
        if whole < notes.len() && !read_only {
            // A note that a crash cut short was never given out.
            env.storage.truncate(&dir.join("checkpoints"), whole as u64)?;
        }
        let mut log = TenantLog {
            dir,
            origin,
            frontier: Frontier::default(),
            unwritten: Vec::new(),
            unsynced: true,
            names_synced: false,
            checkpoints_len: whole as u64,
            checkpoints_lost: latest.is_none() && !leaves.is_empty(),
            latest,
        };
        leaves.iter().for_each(|leaf| {
            log.frontier.push(*leaf);
        });
        Ok(log)
    }

    /// Takes the leaves from the file again.
    pub(crate) fn reload(&mut self, env: &Env) -> io::Result<()> {
        self.frontier = Frontier::default();
        self.unwritten.clear();
        for leaf in read_leaves(env, &self.dir)? {
            self.frontier.push(leaf);
        }
        Ok(())
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn size(&self) -> u64 {
        self.frontier.size()
    }

    pub(crate) fn latest(&self) -> Option<&String> {
        self.latest.as_ref()
    }

    /// Adds leaves whose batches are durable. A failed write is made up for later.
    pub(crate) fn append(&mut self, env: &Env, leaves: &[Hash]) {
        for leaf in leaves {
            self.frontier.push(*leaf);
        }
        self.unwritten.extend_from_slice(leaves);
        if let Err(error) = self.write(env) {
            tracing::warn!(%error, origin = %self.origin, "log leaves wait for the disk");
        }
    }

    fn write(&mut self, env: &Env) -> io::Result<()> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        let at = self.frontier.size() - self.unwritten.len() as u64;
        let bytes: Vec<u8> = self.unwritten.iter().flat_map(|h| h.0).collect();
        env.storage.write_at(&self.dir.join("leaves"), at * LEAF_BYTES as u64, &bytes)?;
        self.unwritten.clear();
        self.unsynced = true;
        Ok(())
    }

    /// Makes every leaf durable.
    pub(crate) fn sync(&mut self, env: &Env) -> io::Result<()> {
        self.write(env)?;
        if self.unsynced && self.frontier.size() > 0 {
            env.storage.sync(&self.dir.join("leaves"))?;
            env.storage.sync_dir(&self.dir)?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Makes the checkpoint of the empty log durable when there is none at all.
    pub(crate) fn begin(&mut self, env: &Env, signer: &Signer) -> io::Result<()> {
        if self.latest.is_some() {
            return Ok(());
        }
        self.put_note(env, signer, 0, Frontier::default().root()).map(drop)
    }

    pub(crate) fn checkpoint(&mut self, env: &Env, signer: &Signer) -> io::Result<String> {
        self.sync(env)?;
        self.put_note(env, signer, self.frontier.size(), self.frontier.root())
    }

    fn put_note(&mut self, env: &Env, signer: &Signer, size: u64, root: Hash) -> io::Result<String> {
        let note = Checkpoint { origin: self.origin.clone(), size, root }.sign(signer);
        let path = self.dir.join("checkpoints");
        env.storage.write_at(&path, self.checkpoints_len, note.as_bytes())?;
        env.storage.sync(&path)?;
        if !self.names_synced {
            env.storage.sync_dir(&self.dir)?;
            self.names_synced = true;
        }
        self.checkpoints_len += note.len() as u64;
        self.latest = Some(note.clone());
        Ok(note)
    }

    /// What the file holds.
    pub(crate) fn leaf_at(&self, env: &Env, index: u64) -> io::Result<Hash> {
        let bytes = env.storage.read_at(&self.dir.join("leaves"), index * LEAF_BYTES as u64, LEAF_BYTES)?;
        Ok(bytes.try_into().map(Hash).unwrap_or_default())
    }

    /// All leaves.
    pub(crate) fn leaves(&self, env: &Env) -> io::Result<Vec<Hash>> {
        let mut leaves = read_leaves(env, &self.dir)?;
        leaves.extend_from_slice(&self.unwritten);
        Ok(leaves)
    }
}

/// Brings the leaves file in line with the batches that the commit log holds; returns how many leaves changed.
///
/// A leaf that no batch stands for is kept: it was acknowledged, and verification says that its batch is missing.
pub(crate) fn repair_leaves(env: &Env, dir: &Path, stored: &BTreeMap<u64, Hash>) -> io::Result<u64> {
    let path = dir.join("leaves");
    let raw_len = env.storage.read_if_present(&path)?.unwrap_or_default().len();
    let mut leaves = read_leaves(env, dir)?;
    let size = stored.keys().next_back().map_or(0, |last| last + 1).max(leaves.len() as u64);
    leaves.resize(usize::try_from(size).unwrap_or(usize::MAX), Hash::default());
    let mut changed = 0;
    for (index, leaf) in stored {
        if let Some(slot) = usize::try_from(*index).ok().and_then(|at| leaves.get_mut(at))
            && *slot != *leaf
        {
            *slot = *leaf;
            changed += 1;
        }
    }
    if changed > 0 || raw_len != leaves.len() * LEAF_BYTES {
        let bytes: Vec<u8> = leaves.iter().flat_map(|h| h.0).collect();
        env.storage.replace(&path, &bytes)?;
    }
    Ok(changed)
}

pub(crate) fn read_leaves(env: &Env, dir: &Path) -> io::Result<Vec<Hash>> {
    let bytes = env.storage.read_if_present(&dir.join("leaves"))?.unwrap_or_default();
    Ok(bytes.chunks_exact(LEAF_BYTES).filter_map(|c| c.try_into().ok().map(Hash)).collect())
}

/// Length of the whole notes at the front, and the last of them.
fn whole_notes(bytes: &[u8]) -> (usize, Option<String>) {
    let (notes, rest) = split_notes(bytes);
    (bytes.len() - rest, notes.last().cloned())
}

/// The notes of a checkpoints file, and the bytes after the last whole one.
pub(crate) fn split_notes(bytes: &[u8]) -> (Vec<String>, usize) {
    let (mut notes, mut start, mut lines) = (Vec::new(), 0, 0);
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'\n' {
            lines += 1;
        }
        if lines == NOTE_LINES {
            notes.push(String::from_utf8_lossy(&bytes[start..=at]).into_owned());
            (start, lines) = (at + 1, 0);
        }
    }
    (notes, bytes.len() - start)
}

pub(crate) fn read_origin(env: &Env, dir: &Path) -> io::Result<Option<String>> {
    let bytes = env.storage.read_if_present(&dir.join("origin"))?;
    Ok(bytes
        .and_then(|b| String::from_utf8(b).ok())
        .map(|s| s.trim_end().to_owned())
        .filter(|s| !s.is_empty()))
}

fn origin(env: &Env, dir: &Path, read_only: bool) -> io::Result<String> {
    if let Some(origin) = read_origin(env, dir)? {
        if !read_only {
            // It may come from an attempt that failed after its rename.
            env.storage.sync_dir(dir)?;
        }
        return Ok(origin);
    }
    if read_only {
        return Err(io::ErrorKind::NotFound.into());
    }
    let origin = format!("activity.log/{}", activity_schema::hex::encode(&env.random::<16>()));
    env.storage.replace(&dir.join("origin"), format!("{origin}\n").as_bytes())?;
    Ok(origin)
}

/// `root` of the first `size` leaves; `None` when there are fewer.
pub(crate) fn root_of(leaves: &[Hash], size: u64) -> Option<Hash> {
    leaves.get(..usize::try_from(size).ok()?).map(merkle::root)
}
