//! The processes that belong to a tool call, found in `/proc` and ended.
//!
//! A process belongs to a call when it is in the session that the call's root leads, when it
//! descends from the root, or — if this process is a subreaper — when it was handed to us as an
//! orphan after the call began. The last rule is what finds a daemon that left the session and
//! whose parents are gone; a process that only left the session is found by descent.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Makes orphaned descendants children of this process, so that they can be found and reaped.
/// Call it once, at the start of the program that owns the tools.
pub fn become_subreaper() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// A process at one moment. Start time tells a reused pid from the one that was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub pid: i32,
    pub start_ticks: u64,
    parent: i32,
    session: i32,
    zombie: bool,
}

/// Whose processes are meant.
#[derive(Debug)]
pub(crate) struct Owned {
    root: i32,
    /// Descendants of ours when the call began; nothing when orphans are not ours to take.
    before: Option<BTreeSet<(i32, u64)>>,
}

impl Owned {
    /// What a call owns whose root will be `root`. Take `before` with [`descendants_now`].
    pub(crate) const fn new(root: i32, before: Option<BTreeSet<(i32, u64)>>) -> Self {
        Self { root, before }
    }

    /// Living processes of the call.
    pub(crate) fn living(&self) -> Vec<Process> {
        let all = scan();
        let me = own_pid();
        let is_root = |process: &Process| {
            let leads = process.pid == self.root && process.parent == me;
            let adopted = self.before.as_ref().is_some_and(|before| {
                process.parent == me && !before.contains(&(process.pid, process.start_ticks))
            });
            leads || adopted || process.session == self.root
        };
        let roots = all.iter().filter(|process| is_root(process)).map(|process| process.pid).collect();
        let owned = closure(&all, roots);
        all.into_iter().filter(|process| owned.contains(&process.pid) && !process.zombie).collect()
    }

    /// Signals every living process of the call; gives their number.
    pub(crate) fn signal(&self, signal: Signal) -> usize {
        let living = self.living();
        for process in &living {
            // One that is gone already needs no signal.
            let _ = kill(Pid::from_raw(process.pid), signal);
        }
        living.len()
    }
}

/// Descendants of this process, living or not.
pub(crate) fn descendants_now() -> BTreeSet<(i32, u64)> {
    let all = scan();
    let me = own_pid();
    let owned = closure(&all, BTreeSet::from([me]));
    all.iter()
        .filter(|process| process.pid != me && owned.contains(&process.pid))
        .map(|process| (process.pid, process.start_ticks))
        .collect()
}

/// Reaps adopted children that are dead. Nobody else may be waiting for a child at this moment.
pub(crate) fn reap_adopted() {
    let me = own_pid();
    for process in scan().iter().filter(|process| process.parent == me && process.zombie) {
        let _ = waitpid(Pid::from_raw(process.pid), Some(WaitPidFlag::WNOHANG));
    }
}

fn own_pid() -> i32 {
    Pid::this().as_raw()
}

/// `roots` and everything that descends from them.
fn closure(all: &[Process], mut roots: BTreeSet<i32>) -> BTreeSet<i32> {
    loop {
        let before = roots.len();
        let children = all.iter().filter(|process| roots.contains(&process.parent));
        let found: Vec<i32> = children.map(|process| process.pid).collect();
        roots.extend(found);
        if roots.len() == before {
            return roots;
        }
    }
}

fn scan() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// Fields as in proc_pid_stat(5). The name may hold anything, so they are counted from its end.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_is_read_past() {
        let stat = "7 (a) Z (b) S 3 5 6 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 991 1 1 1";
        let process = parse(7, stat).unwrap();
        assert_eq!((process.parent, process.session, process.start_ticks), (3, 6, 991));
        assert!(!process.zombie);
    }

    #[test]
    fn this_process_is_found_in_proc() {
        let me = scan().into_iter().find(|process| process.pid == own_pid()).unwrap();
        assert_eq!(me.parent, nix::unistd::getppid().as_raw());
        assert_eq!(me.session, nix::unistd::getsid(None).unwrap().as_raw());
    }
}
