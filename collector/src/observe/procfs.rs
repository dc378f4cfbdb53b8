//! Processes as procfs shows them: the seed of the table at start, and the only source where eBPF is not to be had.

use std::collections::BTreeMap;
use std::sync::Arc;

use activity_schema::event::{Outcome, Payload, Status};

use super::{Observer, process_entity, warn_refused};
use crate::identity::TICK_NS;
use crate::process::Process;
use crate::recorder::{Draft, Ids, Recorder};
use crate::spool::Disk;

/// What a scan saw of a process.
#[derive(Debug, Clone)]
struct Seen {
    pid: u32,
    ppid: u32,
    start_ns: u64,
    comm: String,
    uid: u32,
    session_leader: bool,
    cpu_user_ms: u64,
    cpu_system_ms: u64,
}

fn scan() -> BTreeMap<u32, Seen> {
    let Ok(all) = procfs::process::all_processes() else { return BTreeMap::new() };
    all.flatten().filter_map(|p| seen(&p)).map(|s| (s.pid, s)).collect()
}

fn seen(process: &procfs::process::Process) -> Option<Seen> {
    const TICK_MS: u64 = TICK_NS / 1_000_000;
    let stat = process.stat().ok()?;
    if stat.state == 'Z' || stat.flags & PF_KTHREAD != 0 {
        return None;
    }
    Some(Seen {
        pid: u32::try_from(stat.pid).ok()?,
        ppid: u32::try_from(stat.ppid).unwrap_or(0),
        start_ns: stat.starttime.saturating_mul(TICK_NS),
        comm: stat.comm,
        uid: process.uid().unwrap_or(0),
        session_leader: stat.session == stat.pid,
        cpu_user_ms: stat.utime.saturating_mul(TICK_MS),
        cpu_system_ms: stat.stime.saturating_mul(TICK_MS),
    })
}

/// Kernel threads have no program (include/linux/sched.h).
const PF_KTHREAD: u32 = 0x0020_0000;

impl Observer {
    /// Puts what runs now into the table. What an earlier run of this boot has told is not told again; what it knew and
    /// had not told is. Of the rest those are told that began after `told_until_ns`.
    pub fn seed<D: Disk>(&mut self, recorder: &mut Recorder<D>, told_until_ns: u64) {
        let seen = scan();
        for process in seen.values() {
            if self.processes.get(process.pid).is_some_and(|p| self.same(p, process)) {
                continue;
            }
            let known = self.processes.recall(process.pid, process.start_ns);
            let mut entry = self.entry(process, &seen);
            if let Some(known) = &known {
                let (tgid, start) = known.parent;
                entry.parent = (tgid != 0).then(|| self.ids.of(tgid, start).into());
                entry.parent_key = known.parent;
            }
            let tell = known.map_or(process.start_ns > told_until_ns, |k| !k.told);
            if tell {
                self.started(recorder, &entry, process.start_ns, true);
            }
            self.processes.insert(entry);
        }
    }

    fn same(&self, known: &Process, seen: &Seen) -> bool {
        known.start_ns / TICK_NS == seen.start_ns / TICK_NS
    }

    fn entry(&mut self, seen: &Seen, all: &BTreeMap<u32, Seen>) -> Process {
        let instance = self.sandboxes.owner_of(seen.pid);
        let parent = all.get(&seen.ppid).map(|p| Arc::from(self.ids.of(p.pid, p.start_ns)));
        let parent_key = all.get(&seen.ppid).map_or((0, 0), |p| (p.pid, p.start_ns));
        Process {
            parent_key,
            id: self.ids.of(seen.pid, seen.start_ns).into(),
            tgid: seen.pid,
            start_ns: seen.start_ns,
            parent,
            executable: seen.comm.as_str().into(),
            instance,
            scope: 0,
            uid: seen.uid,
            gid: 0,
            ns_pid: 0,
            session_leader: seen.session_leader,
            told: true,
            forked_at_ns: seen.start_ns,
        }
    }

    /// One round of polling where there is no eBPF: new processes are started, vanished ones exited with an unknown
    /// status. What lives and dies between two rounds is not seen; coverage says so.
    pub fn poll<D: Disk>(&mut self, recorder: &mut Recorder<D>, known: &mut PolledProcesses) {
        let seen = scan();
        let now_ns = recorder.clock().boot_ns;
        for (pid, process) in &seen {
            if known.0.get(pid).is_some_and(|k| k.start_ns == process.start_ns) {
                continue;
            }
            let mut entry = self.entry(process, &seen);
            // Scopes are inherited as the kernel would have done it, as far as the tree can still be seen.
            entry.scope = self
                .processes
                .get(*pid)
                .filter(|p| self.same(p, process))
                .or_else(|| self.processes.get(process.ppid))
                .map_or(0, |p| p.scope);
            if !known.1 {
                self.started(recorder, &entry, process.start_ns, true);
            }
            self.processes.insert(entry);
        }
        for (pid, gone) in &known.0 {
            if seen.get(pid).is_none_or(|s| s.start_ns != gone.start_ns) {
                self.vanished(recorder, gone, now_ns);
            }
        }
        *known = PolledProcesses(seen, false);
    }

    fn vanished<D: Disk>(&mut self, recorder: &mut Recorder<D>, gone: &Seen, now_ns: u64) {
        let Some(process) = self.processes.remove(gone.pid, gone.start_ns) else { return };
        let scope = self.scopes.get(process.scope).cloned();
        let mut payload = Payload::new();
        payload.set("executable", process.executable.as_ref());
        payload.set("duration_ms", now_ns.saturating_sub(gone.start_ns) / 1_000_000);
        payload.set("cpu_user_ms", gone.cpu_user_ms).set("cpu_system_ms", gone.cpu_system_ms);
        payload.set_some("parent_process_id", process.parent.as_deref());
        payload.set("join", super::join_of(process.scope, scope.as_ref(), Some(&process.id)));
        payload.set("flags", vec!["polled", "no_exit_code"]);
        let at = recorder.clock().wall_of(now_ns);
        let mut draft = Draft::observed("process.exited", at, &process.instance, payload);
        draft.actor = Some(process_entity(&process.id, process.uid, process.gid, process.tgid));
        draft.outcome = Some(Outcome { status: Status::Unknown, exit_code: None, reason: None });
        draft.ids = Ids {
            agent_id: scope.as_ref().map(|s| s.agent_id.as_str()),
            session_id: scope.as_ref().map(|s| s.session_id.as_str()),
            tool_call_id: scope.as_ref().and_then(|s| s.tool_call_id.as_deref()),
            process_id: Some(&process.id),
            ..Ids::default()
        };
        warn_refused("process.exited", recorder.record(draft));
    }

    /// Binds a scope where the kernel does not carry it.
    pub fn bind_polled(&mut self, pid: u32, start_ns: u64, scope: u64) {
        let seen = scan();
        if let Some(process) = seen.get(&pid).filter(|p| p.start_ns / TICK_NS == start_ns / TICK_NS)
            && self.processes.get_mut(pid, start_ns).is_none()
        {
            let entry = self.entry(process, &seen);
            self.processes.insert(entry);
        }
        if let Some(process) = self.processes.get_mut(pid, start_ns) {
            process.scope = scope;
        }
    }
}

/// The previous round of polling; the flag says that there was none.
pub struct PolledProcesses(BTreeMap<u32, Seen>, bool);

impl Default for PolledProcesses {
    fn default() -> Self {
        PolledProcesses(BTreeMap::new(), true)
    }
}
