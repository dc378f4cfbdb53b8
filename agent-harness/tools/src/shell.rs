//! The `shell` tool: one command line, in its own session.
//!
//! Processes that the command leaves in the background on purpose stay alive when it exits by
//! itself, so that a server started in one call can be used in the next; their output is drained
//! and no longer kept. When a command is stopped or overruns, nothing of it stays.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use iteron_protocol::Join;
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::gate::{ScopeGate, SpawnError, spawn_gated};
use crate::output::BoundedOutput;
use crate::processes::{Owned, descendants_now, reap_adopted};

/// Between TERM and KILL.
const TERM_GRACE: Duration = Duration::from_millis(50);
/// After KILL, until the tree is gone: only processes in uninterruptible sleep take longer.
const KILL_WAIT: Duration = Duration::from_secs(2);
/// After the root's exit, for output that is still in the pipe.
const DRAIN_WAIT: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(5);
const READ_BYTES: usize = 64 * 1024;

/// Longest command line, in bytes: a single argument is limited to 128 KiB (execve(2)).
const COMMAND_BYTES_MAX: usize = 127 * 1024;

#[derive(Debug, Clone)]
pub struct ShellConfig {
    pub cwd: PathBuf,
    pub timeout_default: Duration,
    pub timeout_max: Duration,
    pub output_head_bytes: usize,
    pub output_tail_bytes: usize,
    /// Variables that commands do not see: the model's key, first of all.
    pub hidden_variables: Vec<String>,
    /// This process is a subreaper and runs one tool at a time: orphans belong to the call.
    pub adopts_orphans: bool,
}

impl ShellConfig {
    #[must_use]
    pub fn new(cwd: PathBuf) -> Self {
        Self {
            cwd,
            timeout_default: Duration::from_secs(120),
            timeout_max: Duration::from_secs(3600),
            output_head_bytes: 16 * 1024,
            output_tail_bytes: 16 * 1024,
            hidden_variables: Vec::new(),
            adopts_orphans: false,
        }
    }
}

/// The tool's input as the model gives it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellCommand {
    pub command: String,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("the input does not fit the tool's schema: {0}")]
    Schema(#[from] serde_json::Error),
    #[error("the command is empty")]
    Empty,
    #[error("the command has more than {COMMAND_BYTES_MAX} bytes; write it to a file and run that")]
    TooLong,
    #[error("the command has a NUL byte")]
    Nul,
}

/// How urgently a running tool must end. It only ever rises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    #[default]
    Run,
    Graceful,
    Immediate,
}

/// How a command ended.
#[derive(Debug)]
pub enum RunEnd {
    Exited(i32),
    Signalled(i32),
    TimedOut(Duration),
    Stopped,
    NotStarted(SpawnError),
    /// It ran, but its end could not be observed.
    Lost(io::Error),
}

#[derive(Debug)]
pub struct ToolRun {
    pub end: RunEnd,
    pub output: String,
    pub output_bytes: u64,
    pub duration: Duration,
    /// What the join may claim after all; nothing when no process came to be.
    pub join: Option<Join>,
    /// Whether everything that had to end did.
    pub tree_gone: bool,
}

#[derive(Debug, Clone)]
pub struct ShellTool {
    config: ShellConfig,
    shell: &'static str,
}

impl ShellTool {
    pub const NAME: &'static str = "shell";

    /// Uses bash where there is one.
    #[must_use]
    pub fn new(config: ShellConfig) -> Self {
        let bash = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"];
        let shell = bash.into_iter().find(|path| std::path::Path::new(path).exists());
        Self { config, shell: shell.unwrap_or("/bin/sh") }
    }

    #[must_use]
    pub fn description(&self) -> String {
        let ShellConfig { output_head_bytes, output_tail_bytes, timeout_default, .. } = &self.config;
        format!(
            "Runs a command line with {} -c in a fresh shell, without a terminal and without input. \
             Returns standard output and standard error together; of long output only the first \
             {output_head_bytes} and last {output_tail_bytes} bytes. The command is killed with all \
             its processes after timeout_ms (default {}). To leave a process running, start it in \
             the background with its output redirected to a file.",
            self.shell,
            timeout_default.as_millis(),
        )
    }

    #[must_use]
    pub fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "the command line"},
                "timeout_ms": {
                    "type": "integer", "minimum": 1,
                    "maximum": u64::try_from(self.config.timeout_max.as_millis()).unwrap_or(u64::MAX),
                },
            },
            "required": ["command"],
            "additionalProperties": false,
        })
    }

    pub fn parse(&self, input: &Value) -> Result<ShellCommand, InputError> {
        let command = ShellCommand::deserialize(input)?;
        if command.command.trim().is_empty() {
            return Err(InputError::Empty);
        }
        if command.command.len() > COMMAND_BYTES_MAX {
            return Err(InputError::TooLong);
        }
        if command.command.contains('\0') {
            return Err(InputError::Nul);
        }
        Ok(command)
    }

    /// Runs a command to its end, or to the end of its time. When this returns, the root is
    /// reaped. Do not drop the future: raise `stop` instead, and wait.
    pub async fn run(
        &self,
        command: &ShellCommand,
        variables: &[(&str, String)],
        gate: &mut impl ScopeGate,
        stop: watch::Receiver<StopLevel>,
    ) -> ToolRun {
        let begun = Instant::now();
        let before = self.config.adopts_orphans.then(descendants_now);
        match self.start(command, variables, gate).await {
            Ok(started) => self.supervise(command, started, before, stop, begun).await,
            Err(error) => ToolRun {
                output: format!("{error}: {}", innermost(&error)),
                end: RunEnd::NotStarted(error),
                output_bytes: 0,
                duration: begun.elapsed(),
                join: None,
                tree_gone: true,
            },
        }
    }

    async fn start(
        &self,
        command: &ShellCommand,
        variables: &[(&str, String)],
        gate: &mut impl ScopeGate,
    ) -> Result<Started, SpawnError> {
        let (reader, writer) = io::pipe().map_err(SpawnError::Gate)?;
        let reader = pipe::Receiver::from_owned_fd(reader.into()).map_err(SpawnError::Gate)?;
        let mut process = Command::new(self.shell);
        process
            .arg("-c")
            .arg(&command.command)
            .current_dir(&self.config.cwd)
            .stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(SpawnError::Gate)?)
            .stderr(writer)
            .envs(variables.iter().map(|(name, value)| (*name, value.as_str())))
            // The last resort when the runtime itself comes down.
            .kill_on_drop(true);
        for name in &self.config.hidden_variables {
            process.env_remove(name);
        }
        let (child, join) = spawn_gated(process, gate).await?;
        let output = Arc::new(Mutex::new(BoundedOutput::new(
            self.config.output_head_bytes,
            self.config.output_tail_bytes,
        )));
        let drain = tokio::spawn(drain(reader, Arc::clone(&output)));
        Ok(Started { child, join, output, drain })
    }

    async fn supervise(
        &self,
        command: &ShellCommand,
        started: Started,
        before: Option<BTreeSet<(i32, u64)>>,
        mut stop: watch::Receiver<StopLevel>,
        begun: Instant,
    ) -> ToolRun {
        let Started { mut child, join, output, mut drain } = started;
        let limit = command.timeout_ms.map_or(self.config.timeout_default, Duration::from_millis);
        let limit = limit.min(self.config.timeout_max);
        let root = child.id().and_then(|pid| i32::try_from(pid).ok());
        let mut tree_gone = true;
        let end = tokio::select! {
            // An exit that is there already wins over a stop that came too late.
            biased;
            status = child.wait() => status.map_or_else(RunEnd::Lost, ended),
            () = raised(&mut stop, StopLevel::Graceful) => RunEnd::Stopped,
            () = sleep(limit) => RunEnd::TimedOut(limit),
        };
        if matches!(end, RunEnd::Stopped | RunEnd::TimedOut(_))
            && let Some(root) = root
        {
            tree_gone = end_tree(&mut child, &Owned::new(root, before), &mut stop).await;
        }
        if self.config.adopts_orphans {
            reap_adopted();
        }
        // Background processes may hold the pipe: the task goes on reading for them.
        let _ = timeout(DRAIN_WAIT, &mut drain).await;
        let output = output.lock().unwrap_or_else(PoisonError::into_inner);
        ToolRun {
            end,
            output: output.render(),
            output_bytes: output.total_bytes(),
            duration: begun.elapsed(),
            join: Some(join),
            tree_gone,
        }
    }
}

struct Started {
    child: Child,
    join: Join,
    output: Arc<Mutex<BoundedOutput>>,
    drain: JoinHandle<()>,
}

fn ended(status: ExitStatus) -> RunEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => RunEnd::Exited(code),
        (None, signal) => RunEnd::Signalled(signal.unwrap_or_default()),
    }
}

/// Resolves once `stop` is at `level` or above; never when its sender is gone below it.
async fn raised(stop: &mut watch::Receiver<StopLevel>, level: StopLevel) {
    if stop.wait_for(|now| *now >= level).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// TERM, a moment, then KILL until nothing of the call lives, and the root is reaped.
async fn end_tree(child: &mut Child, owned: &Owned, stop: &mut watch::Receiver<StopLevel>) -> bool {
    owned.signal(Signal::SIGTERM);
    let gone = async {
        // The root is reaped first: a zombie would keep its pid, which is what makes that safe.
        let _ = child.wait().await;
        while !owned.living().is_empty() {
            sleep(POLL).await;
        }
    };
    tokio::select! {
        () = gone => return true,
        () = raised(stop, StopLevel::Immediate) => {}
        () = sleep(TERM_GRACE) => {}
    }
    let deadline = Instant::now() + KILL_WAIT;
    // More than once: a process may fork between the look and the signal.
    while owned.signal(Signal::SIGKILL) > 0 && Instant::now() < deadline {
        let _ = timeout(POLL, child.wait()).await;
    }
    let left = deadline.saturating_duration_since(Instant::now()).max(POLL);
    timeout(left, child.wait()).await.is_ok() && owned.living().is_empty()
}

async fn drain(mut reader: pipe::Receiver, output: Arc<Mutex<BoundedOutput>>) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(count @ 1..) = reader.read(&mut buffer).await {
        output.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
    }
}

fn innermost(error: &SpawnError) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests;
