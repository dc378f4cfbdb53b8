//! A disk that tears writes, forgets unsynced bytes and fills up.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::spool::disk::{Disk, DiskFile};

#[derive(Debug, Clone, Default)]
pub struct FileState {
    pub bytes: Vec<u8>,
    /// What survives a power cut.
    synced: Vec<u8>,
    /// From here on the kernel has bytes to write; a failed fsync forgets that.
    dirty_from: usize,
}

impl FileState {
    fn whole(bytes: &[u8]) -> Self {
        FileState { bytes: bytes.to_vec(), synced: bytes.to_vec(), dirty_from: bytes.len() }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = self.bytes.len().max(at + bytes.len());
        self.bytes.resize(end, 0);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.dirty_from = self.dirty_from.min(at);
    }
}

#[derive(Debug, Default)]
pub struct DiskState {
    pub files: BTreeMap<PathBuf, FileState>,
    /// Fails the operation that finds this at zero; `None` never fails.
    pub fail_after: Option<u32>,
    pub full: bool,
    pub sync_fails: bool,
    dead: bool,
}

/// A disk in memory. Renames and new names are durable at once; appended bytes only when synced.
#[derive(Debug, Clone, Default)]
pub struct FaultyDisk(pub Arc<Mutex<DiskState>>);

impl FaultyDisk {
    fn with<T>(&self, f: impl FnOnce(&mut DiskState) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.0.lock().unwrap();
        if state.dead {
            return Err(io::Error::other("killed"));
        }
        if let Some(n) = &mut state.fail_after {
            if *n == 0 {
                state.dead = true;
                return Err(io::Error::other("killed"));
            }
            *n -= 1;
        }
        f(&mut state)
    }

    /// The process is gone; with `power_cut`, each file keeps its synced bytes and part of the rest.
    pub fn restart(&self, power_cut: Option<u8>) {
        let mut state = self.0.lock().unwrap();
        (state.dead, state.fail_after, state.full, state.sync_fails) = (false, None, false, false);
        for file in state.files.values_mut() {
            if let Some(part) = power_cut {
                if file.bytes.starts_with(&file.synced) {
                    let unsynced = file.bytes.len() - file.synced.len();
                    let keep = file.synced.len() + unsynced * usize::from(part) / 256;
                    file.bytes.truncate(keep);
                } else {
                    file.bytes.clone_from(&file.synced);
                }
            }
            *file = FileState::whole(&file.bytes);
        }
    }
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Disk for FaultyDisk {
    type File = FaultyFile;
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        self.with(|_| Ok(()))
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.with(|s| {
            let mut names: Vec<String> = s
                .files
                .keys()
                .filter_map(|p| p.strip_prefix(path).ok()?.components().next())
                .map(|c| c.as_os_str().to_str().unwrap().to_owned())
                .collect();
            names.dedup();
            Ok(names)
        })
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.with(|s| s.files.get(path).map(|f| f.bytes.clone()).ok_or_else(not_found))
    }
    fn read_range(&self, path: &Path, from: u64, len: usize) -> io::Result<Vec<u8>> {
        let all = self.read(path)?;
        all.get(from as usize..from as usize + len).map(<[u8]>::to_vec).ok_or_else(not_found)
    }
    fn open(&self, path: &Path) -> io::Result<FaultyFile> {
        self.with(|s| {
            s.files.entry(path.to_owned()).or_default();
            Ok(FaultyFile { disk: self.clone(), path: path.to_owned() })
        })
    }
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.with(|s| {
            if s.full {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            s.files.insert(path.to_owned(), FileState::whole(bytes));
            Ok(())
        })
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.with(|s| s.files.remove(path).map(drop).ok_or_else(not_found))
    }
    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        self.with(|_| Ok(()))
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.with(|_| Ok(()))
    }
}

pub struct FaultyFile {
    disk: FaultyDisk,
    path: PathBuf,
}

impl DiskFile for FaultyFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (path, at) = (self.path.clone(), offset as usize);
        let result = self.disk.with(|s| {
            let full = s.full;
            let file = s.files.get_mut(&path).ok_or_else(not_found)?;
            // Only what needs new blocks can find the disk full.
            if full && at + bytes.len() > file.bytes.len() {
                file.write(at, &bytes[..bytes.len() / 3]);
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            file.write(at, bytes);
            if path.extension().is_none_or(|e| e != "seg") {
                // A slot; that a torn one is passed over is its own matter.
                *file = FileState::whole(&file.bytes);
            }
            Ok(())
        });
        if let Err(e) = &result
            && e.to_string() == "killed"
            && let Some(file) = self.disk.0.lock().unwrap().files.get_mut(&path)
        {
            // A kill inside write(2) leaves a part of it.
            file.write(at, &bytes[..bytes.len() / 2]);
        }
        result
    }
    fn sync(&self) -> io::Result<()> {
        let path = self.path.clone();
        self.disk.with(|s| {
            let fails = s.sync_fails;
            let file = s.files.get_mut(&path).ok_or_else(not_found)?;
            let from = file.dirty_from.min(file.bytes.len());
            file.dirty_from = file.bytes.len();
            if fails {
                return Err(io::Error::other("the disk does not answer"));
            }
            file.synced.resize(file.bytes.len(), 0);
            file.synced[from..].copy_from_slice(&file.bytes[from..]);
            Ok(())
        })
    }
    fn truncate(&self, len: u64) -> io::Result<()> {
        let path = self.path.clone();
        self.disk.with(|s| {
            let file = s.files.get_mut(&path).ok_or_else(not_found)?;
            file.bytes.truncate(len as usize);
            file.dirty_from = file.dirty_from.min(len as usize);
            Ok(())
        })
    }
}
