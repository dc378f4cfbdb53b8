//! `activity-load`: makes processes and writes down, independently of any observer, what it
//! made. One JSON line a process on standard output.
#![allow(clippy::print_stdout, reason = "a command-line tool")]
#![allow(unsafe_code, reason = "fork(2) and execve(2) are the subject of the test")]

use std::ffi::{CStr, CString};
use std::io::{BufWriter, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use activity_schema::Timestamp;
use activity_tests::truth::{Kind, Made};
use clap::Parser;
use nix::sys::time::TimeValLike as _;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::time::ClockId;
use nix::unistd::{ForkResult, Pid, fork, getpid, pipe, setsid};

#[derive(Parser)]
struct Cli {
    /// How many situations to make; some make two processes
    #[arg(long, default_value_t = 1000)]
    count: u32,
    /// Situations a second; 0 goes at full speed
    #[arg(long, default_value_t = 0)]
    rate: u32,
    /// Only this situation, as `double_fork`; all in turn when none is given
    #[arg(long)]
    kind: Option<Kind>,
    /// Opens one TCP connection instead, sends and receives so many bytes, and closes it
    #[arg(long, num_args = 3, value_names = ["ADDRESS", "SEND", "RECEIVE"])]
    connect: Option<Vec<String>>,
    /// What a made process does: end with this status
    #[arg(long, hide = true)]
    end_with: Option<i32>,
    /// Further arguments of made processes; they mean nothing
    #[arg(hide = true)]
    rest: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    // Before anything is parsed: made processes must be quick.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|a| a == "--end-with") {
        let status = arguments.next().and_then(|a| a.to_str()?.parse().ok()).unwrap_or(99);
        std::process::exit(status);
    }
    let cli = Cli::parse();
    if let Some([address, send, receive]) = cli.connect.as_deref() {
        return connect(address, send.parse()?, receive.parse()?);
    }
    let maker = Maker::new()?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let start = Instant::now();
    for n in 0..cli.count {
        if cli.rate > 0 {
            let due = Duration::from_secs(1) * n / cli.rate;
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        let kind = cli.kind.unwrap_or(Kind::ALL[n as usize % Kind::ALL.len()]);
        for made in maker.make(kind, i32::try_from(n % 100)?)? {
            serde_json::to_writer(&mut out, &made)?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()?;
    Ok(())
}

fn connect(address: &str, send: usize, receive: usize) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&vec![7; send])?;
    stream.read_exact(&mut vec![0; receive])?;
    Ok(())
}

struct Maker {
    own: CString,
    memfd: OwnedFd,
}

impl Maker {
    fn new() -> anyhow::Result<Self> {
        use std::os::unix::ffi::OsStrExt as _;
        let path = std::env::current_exe()?;
        let memfd = nix::sys::memfd::memfd_create(c"load", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
        let mut copy = std::fs::File::from(memfd.try_clone()?);
        copy.write_all(&std::fs::read(&path)?)?;
        Ok(Maker { own: CString::new(path.as_os_str().as_bytes())?, memfd })
    }

    fn make(&self, kind: Kind, status: i32) -> anyhow::Result<Vec<Made>> {
        match kind {
            Kind::DoubleFork => return self.double_fork(status),
            Kind::LeaderFirst => return self.leader_first(status),
            _ => {}
        }
        // SAFETY: this program has one thread; the child only execs, makes one thread or exits.
        let child = match unsafe { fork() }? {
            ForkResult::Child => self.child(kind, status),
            ForkResult::Parent { child } => child,
        };
        let ended = wait(child)?;
        Ok(vec![made(kind, child, getpid(), ended)])
    }

    fn child(&self, kind: Kind, status: i32) -> ! {
        match kind {
            Kind::Setsid => {
                let _ = setsid();
                self.exec(&self.own, status, &[]);
            }
            Kind::EmptyArgument => self.exec(&self.own, status, &[c""]),
            Kind::Memfd => {
                let path = format!("/proc/self/fd/{}", self.memfd.as_raw_fd());
                if let Ok(path) = CString::new(path) {
                    self.exec(&path, status, &[]);
                }
            }
            Kind::ExecFails => {
                self.exec(c"/nonexistent/activity-load-missing", status, &[]);
                leave(status);
            }
            Kind::Thread => {
                let status_text = status;
                let own = &self.own;
                std::thread::scope(|scope| {
                    scope.spawn(move || exec(own, status_text, &[]));
                });
            }
            _ => self.exec(&self.own, status, &[]),
        }
        leave(98);
    }

    fn exec(&self, path: &CStr, status: i32, more: &[&CStr]) {
        exec(path, status, more);
    }

    /// The middle process ends at once: the grandchild has another parent before it execs.
    fn double_fork(&self, status: i32) -> anyhow::Result<Vec<Made>> {
        let (read, write) = pipe()?;
        // SAFETY: as in `make`.
        let middle = match unsafe { fork() }? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                // SAFETY: as in `make`.
                match unsafe { fork() } {
                    Ok(ForkResult::Child) => {
                        std::thread::sleep(Duration::from_millis(1));
                        // The pipe stays open until exec closes it: its end tells that the exec happened.
                        self.exec(&self.own, status, &[]);
                        leave(98);
                    }
                    Ok(ForkResult::Parent { child }) => {
                        let _ = nix::unistd::write(&write, &child.as_raw().to_le_bytes());
                        leave(0);
                    }
                    Err(_) => leave(97),
                }
            }
        };
        drop(write);
        let mut pid = [0; 4];
        let mut pipe = std::fs::File::from(read);
        pipe.read_exact(&mut pid)?;
        let ended = wait(middle)?;
        let grandchild = Pid::from_raw(i32::from_le_bytes(pid));
        // Nobody here can wait for the grandchild; its status is what it was told to end with.
        let mut rest = Vec::new();
        pipe.read_to_end(&mut rest)?;
        Ok(vec![
            Made { exec: false, argc: 0, ..made(Kind::DoubleFork, middle, getpid(), ended) },
            made(Kind::DoubleFork, grandchild, middle, status),
        ])
    }

    /// The leader thread ends, the process lives until its other thread does.
    fn leader_first(&self, status: i32) -> anyhow::Result<Vec<Made>> {
        // SAFETY: as in `make`.
        let child = match unsafe { fork() }? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(2));
                    leave(status);
                });
                // SAFETY: exit(2) of this thread only; the other one ends the process.
                unsafe { nix::libc::syscall(nix::libc::SYS_exit, 0) };
                leave(96);
            }
        };
        let ended = wait(child)?;
        Ok(vec![Made { exec: false, argc: 0, ..made(Kind::LeaderFirst, child, getpid(), ended) }])
    }
}

/// Ends a forked child without the parent's buffers and exit handlers.
fn leave(status: i32) -> ! {
    // SAFETY: _exit(2) takes any status and does not return.
    unsafe { nix::libc::_exit(status) }
}

fn exec(path: &CStr, status: i32, more: &[&CStr]) {
    let Ok(status) = CString::new(status.to_string()) else { return };
    let mut arguments = vec![c"activity-load", c"--end-with", &status];
    arguments.extend(more);
    let _ = nix::unistd::execv(path, &arguments);
}

fn wait(child: Pid) -> anyhow::Result<i32> {
    match waitpid(child, None)? {
        WaitStatus::Exited(_, status) => Ok(status),
        other => anyhow::bail!("process {child} ended with {other:?}"),
    }
}

fn made(kind: Kind, pid: Pid, parent: Pid, exit_code: i32) -> Made {
    let (exec, argc) = match kind {
        Kind::ExecFails => (false, 0),
        Kind::EmptyArgument => (true, 4),
        _ => (true, 3),
    };
    Made {
        kind,
        pid: pid.as_raw(),
        parent: parent.as_raw(),
        exec,
        argc,
        exec_failed: kind == Kind::ExecFails,
        memfd: kind == Kind::Memfd,
        exit_code,
        at: now(),
    }
}

fn now() -> Timestamp {
    let now = ClockId::CLOCK_REALTIME.now().map_or(0, |t| t.num_nanoseconds());
    Timestamp::from_nanos(now)
}
