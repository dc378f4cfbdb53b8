//! What an agent may say on the collector's Unix socket: `POST /v1/events`, `POST /v1/scopes`.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::event::{Entity, Outcome, Payload};
use crate::text::Text;

/// A declared event before the collector stamps source, ids, times and integrity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmittedEvent<'a> {
    #[serde(borrow)]
    pub event_name: Text<'a>,
    #[serde(borrow)]
    pub correlation: SubmittedCorrelation<'a>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Entity<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Entity<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome<'a>>,
    #[serde(borrow, default)]
    pub payload: Payload<'a>,
}

/// The ids an agent may name; tenant, host and instance are the collector's to say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmittedCorrelation<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub mission_id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub span_id: Option<Text<'a>>,
}

/// Answer to `POST /v1/events`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EventsAnswer {
    pub accepted: Vec<AcceptedEvent>,
    #[serde(default)]
    pub rejected: Vec<RejectedEvent>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedEvent {
    pub event_id: Uuid,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedEvent {
    /// Line of the request, from 0.
    pub index: usize,
    pub reason: String,
}

/// Body of `POST /v1/scopes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScopeRequest {
    Open {
        kind: ScopeKind,
        session_id: String,
        agent_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_call_id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        command_id: Option<String>,
        /// Root process, in the caller's pid namespace.
        pid: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent_scope_id: Option<String>,
    },
    Close {
        scope_id: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeKind {
    Session,
    ToolCall,
    Command,
}

impl ScopeKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            ScopeKind::Session => "session",
            ScopeKind::ToolCall => "tool_call",
            ScopeKind::Command => "command",
        }
    }
}

/// Answer to an opened scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeAnswer {
    pub scope_id: String,
    pub join: String,
    pub process_id: String,
}

/// Body of every error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    pub error: String,
}
