//! Starting a process that somebody else learns of before it executes.
//!
//! `spawn` of std and tokio returns only after the child's exec, so it runs on another thread
//! while this task talks to the child over a socket pair:
//!
//! ```text
//! child (after fork)                    parent
//! setsid, into its cgroup,
//! then pid and JOINED/NOT  ──────▶      ScopeGate::before_exec(pid)
//! polls, at most GATE_WAIT ◀──────      one byte: released
//! READY or LATE            ──────▶      what the join may claim
//! walls, exec
//! ```
//! A child that was not released in time goes on by itself and says so; nothing can hold it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use iteron_protocol::Join;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::reaper::Awaited;
use crate::sandbox::Confinement;

/// Longest time that a child waits to be released.
pub const GATE_WAIT: Duration = Duration::from_millis(20);

/// Longest wait for the child's last word, which it says within [`GATE_WAIT`]. Only a machine that
/// does not schedule the child at all gets here.
const VERDICT_WAIT: Duration = Duration::from_secs(2);

const JOINED: u8 = b'J';
const NOT_JOINED: u8 = b'N';
const READY: u8 = b'R';
const LATE: u8 = b'L';

/// Claims a process before it executes.
pub trait ScopeGate {
    /// Called once, while the process `pid` waits; it goes on when this returns, or after
    /// [`GATE_WAIT`]. The answer is what the join may claim so far.
    fn before_exec(&mut self, pid: u32) -> impl Future<Output = Join>;
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("cannot make the socket pair for a new process")]
    Gate(#[source] io::Error),
    #[error("cannot start the process")]
    Spawn(#[source] io::Error),
    #[error("the thread that starts processes failed")]
    Thread(#[source] tokio::task::JoinError),
}

/// A process that executed.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub child: Awaited,
    pub join: Join,
    /// It went into the cgroup before it executed.
    pub in_cgroup: bool,
}

/// Starts `command` in its own session and in the cgroup behind `door`, and passes it through `gate`.
pub(crate) async fn spawn_gated(
    mut command: Command,
    door: Option<File>,
    confinement: Option<Confinement>,
    gate: &mut impl ScopeGate,
) -> Result<Spawned, SpawnError> {
    let (ours, theirs) = UnixStream::pair().map_err(SpawnError::Gate)?;
    ours.set_nonblocking(true).map_err(SpawnError::Gate)?;
    let mut ours = tokio::net::UnixStream::from_std(ours).map_err(SpawnError::Gate)?;
    hold_before_exec(&mut command, theirs, door, confinement);
    let spawning = tokio::task::spawn_blocking(move || {
        let child = Awaited::spawn(&mut command);
        // Closes our copy of the child's end, so that a child that never spoke reads as its end.
        drop(command);
        child
    });
    let mut in_cgroup = false;
    let join = match announced(&mut ours).await {
        Ok((pid, joined)) => {
            in_cgroup = joined;
            let claimed = gate.before_exec(pid).await;
            // Fails only when the child is gone, which its verdict shows.
            let _ = ours.write_all(&[READY]).await;
            match tokio::time::timeout(VERDICT_WAIT, ours.read_u8()).await {
                Ok(Ok(READY)) => claimed,
                _ => Join::Inferred,
            }
        }
        // The fork failed, or something before the gate: `spawn` has the reason.
        Err(_) => Join::Inferred,
    };
    let child = spawning.await.map_err(SpawnError::Thread)?.map_err(SpawnError::Spawn)?;
    Ok(Spawned { child, join, in_cgroup })
}

async fn announced(stream: &mut tokio::net::UnixStream) -> io::Result<(u32, bool)> {
    Ok((stream.read_u32_le().await?, stream.read_u8().await? == JOINED))
}

#[allow(unsafe_code, reason = "pre_exec is the only place between fork and exec")]
fn hold_before_exec(
    command: &mut Command,
    stream: UnixStream,
    door: Option<File>,
    confinement: Option<Confinement>,
) {
    let hold = move || {
        wait_for_release(&stream, door.as_ref())?;
        confinement.as_ref().map_or(Ok(()), Confinement::enter)
    };
    // SAFETY: `wait_for_release` runs in a forked child of a process with threads, where only
    // async-signal-safe work is allowed (signal-safety(7)). It calls setsid, getpid, write, read,
    // poll and clock_gettime, takes no lock, and allocates nothing: its errors are bare errnos. So it is
    // with `enter`.
    unsafe {
        command.pre_exec(hold);
    }
}

fn wait_for_release(mut stream: &UnixStream, door: Option<&File>) -> io::Result<()> {
    nix::unistd::setsid()?;
    let joined = door.is_some_and(|mut door| door.write_all(b"0").is_ok());
    // Moving into a cgroup takes the kernel some milliseconds, which are not the gate's.
    let deadline = Instant::now() + GATE_WAIT;
    stream.write_all(&std::process::id().to_le_bytes())?;
    stream.write_all(&[if joined { JOINED } else { NOT_JOINED }])?;
    let verdict = if released_by(stream, deadline) { READY } else { LATE };
    let mut byte = [0];
    if verdict == READY {
        stream.read_exact(&mut byte)?;
    }
    stream.write_all(&[verdict])
}

fn released_by(stream: &UnixStream, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: poll counts in milliseconds, and 0 would not wait at all.
        let left_ms = u16::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        let mut ready = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::from(left_ms)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}
