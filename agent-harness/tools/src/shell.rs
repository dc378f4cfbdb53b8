//! The `shell` tool: one command line, in its own session.
//!
//! Processes that the command leaves in the background on purpose stay alive when it exits by
//! itself, so that a server started in one call can be used in the next; their output is drained
//! and no longer kept. When a command is stopped or overruns, nothing of it stays.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use iteron_protocol::{Join, Reaped, SandboxState, Termination};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::gate::{ScopeGate, SpawnError};
use crate::output::BoundedOutput;
use crate::ownership::Ownership;
use crate::running::{Ended, Launch, Running, StopLevel, raised};
use crate::sandbox::Sandbox;

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
    pub ownership: Arc<Ownership>,
    /// Walls around every command.
    pub sandbox: Option<Arc<Sandbox>>,
    /// Whether a command behind walls may ask for the network.
    pub offers_network: bool,
}

impl ShellConfig {
    #[must_use]
    pub fn new(cwd: PathBuf, ownership: Arc<Ownership>) -> Self {
        Self {
            cwd,
            timeout_default: Duration::from_secs(120),
            timeout_max: Duration::from_secs(3600),
            output_head_bytes: 16 * 1024,
            output_tail_bytes: 16 * 1024,
            hidden_variables: Vec::new(),
            ownership,
            sandbox: None,
            offers_network: false,
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
    /// Run it as a job that outlives the call.
    #[serde(default)]
    pub background: bool,
    /// Run it with the network, where walls keep it from that.
    #[serde(default)]
    pub network: bool,
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
    /// How its tree ended; by itself when nobody had to end it.
    pub termination: Termination,
    pub reaped: Vec<Reaped>,
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
             its processes after timeout_ms (default {}). With background the command runs on as a \
             job, which the job tool reads, writes to and stops, and which ends with the session.",
            self.shell,
            timeout_default.as_millis(),
        ) + self.walls()
    }

    /// What the model must know of the walls.
    const fn walls(&self) -> &'static str {
        match (&self.config.sandbox, self.config.offers_network) {
            (None, _) => "",
            (Some(_), false) => {
                " Commands can write to the workspace and to $TMPDIR only, and have no network, not even on \
                 this machine."
            }
            (Some(_), true) => {
                " Commands can write to the workspace and to $TMPDIR only, and have no network, not even on \
                 this machine, unless network is set."
            }
        }
    }

    #[must_use]
    pub fn input_schema(&self) -> Value {
        let mut schema = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "the command line"},
                "timeout_ms": {
                    "type": "integer", "minimum": 1,
                    "maximum": u64::try_from(self.config.timeout_max.as_millis()).unwrap_or(u64::MAX),
                },
                "background": {"type": "boolean", "description": "run it as a job and return at once"},
            },
            "required": ["command"],
            "additionalProperties": false,
        });
        if self.config.sandbox.is_some() && self.config.offers_network {
            schema["properties"]["network"] =
                json!({"type": "boolean", "description": "run it with the network"});
        }
        schema
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
        match Running::start(self.launch(command, variables), &self.config.ownership, gate).await {
            Ok(running) => self.supervise(command, running, stop, begun).await,
            Err(error) => ToolRun {
                output: format!("{error}: {}", innermost(&error)),
                end: RunEnd::NotStarted(error),
                output_bytes: 0,
                duration: begun.elapsed(),
                join: None,
                termination: Termination::ByItself,
                reaped: Vec::new(),
            },
        }
    }

    /// How a command is started; without input unless the caller gives some.
    pub(crate) fn launch<'a>(
        &'a self,
        command: &'a ShellCommand,
        variables: &'a [(&'a str, String)],
    ) -> Launch<'a> {
        Launch {
            shell: self.shell,
            command: &command.command,
            cwd: &self.config.cwd,
            variables,
            hidden_variables: &self.config.hidden_variables,
            temporary: self.config.sandbox.as_ref().map(|sandbox| sandbox.temporary()),
            confinement: self.config.sandbox.as_ref().map(|sandbox| sandbox.confinement(command.network)),
            stdin: Stdio::null(),
            output: BoundedOutput::new(self.config.output_head_bytes, self.config.output_tail_bytes),
        }
    }

    /// What keeps commands from doing more than they may.
    #[must_use]
    pub fn sandbox(&self) -> SandboxState {
        self.config.sandbox.as_ref().map_or(SandboxState::Off, |sandbox| sandbox.state().clone())
    }

    pub(crate) fn ownership(&self) -> &Ownership {
        &self.config.ownership
    }

    async fn supervise(
        &self,
        command: &ShellCommand,
        mut running: Running,
        mut stop: watch::Receiver<StopLevel>,
        begun: Instant,
    ) -> ToolRun {
        let limit = command.timeout_ms.map_or(self.config.timeout_default, Duration::from_millis);
        let limit = limit.min(self.config.timeout_max);
        let end = tokio::select! {
            // An exit that is there already wins over a stop that came too late.
            biased;
            status = running.exited() => status.map_or_else(RunEnd::Lost, ended),
            () = raised(&mut stop, StopLevel::Graceful) => RunEnd::Stopped,
            () = sleep(limit) => RunEnd::TimedOut(limit),
        };
        let Ended { termination, reaped } = match end {
            RunEnd::Stopped | RunEnd::TimedOut(_) => running.end(&mut stop).await,
            RunEnd::Lost(_) => Ended { termination: Termination::Unknown, reaped: Vec::new() },
            _ => Ended { termination: Termination::ByItself, reaped: Vec::new() },
        };
        running.drained().await;
        let output = running.output();
        let output = output.lock().unwrap_or_else(PoisonError::into_inner);
        ToolRun {
            end,
            output: output.render(),
            output_bytes: output.total_bytes(),
            duration: begun.elapsed(),
            join: Some(running.join),
            termination,
            reaped,
        }
    }
}

fn ended(status: ExitStatus) -> RunEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => RunEnd::Exited(code),
        (None, signal) => RunEnd::Signalled(signal.unwrap_or_default()),
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
