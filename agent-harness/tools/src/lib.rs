//! The tools that the model may call, and ownership of the processes behind them.
//!
//! Used by the runtime; depends on `iteron-protocol` alone. One tool so far, `shell`. What holds
//! for every process it starts:
//! - it is the leader of its own session and process group before it executes;
//! - somebody may claim it before it executes, through [`ScopeGate`], within [`GATE_WAIT`];
//! - when it is stopped or overruns, its whole tree gets TERM, then KILL, and is reaped;
//! - its output is drained to the end and kept within bounds.

mod gate;
mod output;
mod processes;
mod shell;

pub use gate::{GATE_WAIT, ScopeGate, SpawnError};
pub use output::BoundedOutput;
pub use processes::become_subreaper;
pub use shell::{InputError, RunEnd, ShellCommand, ShellConfig, ShellTool, StopLevel, ToolRun};
