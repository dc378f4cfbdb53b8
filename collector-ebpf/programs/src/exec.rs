//! Successful execs: `sched_process_exec(struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)`,
//! called once the new image is in place (exec_binprm() in fs/exec.c).
//!
//! Counts and sizes of the arguments leave the kernel, their content never does.
//!
//! The record is filled in its map value, flags and missing bits included: the verifier then forgets which of
//! the many reads failed, and need not follow every combination.

use activity_ebpf_abi::offsets::ABSENT;
use activity_ebpf_abi::records::{EXEC_BYTES_MIN, ExecBody, MOUNT_BYTES_MAX, exec_flags, missing};
use activity_ebpf_abi::{LossReason, RecordKind};
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

use crate::exec_failed::effective_ids;
use crate::loss::{PROCESS, emit, record_lost};
use crate::maps::{EXEC_ATTEMPTS, EXEC_SCRATCH, ExecScratch};
use crate::offset;
use crate::read::{STRING_BYTES, at, opaque, set_bits, string_tail};
use crate::task;

/// Directories looked at between a file and the `shm` that may hold it.
const PARENTS_MAX: u32 = 8;
/// Mounts on one directory that are looked through.
const STACKED_MAX: u32 = 4;

#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn on_exec(ctx: RawTracePointContext) -> i32 {
    let old_pid: u64 = ctx.arg(1);
    let bprm: u64 = ctx.arg(2);
    let old_pid = old_pid as u32;
    let pid_tgid = task::pid_tgid();
    // The attempt was stored under the id that the calling thread had then.
    let attempt_key = (pid_tgid & !0xffff_ffff) | u64::from(old_pid);
    let Some(scratch) = EXEC_SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: a non-null map value of this CPU; `users` tells whether somebody else is in the middle of it.
    // `text` has room for four strings of STRING_BYTES at the offsets used.
    unsafe {
        if (*scratch).users != 0 {
            let _ = EXEC_ATTEMPTS.remove(&attempt_key);
            let cgroup_id = task::current_cgroup(task::current()).unwrap_or(0);
            record_lost(RecordKind::Exec, LossReason::Nested, cgroup_id);
            return 0;
        }
        (&raw mut (*scratch).users).write_volatile(1);
        (&raw mut (*scratch).header).write(task::header(RecordKind::Exec, 0));
        (&raw mut (*scratch).body).write(ExecBody { old_pid, ..ExecBody::default() });
        let record = Record { scratch };
        if u64::from(old_pid) != pid_tgid >> 32 {
            record.flag(exec_flags::NON_LEADER);
        }
        record.credentials(attempt_key, bprm);
        let _ = EXEC_ATTEMPTS.remove(&attempt_key);
        record.arguments(bprm);
        record.parentage();
        record.identity(bprm);
        let mut used = record.paths(bprm);
        used = record.location(used, bprm);
        let total = (opaque(used) & 0x3ff) + EXEC_BYTES_MIN as u64;
        (&raw mut (*scratch).header.length).write_volatile(total as u32);
        let cgroup_id = (&raw const (*scratch).header.cgroup_id).read_volatile();
        emit(PROCESS, RecordKind::Exec, cgroup_id, scratch.cast(), total);
        (&raw mut (*scratch).users).write_volatile(0);
    }
    0
}

/// The record under construction; `scratch` is a map value of this CPU that is ours.
#[derive(Clone, Copy)]
struct Record {
    scratch: *mut ExecScratch,
}

/// Writes a field of the body.
macro_rules! put {
    ($record:expr, $field:ident, $value:expr) => {{
        let value = $value;
        // SAFETY: see `Record`.
        unsafe { (&raw mut (*$record.scratch).body.$field).write_volatile(value) }
    }};
}

/// Writes a field of the body, or says that it is missing.
macro_rules! put_or_flag {
    ($record:expr, $field:ident, $value:expr, $flag:expr) => {
        match $value {
            Some(value) => put!($record, $field, value),
            None => $record.missing($flag),
        }
    };
}

impl Record {
    #[inline(always)]
    fn flag(self, bits: u32) {
        // SAFETY: see the type.
        unsafe { set_bits(&raw mut (*self.scratch).body.flags, bits) };
    }

    #[inline(always)]
    fn missing(self, bits: u32) {
        // SAFETY: see the type.
        unsafe { set_bits(&raw mut (*self.scratch).header.missing, bits) };
    }

    #[inline(always)]
    fn text(self) -> *mut u8 {
        // SAFETY: see the type.
        unsafe { (&raw mut (*self.scratch).text).cast::<u8>() }
    }

    #[inline(always)]
    fn credentials(self, attempt_key: u64, bprm: u64) {
        match effective_ids() {
            Some((euid, egid)) => {
                put!(self, euid, euid);
                put!(self, egid, egid);
                match EXEC_ATTEMPTS.get_ptr(&attempt_key) {
                    Some(attempt) => {
                        // SAFETY: a non-null map value that belongs to this thread.
                        let (before_uid, before_gid) = unsafe { ((*attempt).euid, (*attempt).egid) };
                        if before_uid != euid || before_gid != egid {
                            self.flag(exec_flags::CREDENTIALS_CHANGED);
                        }
                    }
                    None => self.missing(missing::CREDENTIALS),
                }
            }
            None => self.missing(missing::CREDENTIALS),
        }
        let bit = offset!(bprm_secureexec_bit);
        match at::<u8>(bprm, offset!(bprm_secureexec)) {
            Some(byte) if bit < 8 => {
                if (byte >> bit) & 1 != 0 {
                    self.flag(exec_flags::SECURE);
                }
            }
            _ => self.missing(missing::CREDENTIALS),
        }
    }

    #[inline(always)]
    fn arguments(self, bprm: u64) {
        put_or_flag!(self, argc, at::<u32>(bprm, offset!(bprm_argc)), missing::ARGUMENTS);
        let mm = at::<u64>(task::current(), offset!(task_mm)).unwrap_or(0);
        match (at::<u64>(mm, offset!(mm_arg_start)), at::<u64>(mm, offset!(mm_arg_end))) {
            (Some(start), Some(end)) => put!(self, argv_bytes, end - start),
            _ => self.missing(missing::ARGUMENTS),
        }
    }

    #[inline(always)]
    fn parentage(self) {
        let task = task::current();
        put_or_flag!(self, parent_tgid, task::parent_tgid(task), missing::PARENT);
        put_or_flag!(self, ns_pid, task::ns_pid(task), missing::NS_PID);
        put_or_flag!(self, session, task::session(task), missing::SESSION);
    }

    /// The file that was mapped.
    #[inline(always)]
    fn identity(self, bprm: u64) {
        let file = at::<u64>(bprm, offset!(bprm_file)).unwrap_or(0);
        let inode = at::<u64>(file, offset!(file_inode)).unwrap_or(0);
        let superblock = at::<u64>(inode, offset!(inode_sb)).unwrap_or(0);
        put_or_flag!(self, inode, at::<u64>(inode, offset!(inode_ino)), missing::FILE);
        put_or_flag!(self, links, at::<u32>(inode, offset!(inode_nlink)), missing::FILE);
        put_or_flag!(self, device, at::<u32>(superblock, offset!(sb_dev)), missing::FILE);
        // unsigned long, of which magic numbers fill the lower half.
        put_or_flag!(self, superblock_magic, at::<u32>(superblock, offset!(sb_magic)), missing::FILE);
    }

    /// The path that was asked for and, for a script, the interpreter that runs it. Returns the text bytes used.
    #[inline(always)]
    fn paths(self, bprm: u64) -> u64 {
        let filename = at::<u64>(bprm, offset!(bprm_filename)).unwrap_or(0);
        let interp = at::<u64>(bprm, offset!(bprm_interp)).unwrap_or(0);
        let text = self.text();
        let mut used = 0;
        match string_tail(text, filename, false) {
            Some((length, truncated)) => {
                put!(self, path_length, length as u16);
                used = u64::from(length);
                if truncated {
                    self.flag(exec_flags::PATH_TRUNCATED);
                }
            }
            None => self.missing(missing::PATH),
        }
        if interp == filename {
            return used;
        }
        // binfmt_script replaced `interp` (bprm_change_interp); otherwise both are one pointer.
        self.flag(exec_flags::INTERPRETER);
        let start = opaque(used) & 0xff;
        // SAFETY: start is below STRING_BYTES.
        match string_tail(unsafe { text.add(start as usize) }, interp, false) {
            Some((length, truncated)) => {
                put!(self, interpreter_length, length as u16);
                if truncated {
                    self.flag(exec_flags::INTERPRETER_TRUNCATED);
                }
                start + u64::from(length)
            }
            None => {
                self.missing(missing::PATH);
                start
            }
        }
    }

    /// The file's name and what is known of the place where it lies: what user space needs to tell a memfd and
    /// /dev/shm from other files. `used` is below two STRING_BYTES; returns the text bytes used.
    #[inline(always)]
    fn location(self, used: u64, bprm: u64) -> u64 {
        let file = at::<u64>(bprm, offset!(bprm_file)).unwrap_or(0);
        let dentry = at::<u64>(file, offset!(file_dentry)).unwrap_or(0);
        let used = opaque(used) & 0x1ff;
        // SAFETY: behind two strings there is room for two more.
        let length = component(unsafe { self.text().add(used as usize) }, STRING_BYTES, dentry) & 0xff;
        put!(self, name_length, length as u16);
        let used = used + length;
        let vfsmount = at::<u64>(file, offset!(file_vfsmount)).unwrap_or(0);
        let mnt = offset!(mount_mnt);
        if vfsmount == 0 || mnt == ABSENT {
            self.missing(missing::MOUNT);
            return used;
        }
        let mount = vfsmount - u64::from(mnt);
        match at::<u64>(mount, offset!(mount_ns)) {
            // Kernel-internal mounts have none: NULL or MNT_NS_INTERNAL, an error pointer.
            Some(namespace) => {
                if namespace == 0 || namespace >= u64::MAX - 4095 {
                    self.flag(exec_flags::INTERNAL_MOUNT);
                }
            }
            None => self.missing(missing::MOUNT),
        }
        if below_shm(dentry) {
            self.flag(exec_flags::BELOW_SHM);
        }
        let mountpoint = visible_mountpoint(mount);
        let start = opaque(used) & 0x3ff;
        // SAFETY: as above.
        let place = unsafe { self.text().add(start as usize) };
        let length = component(place, MOUNT_BYTES_MAX as u32 + 1, mountpoint) & 0x1f;
        put!(self, mount_length, length as u16);
        start + length
    }
}

/// The directory that a mount covers; for one stacked on another, the directory below the stack.
#[inline(always)]
fn visible_mountpoint(mount: u64) -> u64 {
    let mut mount = mount;
    let mut mountpoint = 0;
    for _ in 0..STACKED_MAX {
        mountpoint = at::<u64>(mount, offset!(mount_mountpoint)).unwrap_or(0);
        let Some(parent) = at::<u64>(mountpoint, offset!(dentry_parent)) else { break };
        let Some(below) = at::<u64>(mount, offset!(mount_parent)) else { break };
        // Not the root of what it is mounted on, or the root of everything.
        if parent != mountpoint || below == mount {
            break;
        }
        mount = below;
    }
    mountpoint
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
fn is_shm(dentry: u64) -> bool {
    let Some(name) = at::<u64>(dentry, offset!(dentry_name)) else { return false };
    at::<u32>(name, 0) == Some(u32::from_ne_bytes(*b"shm\0"))
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
