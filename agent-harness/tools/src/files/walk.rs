//! Walking a part of the workspace in the order of names, without leaving it: each directory is
//! opened by its name in the one before it, and no link is followed.
//!
//! What `.gitignore` and `.ignore` files leave out is left out, unless asked for; `.git` always is.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use nix::dir::Dir;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstatat};

use super::place::read_whole;
use super::workspace::{PathError, Workspace, dir_in, file_in, kind};

/// Entries that one walk looks at.
pub(crate) const ENTRIES_MAX: usize = 500_000;
/// Directories in one another.
const DEPTH_MAX: usize = 128;

/// Tells a walk or a search to end.
#[derive(Debug)]
pub struct Halt {
    pub(crate) stopped: AtomicBool,
    pub(crate) deadline: Instant,
}

impl Halt {
    #[must_use]
    pub const fn at(deadline: Instant) -> Self {
        Self { stopped: AtomicBool::new(false), deadline }
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_stopped() || Instant::now() >= self.deadline
    }
}

/// Something in a directory.
pub(crate) struct Entry<'a> {
    pub dir: &'a OwnedFd,
    pub name: &'a OsStr,
    /// From the root of the workspace.
    pub path: &'a Path,
    pub stat: &'a FileStat,
    /// Directories between where the walk began and this.
    pub depth: usize,
}

impl Entry<'_> {
    pub(crate) fn is_dir(&self) -> bool {
        kind(self.stat) == SFlag::S_IFDIR
    }

    pub(crate) fn is_file(&self) -> bool {
        kind(self.stat) == SFlag::S_IFREG
    }
}

/// What a visitor wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    On,
    /// Do not look into this directory.
    Past,
    End,
}

/// What a walk could not show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// Directories that could not be read.
    pub unreadable: usize,
    /// It ended because of [`ENTRIES_MAX`] or of its [`Halt`].
    pub cut: bool,
}

pub(crate) struct Walk<'a> {
    pub halt: &'a Halt,
    /// Also what ignore files leave out.
    pub all: bool,
}

struct State<'a, V> {
    walk: &'a Walk<'a>,
    visit: V,
    looked: usize,
    found: Walked,
}

impl Walk<'_> {
    /// Shows `visit` everything below `start`, directories before what is in them.
    pub(crate) fn run(
        &self,
        workspace: &Workspace,
        start: &Path,
        visit: impl FnMut(&Entry<'_>) -> Next,
    ) -> Result<Walked, PathError> {
        let dir = workspace.dir(start)?;
        let start: PathBuf = start.components().filter(|part| *part != Component::CurDir).collect();
        let mut ignores = Vec::new();
        if !self.all {
            // Also of the directories above, as far as the path goes straight down.
            let straight = start.components().all(|part| matches!(part, Component::Normal(_)));
            for above in start.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                let shown = if above.as_os_str().is_empty() { Path::new(".") } else { above };
                if straight && let Ok(dir) = workspace.dir(shown) {
                    ignores.push(ignores_in(&dir, above));
                }
            }
        }
        let mut state = State { walk: self, visit, looked: 0, found: Walked::default() };
        state.directory(&dir, &start, 0, &mut ignores);
        Ok(state.found)
    }
}

impl<V: FnMut(&Entry<'_>) -> Next> State<'_, V> {
    fn directory(
        &mut self,
        dir: &OwnedFd,
        path: &Path,
        depth: usize,
        ignores: &mut Vec<Vec<Gitignore>>,
    ) -> Next {
        let Some(names) = names_in(dir) else {
            self.found.unreadable += 1;
            return Next::On;
        };
        ignores.push(if self.walk.all { Vec::new() } else { ignores_in(dir, path) });
        let next = self.entries(dir, path, depth, &names, ignores);
        ignores.pop();
        next
    }

    fn entries(
        &mut self,
        dir: &OwnedFd,
        path: &Path,
        depth: usize,
        names: &[Vec<u8>],
        ignores: &mut Vec<Vec<Gitignore>>,
    ) -> Next {
        for name in names {
            self.looked += 1;
            if self.looked > ENTRIES_MAX || self.walk.halt.is_due() {
                self.found.cut = true;
                return Next::End;
            }
            let name = OsStr::from_bytes(name);
            let path = path.join(name);
            // One that is gone meanwhile is not there.
            let Ok(stat) = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let entry = Entry { dir, name, path: &path, stat: &stat, depth };
            if name == ".git" || (!self.walk.all && is_ignored(ignores, &path, entry.is_dir())) {
                continue;
            }
            match (self.visit)(&entry) {
                Next::End => return Next::End,
                Next::On if entry.is_dir() => {
                    let below = dir_in(dir, Path::new(name), &path);
                    match below {
                        Ok(below) if depth < DEPTH_MAX => {
                            if self.directory(&below, &path, depth + 1, ignores) == Next::End {
                                return Next::End;
                            }
                        }
                        _ => self.found.unreadable += 1,
                    }
                }
                Next::On | Next::Past => {}
            }
        }
        Next::On
    }
}

fn names_in(dir: &OwnedFd) -> Option<Vec<Vec<u8>>> {
    let mut dir = Dir::from_fd(dir.as_fd().try_clone_to_owned().ok()?).ok()?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        if names.len() > ENTRIES_MAX {
            break;
        }
    }
    names.sort_unstable();
    Some(names)
}

/// The ignore files of a directory; the later one wins.
fn ignores_in(dir: &OwnedFd, path: &Path) -> Vec<Gitignore> {
    let read = |name: &&str| {
        let shown = path.join(name);
        let text = read_whole(file_in(dir, Path::new(name), &shown).ok()?, &shown).ok()?;
        let mut builder = GitignoreBuilder::new(path);
        for line in String::from_utf8_lossy(&text).lines() {
            // A line that is no glob ignores nothing.
            let _ = builder.add_line(None, line);
        }
        builder.build().ok()
    };
    [".gitignore", ".ignore"].iter().filter_map(read).collect()
}

/// The nearest ignore file that speaks of a path decides.
fn is_ignored(ignores: &[Vec<Gitignore>], path: &Path, is_dir: bool) -> bool {
    let nearest_first = ignores.iter().rev().flat_map(|files| files.iter().rev());
    for file in nearest_first {
        match file.matched(path, is_dir) {
            Match::Ignore(_) => return true,
            Match::Whitelist(_) => return false,
            Match::None => {}
        }
    }
    false
}
