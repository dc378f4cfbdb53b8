//! Namespaces of a command's own (user_namespaces(7), network_namespaces(7), ipc_namespaces(7)).

use std::ffi::CStr;
use std::io;

use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_dumpable;
use nix::sys::stat::Mode;
use nix::unistd::{getegid, geteuid, write};

/// What a child writes to become a namespace's only user, prepared, so that it allocates nothing.
#[derive(Debug)]
pub(super) struct Namespaces {
    uid_map: String,
    gid_map: String,
}

impl Namespaces {
    /// For children that keep the ids of this process.
    pub(super) fn of_this_process() -> Self {
        Self { uid_map: format!("{0} {0} 1\n", geteuid()), gid_map: format!("{0} {0} 1\n", getegid()) }
    }

    /// Leaves the namespaces of the calling process, for new ones. Async-signal-safe.
    pub(super) fn enter(&self, network: bool) -> io::Result<()> {
        let mut flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWIPC;
        if !network {
            flags |= CloneFlags::CLONE_NEWNET;
        }
        unshare(flags)?;
        // The files of a process that hides from others are root's (proc(5)). For this moment it does not
        // hide: what was started before is in Landlock domains, which cannot trace it.
        set_dumpable(true)?;
        let mapped = fill(c"/proc/self/setgroups", b"deny")
            .and_then(|()| fill(c"/proc/self/uid_map", self.uid_map.as_bytes()))
            .and_then(|()| fill(c"/proc/self/gid_map", self.gid_map.as_bytes()));
        set_dumpable(false)?;
        mapped
    }
}

fn fill(path: &CStr, content: &[u8]) -> io::Result<()> {
    let file = open(path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    // The kernel takes it with one write, or refuses it (user_namespaces(7)).
    write(&file, content)?;
    Ok(())
}
