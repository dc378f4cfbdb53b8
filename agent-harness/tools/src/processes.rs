//! The processes that belong to a tree that was started here, found and ended.
//!
//! A process belongs to a tree when it is in the tree's cgroup, when it is in the session that the
//! tree's root leads, or when it descends from such a process. Where no cgroup could be made, so
//! does an orphan that was handed to us, if this process is a subreaper: when it carries the tree's
//! mark, or no mark at all and came after the tree began. The last rule is what finds a daemon that
//! left the session and whose parents are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use iteron_protocol::Reaped;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::cgroup::Cgroup;
use crate::reaper;

/// The environment variable by which everything that was started here is known.
pub(crate) const MARK: &str = "ITERON_TREE";

/// Looks for more processes to stop before all are killed; each finds what the one before let fork.
const LOOKS_MAX: usize = 64;

/// A process at one moment. Start time tells a reused pid from the one that was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub pid: i32,
    pub start_ticks: u64,
    pub parent: i32,
    group: i32,
    session: i32,
    pub zombie: bool,
}

/// The first process of a tree, which leads a session of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Root {
    pub pid: i32,
    pub start_ticks: u64,
}

impl Root {
    /// The process of this pid as it is now.
    pub(crate) fn now(pid: i32) -> Option<Self> {
        let process = parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(Self { pid, start_ticks: process.start_ticks })
    }

    /// Whether `process` is in the session that this root leads, or led.
    fn leads(&self, process: &Process, all: &[Process]) -> bool {
        // The id of a session is not given again while somebody is in it; if its number leads another
        // session now, that one began later.
        let replaced =
            || all.iter().any(|other| other.pid == self.pid && other.start_ticks != self.start_ticks);
        process.session == self.pid && process.start_ticks >= self.start_ticks && !replaced()
    }
}

/// Whose processes are meant.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Root,
    mark: String,
    cgroup: Option<Cgroup>,
    /// Descendants of ours when the tree began; nothing when orphans are not handed to us.
    before: Option<BTreeSet<(i32, u64)>>,
    /// Every process of it that was ever seen alive.
    seen: BTreeSet<(i32, u64)>,
    /// Process groups of these. All of them were made in the tree: its root began with a group of its
    /// own.
    groups: BTreeSet<i32>,
}

impl Tree {
    /// Take `before` with [`descendants_now`] before the root starts, if this process is a subreaper.
    pub(crate) fn new(
        root: Root,
        mark: String,
        cgroup: Option<Cgroup>,
        before: Option<BTreeSet<(i32, u64)>>,
    ) -> Self {
        Self { root, mark, cgroup, before, seen: BTreeSet::new(), groups: BTreeSet::from([root.pid]) }
    }

    /// Living processes of the tree.
    fn living(&mut self) -> Vec<Process> {
        let all = scan();
        let members = self.cgroup.as_ref().map(Cgroup::members);
        let me = own_pid();
        let belongs = |process: &Process| {
            self.root.leads(process, &all)
                || members.as_ref().is_some_and(|members| members.contains(&process.pid))
                || (members.is_none() && self.is_handed_down(process, me))
        };
        let roots = all.iter().filter(|process| belongs(process)).map(|process| process.pid).collect();
        let owned = closure(&all, roots);
        let living: Vec<Process> =
            all.into_iter().filter(|process| owned.contains(&process.pid) && !process.zombie).collect();
        self.seen.extend(living.iter().map(|process| (process.pid, process.start_ticks)));
        self.groups.extend(living.iter().map(|process| process.group));
        living
    }

    fn is_handed_down(&self, process: &Process, me: i32) -> bool {
        let Some(before) = &self.before else { return false };
        process.parent == me
            && !reaper::is_awaited(process.pid)
            && match mark_of(process.pid) {
                Some(mark) => mark == self.mark,
                None => !before.contains(&(process.pid, process.start_ticks)),
            }
    }

    /// Whether nothing of the tree lives. What it left dead is reaped, and told in `reaped`.
    pub(crate) fn is_gone(&mut self, reaped: &mut Vec<Reaped>) -> bool {
        // The cgroup alone says cheaply that there is something left.
        if self.cgroup.as_ref().is_some_and(Cgroup::is_populated) {
            return false;
        }
        // A look at `/proc` can miss whoever is born meanwhile. A signal to a group misses nobody, and
        // nobody in it forks afterwards: the second look is true.
        let gone = self.living().is_empty() && {
            self.kill_groups();
            self.living().is_empty()
        };
        if self.before.is_none() {
            return gone;
        }
        let Some(dead) = reaper::reap_adopted() else { return false };
        let ours =
            dead.into_iter().filter(|(dead, start_ticks)| self.seen.contains(&(dead.pid, *start_ticks)));
        reaped.extend(ours.map(|(dead, _)| dead));
        gone
    }

    /// Asks every living process of the tree to end.
    pub(crate) fn terminate(&mut self) {
        for process in self.living() {
            // One that is gone already needs no signal.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGTERM);
        }
    }

    /// Kills what lives of the tree.
    pub(crate) fn kill(&mut self) {
        // Looked at first, so that what dies is known when it is reaped.
        self.living();
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        self.kill_groups();
        kill_all(|| self.living());
    }

    fn kill_groups(&self) {
        for group in &self.groups {
            let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
        }
    }
}

/// Descendants of this process, living or not.
pub(crate) fn descendants_now() -> BTreeSet<(i32, u64)> {
    descendants(&scan()).iter().map(|process| (process.pid, process.start_ticks)).collect()
}

/// Kills every descendant of this process but `spared`; gives how many lived.
pub(crate) fn kill_descendants(spared: Option<i32>) -> usize {
    kill_all(|| {
        let descendants = descendants(&scan()).into_iter();
        descendants.filter(|process| !process.zombie && Some(process.pid) != spared).collect()
    })
}

/// Kills everything whose mark begins with `mark`, what is in a session of `roots`, and what
/// descends from these; gives how many lived.
pub(crate) fn kill_marked(mark: &str, roots: &[Root]) -> usize {
    let me = own_pid();
    let roots: BTreeMap<i32, &Root> = roots.iter().map(|root| (root.pid, root)).collect();
    kill_all(|| {
        let all = scan();
        let marked = all.iter().filter(|process| process.pid != me && !process.zombie).filter(|process| {
            roots.get(&process.session).is_some_and(|root| root.leads(process, &all))
                || mark_of(process.pid).is_some_and(|found| found.starts_with(mark))
        });
        let owned = closure(&all, marked.map(|process| process.pid).collect());
        all.into_iter().filter(|process| owned.contains(&process.pid) && !process.zombie).collect()
    })
}

/// Kills what `find` finds, and gives how many that were. All of it is stopped first, until no more
/// comes to light: a look at `/proc` takes time, in which a process that goes on could fork a child
/// that the look misses, and die before the next.
fn kill_all(mut find: impl FnMut() -> Vec<Process>) -> usize {
    let mut stopped = BTreeSet::new();
    for _ in 0..LOOKS_MAX {
        let fresh: Vec<Process> = find().into_iter().filter(|process| stopped.insert(*process)).collect();
        if fresh.is_empty() {
            break;
        }
        for process in fresh {
            // One that is gone already needs no signal.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGSTOP);
        }
    }
    for process in &stopped {
        let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
    }
    stopped.len()
}

pub(crate) fn own_pid() -> i32 {
    Pid::this().as_raw()
}

fn descendants(all: &[Process]) -> Vec<Process> {
    let me = own_pid();
    let owned = closure(all, BTreeSet::from([me]));
    all.iter().filter(|process| process.pid != me && owned.contains(&process.pid)).copied().collect()
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

/// The value of [`MARK`] with which a process was executed (`proc_pid_environ(5)`).
fn mark_of(pid: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

pub(crate) fn scan() -> Vec<Process> {
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
        group: fields.get(2)?.parse().ok()?,
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

    #[test]
    fn a_session_whose_number_was_given_again_is_not_the_roots() {
        let process = |pid, session, start_ticks| Process {
            pid,
            start_ticks,
            parent: 1,
            group: session,
            session,
            zombie: false,
        };
        let root = Root { pid: 10, start_ticks: 100 };
        let (left, stranger) = (process(11, 10, 105), process(12, 10, 300));
        assert!(root.leads(&left, &[left]));
        assert!(!root.leads(&stranger, &[process(10, 10, 290), stranger]));
    }
}
