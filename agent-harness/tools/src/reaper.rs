//! Exactly one reaper for every child: whoever awaits it by name, or else [`reap_adopted`].

use std::collections::BTreeSet;
use std::io;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError, RwLock};

use iteron_protocol::Reaped;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::processes::{own_pid, scan};

/// Held while a child is being made and is not yet known to be awaited.
static SPAWNING: RwLock<()> = RwLock::new(());
static AWAITED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A child that is awaited by name.
#[derive(Debug)]
pub(crate) struct Awaited {
    child: Child,
    pid: i32,
}

impl Awaited {
    /// Spawns; blocks until the child has executed, or has failed to.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        let _spawning = SPAWNING.read().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.ok_or_else(|| io::Error::other("a child without a pid"))?;
        AWAITED.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
        Ok(Self { child, pid })
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.pid
    }

    /// May be called again after it was answered or dropped.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        forget(self.pid);
        status
    }
}

impl Drop for Awaited {
    /// tokio goes on to await it; a second look at a dead child is harmless.
    fn drop(&mut self) {
        forget(self.pid);
    }
}

pub(crate) fn is_awaited(pid: i32) -> bool {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
}

/// Leaves a child to whoever waits for it.
pub(crate) fn leave(pid: i32) {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
}

fn forget(pid: i32) {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
}

/// Reaps children that are dead and that nobody awaits: orphans that were handed to us. Nothing
/// while a child is being made, which may be dead before it is known. Each comes with its start.
pub(crate) fn reap_adopted() -> Option<Vec<(Reaped, u64)>> {
    let _quiet = SPAWNING.try_write().ok()?;
    let me = own_pid();
    let dead = scan().into_iter().filter(|process| process.zombie && process.parent == me);
    let dead = dead.filter(|process| !is_awaited(process.pid));
    let reaped = dead.filter_map(|process| {
        let status = waitpid(Pid::from_raw(process.pid), Some(WaitPidFlag::WNOHANG)).ok()?;
        let (exit_code, signal) = match status {
            WaitStatus::Exited(_, code) => (Some(code), None),
            WaitStatus::Signaled(_, signal, _) => (None, Some(signal as i32)),
            _ => return None,
        };
        Some((Reaped { pid: process.pid, exit_code, signal }, process.start_ticks))
    });
    Some(reaped.collect())
}
