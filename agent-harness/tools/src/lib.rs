//! The tools that the model may call, and ownership of the processes behind them.
//!
//! Used by the runtime; depends on `iteron-protocol` alone. `shell` runs commands, `job` looks after those
//! in the background; the file tools work in the workspace ([`files`]); `plan` has no effect. What holds
//! for every process that is started:
//! - it is the leader of its own session and process group, and in its own cgroup where one can be
//!   made, before it executes;
//! - somebody may claim it before it executes, through [`ScopeGate`], within [`GATE_WAIT`];
//! - when it is stopped or overruns, its whole tree gets TERM, then KILL, and is reaped;
//! - it has exactly one reaper;
//! - its output is drained to the end and kept within bounds;
//! - when this program is killed, a supervisor kills what it started.

mod cgroup;
pub mod files;
mod gate;
mod job_tool;
mod jobs;
mod output;
mod ownership;
mod plan;
mod processes;
mod reaper;
mod running;
mod sandbox;
mod shell;
mod supervisor;
mod toolbox;

pub use files::{FileRequest, FileToolError, FileTools};
pub use gate::{GATE_WAIT, ScopeGate, SpawnError};
pub use job_tool::JobRequest;
pub use jobs::{JOBS_MAX, JobError, JobNote, JobState, JobStatus, Jobs};
pub use output::BoundedOutput;
pub use ownership::Ownership;
pub use plan::{PlanError, PlanRequest, Step, StepState};
pub use running::StopLevel;
pub use sandbox::{Sandbox, SandboxConfig, SandboxError};
pub use shell::{InputError, RunEnd, ShellCommand, ShellConfig, ShellTool, ToolRun};
pub use toolbox::{Request, RequestError, ToolDescription, Toolbox};
