//! The end of a thread group: `sched_process_exit(struct task_struct *task[, bool group_dead])`, called by
//! do_exit() for each thread after its memory is gone and before it leaves its cgroup (kernel/exit.c).

use activity_ebpf_abi::RecordKind;
use activity_ebpf_abi::offsets::ABSENT;
use activity_ebpf_abi::records::{EXIT_BYTES, ExitBody, Header, missing};
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

use crate::loss::{PROCESS, emit};
use crate::maps::{EXITS_SEEN, ExitKey, SCOPES};
use crate::offset;
use crate::read::{Missing, at};
use crate::task;

/// `SIGNAL_GROUP_EXIT` (include/linux/sched/signal.h).
const SIGNAL_GROUP_EXIT: u32 = 4;
/// Threads summed one by one; a group has more only if that many leave at once.
const THREADS_SUMMED_MAX: u32 = 64;

#[repr(C)]
struct ExitRecord {
    header: Header,
    body: ExitBody,
}

#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn on_exit(ctx: RawTracePointContext) -> i32 {
    let current: u64 = ctx.arg(0);
    let Some(signal) = at::<u64>(current, offset!(task_signal)) else { return 0 };
    if offset!(exit_arguments) == 2 {
        let group_dead: u64 = ctx.arg(1);
        if group_dead & 0xff == 0 {
            return 0;
        }
    } else if at::<u32>(signal, offset!(signal_live)) != Some(0) {
        return 0;
    }
    let mut header = task::header(RecordKind::Exit, EXIT_BYTES as u32);
    if offset!(exit_arguments) != 2 {
        let key = ExitKey { start_boottime_ns: header.start_boottime_ns, tgid: u64::from(header.tgid) };
        if EXITS_SEEN.insert(&key, &1, u64::from(BPF_NOEXIST)).is_err() {
            return 0;
        }
    }
    let mut absent = Missing(header.missing);
    // The thread that happens to be last is not what the record is about.
    header.pid = header.tgid;
    let times = group_times(signal);
    let (utime_ns, stime_ns, runtime_ns, threads) = match times {
        Some(times) => times,
        None => {
            absent.0 |= missing::CPU_TIME;
            (0, 0, 0, 0)
        }
    };
    let body = ExitBody {
        utime_ns,
        stime_ns,
        runtime_ns,
        max_rss_pages: absent.or_flag(at(signal, offset!(signal_maxrss)), missing::RSS),
        exit_code: absent.or_flag(exit_code(current, signal), missing::EXIT_CODE),
        parent_tgid: absent.or_flag(task::parent_tgid(current), missing::PARENT),
        threads,
        reserved: 0,
    };
    header.missing = absent.0;
    let (tgid, scope, cgroup_id) = (header.tgid, header.scope, header.cgroup_id);
    let record = ExitRecord { header, body };
    emit(PROCESS, RecordKind::Exit, cgroup_id, (&raw const record).cast(), EXIT_BYTES as u64);
    if scope != 0 {
        // Absent already only if user space unbound it meanwhile.
        let _ = SCOPES.remove(&tgid);
    }
    0
}

/// What wait(2) would tell: see wait_task_zombie() in kernel/exit.c.
#[inline(always)]
fn exit_code(current: u64, signal: u64) -> Option<u32> {
    let flags: u32 = at(signal, offset!(signal_flags))?;
    if flags & SIGNAL_GROUP_EXIT != 0 {
        return at(signal, offset!(signal_group_exit_code));
    }
    let leader: u64 = at(current, offset!(task_group_leader))?;
    at(leader, offset!(task_exit_code))
}

/// User, system and run time of the group: what released threads left in `signal_struct`, and the threads
/// still linked (the last one, and a leader that left earlier).
#[inline(always)]
fn group_times(signal: u64) -> Option<(u64, u64, u64, u32)> {
    let mut utime: u64 = at(signal, offset!(signal_utime))?;
    let mut stime: u64 = at(signal, offset!(signal_stime))?;
    let mut runtime: u64 = at(signal, offset!(signal_runtime))?;
    let (head_offset, node_offset) = (offset!(signal_thread_head), offset!(task_thread_node));
    if head_offset == ABSENT || node_offset == ABSENT {
        return None;
    }
    let head = signal + u64::from(head_offset);
    let mut node: u64 = at(head, 0)?;
    let mut threads = 0;
    for _ in 0..THREADS_SUMMED_MAX {
        if node == head {
            return Some((utime, stime, runtime, threads));
        }
        let thread = node - u64::from(node_offset);
        utime += at::<u64>(thread, offset!(task_utime))?;
        stime += at::<u64>(thread, offset!(task_stime))?;
        runtime += at::<u64>(thread, offset!(task_runtime))?;
        threads += 1;
        node = at(node, 0)?;
    }
    None
}
