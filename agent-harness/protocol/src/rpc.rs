//! The messages between a front end and a session that it steers from another process: JSON-RPC 2.0
//! (<https://www.jsonrpc.org/specification>), one message a line, no batches.
//!
//! `initialize` comes first. An answer to `submit` or `control` says that the session has the
//! submission; what becomes of it comes as an [`Acknowledgement`] to whoever subscribed.

use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Acknowledgement, AgentId, ClientSubmissionId, ControlOp, OutputEvent, PROTOCOL_VERSION, SessionId,
};

/// Longest message, in bytes: a prompt of the longest kind, all of it escaped.
pub const MESSAGE_BYTES_MAX: usize = 6 * crate::PROMPT_BYTES_MAX + 64 * 1024;

/// What a front end asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "method", content = "params", rename_all = "snake_case")]
pub enum RpcCall {
    /// Says which version is spoken. Comes first.
    Initialize(Initialize),
    /// From now on, tell what happens.
    Subscribe(Nothing),
    /// Hand a prompt over.
    Submit(Submit),
    /// Hand a control operation over.
    Control(Control),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Initialize {
    pub protocol_version: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Submit {
    pub submission_id: ClientSubmissionId,
    pub prompt: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Control {
    pub submission_id: ClientSubmissionId,
    pub operation: ControlOp,
}

/// The result of `initialize`. Those of the other methods are empty objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Initialized {
    pub protocol_version: u32,
    pub session_id: SessionId,
    pub agent_id: AgentId,
    pub server_version: String,
}

/// What a session tells those that subscribed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "method", content = "params", rename_all = "snake_case")]
pub enum RpcNotification {
    Event(OutputEvent),
    Acknowledgement(Acknowledgement),
}

/// Codes of errors: those of JSON-RPC, and from -32000 on those of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcErrorCode {
    Parse,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    /// Another version is spoken here.
    Version,
    /// `initialize` comes first, and once.
    NotInitialized,
    /// Too many submissions are on their way.
    Full,
    /// The session has ended.
    Ended,
}

impl RpcErrorCode {
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Parse => -32700,
            Self::InvalidRequest => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams => -32602,
            Self::Version => -32001,
            Self::NotInitialized => -32002,
            Self::Full => -32010,
            Self::Ended => -32011,
        }
    }
}

/// All messages in one JSON Schema (2020-12), generated from the types.
#[must_use]
pub fn rpc_schema() -> Value {
    #[derive(JsonSchema)]
    #[schemars(rename = "iteron-rpc")]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Messages {
        call: RpcCall,
        initialized: Initialized,
        notification: RpcNotification,
    }
    let schema: Schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Messages>();
    let mut schema = schema.to_value();
    schema["title"] = format!("iteron JSON-RPC, version {PROTOCOL_VERSION}").into();
    schema
}

#[cfg(test)]
mod tests;
