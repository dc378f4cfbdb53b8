//! A name in a directory of the workspace, where a file can be replaced at once or not at all.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{FileStat, Mode, fchmod, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use uuid::Uuid;

use super::workspace::{PathError, Workspace, check_regular, file_in};

/// Largest file that is read or written whole, in bytes.
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why a file cannot be read or replaced.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{path} has {bytes} bytes; files up to {FILE_BYTES_MAX} bytes can be used here")]
    TooLarge { path: String, bytes: u64 },
    #[error("{0} is a binary file: it has NUL bytes")]
    Binary(String),
    #[error("{0} is not UTF-8, and would be damaged")]
    NotUtf8(String),
    #[error("{0} exists already")]
    Exists(String),
    #[error("{0} was changed meanwhile; read it again")]
    Changed(String),
    #[error("the owner of {path} cannot be kept")]
    Owner {
        path: String,
        #[source]
        source: io::Error,
    },
}

impl FileError {
    /// The closed word for events and records.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Path(error) => error.word(),
            Self::TooLarge { .. } => "too_large",
            Self::Binary(_) | Self::NotUtf8(_) => "not_text",
            Self::Exists(_) => "exists",
            Self::Changed(_) => "changed_meanwhile",
            Self::Owner { .. } => "io",
        }
    }
}

/// Where a file is, or is to be.
#[derive(Debug)]
pub(crate) struct Place {
    dir: OwnedFd,
    name: PathBuf,
    path: PathBuf,
}

impl Place {
    /// The place of `path`. `make`: with the directories above it.
    pub(crate) fn of(workspace: &Workspace, path: &Path, make: bool) -> Result<Self, PathError> {
        let (dir, name) = workspace.parent(path, make)?;
        Ok(Self { dir, name, path: path.to_owned() })
    }

    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// The regular file that is there, if anything is.
    pub(crate) fn look(&self) -> Result<Option<FileStat>, PathError> {
        match fstatat(&self.dir, &self.name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => check_regular(&stat, &self.path).map(|()| Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    /// Content and state of the file.
    pub(crate) fn read(&self) -> Result<(Vec<u8>, FileStat), FileError> {
        let file = file_in(&self.dir, &self.name, &self.path)?;
        let stat = nix::sys::stat::fstat(&file).map_err(|errno| self.failed(errno))?;
        Ok((read_whole(file, &self.path)?, stat))
    }

    /// Puts a file here, or replaces the one that was `before`, and waits until that is on disk.
    /// Nobody ever sees a part of it. Mode and owner are kept; a hard link to the old file keeps the
    /// old content.
    pub(crate) fn put(&self, content: &[u8], before: Option<&FileStat>) -> Result<(), FileError> {
        check_size(content, &self.path)?;
        let name = PathBuf::from(format!(".iteron-{}.tmp", Uuid::now_v7()));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(if before.is_some() { 0o600 } else { 0o666 });
        let file = openat(&self.dir, &name, flags, mode).map_err(|errno| self.failed(errno))?;
        let replaced = self.fill(File::from(file), content, before).and_then(|()| self.swap(&name, before));
        if replaced.is_err() {
            let _ = unlinkat(&self.dir, &name, UnlinkatFlags::NoRemoveDir);
        }
        replaced
    }

    /// Removes the file that was `before`.
    pub(crate) fn remove(&self, before: &FileStat) -> Result<(), FileError> {
        self.check_unchanged(before)?;
        unlinkat(&self.dir, &self.name, UnlinkatFlags::NoRemoveDir).map_err(|errno| self.failed(errno))?;
        self.sync_dir()
    }

    fn fill(&self, mut file: File, content: &[u8], before: Option<&FileStat>) -> Result<(), FileError> {
        file.write_all(content).map_err(|source| self.io(source))?;
        if let Some(before) = before {
            let now = nix::sys::stat::fstat(&file).map_err(|errno| self.failed(errno))?;
            if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid) {
                let (uid, gid) = (Uid::from_raw(before.st_uid), Gid::from_raw(before.st_gid));
                fchown(&file, Some(uid), Some(gid))
                    .map_err(|errno| FileError::Owner { path: self.shown(), source: errno.into() })?;
            }
            // Not the bits that lend rights: writing to a file takes them away as well (write(2)).
            let mode = Mode::from_bits_truncate(before.st_mode & 0o777);
            fchmod(&file, mode).map_err(|errno| self.failed(errno))?;
        }
        Ok(file.sync_all().map_err(|source| self.io(source))?)
    }

    fn swap(&self, name: &Path, before: Option<&FileStat>) -> Result<(), FileError> {
        let flags = match before {
            Some(before) => {
                self.check_unchanged(before)?;
                RenameFlags::empty()
            }
            None => RenameFlags::RENAME_NOREPLACE,
        };
        match renameat2(&self.dir, name, &self.dir, &self.name, flags) {
            Ok(()) => self.sync_dir(),
            Err(Errno::EEXIST) => Err(FileError::Exists(self.shown())),
            Err(errno) => Err(self.failed(errno).into()),
        }
    }

    /// The last look before a change. What another process changes between it and the change is lost:
    /// no call of the kernel compares and renames.
    fn check_unchanged(&self, before: &FileStat) -> Result<(), FileError> {
        let same = |now: &FileStat| {
            (now.st_dev, now.st_ino, now.st_size) == (before.st_dev, before.st_ino, before.st_size)
                && (now.st_mtime, now.st_mtime_nsec) == (before.st_mtime, before.st_mtime_nsec)
                && (now.st_ctime, now.st_ctime_nsec) == (before.st_ctime, before.st_ctime_nsec)
        };
        match self.look()? {
            Some(now) if same(&now) => Ok(()),
            _ => Err(FileError::Changed(self.shown())),
        }
    }

    fn sync_dir(&self) -> Result<(), FileError> {
        nix::unistd::fsync(&self.dir).map_err(|errno| self.failed(errno).into())
    }

    fn failed(&self, errno: Errno) -> PathError {
        PathError::of(&self.path, errno)
    }

    fn io(&self, source: io::Error) -> PathError {
        PathError::Io { path: self.shown(), source }
    }
}

/// Whether this is not too much for a file.
pub(crate) fn check_size(content: &[u8], path: &Path) -> Result<(), FileError> {
    if content.len() > FILE_BYTES_MAX {
        let bytes = u64::try_from(content.len()).unwrap_or(u64::MAX);
        return Err(FileError::TooLarge { path: path.display().to_string(), bytes });
    }
    Ok(())
}

/// All of a file, if it is not too large.
pub(crate) fn read_whole(file: File, path: &Path) -> Result<Vec<u8>, FileError> {
    let io = |source| PathError::Io { path: path.display().to_string(), source };
    let too_large = |bytes| FileError::TooLarge { path: path.display().to_string(), bytes };
    let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    let size = file.metadata().map_err(io)?.len();
    if size > limit {
        return Err(too_large(size));
    }
    // Its size may change, and files of /proc tell none.
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content).map_err(io)?;
    if content.len() > FILE_BYTES_MAX {
        return Err(too_large(limit + 1));
    }
    Ok(content)
}
