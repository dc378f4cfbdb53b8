//! A process that only exists to be seen: it fails one exec and ends. If its fork, failed exec and exit come
//! through the rings, the probes fire on the CPU where it ran.
#![allow(unsafe_code, reason = "clone(2) with a stack of our own, as posix_spawn does")]

use std::collections::VecDeque;
use std::io;

use nix::libc::{self, c_int, c_void};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::record::Record;

/// Canaries that may be under way at once; older ones are forgotten.
const PENDING_MAX: usize = 64;
const STACK_BYTES: usize = 16 * 1024;

/// The last canary that came through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CanarySeen {
    pub cpu: u32,
    /// Boot clock of its fork.
    pub ktime_boot_ns: u64,
    pub exec_failed: bool,
    pub exit: bool,
}

#[derive(Default)]
pub(super) struct Canaries {
    pending: VecDeque<(u32, Option<u64>)>,
    pub(super) last: Option<CanarySeen>,
}

impl Canaries {
    pub(super) fn expect(&mut self, tgid: u32) {
        if self.pending.len() == PENDING_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back((tgid, None));
    }

    /// Marks a record of a canary, and remembers that it was seen.
    pub(super) fn notice(&mut self, record: &mut Record<'_>, own_tgid: u32) {
        if self.pending.is_empty() {
            return;
        }
        let common = *record.common();
        let parent = if let Record::Fork(fork) = record { Some(fork.parent_tgid) } else { None };
        let Some(at) = self.pending.iter().position(|&(tgid, start)| {
            tgid == common.tgid
                && match start {
                    None => parent == Some(own_tgid),
                    Some(start) => start == common.start_boottime_ns,
                }
        }) else {
            return;
        };
        record.common_mut().canary = true;
        match record {
            Record::Fork(_) => {
                if let Some(entry) = self.pending.get_mut(at) {
                    entry.1 = Some(common.start_boottime_ns);
                }
                self.last = Some(CanarySeen {
                    cpu: common.cpu,
                    ktime_boot_ns: common.ktime_boot_ns,
                    ..CanarySeen::default()
                });
            }
            Record::ExecFailed(_) => {
                if let Some(last) = &mut self.last {
                    last.exec_failed = true;
                }
            }
            Record::Exit(_) => {
                if let Some(last) = &mut self.last {
                    last.exit = true;
                }
                self.pending.remove(at);
            }
            _ => {}
        }
    }
}

extern "C" fn child(_argument: *mut c_void) -> c_int {
    // SAFETY: system calls only. There is no path at address 0, so the exec fails with EFAULT; the memory is shared
    // with the parent, which waits until we are gone.
    unsafe {
        libc::syscall(libc::SYS_execve, 0usize, 0usize, 0usize);
        libc::syscall(libc::SYS_exit_group, 0usize);
    }
    0
}

/// Runs a canary on `cpu` (where the caller may run there) and returns its process id. Costs about 100 µs; sends no
/// SIGCHLD.
pub(super) fn run(cpu: usize) -> io::Result<u32> {
    let before = sched_getaffinity(Pid::from_raw(0))?;
    let mut one = CpuSet::new();
    let moved = one.set(cpu).is_ok() && sched_setaffinity(Pid::from_raw(0), &one).is_ok();
    let mut stack = vec![0u128; STACK_BYTES / 16];
    // SAFETY: the stack is alive until the child is gone, since CLONE_VFORK suspends us; exit signal 0 keeps
    // the child away from other waiters of this process.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast::<c_void>();
        libc::clone(child, top, libc::CLONE_VM | libc::CLONE_VFORK, std::ptr::null_mut())
    };
    let result = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid.unsigned_abs()) };
    if pid > 0 {
        let mut status = 0;
        // SAFETY: waits for our own child; __WALL, since its exit signal is not SIGCHLD.
        unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    }
    if moved {
        let _ = sched_setaffinity(Pid::from_raw(0), &before);
    }
    result
}
