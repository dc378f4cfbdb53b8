//! A collector's disk in memory: it fills up, it can be killed, and a power cut takes what was not synced.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use activity_collector::spool::Disk;
use activity_collector::spool::disk::DiskFile;

/// Clones share the files.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: BTreeMap<PathBuf, Content>,
    full: bool,
}

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    /// How many of the first bytes survive a power cut.
    synced: usize,
}

impl MemoryDisk {
    /// A full disk takes no new bytes; what has its space is still rewritten in place.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Each file keeps its synced bytes and some part of the rest. Names are kept.
    pub fn cut_power(&self, mut part: impl FnMut(usize) -> usize) {
        for content in self.state().files.values_mut() {
            let unsynced = content.bytes.len().saturating_sub(content.synced);
            let kept = part(unsynced).min(unsynced);
            content.bytes.truncate(content.synced + kept);
            content.synced = content.bytes.len();
        }
    }

    /// Every file, sorted by path.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.state().files.keys().cloned().collect()
    }

    /// A disk with the same files; later changes are not shared.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::default();
        for (path, content) in &self.state().files {
            copy.put(path, &content.bytes);
        }
        copy
    }

    /// Replaces a file's bytes, as whoever else can write to the disk may do.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let content = Content { bytes: bytes.to_vec(), synced: bytes.len() };
        self.state().files.insert(path.to_owned(), content);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for MemoryDisk {
    type File = MemoryFile;

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        let below = state.files.keys().filter_map(|file| file.strip_prefix(path).ok()?.components().next());
        let mut names: Vec<String> =
            below.filter_map(|name| Some(name.as_os_str().to_str()?.to_owned())).collect();
        names.dedup();
        Ok(names)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.state().files.get(path).map(|content| content.bytes.clone()).ok_or_else(absent)
    }

    fn read_range(&self, path: &Path, from: u64, len: usize) -> io::Result<Vec<u8>> {
        let from = usize::try_from(from).map_err(io::Error::other)?;
        let state = self.state();
        let bytes = &state.files.get(path).ok_or_else(absent)?.bytes;
        let range = bytes.get(from..from.saturating_add(len));
        range.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn open(&self, path: &Path) -> io::Result<MemoryFile> {
        self.state().files.entry(path.to_owned()).or_default();
        Ok(MemoryFile { disk: self.clone(), path: path.to_owned() })
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if self.state().full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.put(path, bytes);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.state().files.remove(path).map(drop).ok_or_else(absent)
    }

    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// An open file of a [`MemoryDisk`].
pub struct MemoryFile {
    disk: MemoryDisk,
    path: PathBuf,
}

impl MemoryFile {
    fn with<T>(&self, change: impl FnOnce(&mut Content, bool) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state();
        let full = state.full;
        change(state.files.get_mut(&self.path).ok_or_else(absent)?, full)
    }
}

impl DiskFile for MemoryFile {
    /// What goes behind the end needs space: on a full disk a part of it is written before the error.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        self.with(|content, full| {
            let grows = (from + bytes.len()).saturating_sub(content.bytes.len());
            let fits = if full { bytes.len() - grows + grows / 3 } else { bytes.len() };
            let end = from + fits;
            if content.bytes.len() < end {
                content.bytes.resize(end, 0);
            }
            content.bytes[from..end].copy_from_slice(&bytes[..fits]);
            if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|content, _| {
            content.synced = content.bytes.len();
            Ok(())
        })
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.with(|content, _| {
            content.bytes.truncate(len);
            content.synced = content.synced.min(len);
            Ok(())
        })
    }
}

fn absent() -> io::Error {
    io::ErrorKind::NotFound.into()
}
