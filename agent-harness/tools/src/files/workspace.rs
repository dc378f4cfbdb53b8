//! The boundary of the workspace, drawn by the kernel: every path is resolved below one open
//! directory with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS` (openat2(2), Linux 5.6), so that
//! neither `..`, an absolute path, a link, nor a link that is put in place meanwhile leads out.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};

/// Tries at a path whose directories are being moved (`EAGAIN` of openat2(2)).
const TRIES_MAX: u32 = 16;

/// Why a path of the model's leads nowhere.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("the path is empty")]
    Empty,
    #[error("the path has a NUL byte")]
    Nul,
    #[error("{0} is absolute; give a path relative to the workspace")]
    Absolute(String),
    #[error("{0} leads out of the workspace")]
    Outside(String),
    #[error("{0} does not exist")]
    NotFound(String),
    #[error("{0} is a symbolic link; name the file that it points to")]
    Link(String),
    #[error("{0} leads through a circular link, or one of /proc")]
    Loop(String),
    #[error("{0} is a directory")]
    Directory(String),
    #[error("{0} leads through something that is no directory")]
    NotDirectory(String),
    #[error("{0} is neither a file nor a directory")]
    NotRegular(String),
    #[error("{0} does not name a file")]
    NoName(String),
    #[error("{0} is being moved; try again")]
    Moving(String),
    #[error("this kernel has no openat2, without which the workspace has no boundary: use the shell")]
    Unsupported,
    #[error("cannot use {path}")]
    Io {
        path: String,
        #[source]
        source: io::Error,
    },
}

impl PathError {
    pub(crate) fn of(path: &Path, errno: Errno) -> Self {
        let shown = path.display().to_string();
        match errno {
            Errno::EXDEV => Self::Outside(shown),
            Errno::ENOENT => Self::NotFound(shown),
            Errno::ELOOP => Self::Loop(shown),
            Errno::EISDIR => Self::Directory(shown),
            Errno::ENOTDIR => Self::NotDirectory(shown),
            Errno::EAGAIN => Self::Moving(shown),
            Errno::ENOSYS => Self::Unsupported,
            _ => Self::Io { path: shown, source: errno.into() },
        }
    }

    /// The closed word for events and records.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Absolute(_) | Self::Outside(_) => "outside_workspace",
            Self::NotFound(_) => "not_found",
            Self::Unsupported => "unsupported",
            Self::Io { .. } => "io",
            Self::Empty
            | Self::Nul
            | Self::Link(_)
            | Self::Loop(_)
            | Self::Directory(_)
            | Self::NotDirectory(_)
            | Self::NotRegular(_)
            | Self::NoName(_)
            | Self::Moving(_) => "bad_path",
        }
    }
}

/// A directory that nothing here leaves.
#[derive(Debug)]
pub struct Workspace {
    root: OwnedFd,
}

impl Workspace {
    /// Opens the directory. The path itself is the operator's, and may lead anywhere.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { root: nix::fcntl::open(path, flags, Mode::empty())? })
    }

    /// The root once more, as a directory to read.
    pub(crate) fn root(&self) -> Result<OwnedFd, PathError> {
        self.dir(Path::new("."))
    }

    pub(crate) fn dir(&self, path: &Path) -> Result<OwnedFd, PathError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        beneath(&self.root, path, flags, ResolveFlag::empty()).map_err(|errno| PathError::of(path, errno))
    }

    /// Opens a regular file to read. Links inside the workspace are followed.
    pub(crate) fn file(&self, path: &Path) -> Result<File, PathError> {
        regular(beneath(&self.root, path, READ, ResolveFlag::empty()), path)
    }

    /// The directory in which `path` names something, which is made if it is missing, and that name.
    pub(crate) fn parent(&self, path: &Path, make: bool) -> Result<(OwnedFd, PathBuf), PathError> {
        let shown = || path.display().to_string();
        let ends_plainly = !path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let name = path.components().next_back().filter(|last| matches!(last, Component::Normal(_)));
        let Some(name) = name.filter(|_| ends_plainly) else {
            return Err(PathError::NoName(shown()));
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let dir = if make { self.make_dir(parent)? } else { self.dir(parent)? };
        Ok((dir, PathBuf::from(name.as_os_str())))
    }

    /// Opens a directory, and makes it and those above it where they are missing.
    fn make_dir(&self, path: &Path) -> Result<OwnedFd, PathError> {
        match self.dir(path) {
            Err(PathError::NotFound(_)) => {}
            other => return other,
        }
        let mut made = PathBuf::new();
        let mut dir = self.root()?;
        for component in path.components() {
            if !matches!(component, Component::Normal(_) | Component::CurDir) {
                return Err(PathError::Outside(path.display().to_string()));
            }
            made.push(component);
            match mkdirat(&dir, component.as_os_str(), Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(PathError::of(&made, errno)),
            }
            dir = self.dir(&made)?;
        }
        Ok(dir)
    }
}

/// Never waits for the other end of a pipe, and takes no terminal.
const READ: OFlag = OFlag::O_RDONLY.union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);

/// A path as the model gives it.
pub(crate) fn relative(text: &str) -> Result<&Path, PathError> {
    if text.is_empty() {
        return Err(PathError::Empty);
    }
    if text.contains('\0') {
        return Err(PathError::Nul);
    }
    let path = Path::new(text);
    if path.is_absolute() {
        return Err(PathError::Absolute(text.to_owned()));
    }
    Ok(path)
}

/// Opens a regular file by its name in `dir`, which must not be a link.
pub(crate) fn file_in(dir: impl AsFd, name: &Path, shown: &Path) -> Result<File, PathError> {
    match beneath(dir, name, READ | OFlag::O_NOFOLLOW, ResolveFlag::empty()) {
        Err(Errno::ELOOP) => Err(PathError::Link(shown.display().to_string())),
        opened => regular(opened, shown),
    }
}

/// Opens a directory by its name in `dir`; nothing may be followed on the way.
pub(crate) fn dir_in(dir: impl AsFd, name: &Path, shown: &Path) -> Result<OwnedFd, PathError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    beneath(dir, name, flags, ResolveFlag::RESOLVE_NO_SYMLINKS).map_err(|errno| PathError::of(shown, errno))
}

fn regular(opened: Result<OwnedFd, Errno>, path: &Path) -> Result<File, PathError> {
    let opened = match opened {
        // A socket cannot be opened at all (open(2)).
        Err(Errno::ENXIO) => return Err(PathError::NotRegular(path.display().to_string())),
        opened => opened.map_err(|errno| PathError::of(path, errno))?,
    };
    let stat = fstat(&opened).map_err(|errno| PathError::of(path, errno))?;
    check_regular(&stat, path)?;
    Ok(File::from(opened))
}

pub(crate) fn check_regular(stat: &FileStat, path: &Path) -> Result<(), PathError> {
    let shown = path.display().to_string();
    match kind(stat) {
        SFlag::S_IFREG => Ok(()),
        SFlag::S_IFDIR => Err(PathError::Directory(shown)),
        SFlag::S_IFLNK => Err(PathError::Link(shown)),
        _ => Err(PathError::NotRegular(shown)),
    }
}

pub(crate) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

fn beneath(dir: impl AsFd, path: &Path, flags: OFlag, more: ResolveFlag) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | more;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    let mut opened = Err(Errno::EAGAIN);
    for _ in 0..TRIES_MAX {
        opened = openat2(dir.as_fd(), path, how);
        if !matches!(opened, Err(Errno::EAGAIN)) {
            break;
        }
    }
    opened
}
