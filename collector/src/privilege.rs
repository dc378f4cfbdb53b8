//! Least privilege: what parses, spools and sends is an ordinary user without capabilities, under a filter of system
//! calls. What needs more (loading and attaching kernel programs) is done by a process apart, which ends when it has
//! handed its descriptors over (`kernel/apart.rs`).
//!
//! Whoever owns the state folder is the user that the collector becomes. Where that is root, it stays root without
//! capabilities.

pub mod seccomp;

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use caps::{CapSet, Capability, CapsHashSet};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use thiserror::Error;

/// From here on maps can be read and written by whoever holds their descriptors (`bpf(2)` asked for CAP_BPF before).
const FREE_MAPS_SINCE: (u32, u32) = (5, 19);

#[derive(Debug, Error)]
pub enum PrivilegeError {
    #[error("cannot become user {uid} and group {gid}, who own the state folder")]
    User { uid: u32, gid: u32, source: nix::Error },
    #[error("cannot drop capabilities")]
    Capabilities(#[from] caps::errors::CapsError),
    #[error("cannot forbid gaining privileges")]
    NoNewPrivileges(#[source] nix::Error),
}

/// The user whose files these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// The owner of the state folder, which is made for the caller where it is missing.
    pub fn of(state_dir: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
        let found = std::fs::metadata(state_dir)?;
        Ok(Owner { uid: found.uid(), gid: found.gid() })
    }

    /// Makes a folder for the owner, where there is none. One that exists is left as it is.
    pub fn make_folder(self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::DirBuilder::new().mode(0o755).create(path)?;
        if self.is_another() {
            std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))?;
        }
        Ok(())
    }

    /// Whether root is to become somebody else.
    #[must_use]
    pub fn is_another(self) -> bool {
        Uid::effective().is_root() && self.uid != 0
    }

    /// Becomes the owner, for ever, and keeps no capability but the one that an old kernel asks for at every look into
    /// a map. Call it while the process has one thread: capabilities are a thread's own.
    pub fn become_it(self) -> Result<(), PrivilegeError> {
        nix::sys::prctl::set_no_new_privs().map_err(PrivilegeError::NoNewPrivileges)?;
        let kept = kept()?;
        let permitted = caps::read(None, CapSet::Permitted)?;
        if permitted.contains(&Capability::CAP_SETPCAP) {
            for capability in caps::read(None, CapSet::Bounding)? {
                if !kept.contains(&capability) {
                    caps::drop(None, CapSet::Bounding, capability)?;
                }
            }
        }
        if self.is_another() {
            nix::sys::prctl::set_keepcaps(true).map_err(PrivilegeError::NoNewPrivileges)?;
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            setgroups(&[])
                .and_then(|()| setresgid(gid, gid, gid))
                .and_then(|()| setresuid(uid, uid, uid))
                .map_err(|source| PrivilegeError::User { uid: self.uid, gid: self.gid, source })?;
        }
        caps::clear(None, CapSet::Ambient)?;
        caps::clear(None, CapSet::Inheritable)?;
        caps::set(None, CapSet::Effective, &CapsHashSet::new())?;
        caps::set(None, CapSet::Permitted, &kept)?;
        caps::set(None, CapSet::Effective, &kept)?;
        Ok(())
    }
}

/// What is kept of what there is.
fn kept() -> Result<CapsHashSet, PrivilegeError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let wanted = !maps_are_free() && permitted.contains(&Capability::CAP_BPF);
    Ok(wanted.then_some(Capability::CAP_BPF).into_iter().collect())
}

fn maps_are_free() -> bool {
    nix::sys::utsname::uname()
        .ok()
        .and_then(|name| release_of(name.release().to_str()?))
        .is_some_and(|release| release >= FREE_MAPS_SINCE)
}

/// `6.1.0-32-cloud` → (6, 1).
fn release_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_compared_by_number() {
        assert_eq!(release_of("5.10.0-32-cloud-amd64"), Some((5, 10)));
        assert_eq!(release_of("6.18.44"), Some((6, 18)));
        assert_eq!(release_of("7.2+deb14"), Some((7, 2)));
        assert_eq!(release_of("linux"), None);
        assert!((5, 9) < FREE_MAPS_SINCE && (5, 20) > FREE_MAPS_SINCE && (6, 1) > FREE_MAPS_SINCE);
    }

    #[test]
    fn nothing_but_what_is_needed_is_left() {
        // Capabilities are a thread's own: this one's loss touches no other test.
        std::thread::spawn(|| {
            let owner = Owner { uid: Uid::effective().as_raw(), gid: 0 };
            let kept = kept().unwrap();
            owner.become_it().unwrap();
            for set in [CapSet::Permitted, CapSet::Effective] {
                assert_eq!(caps::read(None, set).unwrap(), kept);
            }
        })
        .join()
        .unwrap();
    }
}
