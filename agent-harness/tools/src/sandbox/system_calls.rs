//! The system calls that a confined command cannot make. Others are as ever.

use std::collections::BTreeMap;
use std::io;

use nix::libc;
#[cfg(target_arch = "x86_64")]
use seccompiler::sock_filter;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule,
};

/// They reach beyond a process and what it started: mounts, namespaces, the kernel, its keys and its
/// clock; or make calls that no filter sees (io_uring(7)).
const REFUSED: &[libc::c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
];
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[libc::c_long] = &[libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[libc::c_long] = &[];

/// Without network also these. A socket that cannot be connected, bound or listened to is still good for
/// socketpair(2); so no daemon of this machine can be asked to do what the command may not.
const REFUSED_WITHOUT_NETWORK: &[libc::c_long] =
    &[libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4];

/// Flags of clone(2) that make namespaces.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Calls of the x32 ABI have this bit in their number, and would be taken for others
/// (seccomp(2), "caveats").
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

#[derive(Debug, thiserror::Error)]
pub enum SystemCallError {
    #[error("cannot build the filter")]
    Build(#[from] seccompiler::BackendError),
}

/// Programs for the kernel, ready to be applied.
#[derive(Debug)]
pub(super) struct Filter {
    refused: BpfProgram,
    absent: BpfProgram,
}

impl Filter {
    pub(super) fn with_network() -> Result<Self, SystemCallError> {
        build(base()?)
    }

    pub(super) fn without_network() -> Result<Self, SystemCallError> {
        let mut rules = base()?;
        rules.extend(REFUSED_WITHOUT_NETWORK.iter().map(|call| (*call, Vec::new())));
        // Of sockets, only streams of the Unix family are made: datagrams need no connection to be sent.
        let other_family = Condition::new(0, Len::Dword, Op::Ne, number(libc::AF_UNIX))?;
        let datagram = Condition::new(1, Len::Dword, Op::MaskedEq(0xf), number(libc::SOCK_DGRAM))?;
        let raw = Condition::new(1, Len::Dword, Op::MaskedEq(0xf), number(libc::SOCK_RAW))?;
        let either = [other_family, datagram, raw].map(|condition| SeccompRule::new(vec![condition]));
        rules.insert(libc::SYS_socket, either.into_iter().collect::<Result<_, _>>()?);
        build(rules)
    }

    /// Applies them to the calling thread, for good. Async-signal-safe: system calls only.
    pub(super) fn apply(&self) -> io::Result<()> {
        for program in [&self.absent, &self.refused] {
            seccompiler::apply_filter(program).map_err(|error| match error {
                seccompiler::Error::Prctl(source) | seccompiler::Error::Seccomp(source) => source,
                _ => io::ErrorKind::Other.into(),
            })?;
        }
        Ok(())
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn base() -> Result<Rules, SystemCallError> {
    let mut rules: Rules = REFUSED.iter().chain(REFUSED_HERE).map(|call| (*call, Vec::new())).collect();
    let namespaces = NAMESPACES.iter().map(|flag| {
        let flag = number(*flag);
        SeccompRule::new(vec![Condition::new(0, Len::Qword, Op::MaskedEq(flag), flag)?])
    });
    rules.insert(libc::SYS_clone, namespaces.collect::<Result<_, _>>()?);
    let push_input = Condition::new(1, Len::Dword, Op::Eq, libc::TIOCSTI)?;
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(vec![push_input])?]);
    Ok(rules)
}

fn build(rules: Rules) -> Result<Filter, SystemCallError> {
    // The flags of clone3(2) are in memory, which no filter reads. As on a kernel without it, programs
    // then use clone(2).
    let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "x32 is x86's"))]
    let mut refused = program(rules, libc::EPERM)?;
    #[cfg(target_arch = "x86_64")]
    refused.splice(0..0, refuse_x32());
    Ok(Filter { refused, absent: program(clone3, libc::ENOSYS)? })
}

fn program(rules: Rules, errno: i32) -> Result<BpfProgram, SystemCallError> {
    let (arch, action) = (std::env::consts::ARCH.try_into()?, SeccompAction::Errno(errno.unsigned_abs()));
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, action, arch)?.try_into()?)
}

/// `A = number of the call; if A >= X32_BIT, refuse`. Jumps are relative, so what follows is unharmed.
#[cfg(target_arch = "x86_64")]
fn refuse_x32() -> [sock_filter; 3] {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    [
        sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 }, // BPF_LD | BPF_W | BPF_ABS: nr
        sock_filter { code: 0x35, jt: 0, jf: 1, k: X32_BIT }, // BPF_JMP | BPF_JGE | BPF_K
        sock_filter { code: 0x06, jt: 0, jf: 0, k: refuse }, // BPF_RET | BPF_K
    ]
}

fn number(value: i32) -> u64 {
    value.unsigned_abs().into()
}
