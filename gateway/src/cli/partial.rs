//! A file that appears at its target only when it is whole.
//!
//! Until then it has no name, where the file system can do that, and is gone with its process however that ends.
//! Elsewhere its name is `.<target>.partial`: removed when it is dropped, and by the next one for the same target when
//! the process was killed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use nix::libc;
use nix::unistd::linkat;

pub(super) struct Partial {
    file: Flock<File>,
    target: PathBuf,
    /// Its name, while it has one.
    name: Option<PathBuf>,
}

impl Partial {
    /// Fails with `WouldBlock` while another process writes the same target under a name.
    pub(super) fn beside(target: &Path) -> io::Result<Self> {
        remove_left(&name_of(target))?;
        match Partial::nameless(target) {
            Ok(partial) => Ok(partial),
            // Not every file system can, and /proc may be absent.
            Err(_) => Partial::named(target),
        }
    }

    fn nameless(target: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
        let partial = Partial::of(options.open(dir_of(target))?, target, None)?;
        partial.path().metadata()?;
        Ok(partial)
    }

    fn named(target: &Path) -> io::Result<Self> {
        let name = name_of(target);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).mode(0o600).create_new(true).open(&name)?;
        Partial::of(file, target, Some(name))
    }

    fn of(file: File, target: &Path, name: Option<PathBuf>) -> io::Result<Self> {
        Ok(Partial { file: lock(file)?, target: target.to_owned(), name })
    }

    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Where what is written can be read.
    pub(super) fn path(&self) -> PathBuf {
        let open = || PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        self.name.clone().unwrap_or_else(open)
    }

    /// Gives it the target's name; `AlreadyExists` when there is one and it is not to be replaced. Durable on return.
    pub(super) fn put(mut self, replace: bool) -> io::Result<()> {
        self.file.sync_all()?;
        if replace {
            let name = name_of(&self.target);
            if self.name.is_none() {
                self.link(&name)?;
                self.name = Some(name.clone());
            }
            fs::rename(&name, &self.target)?;
            self.name = None;
        } else {
            self.link(&self.target)?;
        }
        File::open(dir_of(&self.target))?.sync_all()
    }

    fn link(&self, to: &Path) -> io::Result<()> {
        Ok(linkat(AT_FDCWD, &self.path(), AT_FDCWD, to, AtFlags::AT_SYMLINK_FOLLOW)?)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = fs::remove_file(name);
        }
    }
}

fn dir_of(target: &Path) -> &Path {
    target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn name_of(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".partial");
    dir_of(target).join(name)
}

fn lock(file: File) -> io::Result<Flock<File>> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Removes what a killed process left; its lock went with it.
fn remove_left(name: &Path) -> io::Result<()> {
    match File::open(name) {
        Ok(file) => {
            let _held = lock(file)?;
            fs::remove_file(name)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let all = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut all: Vec<_> = all.collect();
        all.sort();
        all
    }

    type Make = fn(&Path) -> io::Result<Partial>;
    const KINDS: [Make; 2] = [Partial::beside, Partial::named];

    #[test]
    fn it_appears_whole_or_not_at_all_and_replaces_only_when_told() {
        for make in KINDS {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("a.bundle");
            let written = |text: &str| {
                let mut partial = make(&target).unwrap();
                partial.file().write_all(text.as_bytes()).unwrap();
                assert_eq!(fs::read_to_string(partial.path()).unwrap(), text);
                partial
            };
            drop(written("left off"));
            assert_eq!(names(dir.path()), Vec::<String>::new());
            written("one").put(false).unwrap();
            let refused = written("two").put(false).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read_to_string(&target).unwrap(), "one");
            written("three").put(true).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), "three");
            assert_eq!(names(dir.path()), ["a.bundle"]);
        }
    }

    #[test]
    fn what_a_killed_one_left_is_removed_by_the_next_and_a_living_one_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.bundle");
        let living = Partial::named(&target).unwrap();
        let blocked = Partial::beside(&target).err().unwrap();
        assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
        drop(living);
        fs::write(dir.path().join(".a.bundle.partial"), "of a killed one").unwrap();
        Partial::beside(&target).unwrap().put(false).unwrap();
        assert_eq!(names(dir.path()), ["a.bundle"]);
    }
}
