//! Confinement of commands: what they may change, and whether they may talk to anybody.
//!
//! Every command is started behind the same walls, or not at all:
//! - Landlock (landlock(7)) leaves only the workspace, a temporary directory of the session, and what
//!   the operator named, to be written to;
//! - a filter of system calls (`system_calls.rs`) refuses what reaches beyond a process and, unless the
//!   network is allowed, the calls of sockets;
//! - user, IPC and network namespaces of its own (`namespaces.rs`), where they can be made.
//!
//! Files anywhere can be read. Pids are those of everybody: by them, scopes are claimed.
//!
//! [`Sandbox::prepare`] finds out what holds here by starting a process. What the first two walls need
//! is a must; what else this machine lacks is told in the [`SandboxState`], with its reason.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use iteron_protocol::{SandboxPart, SandboxState, Wall};
use nix::libc;
use nix::sys::prctl::set_no_new_privs;
use tempfile::TempDir;

mod files;
mod namespaces;
mod system_calls;

#[cfg(test)]
mod tests;

use namespaces::Namespaces;
use system_calls::{Filter, SystemCallError};

#[derive(Debug, Clone)]
pub struct SandboxConfig {
    pub workspace: PathBuf,
    /// Whether commands may write to the workspace.
    pub write_workspace: bool,
    /// What else they may write to.
    pub writable: Vec<PathBuf>,
}

/// Why there is no sandbox here. Nothing is run then.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("this kernel cannot keep commands from changing files: it needs Landlock with ABI 3 (Linux 6.2)")]
    NoLandlock(#[source] Box<landlock::RulesetError>),
    #[error("this kernel has no Landlock")]
    NoRuleset,
    #[error("commands cannot be let write to {path}")]
    Writable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make a temporary directory")]
    Temporary(#[source] io::Error),
    #[error("cannot make the filter of system calls")]
    SystemCalls(#[from] SystemCallError),
    #[error("no process can be started behind it")]
    Start(#[source] io::Error),
}

/// The sandbox of a session.
#[derive(Debug)]
pub struct Sandbox {
    walls: Arc<Walls>,
    has_namespaces: bool,
    temporary: TempDir,
    state: SandboxState,
}

#[derive(Debug)]
struct Walls {
    files: OwnedFd,
    without_network: Filter,
    with_network: Filter,
    namespaces: Namespaces,
}

/// The walls of one command.
#[derive(Debug, Clone)]
pub(crate) struct Confinement {
    walls: Arc<Walls>,
    network: bool,
    namespaces: bool,
}

impl Sandbox {
    /// Builds the walls and tries them on a process that does nothing.
    pub fn prepare(config: &SandboxConfig) -> Result<Self, SandboxError> {
        let temporary =
            tempfile::Builder::new().prefix("iteron-").tempdir().map_err(SandboxError::Temporary)?;
        let mut writable: Vec<&Path> = vec![temporary.path()];
        writable.extend(config.writable.iter().map(PathBuf::as_path));
        if config.write_workspace {
            writable.push(&config.workspace);
        }
        let walls = Arc::new(Walls {
            files: files::ruleset(&writable)?,
            without_network: Filter::without_network()?,
            with_network: Filter::with_network()?,
            namespaces: Namespaces::of_this_process(),
        });
        let mut sandbox = Self { walls, has_namespaces: true, temporary, state: SandboxState::Off };
        let no_namespaces = sandbox.try_out().err();
        if no_namespaces.is_some() {
            sandbox.has_namespaces = false;
            sandbox.try_out().map_err(SandboxError::Start)?;
        }
        sandbox.state = SandboxState::Workspace { parts: parts(no_namespaces.as_ref()) };
        Ok(sandbox)
    }

    #[must_use]
    pub const fn state(&self) -> &SandboxState {
        &self.state
    }

    /// Where commands may put what they need for a moment. It ends with the session.
    #[must_use]
    pub fn temporary(&self) -> &Path {
        self.temporary.path()
    }

    pub(crate) fn confinement(&self, network: bool) -> Confinement {
        Confinement { walls: Arc::clone(&self.walls), network, namespaces: self.has_namespaces }
    }

    #[allow(unsafe_code, reason = "pre_exec is the only place between fork and exec")]
    fn try_out(&self) -> io::Result<()> {
        for network in [false, true] {
            let confinement = self.confinement(network);
            let mut command = Command::new("/bin/sh");
            command.args(["-c", ":"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // SAFETY: the closure runs in a forked child, where only async-signal-safe work is allowed
            // (signal-safety(7)); `enter` does no other.
            unsafe {
                command.pre_exec(move || confinement.enter());
            }
            let status = command.status()?;
            if !status.success() {
                return Err(io::Error::other(format!("a shell that does nothing ended with {status}")));
            }
        }
        Ok(())
    }
}

impl Confinement {
    /// Puts the walls around the calling process, for good. Made for a forked child: it makes system calls,
    /// allocates nothing, and takes no lock.
    pub(crate) fn enter(&self) -> io::Result<()> {
        if self.namespaces {
            self.walls.namespaces.enter(self.network)?;
        }
        set_no_new_privs()?;
        restrict(&self.walls.files)?;
        if self.network { self.walls.with_network.apply() } else { self.walls.without_network.apply() }
    }
}

#[allow(unsafe_code, reason = "a system call that the libraries wrap in what allocates")]
fn restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: landlock_restrict_self(2) takes a descriptor and flags, and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn parts(no_namespaces: Option<&io::Error>) -> Vec<SandboxPart> {
    let namespace = |wall| SandboxPart { wall, unsupported: no_namespaces.map(ToString::to_string) };
    let landlock = |wall, needs: Option<&str>| SandboxPart { wall, unsupported: needs.map(str::to_owned) };
    vec![
        landlock(Wall::Files, None),
        landlock(Wall::SystemCalls, None),
        landlock(Wall::Devices, files::devices_need()),
        landlock(Wall::Signals, files::scopes_need()),
        landlock(Wall::AbstractSockets, files::scopes_need()),
        namespace(Wall::UserNamespace),
        namespace(Wall::NetworkNamespace),
        namespace(Wall::IpcNamespace),
    ]
}
