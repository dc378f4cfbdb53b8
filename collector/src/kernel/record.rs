//! Records as the rest of the collector sees them, and their decoder: a total function on arbitrary bytes.
#![allow(unsafe_code, reason = "copies plain integers out of checked byte ranges")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use activity_ebpf_abi::records::{
    AF_INET, AF_INET6, CgroupBody, ExecBody, ExecFailedBody, ExitBody, FlowBody, FlowDirection, FlowPhase,
    ForkBody, HEADER_BYTES, Header, exec_failed_flags, exec_flags, flow_flags, missing,
};
use activity_ebpf_abi::{ABI_VERSION, RecordKind};
use thiserror::Error;

use super::ring::page_bytes;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("record of {length} bytes is shorter than its {needed} bytes")]
    Short { length: usize, needed: usize },
    #[error("record has ABI version {found}, this collector reads {ABI_VERSION}")]
    Version { found: u16 },
    #[error("record has unknown kind {0}")]
    Kind(u8),
    #[error("record says that it has {said} bytes and has {length}")]
    Length { said: u32, length: usize },
    #[error("record has the impossible value {value} for {field}")]
    Value { field: &'static str, value: u32 },
}

/// A record of a ring.
#[derive(Debug, Clone, PartialEq)]
pub enum Record<'a> {
    Fork(ForkRecord),
    Exec(ExecRecord<'a>),
    ExecFailed(ExecFailedRecord<'a>),
    Exit(ExitRecord),
    Flow(FlowRecord),
    Listen(FlowRecord),
    Cgroup(CgroupRecord<'a>),
}

impl Record<'_> {
    #[must_use]
    pub fn kind(&self) -> RecordKind {
        match self {
            Self::Fork(_) => RecordKind::Fork,
            Self::Exec(_) => RecordKind::Exec,
            Self::ExecFailed(_) => RecordKind::ExecFailed,
            Self::Exit(_) => RecordKind::Exit,
            Self::Flow(_) => RecordKind::Flow,
            Self::Listen(_) => RecordKind::Listen,
            Self::Cgroup(_) => RecordKind::Cgroup,
        }
    }

    #[must_use]
    pub fn common(&self) -> &Common {
        match self {
            Self::Fork(record) => &record.common,
            Self::Exec(record) => &record.common,
            Self::ExecFailed(record) => &record.common,
            Self::Exit(record) => &record.common,
            Self::Flow(record) | Self::Listen(record) => &record.common,
            Self::Cgroup(record) => &record.common,
        }
    }

    pub(super) fn common_mut(&mut self) -> &mut Common {
        match self {
            Self::Fork(record) => &mut record.common,
            Self::Exec(record) => &mut record.common,
            Self::ExecFailed(record) => &mut record.common,
            Self::Exit(record) => &mut record.common,
            Self::Flow(record) | Self::Listen(record) => &mut record.common,
            Self::Cgroup(record) => &mut record.common,
        }
    }
}

/// What every record has. The process is the one that the record is about: a fork's child, a flow's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Common {
    /// `CLOCK_BOOTTIME` at the event.
    pub ktime_boot_ns: u64,
    pub cgroup_id: u64,
    pub tgid: u32,
    /// The thread; equal to `tgid` in forks and exits.
    pub pid: u32,
    /// `start_boottime` of the group's leader; with `tgid` and the boot this identifies the process.
    pub start_boottime_ns: u64,
    /// 0 is "no scope".
    pub scope: u64,
    /// Real ids in the initial user namespace.
    pub uid: u32,
    pub gid: u32,
    pub cpu: u32,
    /// Bits of [`activity_ebpf_abi::records::missing`]: values that hold 0 because they could not be read.
    pub missing: u32,
    /// The record is about a process that the collector made to see whether its probes still fire.
    pub canary: bool,
}

impl Common {
    #[must_use]
    pub fn lacks(&self, flag: u32) -> bool {
        self.missing & flag != 0
    }
}

/// A new thread group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkRecord {
    pub common: Common,
    /// The process that forked, whoever is the parent later.
    pub parent_tgid: u32,
    pub parent_pid: u32,
    pub parent_start_boottime_ns: u64,
    /// Not `parent_tgid` with `CLONE_PARENT` only.
    pub real_parent_tgid: u32,
    pub ns_pid: u32,
    pub session: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecutableClass {
    File,
    Memfd,
    Deleted,
    Shm,
    Interpreter,
}

impl ExecutableClass {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memfd => "memfd",
            Self::Deleted => "deleted",
            Self::Shm => "shm",
            Self::Interpreter => "interpreter",
        }
    }
}

/// A successful execve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecRecord<'a> {
    pub common: Common,
    /// The path that was asked for (a script's own); its last 255 bytes if [`Self::path_truncated`].
    pub path: &'a [u8],
    /// For a script, the interpreter that runs it.
    pub interpreter: &'a [u8],
    /// Name of the mapped file in its directory (a symbolic link's target, a script's interpreter).
    pub file_name: &'a [u8],
    /// Last component of the mount point that the file is below.
    pub mount_point: &'a [u8],
    pub class: ExecutableClass,
    /// Bits of [`exec_flags`].
    pub flags: u32,
    pub inode: u64,
    pub device_major: u32,
    pub device_minor: u32,
    pub superblock_magic: u32,
    pub links: u32,
    pub argc: u32,
    pub argv_bytes: u64,
    /// The calling thread before it took the leader's id.
    pub old_pid: u32,
    pub euid: u32,
    pub egid: u32,
    pub parent_tgid: u32,
    pub ns_pid: u32,
    pub session: u32,
}

impl<'a> ExecRecord<'a> {
    /// Name of what was run: the path's last component, or the file's own name when the path only names a
    /// descriptor.
    #[must_use]
    pub fn basename(&self) -> &'a [u8] {
        if self.path.is_empty() || self.path.starts_with(b"/dev/fd/") {
            self.file_name
        } else {
            last(self.path)
        }
    }

    #[must_use]
    pub fn path_truncated(&self) -> bool {
        self.flags & exec_flags::PATH_TRUNCATED != 0
    }

    #[must_use]
    pub fn credentials_changed(&self) -> bool {
        self.flags & exec_flags::CREDENTIALS_CHANGED != 0
    }
}

/// Where a path points, told from its text alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathClass {
    Absolute,
    Relative,
    /// Below `/dev/shm`.
    Shm,
    /// A descriptor: empty, `/proc/…/fd/…` or `/dev/fd/…`.
    Descriptor,
}

impl PathClass {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absolute => "absolute",
            Self::Relative => "relative",
            Self::Shm => "shm",
            Self::Descriptor => "descriptor",
        }
    }

    #[must_use]
    pub fn of(path: &[u8]) -> Self {
        let in_proc = path.starts_with(b"/proc/") && path.windows(4).any(|part| part == b"/fd/");
        if path.is_empty() || path.starts_with(b"/dev/fd/") || in_proc {
            Self::Descriptor
        } else if path.starts_with(b"/dev/shm/") {
            Self::Shm
        } else if path.starts_with(b"/") {
            Self::Absolute
        } else {
            Self::Relative
        }
    }
}

/// An execve that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecFailedRecord<'a> {
    pub common: Common,
    /// Positive.
    pub errno: u32,
    /// The path that was asked for, its last 255 bytes if truncated; empty when it could not be read.
    pub path: &'a [u8],
    pub path_truncated: bool,
    /// Read after the attempt, when another thread could have changed it.
    pub path_read_late: bool,
    pub execveat: bool,
}

impl<'a> ExecFailedRecord<'a> {
    #[must_use]
    pub fn basename(&self) -> &'a [u8] {
        last(self.path)
    }

    #[must_use]
    pub fn path_class(&self) -> PathClass {
        PathClass::of(self.path)
    }
}

/// The end of a thread group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitRecord {
    pub common: Common,
    /// As `wait(2)` reports it.
    pub exit_code: u32,
    pub cpu_user_ns: u64,
    pub cpu_system_ns: u64,
    pub max_rss_bytes: u64,
    /// The real parent now, which may be a reaper.
    pub parent_tgid: u32,
}

impl ExitRecord {
    /// The argument of exit, unless a signal ended the process.
    #[must_use]
    pub fn status(&self) -> Option<u8> {
        (self.exit_code & 0x7f == 0).then_some(((self.exit_code >> 8) & 0xff) as u8)
    }

    #[must_use]
    pub fn signal(&self) -> Option<u8> {
        let signal = (self.exit_code & 0x7f) as u8;
        (signal != 0).then_some(signal)
    }

    #[must_use]
    pub fn core_dumped(&self) -> bool {
        self.exit_code & 0x80 != 0
    }

    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.common.ktime_boot_ns.saturating_sub(self.common.start_boottime_ns)
    }
}

/// How a TCP flow stands or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpResult {
    Open,
    Completed,
    Refused,
    Reset,
    Timeout,
    Unreachable,
    /// Given up on this side.
    Aborted,
    Error(u16),
}

impl TcpResult {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Completed => "completed",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Aborted => "aborted",
            Self::Error(_) => "error",
        }
    }
}

/// A phase of a TCP flow, or a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRecord {
    pub common: Common,
    /// The same in all records of a flow; 0 when it began before the programs were there.
    pub flow_id: u64,
    pub first_seen_ns: u64,
    pub phase: FlowPhase,
    pub direction: FlowDirection,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Payload acknowledged or in flight, each byte once.
    pub bytes_sent: u64,
    pub bytes_retransmitted: u64,
    pub bytes_received: u64,
    pub segments_out: u32,
    pub segments_in: u32,
    pub result: TcpResult,
    pub established: bool,
    /// Inode of the network namespace.
    pub net_namespace: u32,
}

impl FlowRecord {
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        if self.flow_id == 0 { 0 } else { self.common.ktime_boot_ns.saturating_sub(self.first_seen_ns) }
    }
}

/// A new cgroup of the v2 hierarchy: `common.cgroup_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupRecord<'a> {
    pub common: Common,
    /// Below the hierarchy's root, as the kernel has it.
    pub path: &'a [u8],
    /// [`Self::path`] has only its beginning.
    pub path_truncated: bool,
}

/// Decodes one record. Never panics, whatever the bytes are.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let header: Header = plain(bytes, 0)?;
    if header.abi_version != ABI_VERSION {
        return Err(DecodeError::Version { found: header.abi_version });
    }
    if usize::try_from(header.length).ok() != Some(bytes.len()) {
        return Err(DecodeError::Length { said: header.length, length: bytes.len() });
    }
    let common = Common {
        ktime_boot_ns: header.ktime_boot_ns,
        cgroup_id: header.cgroup_id,
        tgid: header.tgid,
        pid: header.pid,
        start_boottime_ns: header.start_boottime_ns,
        scope: header.scope,
        uid: header.uid,
        gid: header.gid,
        cpu: header.cpu,
        missing: header.missing,
        canary: false,
    };
    let kind = RecordKind::from_u8(header.kind);
    let may_lack_owner = matches!(kind, Some(RecordKind::Flow | RecordKind::Listen));
    if !may_lack_owner && (common.tgid == 0 || common.lacks(missing::OWNER)) {
        return Err(DecodeError::Value { field: "tgid", value: common.tgid });
    }
    match kind {
        Some(RecordKind::Fork) => fork(common, bytes),
        Some(RecordKind::Exec) => exec(common, bytes),
        Some(RecordKind::ExecFailed) => exec_failed(common, bytes),
        Some(RecordKind::Exit) => exit(common, bytes),
        Some(RecordKind::Flow) => flow(common, bytes).map(Record::Flow),
        Some(RecordKind::Listen) => flow(common, bytes).map(Record::Listen),
        Some(RecordKind::Cgroup) => cgroup(common, bytes),
        Some(RecordKind::UdpFlow | RecordKind::Scope) | None => Err(DecodeError::Kind(header.kind)),
    }
}

fn fork(common: Common, bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let body: ForkBody = plain(bytes, HEADER_BYTES)?;
    Ok(Record::Fork(ForkRecord {
        common,
        parent_tgid: body.parent_tgid,
        parent_pid: body.parent_pid,
        parent_start_boottime_ns: body.parent_start_boottime_ns,
        real_parent_tgid: body.real_parent_tgid,
        ns_pid: body.ns_pid,
        session: body.session,
    }))
}

fn exec(common: Common, bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let body: ExecBody = plain(bytes, HEADER_BYTES)?;
    let mut text = Text { bytes, at: HEADER_BYTES + size_of::<ExecBody>() };
    let path = text.take(body.path_length)?;
    let interpreter = text.take(body.interpreter_length)?;
    let file_name = text.take(body.name_length)?;
    let mount_point = text.take(body.mount_length)?;
    let class = executable_class(&body, file_name, mount_point);
    Ok(Record::Exec(ExecRecord {
        common,
        path,
        interpreter,
        file_name,
        mount_point,
        class,
        flags: body.flags,
        inode: body.inode,
        // MKDEV() in include/linux/kdev_t.h.
        device_major: body.device >> 20,
        device_minor: body.device & 0xf_ffff,
        superblock_magic: body.superblock_magic,
        links: body.links,
        argc: body.argc,
        argv_bytes: body.argv_bytes,
        old_pid: body.old_pid,
        euid: body.euid,
        egid: body.egid,
        parent_tgid: body.parent_tgid,
        ns_pid: body.ns_pid,
        session: body.session,
    }))
}

/// include/uapi/linux/magic.h.
const TMPFS_MAGIC: u32 = 0x0102_1994;
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

fn executable_class(body: &ExecBody, file_name: &[u8], mount_point: &[u8]) -> ExecutableClass {
    let has = |flag| body.flags & flag != 0;
    let tmpfs = body.superblock_magic == TMPFS_MAGIC;
    // The name alone proves nothing: any unlinked file may be called so, but not on a mount of the kernel's own.
    let memfd = has(exec_flags::INTERNAL_MOUNT)
        && (tmpfs || body.superblock_magic == HUGETLBFS_MAGIC)
        && file_name.starts_with(b"memfd:");
    if memfd {
        ExecutableClass::Memfd
    } else if body.links == 0 && body.inode != 0 {
        ExecutableClass::Deleted
    } else if tmpfs && (mount_point == b"shm" || has(exec_flags::BELOW_SHM)) {
        ExecutableClass::Shm
    } else if has(exec_flags::INTERPRETER) {
        ExecutableClass::Interpreter
    } else {
        ExecutableClass::File
    }
}

fn exec_failed(common: Common, bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let body: ExecFailedBody = plain(bytes, HEADER_BYTES)?;
    let mut text = Text { bytes, at: HEADER_BYTES + size_of::<ExecFailedBody>() };
    Ok(Record::ExecFailed(ExecFailedRecord {
        common,
        errno: body.errno,
        path: text.take(body.path_length)?,
        path_truncated: body.flags & exec_failed_flags::PATH_TRUNCATED != 0,
        path_read_late: body.flags & exec_failed_flags::READ_AT_EXIT != 0,
        execveat: body.flags & exec_failed_flags::EXECVEAT != 0,
    }))
}

fn cgroup(common: Common, bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let body: CgroupBody = plain(bytes, HEADER_BYTES)?;
    let mut text = Text { bytes, at: HEADER_BYTES + size_of::<CgroupBody>() };
    let path = text.take(body.path_length)?;
    Ok(Record::Cgroup(CgroupRecord { common, path, path_truncated: body.path_truncated != 0 }))
}

fn exit(common: Common, bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let body: ExitBody = plain(bytes, HEADER_BYTES)?;
    let (cpu_user_ns, cpu_system_ns) = split_runtime(body.utime_ns, body.stime_ns, body.runtime_ns);
    Ok(Record::Exit(ExitRecord {
        common,
        exit_code: body.exit_code,
        cpu_user_ns,
        cpu_system_ns,
        max_rss_bytes: body.max_rss_pages.saturating_mul(page_bytes() as u64),
        parent_tgid: body.parent_tgid,
    }))
}

/// Divides the precise run time in the ratio of the tick samples, as `getrusage(2)` does (cputime_adjust() in
/// kernel/sched/cputime.c).
fn split_runtime(utime: u64, stime: u64, runtime: u64) -> (u64, u64) {
    if runtime == 0 {
        return (utime, stime);
    }
    if stime == 0 {
        return (runtime, 0);
    }
    if utime == 0 {
        return (0, runtime);
    }
    let samples = u128::from(utime) + u128::from(stime);
    let system = u64::try_from(u128::from(runtime) * u128::from(stime) / samples).unwrap_or(runtime);
    (runtime - system.min(runtime), system)
}

fn flow(common: Common, bytes: &[u8]) -> Result<FlowRecord, DecodeError> {
    let body: FlowBody = plain(bytes, HEADER_BYTES)?;
    let phase = FlowPhase::from_u8(body.phase)
        .ok_or(DecodeError::Value { field: "phase", value: u32::from(body.phase) })?;
    let address = |bytes: &[u8; 16], port| {
        socket_address(body.family, bytes, port)
            .ok_or(DecodeError::Value { field: "family", value: u32::from(body.family) })
    };
    // tcp_sock counts the FIN's sequence number as a byte received.
    let finished = u64::from(body.flags & flow_flags::PEER_FINISHED != 0 && body.bytes_received > 0);
    Ok(FlowRecord {
        common,
        flow_id: body.flow_id,
        first_seen_ns: body.first_seen_ns,
        phase,
        direction: FlowDirection::from_u8(body.direction),
        local: address(&body.local_address, body.local_port)?,
        peer: address(&body.peer_address, body.peer_port)?,
        bytes_sent: body.bytes_sent.saturating_sub(body.bytes_retransmitted),
        bytes_retransmitted: body.bytes_retransmitted,
        bytes_received: body.bytes_received - finished,
        segments_out: body.segments_out,
        segments_in: body.segments_in,
        result: result(phase, &body),
        established: body.flags & flow_flags::ESTABLISHED != 0,
        net_namespace: body.net_namespace,
    })
}

/// The result from the error on the socket and the state that it left (include/net/tcp_states.h, errno(3)).
fn result(phase: FlowPhase, body: &FlowBody) -> TcpResult {
    const ESTABLISHED: u8 = 1;
    const CLOSE_WAIT: u8 = 8;
    if phase != FlowPhase::Closed {
        return TcpResult::Open;
    }
    match body.socket_error {
        0 => match body.old_state {
            // Still open when it was closed: a reset was sent, or the peer's data was never read.
            ESTABLISHED | CLOSE_WAIT => TcpResult::Aborted,
            _ if body.flags & flow_flags::ESTABLISHED == 0 && body.flow_id != 0 => TcpResult::Aborted,
            _ => TcpResult::Completed,
        },
        111 => TcpResult::Refused,
        104 | 32 => TcpResult::Reset,
        110 => TcpResult::Timeout,
        101 | 113 => TcpResult::Unreachable,
        other => TcpResult::Error(other),
    }
}

/// An address as the programs write it; IPv4-mapped ones come out as IPv4.
pub(super) fn socket_address(family: u16, bytes: &[u8; 16], port: u16) -> Option<SocketAddr> {
    let address = match family {
        AF_INET => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        AF_INET6 => IpAddr::V6(Ipv6Addr::from(*bytes)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

struct Text<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Text<'a> {
    fn take(&mut self, length: u16) -> Result<&'a [u8], DecodeError> {
        let end = self.at + usize::from(length);
        let part = self
            .bytes
            .get(self.at..end)
            .ok_or(DecodeError::Short { length: self.bytes.len(), needed: end })?;
        self.at = end;
        Ok(part)
    }
}

/// Structures of integers without padding: any bytes are a value.
///
/// # Safety
/// As the description says.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: repr(C) integers; the ABI crate asserts the sizes, which leave no room for padding.
unsafe impl Plain for Header {}
// SAFETY: see above.
unsafe impl Plain for ForkBody {}
// SAFETY: see above.
unsafe impl Plain for ExecBody {}
// SAFETY: see above.
unsafe impl Plain for ExecFailedBody {}
// SAFETY: see above.
unsafe impl Plain for ExitBody {}
// SAFETY: see above.
unsafe impl Plain for FlowBody {}
// SAFETY: see above.
unsafe impl Plain for CgroupBody {}

pub(super) fn plain<T: Plain>(bytes: &[u8], at: usize) -> Result<T, DecodeError> {
    let end = at + size_of::<T>();
    let part = bytes.get(at..end).ok_or(DecodeError::Short { length: bytes.len(), needed: end })?;
    // SAFETY: `part` has the size of a `T`, and any bytes are one.
    Ok(unsafe { part.as_ptr().cast::<T>().read_unaligned() })
}

/// Whether a value is known, for fields whose 0 could also be a value.
#[must_use]
pub fn known<T>(common: &Common, flag: u32, value: T) -> Option<T> {
    (!common.lacks(flag)).then_some(value)
}

/// The owner of a flow, where one is known.
#[must_use]
pub fn has_owner(common: &Common) -> bool {
    !common.lacks(missing::OWNER)
}
