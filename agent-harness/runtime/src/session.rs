//! A session from its start to its one end.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use iteron_context::{Conversation, ToolResult, ToolSpec};
use iteron_kernel::run::{Action, Closing, Event as KernelEvent, Run, StopCause};
use iteron_lifecycle::{Event, EventOutcome, Lifecycle, ScopeKind, ToolPayload};
use iteron_protocol::{AgentId, Outcome, OutputEvent, Submission, ToolCallId, ToolStatus, Usage};
use iteron_provider::Provider;
use iteron_record::{Entry, Record};
use iteron_tools::ShellTool;
use tokio::sync::watch;

use crate::call::PendingCall;
use crate::evidence::{CLIENT_VERSION, Evidence, WallClock, session_outcome, session_payload};
use crate::prompt::system_prompt;

/// Longest wait for the session's own scope, as for a tool's.
const SCOPE_WAIT: Duration = Duration::from_millis(20);
/// Longest wait for `session.ended` to be taken before the scope closes.
const LAST_EVENT_WAIT: Duration = Duration::from_millis(250);

#[derive(Debug, Clone)]
pub struct SessionConfig {
    pub submission: Submission,
    pub agent_id: AgentId,
    pub model: String,
    pub max_tokens: u32,
    pub turns_max: u32,
    pub cwd: PathBuf,
}

/// What a session works with.
pub struct SessionParts<'a> {
    pub provider: Provider,
    pub shell: ShellTool,
    pub record: Option<Record>,
    /// Bytes cut off the record when it was opened.
    pub record_torn_bytes: u64,
    pub lifecycle: Option<Lifecycle>,
    /// How often the operator asked to stop, rising.
    pub interrupts: watch::Receiver<u32>,
    pub clock: WallClock,
    pub output: &'a mut dyn FnMut(OutputEvent),
}

pub struct Session<'a> {
    pub(crate) config: SessionConfig,
    pub(crate) provider: Provider,
    pub(crate) shell: ShellTool,
    pub(crate) tools: Vec<ToolSpec>,
    pub(crate) interrupts: watch::Receiver<u32>,
    pub(crate) evidence: Evidence<'a>,
    pub(crate) kernel: Run,
    pub(crate) conversation: Conversation,
    pub(crate) todo: VecDeque<Action>,
    pub(crate) calls: Vec<PendingCall>,
    pub(crate) results: Vec<ToolResult>,
    pub(crate) usage: Usage,
}

impl<'a> Session<'a> {
    #[must_use]
    pub fn new(config: SessionConfig, parts: SessionParts<'a>) -> Self {
        let SessionParts { provider, shell, record, record_torn_bytes, lifecycle, interrupts, clock, output } =
            parts;
        let mut evidence =
            Evidence { record, record_broken: false, lifecycle, session_scope: None, clock, output };
        if record_torn_bytes > 0 {
            evidence.record(Entry::Recovered { torn_bytes: record_torn_bytes });
        }
        let tool = ToolSpec {
            name: ShellTool::NAME.to_owned(),
            description: shell.description(),
            input_schema: shell.input_schema(),
        };
        Self {
            kernel: Run::new(config.turns_max),
            conversation: Conversation::new(system_prompt(&config.cwd)),
            config,
            provider,
            shell,
            tools: vec![tool],
            interrupts,
            evidence,
            todo: VecDeque::new(),
            calls: Vec::new(),
            results: Vec::new(),
            usage: Usage::default(),
        }
    }

    /// Runs the session to its end. Raise `interrupts` to stop it; dropping the future would leave
    /// processes and evidence open.
    pub async fn run(mut self) -> Outcome {
        self.start().await;
        self.feed(KernelEvent::Submitted);
        let mut outcome = Outcome::HarnessFailed;
        while let Some(action) = self.todo.pop_front() {
            match action {
                Action::RequestModel { turn } => self.model_turn(turn).await,
                Action::InvokeTool { id } => self.tool_turn(id).await,
                Action::CloseTool { id, closing } => self.close_tool(id, closing),
                // Carried out where the request or the tool is awaited.
                Action::CancelModel | Action::CancelTool { .. } => {}
                Action::End(end) => outcome = end,
            }
        }
        self.finish(outcome).await;
        outcome
    }

    /// Lets the kernel decide on `event`, and queues what it wants done.
    pub(crate) fn feed(&mut self, event: KernelEvent) {
        let actions = self.kernel.reduce(event);
        self.todo.extend(actions);
    }

    /// Tells the kernel to stop; gives the action that concerns what runs now, queues the others.
    pub(crate) fn stop(&mut self, cause: StopCause) -> Option<Action> {
        let mut now = None;
        for action in self.kernel.reduce(KernelEvent::Stop(cause)) {
            match action {
                Action::CancelModel | Action::CancelTool { .. } => now = Some(action),
                later => self.todo.push_back(later),
            }
        }
        now
    }

    pub(crate) fn take_call(&mut self, id: ToolCallId) -> Option<PendingCall> {
        let at = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.swap_remove(at))
    }

    async fn start(&mut self) {
        let mut join = None;
        if let Some(lifecycle) = &self.evidence.lifecycle {
            let deadline = Instant::now() + SCOPE_WAIT;
            let pid = std::process::id();
            let scope = lifecycle.open_scope(ScopeKind::Session, None, pid, None, deadline).await;
            self.evidence.session_scope = Some(scope);
            join = Some(scope.join);
        }
        self.evidence.record(Entry::SessionStarted {
            session_id: self.config.submission.session_id.clone(),
            agent_id: self.config.agent_id.clone(),
            model: self.config.model.clone(),
            client_version: CLIENT_VERSION.to_owned(),
        });
        self.evidence.tell(&Event::SessionStarted(session_payload(None)));
        self.evidence.show(OutputEvent::SessionStarted {
            session_id: self.config.submission.session_id.clone(),
            agent_id: self.config.agent_id.clone(),
            model: self.config.model.clone(),
            client_version: CLIENT_VERSION.to_owned(),
            join,
        });
        let prompt = self.config.submission.prompt.clone();
        self.evidence.record(Entry::Submitted { prompt: prompt.clone() });
        if let Err(error) = self.conversation.push_user(prompt) {
            // The CLI refuses an empty prompt; the model would be asked with no message.
            tracing::error!(%error, "the prompt cannot be used");
        }
    }

    /// Ends a call that did not run.
    fn close_tool(&mut self, id: ToolCallId, closing: Closing) {
        let Some(call) = self.take_call(id) else { return };
        let payload = ToolPayload {
            tool_name: call.tool_name.clone(),
            input_bytes: Some(call.input_bytes),
            ..ToolPayload::default()
        };
        let (status, reason, message) = match closing {
            Closing::Denied(denial) => {
                let reason = denial.as_str();
                let payload = ToolPayload { decision: Some("denied"), ..payload };
                self.evidence.tell(&Event::ToolDenied(id, payload, EventOutcome::Denied { reason }));
                let told = call.plan.as_ref().err().map(|objection| objection.message.clone());
                (ToolStatus::Denied, reason, told.unwrap_or_else(|| format!("denied: {reason}")))
            }
            Closing::Cancelled => {
                let reason = "not_started";
                let outcome = EventOutcome::Failure { exit_code: None, reason };
                self.evidence.tell(&Event::ToolCancelled(id, payload, outcome));
                (ToolStatus::Cancelled, reason, "[not started: interrupted]".to_owned())
            }
        };
        self.evidence.record(Entry::ToolEnded {
            tool_call_id: id,
            status,
            exit_code: None,
            reason: Some(reason.to_owned()),
            join: None,
            output: message.clone(),
            output_bytes: 0,
        });
        self.evidence.show(OutputEvent::ToolEnded {
            tool_call_id: id,
            tool_name: call.tool_name.clone(),
            status,
            exit_code: None,
            reason: Some(reason.to_owned()),
            output: message.clone(),
            output_bytes: 0,
            duration_ms: 0,
        });
        self.results.push(call.result(message, true));
    }

    async fn finish(&mut self, outcome: Outcome) {
        let turns = self.kernel.turns();
        self.evidence.record(Entry::SessionEnded { outcome, turns });
        let ended = Event::SessionEnded(session_payload(Some(outcome.reason())), session_outcome(outcome));
        self.evidence.tell_and_wait(&ended, LAST_EVENT_WAIT).await;
        let mut telemetry = None;
        if let Some(lifecycle) = self.evidence.lifecycle.take() {
            if let Some(scope) = self.evidence.session_scope {
                lifecycle.close_scope(scope);
            }
            telemetry = Some(lifecycle.shutdown().await);
        }
        let session_id = self.config.submission.session_id.clone();
        let usage = self.usage;
        self.evidence.show(OutputEvent::SessionEnded { session_id, outcome, turns, usage, telemetry });
    }
}
