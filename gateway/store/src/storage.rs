//! What the store asks of a disk. Small, so that tests can fail, tear or lose every call.
//!
//! Durability as Linux gives it: bytes after `sync` of the file, names after `sync_dir` of the directory.
//! Nothing else is assumed, in particular no order between unsynced writes.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// The calls between the store and the disk.
pub trait Storage: Send + Sync + 'static {
    /// Writes at an offset; creates the file, readable by its owner only, when it is absent.
    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
    /// fdatasync.
    fn sync(&self, path: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory (0700) unless it is there, and makes its name durable; its parent exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Exactly `len` bytes.
    fn read_at(&self, path: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>>;
    fn len(&self, path: &Path) -> io::Result<u64>;
    /// Names in a directory, sorted; empty when the directory is absent.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Bytes that an unprivileged writer may still use.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

impl dyn Storage {
    /// Replaces a small file so that after a crash it holds the old or the new bytes.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        match self.remove(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        self.write_at(&temporary, 0, bytes)?;
        self.sync(&temporary)?;
        self.rename(&temporary, path)?;
        self.sync_dir(path.parent().unwrap_or(Path::new("")))
    }

    /// `read`, with `None` for an absent file.
    pub(crate) fn read_if_present(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match self.read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Files named `<20 digits>.<extension>`, by number.
    pub(crate) fn numbered(&self, dir: &Path, extension: &str) -> io::Result<Vec<u64>> {
        Ok(self.list(dir)?.iter().filter_map(|name| parse_numbered(name, extension)).collect())
    }
}

/// `<20 digits>.<extension>`
pub(crate) fn numbered_name(number: u64, extension: &str) -> String {
    format!("{number:020}.{extension}")
}

fn parse_numbered(name: &str, extension: &str) -> Option<u64> {
    let digits = name.strip_suffix(extension)?.strip_suffix('.')?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The file system. Keeps handles open, since fsync errors are reported to the handle that wrote.
#[derive(Default)]
pub struct Disk {
    handles: Mutex<HashMap<PathBuf, Arc<File>>>,
}

/// Open handles kept; beyond it all are closed (after use they are reopened on demand).
const HANDLES_MAX: usize = 128;

/// What stands in a file's place, a FIFO say, is not waited for (open(2), O_NONBLOCK).
fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(nix::libc::O_NONBLOCK);
    options
}

impl Disk {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<File>> {
        let mut handles = self.handles.lock();
        if let Some(file) = handles.get(path) {
            return Ok(Arc::clone(file));
        }
        let mut options = reading();
        if write {
            options.write(true).create(true).mode(0o600);
        }
        let file = Arc::new(options.open(path)?);
        // Read-only handles are not kept: a later write would find them.
        if write {
            if handles.len() >= HANDLES_MAX {
                handles.clear();
            }
            handles.insert(path.to_owned(), Arc::clone(&file));
        }
        Ok(file)
    }

    fn forget(&self, path: &Path) {
        self.handles.lock().remove(path);
    }
}

impl Storage for Disk {
    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.open(path, true)?.write_all_at(bytes, offset)
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.open(path, true)?.set_len(len)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.open(path, true)?.sync_data()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.forget(path);
        std::fs::remove_file(path)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        match std::fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            other => other?,
        }
        match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => self.sync_dir(parent),
            _ => Ok(()),
        }
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut file = reading().open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_at(&self, path: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.open(path, false)?.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(std::fs::metadata(path)?.len())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = nix::sys::statvfs::statvfs(dir)?;
        Ok(stat.blocks_available() as u64 * stat.fragment_size() as u64)
    }
}
