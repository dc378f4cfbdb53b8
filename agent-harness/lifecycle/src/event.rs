//! The events the agent may tell, with exactly the payload keys the contract allows. Content has
//! no place here by construction: there is no field that could hold it.

use iteron_protocol::{AgentId, Join, SessionId, TokenId, ToolCallId};
use serde::Serialize;

/// Whom an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Correlation {
    pub agent_id: AgentId,
    pub session_id: SessionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mission_id: Option<TokenId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TokenId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum EventOutcome {
    Started,
    Success {
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
    },
    Failure {
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        reason: &'static str,
    },
    Denied {
        reason: &'static str,
    },
    Unknown {
        reason: &'static str,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SessionPayload {
    pub client: &'static str,
    pub client_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ToolPayload {
    pub tool_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_class: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<Join>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ModelPayload {
    pub provider: &'static str,
    pub model: String,
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_class: Option<&'static str>,
}

/// One event, named as in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    SessionStarted(SessionPayload),
    SessionEnded(SessionPayload, EventOutcome),
    ModelRequested(ModelPayload),
    ModelCompleted(ModelPayload),
    ModelFailed(ModelPayload, &'static str),
    ToolInvoked(ToolCallId, ToolPayload),
    ToolCompleted(ToolCallId, ToolPayload, EventOutcome),
    ToolFailed(ToolCallId, ToolPayload, EventOutcome),
    ToolDenied(ToolCallId, ToolPayload, EventOutcome),
    ToolCancelled(ToolCallId, ToolPayload, EventOutcome),
}

#[derive(Serialize)]
struct Wire<'a, P> {
    event_name: &'static str,
    correlation: &'a Correlation,
    outcome: EventOutcome,
    payload: &'a P,
}

impl Event {
    /// The request line, without newline.
    pub(crate) fn encode(&self, base: &Correlation) -> Result<Vec<u8>, serde_json::Error> {
        use EventOutcome::{Failure, Started, Success};

        let success = || Success { exit_code: None };
        match self {
            Self::SessionStarted(payload) => line("session.started", base, Started, payload),
            Self::SessionEnded(payload, outcome) => line("session.ended", base, outcome.clone(), payload),
            Self::ModelRequested(payload) => line("agent.model.requested", base, Started, payload),
            Self::ModelCompleted(payload) => line("agent.model.completed", base, success(), payload),
            Self::ModelFailed(payload, reason) => {
                line("agent.model.failed", base, Failure { exit_code: None, reason }, payload)
            }
            Self::ToolInvoked(id, payload) => {
                line("agent.tool.invoked", &of_call(base, *id), Started, payload)
            }
            Self::ToolCompleted(id, payload, outcome) => {
                line("agent.tool.completed", &of_call(base, *id), outcome.clone(), payload)
            }
            Self::ToolFailed(id, payload, outcome) => {
                line("agent.tool.failed", &of_call(base, *id), outcome.clone(), payload)
            }
            Self::ToolDenied(id, payload, outcome) => {
                line("agent.tool.denied", &of_call(base, *id), outcome.clone(), payload)
            }
            Self::ToolCancelled(id, payload, outcome) => {
                line("agent.tool.cancelled", &of_call(base, *id), outcome.clone(), payload)
            }
        }
    }
}

fn of_call(base: &Correlation, id: ToolCallId) -> Correlation {
    Correlation { tool_call_id: Some(id), ..base.clone() }
}

fn line<P: Serialize>(
    event_name: &'static str,
    correlation: &Correlation,
    outcome: EventOutcome,
    payload: &P,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Wire { event_name, correlation, outcome, payload })
}
