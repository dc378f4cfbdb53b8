//! The few file operations that the spool needs, behind a trait so that tests can break every one of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A disk. All paths are absolute or relative to the process, as with `std::fs`.
pub trait Disk: Clone + Send + Sync + 'static {
    type File: DiskFile;

    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Names of the entries of a folder, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    fn read_range(&self, path: &Path, from: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Opens for reading and writing; creates the file (mode 0600) when absent.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Writes a whole file beside its place, syncs it, renames it over and syncs the folder.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// An open file of a [`Disk`].
pub trait DiskFile: Send + Sync + 'static {
    /// Writes all bytes or, on error, any part of them: behind the end the caller truncates back.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// What was written is on the disk. After an error it may be neither there nor tried again: write it anew.
    fn sync(&self) -> io::Result<()>;
    fn truncate(&self, len: u64) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsDisk;

impl Disk for OsDisk {
    type File = File;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn read_range(&self, path: &Path, from: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        File::open(path)?.read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let beside = sibling(path);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&beside, path)?;
        path.parent().map_or(Ok(()), |dir| self.sync_dir(dir))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// Where [`Disk::replace`] writes before it renames.
pub fn sibling(path: &Path) -> PathBuf {
    path.with_extension("new")
}

impl DiskFile for File {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }
}
