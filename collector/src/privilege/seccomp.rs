//! The system calls that a collector makes once it runs. Others answer ENOSYS, as on a kernel that lacks them: a C
//! library that tries a newer call falls back, and what an intruder needs (executing a program, tracing, mounting,
//! loading kernel programs, entering namespaces) is not there.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule,
};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum SeccompError {
    #[error("cannot build the filter of system calls")]
    Build(#[from] seccompiler::BackendError),
    #[error("cannot apply the filter of system calls")]
    Apply(#[from] seccompiler::Error),
}

/// Made whatever their arguments.
const CALLS: &[libc::c_long] = &[
    // Files of the state folder, procfs and cgroupfs.
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_umask,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    // Waiting, and time.
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Reads only, as CAP_SYS_TIME is gone.
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    // Sockets; which kinds, see below.
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_socketpair,
    // Threads, the canary, signals to ourselves, the end.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_prlimit64,
    libc::SYS_prctl,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
];

/// The older names that the C library still uses where the architecture has them.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_mkdir,
    libc::SYS_chmod,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_dup2,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: &[libc::c_long] = &[];

/// Made with certain values of their first argument only.
#[rustfmt::skip]
const BY_FIRST_ARGUMENT: &[(libc::c_long, &[i32])] = &[
    (libc::SYS_socket, &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]),
    // Looking into maps: lookup, update, delete, next key, lookup and delete, info by descriptor (bpf(2)).
    (libc::SYS_bpf, &[1, 2, 3, 4, 21, 15]),
    // The canary's exec, which fails: no path is at address 0.
    (libc::SYS_execve, &[0]),
];

/// Requests of ioctl(2): non-blocking, close-on-exec, whether it is a terminal and how wide.
const IOCTLS: &[libc::c_ulong] = &[libc::FIONBIO, libc::FIOCLEX, libc::TCGETS, libc::TIOCGWINSZ];

/// Applies the filter to this thread and those that it starts from now on.
pub fn apply() -> Result<(), SeccompError> {
    seccompiler::apply_filter(&filter()?)?;
    Ok(())
}

fn filter() -> Result<BpfProgram, SeccompError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().chain(OLDER_CALLS).map(|call| (*call, Vec::new())).collect();
    for (call, values) in BY_FIRST_ARGUMENT {
        let alternatives =
            values.iter().map(|v| when(0, v.unsigned_abs().into())).collect::<Result<_, _>>()?;
        rules.insert(*call, alternatives);
    }
    let ioctls = IOCTLS.iter().map(|v| when(1, *v)).collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_ioctl, ioctls);
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, absent, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

fn when(argument: u8, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![Condition::new(argument, Len::Qword, Op::Eq, value)?])
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};
    use std::net::TcpListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn programs_cannot_be_executed_and_files_sockets_and_threads_work() {
        // A filter is a thread's own.
        std::thread::spawn(|| {
            nix::sys::prctl::set_no_new_privs().unwrap();
            apply().unwrap();
            let refused = Command::new("/bin/true").status().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOSYS), "{refused}");
            let unshared = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS);
            assert_eq!(unshared, Err(nix::Error::ENOSYS));
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("a"), "a").unwrap();
            std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
            let missing = std::fs::read(dir.path().join("a")).unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound);
            TcpListener::bind("127.0.0.1:0").unwrap();
            std::thread::spawn(|| io::Result::Ok(())).join().unwrap().unwrap();
        })
        .join()
        .unwrap();
    }
}
