//! A tool call between the model's answer and its result.

use iteron_context::ToolResult;
use iteron_kernel::run::{Call, Denial};
use iteron_protocol::ToolCallId;
use iteron_provider::ToolInput;
use iteron_tools::{RunEnd, ShellCommand, ShellTool, ToolRun};
use serde_json::{Value, json};

/// What the model asked for, and what of it can be run.
#[derive(Debug)]
pub(crate) struct PendingCall {
    pub id: ToolCallId,
    pub provider_id: String,
    pub tool_name: String,
    pub input: Value,
    pub input_bytes: u64,
    pub plan: Result<ShellCommand, Objection>,
}

/// Why a call cannot be run, and what the model is told.
#[derive(Debug)]
pub(crate) struct Objection {
    pub denial: Denial,
    pub message: String,
}

impl PendingCall {
    pub(crate) fn new(shell: &ShellTool, provider_id: String, tool_name: String, input: ToolInput) -> Self {
        let (input, input_bytes, valid) = match input {
            ToolInput::Valid(value) => {
                let bytes = value.to_string().len();
                (value, bytes, true)
            }
            ToolInput::Invalid(bytes) => (json!({}), bytes, false),
        };
        let plan = if tool_name != ShellTool::NAME {
            let message = format!("there is no tool of this name; use {}", ShellTool::NAME);
            Err(Objection { denial: Denial::UnknownTool, message })
        } else if valid {
            shell
                .parse(&input)
                .map_err(|error| Objection { denial: Denial::InvalidInput, message: error.to_string() })
        } else {
            let message = "the input is not a JSON object".to_owned();
            Err(Objection { denial: Denial::InvalidInput, message })
        };
        let input_bytes = u64::try_from(input_bytes).unwrap_or(u64::MAX);
        Self { id: ToolCallId::fresh(), provider_id, tool_name, input, input_bytes, plan }
    }

    pub(crate) fn for_kernel(&self) -> Call {
        Call { id: self.id, objection: self.plan.as_ref().err().map(|objection| objection.denial) }
    }

    pub(crate) fn result(&self, content: String, is_error: bool) -> ToolResult {
        ToolResult { tool_use_id: self.provider_id.clone(), content, is_error }
    }
}

/// A run in the words of events and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub kind: VerdictKind,
    pub exit_code: Option<i32>,
    pub reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerdictKind {
    Completed,
    Failed,
    Cancelled,
}

impl Verdict {
    pub(crate) fn of(run: &ToolRun) -> Self {
        use VerdictKind::{Cancelled, Completed, Failed};

        let (kind, exit_code, reason) = match run.end {
            RunEnd::Exited(0) => (Completed, Some(0), "exit_code"),
            RunEnd::Exited(code) => (Failed, Some(code), "exit_code"),
            // As a shell reports it; the reason tells it from a command that chose the number.
            RunEnd::Signalled(signal) => (Failed, Some(128_i32.saturating_add(signal)), "signal"),
            RunEnd::TimedOut(_) => (Failed, None, "timeout"),
            RunEnd::NotStarted(_) => (Failed, None, "not_started"),
            RunEnd::Lost(_) => (Failed, None, "end_not_observed"),
            RunEnd::Stopped => (Cancelled, None, "interrupted"),
        };
        Self { kind, exit_code, reason }
    }
}

/// What the model is shown of a run.
pub(crate) fn shown(run: &ToolRun) -> String {
    let mut text = run.output.clone();
    let note = match &run.end {
        RunEnd::Exited(0) => None,
        RunEnd::Exited(code) => Some(format!("[exit code {code}]")),
        RunEnd::Signalled(signal) => Some(format!("[killed by signal {signal}]")),
        RunEnd::TimedOut(limit) => Some(format!("[killed: ran longer than {} ms]", limit.as_millis())),
        RunEnd::Stopped => Some("[interrupted]".to_owned()),
        RunEnd::NotStarted(_) => Some("[not started]".to_owned()),
        RunEnd::Lost(error) => Some(format!("[its end could not be observed: {error}]")),
    };
    if let Some(note) = note {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&note);
    }
    text
}
