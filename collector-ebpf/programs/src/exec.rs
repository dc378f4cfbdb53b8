//! Successful execs: `sched_process_exec(struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)`,
//! called once the new image is in place (exec_binprm() in fs/exec.c).
//!
//! Counts and sizes of the arguments leave the kernel, their content never does.

use activity_ebpf_abi::offsets::ABSENT;
use activity_ebpf_abi::records::{EXEC_BYTES_MIN, ExecBody, MOUNT_BYTES_MAX, exec_flags, missing};
use activity_ebpf_abi::{LossReason, RecordKind};
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

use crate::exec_failed::effective_ids;
use crate::loss::{emit, record_lost};
use crate::maps::{EXEC_ATTEMPTS, EXEC_SCRATCH, RING_PROCESS};
use crate::offset;
use crate::read::{Missing, STRING_BYTES, at, opaque, string_tail};
use crate::task;

/// `TMPFS_MAGIC` and `HUGETLBFS_MAGIC` (include/uapi/linux/magic.h).
const TMPFS_MAGIC: u32 = 0x0102_1994;
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
/// Directories looked at between a file and the `shm` that may hold it.
const PARENTS_MAX: u32 = 8;

#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn on_exec(ctx: RawTracePointContext) -> i32 {
    let old_pid: u64 = ctx.arg(1);
    let bprm: u64 = ctx.arg(2);
    let old_pid = old_pid as u32;
    let mut header = task::header(RecordKind::Exec, 0);
    // The attempt was stored under the id that the calling thread had then.
    let attempt_key = (u64::from(header.tgid) << 32) | u64::from(old_pid);
    let Some(scratch) = EXEC_SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: a non-null map value of this CPU; `users` tells whether somebody else is in the middle of it.
    unsafe {
        if (*scratch).users != 0 {
            let _ = EXEC_ATTEMPTS.remove(&attempt_key);
            record_lost(RecordKind::Exec, LossReason::Nested, header.cgroup_id);
            return 0;
        }
        (*scratch).users = 1;
    }
    let mut absent = Missing(header.missing);
    let mut body = ExecBody { old_pid, ..ExecBody::default() };
    credentials(&mut body, attempt_key, bprm, &mut absent);
    let _ = EXEC_ATTEMPTS.remove(&attempt_key);
    if old_pid != header.tgid {
        body.flags |= exec_flags::NON_LEADER;
    }
    arguments(&mut body, bprm, &mut absent);
    let task = task::current();
    body.parent_tgid = absent.or_flag(task::parent_tgid(task), missing::PARENT);
    body.ns_pid = absent.or_flag(task::ns_pid(task), missing::NS_PID);
    body.session = absent.or_flag(task::session(task), missing::SESSION);
    // SAFETY: as above; `text` has room for four strings of STRING_BYTES at the offsets used.
    unsafe {
        let text = (&raw mut (*scratch).text).cast::<u8>();
        let mut used = paths(&mut body, text, bprm, &mut absent);
        used = file(&mut body, text, used, bprm, &mut absent);
        let total = (opaque(used) & 0x3ff) + EXEC_BYTES_MIN as u64;
        header.length = total as u32;
        header.missing = absent.0;
        (&raw mut (*scratch).header).write(header);
        (&raw mut (*scratch).body).write(body);
        emit(&RING_PROCESS, RecordKind::Exec, header.cgroup_id, scratch.cast(), total);
        (*scratch).users = 0;
    }
    0
}

#[inline(always)]
fn credentials(body: &mut ExecBody, attempt_key: u64, bprm: u64, absent: &mut Missing) {
    let Some((euid, egid)) = effective_ids() else {
        absent.0 |= missing::CREDENTIALS;
        return;
    };
    (body.euid, body.egid) = (euid, egid);
    let mut compared = false;
    if let Some(attempt) = EXEC_ATTEMPTS.get_ptr(&attempt_key) {
        // SAFETY: a non-null map value that belongs to this thread.
        let (before_uid, before_gid) = unsafe { ((*attempt).euid, (*attempt).egid) };
        compared = before_uid != u32::MAX;
        if compared && (before_uid != euid || before_gid != egid) {
            body.flags |= exec_flags::CREDENTIALS_CHANGED;
        }
    }
    if !compared {
        absent.0 |= missing::CREDENTIALS;
    }
    let bit = offset!(bprm_secureexec_bit);
    match at::<u8>(bprm, offset!(bprm_secureexec)) {
        Some(byte) if bit < 8 => {
            if (byte >> bit) & 1 != 0 {
                body.flags |= exec_flags::SECURE;
            }
        }
        _ => absent.0 |= missing::CREDENTIALS,
    }
}

#[inline(always)]
fn arguments(body: &mut ExecBody, bprm: u64, absent: &mut Missing) {
    body.argc = absent.or_flag(at::<u32>(bprm, offset!(bprm_argc)), missing::ARGUMENTS);
    let mm = at::<u64>(task::current(), offset!(task_mm)).unwrap_or(0);
    match (at::<u64>(mm, offset!(mm_arg_start)), at::<u64>(mm, offset!(mm_arg_end))) {
        (Some(start), Some(end)) if end >= start => body.argv_bytes = end - start,
        _ => absent.0 |= missing::ARGUMENTS,
    }
}

/// The path that was asked for and, for a script, the interpreter that runs it. Returns the text bytes used.
///
/// # Safety
/// `text` has room for two strings of `STRING_BYTES`.
#[inline(always)]
unsafe fn paths(body: &mut ExecBody, text: *mut u8, bprm: u64, absent: &mut Missing) -> u64 {
    let (Some(filename), Some(interp)) =
        (at::<u64>(bprm, offset!(bprm_filename)), at::<u64>(bprm, offset!(bprm_interp)))
    else {
        absent.0 |= missing::PATH;
        return 0;
    };
    let mut used = 0;
    match string_tail(text, filename, false) {
        Some((length, truncated)) => {
            body.path_length = length as u16;
            used = u64::from(length);
            if truncated {
                body.flags |= exec_flags::PATH_TRUNCATED;
            }
        }
        None => absent.0 |= missing::PATH,
    }
    if interp == filename {
        return used;
    }
    // binfmt_script replaced `interp` (bprm_change_interp); otherwise both are one pointer.
    body.flags |= exec_flags::INTERPRETER;
    let start = opaque(used) & 0xff;
    // SAFETY: start is below STRING_BYTES.
    match string_tail(unsafe { text.add(start as usize) }, interp, false) {
        Some((length, truncated)) => {
            body.interpreter_length = length as u16;
            if truncated {
                body.flags |= exec_flags::INTERPRETER_TRUNCATED;
            }
            start + u64::from(length)
        }
        None => {
            absent.0 |= missing::PATH;
            start
        }
    }
}

/// The file that was mapped: inode, device, class, name. Returns the text bytes used.
///
/// # Safety
/// `text` has room for `STRING_BYTES` and a mount component behind `used`, which is below two `STRING_BYTES`.
#[inline(always)]
unsafe fn file(body: &mut ExecBody, text: *mut u8, used: u64, bprm: u64, absent: &mut Missing) -> u64 {
    let file = at::<u64>(bprm, offset!(bprm_file)).unwrap_or(0);
    let inode = at::<u64>(file, offset!(file_inode)).unwrap_or(0);
    let superblock = at::<u64>(inode, offset!(inode_sb)).unwrap_or(0);
    body.inode = absent.or_flag(at(inode, offset!(inode_ino)), missing::FILE);
    body.links = absent.or_flag(at(inode, offset!(inode_nlink)), missing::FILE);
    body.device = absent.or_flag(at(superblock, offset!(sb_dev)), missing::FILE);
    body.superblock_magic =
        absent.or_flag(at::<u64>(superblock, offset!(sb_magic)), missing::FILE) as u32;
    let dentry = at::<u64>(file, offset!(file_dentry)).unwrap_or(0);
    let mut used = opaque(used) & 0x1ff;
    // SAFETY: see the function's contract.
    let name = unsafe { text.add(used as usize) };
    let length = component(name, STRING_BYTES, dentry);
    if length == 0 {
        absent.0 |= missing::FILE;
    }
    body.name_length = (length & 0xff) as u16;
    // SAFETY: seven bytes inside `text`, whatever was written there.
    let memfd_name = length > 6 && unsafe { starts_with_memfd(name) };
    used += length & 0xff;

    let vfsmount = at::<u64>(file, offset!(file_vfsmount)).unwrap_or(0);
    let mnt = offset!(mount_mnt);
    if vfsmount == 0 || mnt == ABSENT {
        absent.0 |= missing::MOUNT;
    } else {
        let mount = vfsmount - u64::from(mnt);
        let mountpoint = at::<u64>(mount, offset!(mount_mountpoint)).unwrap_or(0);
        let start = opaque(used) & 0x3ff;
        // SAFETY: see the function's contract.
        let place = unsafe { text.add(start as usize) };
        let length = component(place, MOUNT_BYTES_MAX as u32 + 1, mountpoint) & 0x1f;
        body.mount_length = length as u16;
        used = start + length;
        let tmpfs = body.superblock_magic == TMPFS_MAGIC;
        // Kernel-internal mounts have no namespace: NULL or MNT_NS_INTERNAL, an error pointer.
        let internal = match at::<u64>(mount, offset!(mount_ns)) {
            Some(namespace) => namespace == 0 || namespace >= u64::MAX - 4095,
            None => {
                absent.0 |= missing::MOUNT;
                false
            }
        };
        if internal && memfd_name && (tmpfs || body.superblock_magic == HUGETLBFS_MAGIC) {
            body.flags |= exec_flags::MEMFD;
        } else if tmpfs && (is_shm(mountpoint) || below_shm(dentry)) {
            body.flags |= exec_flags::SHM;
        }
    }
    if inode != 0 && body.links == 0 && body.flags & exec_flags::MEMFD == 0 && absent.0 & missing::FILE == 0 {
        body.flags |= exec_flags::DELETED;
    }
    used
}

/// Copies a dentry's name; returns its length without the terminator.
#[inline(always)]
fn component(destination: *mut u8, room: u32, dentry: u64) -> u64 {
    let Some(name) = at::<u64>(dentry, offset!(dentry_name)) else { return 0 };
    // SAFETY: callers give `room` bytes; the helper checks the source.
    let length = unsafe { bpf_probe_read_kernel_str(destination.cast(), room, name as *const _) };
    if length > 0 { (length - 1) as u64 } else { 0 }
}

#[inline(always)]
unsafe fn starts_with_memfd(name: *const u8) -> bool {
    // SAFETY: the caller guarantees six readable bytes.
    unsafe {
        name.read_volatile() == b'm'
            && name.add(1).read_volatile() == b'e'
            && name.add(2).read_volatile() == b'm'
            && name.add(3).read_volatile() == b'f'
            && name.add(4).read_volatile() == b'd'
            && name.add(5).read_volatile() == b':'
    }
}

#[inline(always)]
fn is_shm(dentry: u64) -> bool {
    let Some(name) = at::<u64>(dentry, offset!(dentry_name)) else { return false };
    at::<[u8; 4]>(name, 0) == Some(*b"shm\0")
}

/// Whether a directory `shm` at the top of this file system holds the file: /dev/shm as a plain directory of a
/// tmpfs on /dev.
#[inline(always)]
fn below_shm(dentry: u64) -> bool {
    let mut child = dentry;
    for _ in 0..PARENTS_MAX {
        let Some(parent) = at::<u64>(child, offset!(dentry_parent)) else { return false };
        if parent == child {
            return false;
        }
        let Some(grandparent) = at::<u64>(parent, offset!(dentry_parent)) else { return false };
        if grandparent == parent {
            // `parent` is the root, so `child` is a top-level entry.
            return child != dentry && is_shm(child);
        }
        child = parent;
    }
    false
}
