//! The lines of `iteron exec --json`: one JSON object each, told apart by `type`.
//!
//! A stream always ends with exactly one `session.ended`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    AgentId, Outcome, Permissions, ProviderErrorClass, SandboxState, SessionId, ToolCallId, TurnId, Usage,
};

/// How a tool call's process tree is joined to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// The collector had the root process before it executed.
    Registered,
    /// It had not: the join can only be concluded afterwards.
    Inferred,
}

impl Join {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Inferred => "inferred",
        }
    }
}

/// How a tool call ended. Exactly one per call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    Completed,
    Failed,
    Denied,
    Cancelled,
}

/// How a process tree ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Termination {
    /// Nobody had to end it.
    ByItself,
    /// Asked to, within its grace: all of it is gone and reaped.
    Cooperative,
    /// Killed: all of it is gone and reaped.
    Forced,
    /// Killed, and something of it was still there when the waiting ended.
    TimedOut,
    /// Its end could not be observed.
    Unknown,
}

/// A dead process as `waitpid` gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reaped {
    pub pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// What became of the events meant for the collector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TelemetryCounts {
    pub accepted: u64,
    /// Refused by the collector.
    pub rejected: u64,
    /// Never sent: the queue was full, or the collector unreachable to the end.
    pub dropped: u64,
    /// Sent, but no answer came in time: they may or may not have been taken.
    pub unconfirmed: u64,
}

/// One output line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type")]
pub enum OutputEvent {
    #[serde(rename = "session.started")]
    SessionStarted {
        session_id: SessionId,
        agent_id: AgentId,
        model: String,
        client_version: String,
        permissions: Permissions,
        sandbox: SandboxState,
        /// The public key by which the record's heads are signed; absent when no record is kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record_key: Option<String>,
        /// How the session's own process is joined; absent when effects are unobserved.
        #[serde(skip_serializing_if = "Option::is_none")]
        join: Option<Join>,
    },
    #[serde(rename = "turn.started")]
    TurnStarted { turn_id: TurnId, turn: u32 },
    #[serde(rename = "model.text")]
    ModelText { turn_id: TurnId, text: String },
    #[serde(rename = "model.retrying")]
    ModelRetrying { turn_id: TurnId, attempt: u32, error_class: ProviderErrorClass, delay_ms: u64 },
    #[serde(rename = "model.completed")]
    ModelCompleted { turn_id: TurnId, usage: Usage, duration_ms: u64, attempt: u32 },
    #[serde(rename = "model.failed")]
    ModelFailed { turn_id: TurnId, attempt: u32, error_class: ProviderErrorClass, message: String },
    #[serde(rename = "tool.invoked")]
    ToolInvoked {
        tool_call_id: ToolCallId,
        tool_name: String,
        input: serde_json::Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        join: Option<Join>,
    },
    #[serde(rename = "tool.ended")]
    ToolEnded {
        tool_call_id: ToolCallId,
        tool_name: String,
        status: ToolStatus,
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        output: String,
        output_bytes: u64,
        duration_ms: u64,
    },
    #[serde(rename = "session.ended")]
    SessionEnded {
        session_id: SessionId,
        outcome: Outcome,
        turns: u32,
        usage: Usage,
        #[serde(skip_serializing_if = "Option::is_none")]
        telemetry: Option<TelemetryCounts>,
    },
}
