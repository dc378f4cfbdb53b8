//! Which program watches what, and how it is attached.

use activity_ebpf_abi::RecordKind;
use aya::programs::cgroup_skb::CgroupSkbAttachType;

#[derive(Clone, Copy, Debug)]
pub(super) enum Hook {
    RawTracepoint(&'static str),
    /// Category and name below `events/` of tracefs.
    Tracepoint(&'static str, &'static str),
    /// The program's own section says where.
    CgroupSock,
    CgroupSockAddr,
    CgroupSkb(CgroupSkbAttachType),
}

pub(super) struct Probe {
    /// Name of the program in the object.
    pub(super) program: &'static str,
    /// Name for people.
    pub(super) name: &'static str,
    pub(super) hook: Hook,
    /// Whether the class is unsupported without this probe, or only poorer.
    pub(super) essential: bool,
}

pub(super) struct Class {
    /// The kinds that need the probes; the first names the class's fields.
    pub(super) kinds: &'static [RecordKind],
    pub(super) probes: &'static [Probe],
}

const fn essential(program: &'static str, name: &'static str, hook: Hook) -> Probe {
    Probe { program, name, hook, essential: true }
}

const fn useful(program: &'static str, name: &'static str, hook: Hook) -> Probe {
    Probe { program, name, hook, essential: false }
}

/// In the order of attachment: cgroups first, then exits, and forks last, so that no process whose start was seen ends
/// unseen while the rest is being attached.
pub(super) static CLASSES: &[Class] = &[
    Class {
        kinds: &[RecordKind::Cgroup],
        probes: &[essential(
            "on_cgroup_mkdir",
            "tp:cgroup:cgroup_mkdir",
            Hook::Tracepoint("cgroup", "cgroup_mkdir"),
        )],
    },
    Class {
        kinds: &[RecordKind::Exit],
        probes: &[essential(
            "on_exit",
            "raw_tp:sched_process_exit",
            Hook::RawTracepoint("sched_process_exit"),
        )],
    },
    Class {
        kinds: &[RecordKind::ExecFailed],
        probes: &[
            essential(
                "exit_execve",
                "tp:syscalls:sys_exit_execve",
                Hook::Tracepoint("syscalls", "sys_exit_execve"),
            ),
            essential(
                "enter_execve",
                "tp:syscalls:sys_enter_execve",
                Hook::Tracepoint("syscalls", "sys_enter_execve"),
            ),
            useful(
                "exit_execveat",
                "tp:syscalls:sys_exit_execveat",
                Hook::Tracepoint("syscalls", "sys_exit_execveat"),
            ),
            useful(
                "enter_execveat",
                "tp:syscalls:sys_enter_execveat",
                Hook::Tracepoint("syscalls", "sys_enter_execveat"),
            ),
        ],
    },
    Class {
        kinds: &[RecordKind::Exec],
        probes: &[essential(
            "on_exec",
            "raw_tp:sched_process_exec",
            Hook::RawTracepoint("sched_process_exec"),
        )],
    },
    Class {
        kinds: &[RecordKind::Fork, RecordKind::Scope],
        probes: &[essential(
            "on_fork",
            "raw_tp:sched_process_fork",
            Hook::RawTracepoint("sched_process_fork"),
        )],
    },
    Class {
        kinds: &[RecordKind::Flow, RecordKind::Listen],
        probes: &[essential(
            "on_tcp_state",
            "raw_tp:inet_sock_set_state",
            Hook::RawTracepoint("inet_sock_set_state"),
        )],
    },
    Class {
        kinds: &[RecordKind::UdpFlow],
        probes: &[
            useful("udp_release", "cgroup:sock_release", Hook::CgroupSock),
            useful("udp_bind4", "cgroup:post_bind4", Hook::CgroupSock),
            useful("udp_bind6", "cgroup:post_bind6", Hook::CgroupSock),
            useful("udp_connect4", "cgroup:connect4", Hook::CgroupSockAddr),
            useful("udp_connect6", "cgroup:connect6", Hook::CgroupSockAddr),
            useful("udp_sendmsg4", "cgroup:sendmsg4", Hook::CgroupSockAddr),
            useful("udp_sendmsg6", "cgroup:sendmsg6", Hook::CgroupSockAddr),
            essential("udp_egress", "cgroup_skb:egress", Hook::CgroupSkb(CgroupSkbAttachType::Egress)),
            essential("udp_ingress", "cgroup_skb:ingress", Hook::CgroupSkb(CgroupSkbAttachType::Ingress)),
        ],
    },
];

/// Maps of the object that are kept (and pinned) by name.
pub(super) static MAPS: &[&str] = &[
    "ring_vital",
    "ring_process",
    "ring_flow",
    "ring_file",
    "wakeups",
    "issued",
    "losses",
    "losses_reported",
    "loss_overflow",
    "overflow_reported",
    "misses_reported",
    "scopes",
    "ignored",
    "exec_attempts",
    "exits_seen",
    "tcp_sockets",
    "tcp_listeners",
    "udp_sockets",
    "udp_flows",
];
