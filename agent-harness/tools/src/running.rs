//! A process tree that runs: started through the gate, its output drained, ended with everything in it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use iteron_protocol::{Join, Reaped, Termination};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::gate::{ScopeGate, SpawnError, Spawned, spawn_gated};
use crate::output::BoundedOutput;
use crate::ownership::Ownership;
use crate::processes::{MARK, Root, Tree};
use crate::reaper::Awaited;
use crate::sandbox::Confinement;

/// Between TERM and KILL.
const TERM_GRACE: Duration = Duration::from_millis(50);
/// After KILL, until the tree is gone: only processes in uninterruptible sleep take longer.
const KILL_WAIT: Duration = Duration::from_secs(2);
/// After the root's exit, for output that is still in the pipe.
const DRAIN_WAIT: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(5);
const READ_BYTES: usize = 64 * 1024;
/// Reaped processes that are told one by one.
const REAPED_MAX: usize = 64;

/// How urgently something that runs must end. It only ever rises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    #[default]
    Run,
    Graceful,
    Immediate,
}

/// What is to be started.
pub(crate) struct Launch<'a> {
    pub shell: &'a str,
    pub command: &'a str,
    pub cwd: &'a Path,
    pub variables: &'a [(&'a str, String)],
    pub hidden_variables: &'a [String],
    /// Where the command may put what it needs for a moment.
    pub temporary: Option<&'a Path>,
    pub confinement: Option<Confinement>,
    pub stdin: Stdio,
    pub output: BoundedOutput,
}

/// A running tree. Dropped, its root is killed; that is the last resort when the runtime comes down.
#[derive(Debug)]
pub(crate) struct Running {
    pub join: Join,
    root: Awaited,
    /// Nothing when the root was gone before it could be looked at: then there is no tree.
    tree: Option<Tree>,
    output: Arc<Mutex<BoundedOutput>>,
    drain: JoinHandle<()>,
}

/// How a tree was ended.
#[derive(Debug)]
pub struct Ended {
    pub termination: Termination,
    /// What was reaped on the way, the root first, as far as it is told.
    pub reaped: Vec<Reaped>,
}

impl Running {
    pub(crate) async fn start(
        launch: Launch<'_>,
        ownership: &Ownership,
        gate: &mut impl ScopeGate,
    ) -> Result<Self, SpawnError> {
        let Launch {
            shell,
            command,
            cwd,
            variables,
            hidden_variables,
            temporary,
            confinement,
            stdin,
            output,
        } = launch;
        let (reader, writer) = io::pipe().map_err(SpawnError::Gate)?;
        let reader = pipe::Receiver::from_owned_fd(reader.into()).map_err(SpawnError::Gate)?;
        let prepared = ownership.prepare();
        let mut process = Command::new(shell);
        process
            .arg("-c")
            .arg(command)
            .current_dir(cwd)
            .stdin(stdin)
            .stdout(writer.try_clone().map_err(SpawnError::Gate)?)
            .stderr(writer)
            .envs(variables.iter().map(|(name, value)| (*name, value.as_str())))
            .env(MARK, &prepared.mark)
            .kill_on_drop(true);
        if let Some(temporary) = temporary {
            process.env("TMPDIR", temporary);
        }
        for name in hidden_variables {
            process.env_remove(name);
        }
        let door = prepared.cgroup.as_ref().and_then(|cgroup| cgroup.door().ok());
        let Spawned { child, join, in_cgroup } = spawn_gated(process, door, confinement, gate).await?;
        let root = Root::now(child.pid());
        let tree = root.map(|root| ownership.adopt(root, prepared, in_cgroup));
        let output = Arc::new(Mutex::new(output));
        let drain = tokio::spawn(drain(reader, Arc::clone(&output)));
        Ok(Self { join, root: child, tree, output, drain })
    }

    /// Resolves when the root is dead and reaped; descendants may live on.
    pub(crate) async fn exited(&mut self) -> io::Result<ExitStatus> {
        self.root.wait().await
    }

    /// TERM, a moment, then KILL until nothing of the tree lives and all of it is reaped.
    pub(crate) async fn end(&mut self, stop: &mut watch::Receiver<StopLevel>) -> Ended {
        let Self { root, tree: Some(tree), .. } = self else {
            return Ended { termination: Termination::ByItself, reaped: Vec::new() };
        };
        let mut reaped = Vec::new();
        let mut is_immediate = *stop.borrow() >= StopLevel::Immediate;
        if !is_immediate {
            tree.terminate();
            let gone = gone(root, tree, &mut reaped);
            tokio::select! {
                () = gone => return Ended { termination: Termination::Cooperative, reaped },
                () = raised(stop, StopLevel::Immediate) => is_immediate = true,
                () = sleep(TERM_GRACE) => {}
            }
        }
        tracing::debug!(is_immediate, "a process tree gets SIGKILL");
        let deadline = Instant::now() + KILL_WAIT;
        loop {
            tree.kill();
            if timeout(POLL, gone(root, tree, &mut reaped)).await.is_ok() {
                return Ended { termination: Termination::Forced, reaped };
            }
            if Instant::now() >= deadline {
                return Ended { termination: Termination::TimedOut, reaped };
            }
        }
    }

    /// Waits a moment for what is still in the pipe. Background processes may hold it: their output
    /// is drained on, and no longer kept.
    pub(crate) async fn drained(&mut self) {
        let _ = timeout(DRAIN_WAIT, &mut self.drain).await;
    }

    pub(crate) fn output(&self) -> Arc<Mutex<BoundedOutput>> {
        Arc::clone(&self.output)
    }
}

/// Resolves once `stop` is at `level` or above; never when its sender is gone below it.
pub(crate) async fn raised(stop: &mut watch::Receiver<StopLevel>, level: StopLevel) {
    if stop.wait_for(|now| *now >= level).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn gone(root: &mut Awaited, tree: &mut Tree, reaped: &mut Vec<Reaped>) {
    // The root is reaped first: as a zombie it would keep its pid, which is what makes looking for
    // its session safe.
    if let Ok(status) = root.wait().await
        && !reaped.iter().any(|dead| dead.pid == root.pid())
    {
        reaped.push(Reaped { pid: root.pid(), exit_code: status.code(), signal: status.signal() });
    }
    let mut dead = Vec::new();
    while !tree.is_gone(&mut dead) {
        reaped.extend(dead.drain(..).take(REAPED_MAX.saturating_sub(reaped.len())));
        sleep(POLL).await;
    }
    reaped.extend(dead.drain(..).take(REAPED_MAX.saturating_sub(reaped.len())));
}

async fn drain(mut reader: pipe::Receiver, output: Arc<Mutex<BoundedOutput>>) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(count @ 1..) = reader.read(&mut buffer).await {
        output.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
    }
}
