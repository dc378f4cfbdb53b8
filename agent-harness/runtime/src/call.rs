//! A tool call between the model's answer and its result.

use std::time::Duration;

use iteron_context::ToolResult;
use iteron_kernel::run::{Call, Denial};
use iteron_protocol::{Decision, Join, Permissions, Reaped, Termination, ToolCallId, ToolClass};
use iteron_provider::ToolInput;
use iteron_record::Entry;
use iteron_tools::{FileToolError, JobError, Request, RequestError, RunEnd, ToolRun, Toolbox};
use serde_json::{Value, json};

/// What the model asked for, and what of it can be run.
#[derive(Debug)]
pub(crate) struct PendingCall {
    pub id: ToolCallId,
    pub provider_id: String,
    pub tool_name: String,
    pub input: Value,
    pub input_bytes: u64,
    pub request: Result<Request, Objection>,
    /// Once it was decided on; nothing for a call without effect.
    class: Option<ToolClass>,
}

/// Why a call cannot be run, and what the model is told.
#[derive(Debug)]
pub(crate) struct Objection {
    pub denial: Denial,
    pub message: String,
}

impl PendingCall {
    pub(crate) fn new(tools: &Toolbox, provider_id: String, tool_name: String, input: ToolInput) -> Self {
        let (input, input_bytes, valid) = match input {
            ToolInput::Valid(value) => {
                let bytes = value.to_string().len();
                (value, bytes, true)
            }
            ToolInput::Invalid(bytes) => (json!({}), bytes, false),
        };
        let request = match tools.parse(&tool_name, &input) {
            Err(error @ RequestError::UnknownTool(_)) => {
                Err(Objection { denial: Denial::UnknownTool, message: error.to_string() })
            }
            _ if !valid => {
                let message = "the input is not a JSON object".to_owned();
                Err(Objection { denial: Denial::InvalidInput, message })
            }
            parsed => {
                parsed.map_err(|error| Objection { denial: Denial::InvalidInput, message: error.to_string() })
            }
        };
        let input_bytes = u64::try_from(input_bytes).unwrap_or(u64::MAX);
        Self { id: ToolCallId::fresh(), provider_id, tool_name, input, input_bytes, request, class: None }
    }

    /// Lets the session's rules decide on the call, and gives what to record of that; nothing when the
    /// call has no effect, or cannot run anyway.
    pub(crate) fn decide(&mut self, permissions: &Permissions) -> Option<Entry> {
        let tool_class = self.request.as_ref().ok()?.class()?;
        let decision = permissions.decide(tool_class);
        self.class = Some(tool_class);
        let denied = match decision {
            Decision::Allowed | Decision::Presumed => None,
            Decision::Denied => Some((Denial::Policy, "this session's rules deny it")),
            Decision::NobodyToAsk => Some((Denial::NobodyToAsk, "it must be asked about, and nobody can be")),
        };
        if let Some((denial, why)) = denied {
            let message = format!("denied, being of class {}: {why}", tool_class.as_str());
            self.request = Err(Objection { denial, message });
        }
        Some(Entry::ToolDecided {
            tool_call_id: self.id,
            provider_call_id: self.provider_id.clone(),
            tool_name: self.tool_name.clone(),
            tool_class,
            rule: permissions.rule(tool_class),
            decision,
        })
    }

    /// The class of the call's tool, once it was decided on.
    pub(crate) fn class(&self) -> Option<&'static str> {
        self.class.map(ToolClass::as_str)
    }

    pub(crate) fn for_kernel(&self) -> Call {
        Call { id: self.id, objection: self.request.as_ref().err().map(|objection| objection.denial) }
    }

    pub(crate) fn result(&self, content: String, is_error: bool) -> ToolResult {
        ToolResult { tool_use_id: self.provider_id.clone(), content, is_error }
    }
}

/// What was carried out, in the words of events and records.
#[derive(Debug)]
pub(crate) struct Done {
    pub kind: DoneKind,
    pub exit_code: Option<i32>,
    pub reason: &'static str,
    /// What the model is shown.
    pub output: String,
    pub output_bytes: u64,
    pub duration: Duration,
    pub join: Option<Join>,
    /// Nothing when the call started no process, or one that lives on as a job.
    pub termination: Option<Termination>,
    pub reaped: Vec<Reaped>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DoneKind {
    Completed,
    Failed,
    Cancelled,
}

impl Done {
    pub(crate) fn command(run: ToolRun) -> Self {
        use DoneKind::{Cancelled, Completed, Failed};

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
        let output = shown(&run);
        let ToolRun { output_bytes, duration, join, termination, reaped, .. } = run;
        let termination = join.map(|_| termination);
        Self { kind, exit_code, reason, output, output_bytes, duration, join, termination, reaped }
    }

    /// A call that acted on a job: what it answered, or nothing when it was cancelled.
    pub(crate) fn job(
        answer: Option<Result<String, JobError>>,
        join: Option<Join>,
        duration: Duration,
    ) -> Self {
        let done = match answer {
            Some(Ok(text)) => (DoneKind::Completed, "job", text),
            Some(Err(error)) => (DoneKind::Failed, "job", error.to_string()),
            None => (DoneKind::Cancelled, "interrupted", "[interrupted]".to_owned()),
        };
        Self { join, ..Self::without_process(done, duration) }
    }

    /// A call that worked on files.
    pub(crate) fn file(answer: Result<String, FileToolError>, duration: Duration) -> Self {
        let done = match answer {
            Ok(text) => (DoneKind::Completed, "done", text),
            Err(error @ FileToolError::Stopped) => {
                (DoneKind::Cancelled, error.word(), "[interrupted]".to_owned())
            }
            Err(error) => (DoneKind::Failed, error.word(), error.told()),
        };
        Self::without_process(done, duration)
    }

    /// A call that noted a plan.
    pub(crate) fn plan(told: String, duration: Duration) -> Self {
        Self::without_process((DoneKind::Completed, "done", told), duration)
    }

    fn without_process((kind, reason, output): (DoneKind, &'static str, String), duration: Duration) -> Self {
        let output_bytes = u64::try_from(output.len()).unwrap_or(u64::MAX);
        let (exit_code, join, termination, reaped) = (None, None, None, Vec::new());
        Self { kind, exit_code, reason, output, output_bytes, duration, join, termination, reaped }
    }
}

/// What the model is shown of a run.
fn shown(run: &ToolRun) -> String {
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
