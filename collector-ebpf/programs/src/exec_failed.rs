//! Failed execve and execveat. The path is kept at entry, since another thread can overwrite it before the
//! call returns; one that is not resident yet is read at exit, and says so.

use activity_ebpf_abi::records::{ExecFailedBody, exec_failed_flags, missing};
use activity_ebpf_abi::{LossReason, RecordKind};
use aya_ebpf::macros::tracepoint;
use aya_ebpf::programs::TracePointContext;

use crate::loss::{PROCESS, emit, lost, record_lost};
use crate::maps::{EXEC_ATTEMPTS, EXEC_FAILED_SCRATCH, ExecAttempt};
use crate::offset;
use crate::read::{at, field, opaque, string_tail};
use crate::task;

/// Offsets in `events/syscalls/sys_enter_*/format`: 8 is the number, arguments are words from 16 on.
const ARGUMENTS: usize = 16;
const RESULT: usize = 16;

#[tracepoint(category = "syscalls", name = "sys_enter_execve")]
pub fn enter_execve(ctx: TracePointContext) -> u32 {
    enter(field(&ctx, ARGUMENTS), 0)
}

#[tracepoint(category = "syscalls", name = "sys_enter_execveat")]
pub fn enter_execveat(ctx: TracePointContext) -> u32 {
    enter(field(&ctx, ARGUMENTS + 8), exec_failed_flags::EXECVEAT)
}

#[tracepoint(category = "syscalls", name = "sys_exit_execve")]
pub fn exit_execve(ctx: TracePointContext) -> u32 {
    leave(field(&ctx, RESULT))
}

#[tracepoint(category = "syscalls", name = "sys_exit_execveat")]
pub fn exit_execveat(ctx: TracePointContext) -> u32 {
    leave(field(&ctx, RESULT))
}

#[inline(always)]
fn enter(path_pointer: u64, flags: u32) -> u32 {
    let mut attempt = ExecAttempt {
        path_pointer,
        euid: 0,
        egid: 0,
        path_length: ExecAttempt::UNREAD,
        flags,
        path: [0; 256],
    };
    (attempt.euid, attempt.egid) = effective_ids().unwrap_or((u32::MAX, u32::MAX));
    if let Some((length, truncated)) = string_tail(attempt.path.as_mut_ptr(), path_pointer, true) {
        attempt.path_length = length;
        if truncated {
            attempt.flags |= exec_failed_flags::PATH_TRUNCATED;
        }
    }
    let key = task::pid_tgid();
    if EXEC_ATTEMPTS.insert(&key, &attempt, 0).is_err() {
        let cgroup_id = task::current_cgroup(task::current()).unwrap_or(0);
        lost(RecordKind::ExecFailed, LossReason::MapFull, cgroup_id);
    }
    0
}

/// Effective ids of the current task.
#[inline(always)]
pub fn effective_ids() -> Option<(u32, u32)> {
    let cred: u64 = at(task::current(), offset!(task_cred))?;
    Some((at(cred, offset!(cred_euid))?, at(cred, offset!(cred_egid))?))
}

#[inline(always)]
fn leave(result: i64) -> u32 {
    let key = task::pid_tgid();
    if result >= 0 {
        // Usually gone already: the exec program removes it.
        let _ = EXEC_ATTEMPTS.remove(&key);
        return 0;
    }
    let Some(scratch) = EXEC_FAILED_SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: a non-null map value of this CPU; `users` tells whether somebody else is in the middle of it.
    unsafe {
        if (*scratch).users != 0 {
            let cgroup_id = task::current_cgroup(task::current()).unwrap_or(0);
            record_lost(RecordKind::ExecFailed, LossReason::Nested, cgroup_id);
            let _ = EXEC_ATTEMPTS.remove(&key);
            return 0;
        }
        (*scratch).users = 1;
        let header = &raw mut (*scratch).header;
        header.write(task::header(RecordKind::ExecFailed, 0));
        let mut body = ExecFailedBody { errno: (-result) as u32, flags: 0, path_length: 0, reserved: [0; 3] };
        let text = (&raw mut (*scratch).text).cast::<u8>();
        let mut read = false;
        if let Some(attempt) = EXEC_ATTEMPTS.get_ptr(&key) {
            body.flags = (*attempt).flags;
            if (*attempt).path_length == ExecAttempt::UNREAD {
                if let Some((length, truncated)) = string_tail(text, (*attempt).path_pointer, true) {
                    body.path_length = length as u16;
                    body.flags |= exec_failed_flags::READ_AT_EXIT;
                    if truncated {
                        body.flags |= exec_failed_flags::PATH_TRUNCATED;
                    }
                    read = true;
                }
            } else {
                body.path_length = ((*attempt).path_length & 0xff) as u16;
                core::ptr::copy_nonoverlapping(
                    (&raw const (*attempt).path).cast::<u64>(),
                    text.cast::<u64>(),
                    32,
                );
                read = true;
            }
        }
        if !read {
            (*header).missing |= missing::PATH;
        }
        let length = opaque(u64::from(body.path_length)) & 0xff;
        let total = length + activity_ebpf_abi::records::EXEC_FAILED_BYTES_MIN as u64;
        (*header).length = total as u32;
        (&raw mut (*scratch).body).write(body);
        emit(PROCESS, RecordKind::ExecFailed, (*header).cgroup_id, scratch.cast(), total);
        (*scratch).users = 0;
    }
    let _ = EXEC_ATTEMPTS.remove(&key);
    0
}
