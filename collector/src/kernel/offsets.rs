//! Fills the programs' offset table from the running kernel's BTF, and says what each class loses without a field.

use std::collections::BTreeSet;

use activity_ebpf_abi::RecordKind;
use activity_ebpf_abi::offsets::{ABSENT, Offsets};

use super::btf::Btf;

/// Names of the types that [`resolve`] looks up.
pub(super) fn wanted() -> BTreeSet<&'static str> {
    let mut names: BTreeSet<&str> = Offsets::FIELDS
        .iter()
        .map(|&(_, structure, _)| structure.strip_prefix("enum ").unwrap_or(structure))
        .collect();
    names.insert("btf_trace_sched_process_exit");
    names
}

/// Every field that this kernel has; the others stay [`ABSENT`].
pub(super) fn resolve(btf: &Btf) -> Offsets {
    let mut words = Offsets::ABSENT.to_words();
    for (word, &(_, structure, path)) in words.iter_mut().zip(Offsets::FIELDS.iter()) {
        *word = field(btf, structure, path).unwrap_or(ABSENT);
    }
    Offsets::from_words(&words)
}

fn field(btf: &Btf, structure: &str, path: &str) -> Option<u32> {
    if let Some(enumeration) = structure.strip_prefix("enum ") {
        return if path.is_empty() { None } else { btf.enumerator(enumeration, path) };
    }
    if structure == "tracepoint" {
        return btf.tracepoint_arguments(path);
    }
    if path.is_empty() {
        return btf.size(structure);
    }
    let (path, part) = path.split_once(':').map_or((path, ""), |(path, part)| (path, part));
    let member = btf.member(structure, path)?;
    match part {
        "byte" => Some(member.offset_bits / 8),
        "bit" => Some(member.offset_bits % 8),
        // A value of whole bytes cannot be read from a bit field.
        _ => (member.offset_bits % 8 == 0 && member.bits == 0).then_some(member.offset_bits / 8),
    }
}

/// Fields of the table that are absent among `names`.
pub(super) fn absent<'a>(offsets: &Offsets, names: &'a [&'a str]) -> Vec<&'a str> {
    let words = offsets.to_words();
    names
        .iter()
        .copied()
        .filter(|name| {
            Offsets::FIELDS.iter().zip(words).any(|(&(field, _, _), word)| field == *name && word == ABSENT)
        })
        .collect()
}

/// Fields without which a class has nothing to say, and those without which some of its values are missing.
pub(super) fn needed(kind: RecordKind) -> (&'static [&'static str], &'static [&'static str]) {
    match kind {
        RecordKind::Fork | RecordKind::Scope => (
            &["task_pid", "task_tgid", "task_group_leader", "task_start_boottime"],
            &[
                "task_cgroups",
                "css_set_default",
                "cgroup_kn",
                "kernfs_id",
                "task_real_parent",
                "task_thread_pid",
                "pid_level",
                "pid_numbers",
                "task_signal",
                "signal_pids",
                "pidtype_sid",
            ],
        ),
        RecordKind::Exec => (
            &["task_group_leader", "task_start_boottime", "bprm_filename", "bprm_interp"],
            &[
                "bprm_file",
                "bprm_argc",
                "bprm_secureexec",
                "file_inode",
                "file_dentry",
                "file_vfsmount",
                "dentry_name",
                "dentry_parent",
                "inode_ino",
                "inode_nlink",
                "inode_sb",
                "sb_dev",
                "sb_magic",
                "mount_mnt",
                "mount_mountpoint",
                "mount_parent",
                "mount_ns",
                "task_mm",
                "mm_arg_start",
                "mm_arg_end",
                "task_cred",
                "cred_euid",
                "cred_egid",
            ],
        ),
        RecordKind::Cgroup => (&[], &[]),
        RecordKind::ExecFailed => (&["task_group_leader", "task_start_boottime"], &[]),
        RecordKind::Exit => (
            &["task_signal", "signal_live", "task_group_leader", "task_start_boottime"],
            &[
                "task_exit_code",
                "signal_flags",
                "signal_group_exit_code",
                "signal_maxrss",
                "signal_utime",
                "signal_stime",
                "signal_runtime",
                "signal_thread_head",
                "task_thread_node",
                "task_utime",
                "task_stime",
                "task_runtime",
            ],
        ),
        RecordKind::Flow | RecordKind::Listen => (
            &["sock_family", "sock_dport", "sock_daddr", "sock_saddr", "task_tgid"],
            &[
                "sock_protocol",
                "sock_daddr6",
                "sock_saddr6",
                "inet_sport",
                "sock_net",
                "net_inum",
                "sock_err",
                "sock_flags",
                "sock_done_bit",
                "tcp_bytes_sent",
                "tcp_bytes_retrans",
                "tcp_bytes_received",
                "tcp_segs_out",
                "tcp_segs_in",
                "sock_cgroup_data",
                "sock_cgroup",
            ],
        ),
        RecordKind::UdpFlow => (&["task_tgid", "task_pid", "task_group_leader", "task_start_boottime"], &[]),
    }
}
