//! A process that outlives this one for a moment: when this one is gone without having said so, it
//! kills everything that was started here.
//!
//! It is forked before there are threads, sits in its own session, so that a signal to our process
//! group misses it, and reads a pipe. Its end without a last word means that we were killed. Then it
//! kills the cgroup home; and, for machines where none could be made, what carries our mark in its
//! environment, what is in a session that one of our roots leads, and what descends from those.
//!
//! What it cannot find without a cgroup: a process that left its session, lost all its parents, and
//! cleared its environment.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};

use crate::cgroup;
use crate::processes::{self, Root};

/// The last word of a process that ends in good order.
const DISMISSED: &str = "dismissed";
/// After our death, until everything is gone: only processes in uninterruptible sleep take longer.
const KILL_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);
/// Roots that are remembered; the oldest is forgotten first.
const ROOTS_MAX: usize = 65_536;

/// Our end of the pipe.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pid: Pid,
    pipe: PipeWriter,
}

/// What the supervisor goes by.
#[derive(Debug)]
pub(crate) struct Belongings {
    pub home: Option<PathBuf>,
    /// How the value of [`processes::MARK`] begins in everything that is started here.
    pub mark: String,
}

impl Supervisor {
    /// Forks the supervisor. Refused when this process has threads: a forked child could then do
    /// nothing safely.
    #[allow(unsafe_code, reason = "there is no other way to a child that needs no second program")]
    pub(crate) fn start(belongings: &Belongings) -> io::Result<Self> {
        if std::fs::read_dir("/proc/self/task")?.count() != 1 {
            return Err(io::Error::other("the supervisor must be started before any thread"));
        }
        let (reader, pipe) = io::pipe()?;
        // SAFETY: this process has one thread, so the child has the whole of a consistent process.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pid: child, pipe }),
            ForkResult::Child => {
                drop(pipe);
                watch(reader, belongings);
                std::process::exit(0);
            }
        }
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Tells of a process that leads a session of its own.
    pub(crate) fn note(&self, root: Root) {
        let line = format!("{} {}\n", root.pid, root.start_ticks);
        if let Err(error) = (&self.pipe).write_all(line.as_bytes()) {
            tracing::warn!(%error, "the supervisor is gone: a killed harness would leave processes behind");
        }
    }

    /// Ends the supervisor, which then kills nothing.
    pub(crate) fn dismiss(self) {
        let Self { pid, mut pipe } = self;
        let _ = writeln!(pipe, "{DISMISSED}");
        drop(pipe);
        let _ = waitpid(pid, None);
    }
}

fn watch(pipe: PipeReader, belongings: &Belongings) {
    detach();
    let mut roots = VecDeque::new();
    for line in BufReader::new(pipe).lines().map_while(Result::ok) {
        if line == DISMISSED {
            return;
        }
        if let Some((pid, start)) = line.split_once(' ')
            && let (Ok(pid), Ok(start_ticks)) = (pid.parse(), start.parse())
        {
            roots.push_back(Root { pid, start_ticks });
            if roots.len() > ROOTS_MAX {
                roots.pop_front();
            }
        }
    }
    kill_belongings(belongings, roots.make_contiguous());
    if let Some(home) = &belongings.home {
        cgroup::remove_tree(home);
    }
}

/// Out of the terminal's reach, and holding nothing that somebody else waits to see closed.
fn detach() {
    let _ = setsid();
    let _ = nix::sys::prctl::set_name(c"iteron-guard");
    let _ = std::env::set_current_dir("/");
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = (dup2_stdin(&null), dup2_stdout(&null), dup2_stderr(&null));
    }
    ignore_signals();
}

#[allow(unsafe_code, reason = "signal dispositions are process-wide state")]
fn ignore_signals() {
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPIPE] {
        // SAFETY: ignoring a signal installs no handler that could run.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
}

fn kill_belongings(belongings: &Belongings, roots: &[Root]) {
    let deadline = Instant::now() + KILL_WAIT;
    loop {
        if let Some(home) = &belongings.home {
            cgroup::kill_all(home);
        }
        let left = processes::kill_marked(&belongings.mark, roots);
        let populated = belongings.home.as_deref().is_some_and(cgroup::is_populated);
        // More than once: a process may fork between the look and the signal.
        if (left == 0 && !populated) || Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(POLL);
    }
}
