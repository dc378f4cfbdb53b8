//! What outlives a run: the conversation, and everything that a run works with.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iteron_context::{Conversation, ToolResult, ToolSpec};
use iteron_kernel::run::Closing;
use iteron_lifecycle::{Event, EventOutcome, ToolPayload};
use iteron_protocol::{AgentId, OutputEvent, Permissions, Rule, SessionId, ToolStatus, Usage};
use iteron_provider::Provider;
use iteron_record::Entry;
use iteron_tools::{Jobs, ToolDescription, Toolbox};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::PendingCall;
use crate::evidence::Evidence;

#[derive(Debug, Clone)]
pub struct SessionConfig {
    pub session_id: SessionId,
    pub agent_id: AgentId,
    pub model: String,
    pub max_tokens: u32,
    /// Most model requests of a run.
    pub turns_max: u32,
    pub cwd: PathBuf,
    pub permissions: Permissions,
    /// Go on with the conversation that the record holds.
    pub resume: bool,
}

pub(crate) struct Agent {
    pub config: SessionConfig,
    pub provider: Provider,
    pub tools: Toolbox,
    pub jobs: Arc<Jobs>,
    /// The tools as the model sees them.
    pub offered: Vec<ToolSpec>,
    pub evidence: Evidence,
    /// Calls under way. They outlive a run that was abandoned, until their processes are gone and
    /// their ends recorded.
    pub calls: TaskTracker,
    pub turns: AtomicU32,
    conversation: Mutex<Conversation>,
    usage: Mutex<Usage>,
}

impl Agent {
    pub(crate) fn new(
        config: SessionConfig,
        provider: Provider,
        tools: Toolbox,
        jobs: Arc<Jobs>,
        evidence: Evidence,
        conversation: Conversation,
    ) -> Self {
        // What is always denied is not offered either.
        let permissions = config.permissions;
        let is_denied = move |tool: &ToolDescription| {
            tool.class.is_some_and(|class| permissions.rule(class) == Rule::Deny)
        };
        let offered = tools.descriptions().into_iter().filter(|tool| !is_denied(tool)).map(|tool| ToolSpec {
            name: tool.name.to_owned(),
            description: tool.description,
            input_schema: tool.input_schema,
        });
        let offered = offered.collect();
        let calls = TaskTracker::new();
        calls.close();
        Self {
            config,
            provider,
            tools,
            jobs,
            offered,
            evidence,
            calls,
            turns: AtomicU32::new(0),
            conversation: Mutex::new(conversation),
            usage: Mutex::default(),
        }
    }

    /// Held only for a moment, never while anything is awaited.
    pub(crate) fn conversation(&self) -> MutexGuard<'_, Conversation> {
        self.conversation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_usage(&self, usage: Usage) {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner).add(usage);
    }

    pub(crate) fn usage(&self) -> Usage {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Ends a call that did not run, and gives what the model is told of it.
    pub(crate) async fn close_call(
        &self,
        call: &PendingCall,
        closing: Closing,
        cancel: &CancellationToken,
    ) -> ToolResult {
        let payload = ToolPayload {
            tool_name: call.tool_name.clone(),
            tool_class: call.class(),
            input_bytes: Some(call.input_bytes),
            ..ToolPayload::default()
        };
        let (status, reason, message, event) = match closing {
            Closing::Denied(denial) => {
                let reason = denial.as_str();
                let payload = ToolPayload { decision: Some(denial.decision()), ..payload };
                let told = call.request.as_ref().err().map(|objection| objection.message.clone());
                let message = told.unwrap_or_else(|| format!("denied: {reason}"));
                let event = Event::ToolDenied(call.id, payload, EventOutcome::Denied { reason });
                (ToolStatus::Denied, reason, message, event)
            }
            Closing::Cancelled => {
                let reason = "not_started";
                let outcome = EventOutcome::Failure { exit_code: None, reason };
                let message = "[not started: interrupted]".to_owned();
                (ToolStatus::Cancelled, reason, message, Event::ToolCancelled(call.id, payload, outcome))
            }
        };
        self.evidence.tell(&event);
        let entry = Entry::ToolEnded {
            tool_call_id: call.id,
            provider_call_id: call.provider_id.clone(),
            status,
            exit_code: None,
            reason: Some(reason.to_owned()),
            join: None,
            output: message.clone(),
            output_bytes: 0,
            termination: None,
            reaped: Vec::new(),
        };
        self.evidence.record_end(entry).await;
        let shown = OutputEvent::ToolEnded {
            tool_call_id: call.id,
            tool_name: call.tool_name.clone(),
            status,
            exit_code: None,
            reason: Some(reason.to_owned()),
            output: message.clone(),
            output_bytes: 0,
            duration_ms: 0,
        };
        self.evidence.show(shown, cancel).await;
        call.result(message, true)
    }
}
