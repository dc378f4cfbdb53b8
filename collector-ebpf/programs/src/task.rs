//! Facts about a `task_struct`, and the header of a record.

use activity_ebpf_abi::maps::Owner;
use activity_ebpf_abi::offsets::ABSENT;
use activity_ebpf_abi::records::{Header, missing};
use activity_ebpf_abi::{ABI_VERSION, RecordKind};
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_get_current_task, bpf_get_current_uid_gid,
    bpf_get_smp_processor_id, bpf_ktime_get_boot_ns,
};

use crate::maps::{IGNORED, SCOPES};
use crate::offset;
use crate::read::{Missing, at};

#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_boot_ns() }
}

#[inline(always)]
pub fn current() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_task() }
}

#[inline(always)]
pub fn pid_tgid() -> u64 {
    bpf_get_current_pid_tgid_raw()
}

#[inline(always)]
fn bpf_get_current_pid_tgid_raw() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_pid_tgid() }
}

/// Id of the cgroup that names the sandbox: the v2 one, or that of a v1 hierarchy when the loader says so.
#[inline(always)]
pub fn cgroup_of(task: u64) -> Option<u64> {
    let set: u64 = at(task, offset!(task_cgroups))?;
    let subsystem = offset!(cgroup_subsys);
    let cgroup: u64 = if subsystem == ABSENT {
        at(set, offset!(css_set_default))?
    } else {
        let subsys = offset!(css_set_subsys);
        if subsys == ABSENT {
            return None;
        }
        let state: u64 = at(set, subsys + subsystem * 8)?;
        at(state, offset!(css_cgroup))?
    };
    cgroup_id(cgroup)
}

/// Id of a `struct cgroup`.
#[inline(always)]
pub fn cgroup_id(cgroup: u64) -> Option<u64> {
    let node: u64 = at(cgroup, offset!(cgroup_kn))?;
    at(node, offset!(kernfs_id))
}

#[inline(always)]
pub fn current_cgroup(task: u64) -> Option<u64> {
    if offset!(cgroup_subsys) == ABSENT {
        // SAFETY: a helper without arguments.
        return Some(unsafe { bpf_get_current_cgroup_id() });
    }
    cgroup_of(task)
}

#[inline(always)]
pub fn start_boottime(task: u64) -> Option<u64> {
    let leader: u64 = at(task, offset!(task_group_leader))?;
    at(leader, offset!(task_start_boottime))
}

#[inline(always)]
pub fn parent_tgid(task: u64) -> Option<u32> {
    let parent: u64 = at(task, offset!(task_real_parent))?;
    at(parent, offset!(task_tgid))
}

/// Pid of a task in its own pid namespace.
#[inline(always)]
pub fn ns_pid(task: u64) -> Option<u32> {
    let pid: u64 = at(task, offset!(task_thread_pid))?;
    let level: u32 = at(pid, offset!(pid_level))?;
    let (numbers, nr, stride) = (offset!(pid_numbers), offset!(upid_nr), offset!(size_upid));
    if numbers == ABSENT || nr == ABSENT || stride == ABSENT {
        return None;
    }
    at(pid + u64::from(level) * u64::from(stride), numbers + nr)
}

/// Session id of a task in the initial pid namespace.
#[inline(always)]
pub fn session(task: u64) -> Option<u32> {
    let signal: u64 = at(task, offset!(task_signal))?;
    let (pids, sid) = (offset!(signal_pids), offset!(pidtype_sid));
    if pids == ABSENT || sid == ABSENT {
        return None;
    }
    let pid: u64 = at(signal, pids + sid * 8)?;
    let (numbers, nr) = (offset!(pid_numbers), offset!(upid_nr));
    if numbers == ABSENT || nr == ABSENT {
        return None;
    }
    at(pid, numbers + nr)
}

#[inline(always)]
pub fn scope_of(tgid: u32) -> u64 {
    // SAFETY: the value is one word, read once.
    unsafe { SCOPES.get(&tgid) }.copied().unwrap_or(0)
}

/// Header of a record about the current process.
#[inline(always)]
pub fn header(kind: RecordKind, length: u32) -> Header {
    let task = current();
    let mut absent = Missing(0);
    let pid_tgid = pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    // SAFETY: helpers without arguments.
    let (uid_gid, cpu) = unsafe { (bpf_get_current_uid_gid(), bpf_get_smp_processor_id()) };
    let cgroup_id = absent.or_flag(current_cgroup(task), missing::CGROUP);
    let leader: u64 = absent.read(task, offset!(task_group_leader), missing::START);
    let start_boottime_ns: u64 = absent.read(leader, offset!(task_start_boottime), missing::START);
    Header {
        kind: kind as u8,
        reserved: 0,
        abi_version: ABI_VERSION,
        length,
        ktime_boot_ns: now(),
        cgroup_id,
        scope: scope_of(tgid),
        start_boottime_ns,
        tgid,
        pid: pid_tgid as u32,
        uid: uid_gid as u32,
        gid: (uid_gid >> 32) as u32,
        cpu,
        missing: absent.0,
    }
}

/// The current process as the owner of a socket. Uses only helpers that cgroup programs have on 5.10 too.
#[inline(always)]
pub fn owner() -> Owner {
    let task = current();
    let mut absent = Missing(0);
    let tgid: u32 = absent.read(task, offset!(task_tgid), missing::OWNER);
    let pid: u32 = absent.read(task, offset!(task_pid), missing::OWNER);
    let cgroup_id = absent.or_flag(current_cgroup(task), missing::CGROUP);
    let leader: u64 = absent.read(task, offset!(task_group_leader), missing::START);
    let start_boottime_ns: u64 = absent.read(leader, offset!(task_start_boottime), missing::START);
    // SAFETY: a helper without arguments.
    let uid_gid = unsafe { bpf_get_current_uid_gid() };
    // SAFETY: only its presence matters.
    let ignored = unsafe { IGNORED.get(&tgid) }.is_some();
    Owner {
        cgroup_id,
        scope: scope_of(tgid),
        start_boottime_ns,
        tgid,
        pid,
        uid: uid_gid as u32,
        gid: (uid_gid >> 32) as u32,
        missing: absent.0,
        ignored: u32::from(ignored),
    }
}

/// Header of a record about the owner of a socket, wherever the program runs.
#[inline(always)]
pub fn header_for(owner: &Owner, kind: RecordKind, length: u32) -> Header {
    Header {
        kind: kind as u8,
        reserved: 0,
        abi_version: ABI_VERSION,
        length,
        ktime_boot_ns: now(),
        cgroup_id: owner.cgroup_id,
        scope: owner.scope,
        start_boottime_ns: owner.start_boottime_ns,
        tgid: owner.tgid,
        pid: owner.pid,
        uid: owner.uid,
        gid: owner.gid,
        // SAFETY: a helper without arguments.
        cpu: unsafe { bpf_get_smp_processor_id() },
        missing: owner.missing,
    }
}
