//! Records as they lie in a ring: a [`Header`], a fixed body for the kind, then text where the kind has any.

/// Longest path or interpreter kept, without a terminator. Longer ones keep their *end*, so that the
/// basename survives, and carry a truncation flag.
pub const PATH_BYTES_MAX: usize = 255;
/// Longest file name a file system allows (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest mount point component kept; enough to recognise `shm` and `dev`.
pub const MOUNT_BYTES_MAX: usize = 31;

/// Values that could not be read; the field then holds zero, never a guess.
pub mod missing {
    pub const CGROUP: u32 = 1 << 0;
    pub const START: u32 = 1 << 1;
    pub const PARENT: u32 = 1 << 2;
    pub const NS_PID: u32 = 1 << 3;
    pub const SESSION: u32 = 1 << 4;
    pub const FILE: u32 = 1 << 5;
    pub const MOUNT: u32 = 1 << 6;
    pub const PATH: u32 = 1 << 7;
    pub const ARGUMENTS: u32 = 1 << 8;
    pub const CREDENTIALS: u32 = 1 << 9;
    pub const CPU_TIME: u32 = 1 << 10;
    pub const RSS: u32 = 1 << 11;
    pub const EXIT_CODE: u32 = 1 << 12;
    pub const BYTES: u32 = 1 << 13;
    pub const PACKETS: u32 = 1 << 14;
    /// No process is known to own the socket; `tgid` is 0.
    pub const OWNER: u32 = 1 << 15;
    pub const ADDRESS: u32 = 1 << 16;
    pub const RESULT: u32 = 1 << 17;
}

/// First bytes of every record.
///
/// `tgid`, `pid`, `start_boottime_ns`, `uid`, `gid`, `cgroup_id` and `scope` are those of the process that the
/// record is about: the child of a fork, the owner of a flow. `uid` and `gid` are the real ids, in the initial user
/// namespace.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Header {
    pub kind: u8,
    pub reserved: u8,
    pub abi_version: u16,
    /// Bytes of the whole record, this header included.
    pub length: u32,
    pub ktime_boot_ns: u64,
    pub cgroup_id: u64,
    /// 0 is "no scope".
    pub scope: u64,
    /// `start_boottime` of the thread group's leader.
    pub start_boottime_ns: u64,
    pub tgid: u32,
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub cpu: u32,
    /// Bits of [`missing`].
    pub missing: u32,
}

/// A new thread group.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ForkBody {
    /// The process that called fork, whoever becomes the reaper later.
    pub parent_start_boottime_ns: u64,
    pub parent_tgid: u32,
    pub parent_pid: u32,
    /// Differs from `parent_tgid` with `CLONE_PARENT` only.
    pub real_parent_tgid: u32,
    /// Pid in the child's own pid namespace.
    pub ns_pid: u32,
    /// Session id in the initial pid namespace.
    pub session: u32,
    pub reserved: u32,
}

pub mod exec_flags {
    /// The file's mount is in no namespace: a memfd, or another of the kernel's own files.
    pub const INTERNAL_MOUNT: u32 = 1 << 0;
    /// A directory `shm` at the top of the file system holds the file.
    pub const BELOW_SHM: u32 = 1 << 1;
    /// A script: `path` names it, the file is its interpreter.
    pub const INTERPRETER: u32 = 1 << 2;
    /// The effective uid or gid changed with this exec.
    pub const CREDENTIALS_CHANGED: u32 = 1 << 3;
    /// `bprm->secureexec`: ids or capabilities exceed the real user's.
    pub const SECURE: u32 = 1 << 4;
    /// Called by a thread that was not the leader.
    pub const NON_LEADER: u32 = 1 << 5;
    pub const PATH_TRUNCATED: u32 = 1 << 6;
    pub const INTERPRETER_TRUNCATED: u32 = 1 << 7;
}

/// A successful execve. Text: path, interpreter, file name, mount point component.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ExecBody {
    pub inode: u64,
    /// `mm->arg_end - mm->arg_start`.
    pub argv_bytes: u64,
    /// `dev_t` as the kernel keeps it: major << 20 | minor.
    pub device: u32,
    pub superblock_magic: u32,
    pub argc: u32,
    pub links: u32,
    pub flags: u32,
    /// The calling thread's id before it became the leader.
    pub old_pid: u32,
    pub euid: u32,
    pub egid: u32,
    pub parent_tgid: u32,
    pub ns_pid: u32,
    pub session: u32,
    pub path_length: u16,
    pub interpreter_length: u16,
    pub name_length: u16,
    pub mount_length: u16,
    pub reserved: u32,
}

pub mod exec_failed_flags {
    pub const PATH_TRUNCATED: u32 = 1 << 0;
    /// The path was not resident at entry and was read after the attempt.
    pub const READ_AT_EXIT: u32 = 1 << 1;
    /// `execveat` rather than `execve`.
    pub const EXECVEAT: u32 = 1 << 2;
}

/// A failed execve. Text: the path that was asked for.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ExecFailedBody {
    pub errno: u32,
    pub flags: u32,
    pub path_length: u16,
    pub reserved: [u16; 3],
}

/// The last thread of a group is gone.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ExitBody {
    /// Tick-sampled user and system time of the group; [`Self::runtime_ns`] is the precise sum.
    pub utime_ns: u64,
    pub stime_ns: u64,
    /// Scheduler run time of the group, up to the scheduler's last update.
    pub runtime_ns: u64,
    pub max_rss_pages: u64,
    /// As `wait(2)` reports it.
    pub exit_code: u32,
    /// Real parent now: may be a reaper.
    pub parent_tgid: u32,
    /// Threads that were still linked and are summed above; the others are in the group's own totals.
    pub threads: u32,
    pub reserved: u32,
}

/// A new cgroup of the v2 hierarchy: the header's `cgroup_id`, made by the header's process. Text: the first
/// [`PATH_BYTES_MAX`] bytes of its path below the hierarchy's root, zeros behind it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CgroupBody {
    pub path_length: u16,
    /// 1 when the path is longer.
    pub path_truncated: u16,
    pub reserved: u32,
}

/// Phases of a flow that are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FlowPhase {
    /// `connect` was called; the local port may still be 0.
    Connecting = 1,
    Established = 2,
    Closed = 3,
    Listening = 4,
}

impl FlowPhase {
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Connecting,
            2 => Self::Established,
            3 => Self::Closed,
            4 => Self::Listening,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FlowDirection {
    Unknown = 0,
    Outbound = 1,
    Inbound = 2,
}

impl FlowDirection {
    #[must_use]
    pub const fn from_u8(value: u8) -> Self {
        match value {
            1 => Self::Outbound,
            2 => Self::Inbound,
            _ => Self::Unknown,
        }
    }
}

pub mod flow_flags {
    /// The three-way handshake was completed.
    pub const ESTABLISHED: u8 = 1 << 0;
    /// The peer's FIN was received.
    pub const PEER_FINISHED: u8 = 1 << 1;
    /// A socket of a process whose flows are ignored; never leaves the kernel.
    pub const IGNORED: u8 = 1 << 2;
}

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;

/// A phase of a TCP flow, or a listening socket.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FlowBody {
    /// The same in every record of one flow; 0 for a flow older than the programs.
    pub flow_id: u64,
    /// First seen, boot clock.
    pub first_seen_ns: u64,
    /// Payload bytes, retransmissions included.
    pub bytes_sent: u64,
    pub bytes_retransmitted: u64,
    /// As `tcp_sock` counts them: one more than the payload once [`flow_flags::PEER_FINISHED`].
    pub bytes_received: u64,
    pub segments_out: u32,
    pub segments_in: u32,
    /// Inode of the network namespace.
    pub net_namespace: u32,
    pub local_port: u16,
    pub peer_port: u16,
    /// `AF_INET`: the first four bytes; `AF_INET6`: all sixteen.
    pub local_address: [u8; 16],
    pub peer_address: [u8; 16],
    pub family: u16,
    /// `sk_err` at the transition.
    pub socket_error: u16,
    pub phase: u8,
    pub direction: u8,
    pub old_state: u8,
    pub flags: u8,
}

pub const HEADER_BYTES: usize = size_of::<Header>();
pub const FORK_BYTES: usize = HEADER_BYTES + size_of::<ForkBody>();
pub const EXEC_BYTES_MIN: usize = HEADER_BYTES + size_of::<ExecBody>();
pub const EXEC_FAILED_BYTES_MIN: usize = HEADER_BYTES + size_of::<ExecFailedBody>();
pub const EXIT_BYTES: usize = HEADER_BYTES + size_of::<ExitBody>();
pub const CGROUP_BYTES: usize = HEADER_BYTES + size_of::<CgroupBody>() + PATH_BYTES_MAX + 1;
pub const FLOW_BYTES: usize = HEADER_BYTES + size_of::<FlowBody>();

const _: () = {
    assert!(HEADER_BYTES == 64);
    assert!(size_of::<ForkBody>() == 32);
    assert!(size_of::<ExecBody>() == 72);
    assert!(size_of::<ExecFailedBody>() == 16);
    assert!(size_of::<ExitBody>() == 48);
    assert!(size_of::<CgroupBody>() == 8);
    assert!(size_of::<FlowBody>() == 96);
};
