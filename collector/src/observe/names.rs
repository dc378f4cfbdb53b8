//! Kernel numbers and bytes as the words that events carry.

use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::kernel::{FlowDirection, RecordKind, exec_flags as exec, missing};

/// Longest text taken from the kernel, bytes; the catalogue's bound for names.
const TEXT_BYTES_MAX: usize = 256;

/// Bytes of a path component as text; what is not UTF-8 is replaced, visibly.
pub(super) fn text(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    while text.len() > TEXT_BYTES_MAX {
        text.pop();
    }
    text
}

/// Last component of a path.
pub(super) fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// Symbolic errno.
pub(super) fn errno(number: u32) -> String {
    match i32::try_from(number).map(Errno::from_raw) {
        Ok(Errno::UnknownErrno) | Err(_) => format!("E{number}"),
        Ok(errno) => format!("{errno:?}"),
    }
}

/// Signal name, `SIGRTMIN+n` for real-time ones.
pub(super) fn signal(number: u32) -> String {
    const SIGRTMIN: u32 = 32;
    match i32::try_from(number).ok().and_then(|n| Signal::try_from(n).ok()) {
        Some(signal) => signal.as_str().to_owned(),
        None if number >= SIGRTMIN => format!("SIGRTMIN+{}", number - SIGRTMIN),
        None => format!("SIG{number}"),
    }
}

pub(super) fn direction(direction: FlowDirection) -> &'static str {
    match direction {
        FlowDirection::Outbound => "outbound",
        FlowDirection::Inbound => "inbound",
        FlowDirection::Unknown => "unknown",
    }
}

/// Event names that records of a kind become: what is missing when they are lost.
pub(super) fn events_of(kind: RecordKind) -> &'static [&'static str] {
    match kind {
        RecordKind::Fork => &["process.started"],
        RecordKind::Exec => &["process.exec"],
        RecordKind::ExecFailed => &["process.exec_failed"],
        RecordKind::Exit => &["process.exited"],
        RecordKind::Flow => &["network.flow.started", "network.flow.closed"],
        RecordKind::Listen => &["network.listen"],
        RecordKind::UdpFlow => &["network.flow.closed"],
        RecordKind::Scope => &["agent.scope.opened"],
        RecordKind::Cgroup => &[],
    }
}

pub(super) fn exec_flags(flags: u32, lacking: u32) -> Vec<&'static str> {
    let table = [
        (exec::SECURE, "secure_exec"),
        (exec::NON_LEADER, "non_leader"),
        (exec::PATH_TRUNCATED, "path_truncated"),
        (exec::INTERPRETER_TRUNCATED, "interpreter_truncated"),
    ];
    let mut out: Vec<&'static str> =
        table.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, n)| *n).collect();
    out.extend(missing_flags(lacking));
    out
}

/// Values that the kernel side could not read.
pub(super) fn missing_flags(lacking: u32) -> Vec<&'static str> {
    let table = [
        (missing::CGROUP, "no_cgroup"),
        (missing::START, "no_start_time"),
        (missing::PARENT, "no_parent"),
        (missing::FILE, "no_file"),
        (missing::ARGUMENTS, "no_arguments"),
        (missing::CPU_TIME, "no_cpu_time"),
        (missing::RSS, "no_rss"),
        (missing::EXIT_CODE, "no_exit_code"),
    ];
    table.iter().filter(|(bit, _)| lacking & bit != 0).map(|(_, name)| *name).collect()
}
