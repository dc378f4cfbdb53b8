//! New thread groups: `sched_process_fork(struct task_struct *parent, struct task_struct *child)`, called by
//! kernel_clone() before the child can run (kernel/fork.c).

use activity_ebpf_abi::records::{FORK_BYTES, ForkBody, Header, missing};
use activity_ebpf_abi::{ABI_VERSION, LossReason, RecordKind};
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_uid_gid, bpf_get_smp_processor_id,
};
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

use crate::loss::{PROCESS, emit, lost};
use crate::maps::SCOPES;
use crate::offset;
use crate::read::{Missing, at};
use crate::task;

#[repr(C)]
struct ForkRecord {
    header: Header,
    body: ForkBody,
}

#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn on_fork(ctx: RawTracePointContext) -> i32 {
    let parent: u64 = ctx.arg(0);
    let child: u64 = ctx.arg(1);
    let (Some(tgid), Some(pid)) = (at::<u32>(child, offset!(task_tgid)), at::<u32>(child, offset!(task_pid)))
    else {
        return 0;
    };
    // A new thread is no new process.
    if tgid != pid {
        return 0;
    }
    let pid_tgid = task::pid_tgid();
    let parent_tgid = (pid_tgid >> 32) as u32;
    let mut absent = Missing(0);
    // CLONE_INTO_CGROUP: the child's cgroup need not be the parent's.
    let cgroup_id = match task::cgroup_of(child) {
        Some(id) => id,
        None => {
            absent.0 |= missing::CGROUP;
            // SAFETY: a helper without arguments.
            unsafe { bpf_get_current_cgroup_id() }
        }
    };
    // Before the record: whoever reads it finds the scope in place, and the child cannot have run.
    let scope = task::scope_of(parent_tgid);
    if scope != 0 && SCOPES.insert(&tgid, &scope, 0).is_err() {
        lost(RecordKind::Scope, LossReason::MapFull, cgroup_id);
    }
    let start_boottime_ns = absent.or_flag(at(child, offset!(task_start_boottime)), missing::START);
    let body = ForkBody {
        parent_start_boottime_ns: absent.or_flag(task::start_boottime(parent), missing::PARENT),
        parent_tgid,
        parent_pid: pid_tgid as u32,
        real_parent_tgid: absent.or_flag(task::parent_tgid(child), missing::PARENT),
        ns_pid: absent.or_flag(task::ns_pid(child), missing::NS_PID),
        session: absent.or_flag(task::session(child), missing::SESSION),
        reserved: 0,
    };
    // SAFETY: helpers without arguments.
    let (uid_gid, cpu) = unsafe { (bpf_get_current_uid_gid(), bpf_get_smp_processor_id()) };
    let record = ForkRecord {
        header: Header {
            kind: RecordKind::Fork as u8,
            reserved: 0,
            abi_version: ABI_VERSION,
            length: FORK_BYTES as u32,
            ktime_boot_ns: task::now(),
            cgroup_id,
            scope,
            start_boottime_ns,
            tgid,
            pid,
            uid: uid_gid as u32,
            gid: (uid_gid >> 32) as u32,
            cpu,
            missing: absent.0,
        },
        body,
    };
    emit(PROCESS, RecordKind::Fork, cgroup_id, (&raw const record).cast(), FORK_BYTES as u64);
    0
}
