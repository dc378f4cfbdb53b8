//! What an entry can say, and the line it becomes.

use iteron_protocol::{
    AgentId, Join, Outcome, ProviderErrorClass, SessionId, ToolCallId, ToolStatus, TurnId, Usage,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// One decision or observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    SessionStarted {
        session_id: SessionId,
        agent_id: AgentId,
        model: String,
        client_version: String,
    },
    Recovered {
        torn_bytes: u64,
    },
    Submitted {
        prompt: String,
    },
    ModelRequested {
        turn_id: TurnId,
        turn: u32,
    },
    ModelCompleted {
        turn_id: TurnId,
        stop_reason: String,
        content: Value,
        usage: Usage,
    },
    ModelFailed {
        turn_id: TurnId,
        error_class: ProviderErrorClass,
        message: String,
    },
    /// Written before the tool's process executes: an intent without an end is an unknown effect.
    ToolIntended {
        tool_call_id: ToolCallId,
        provider_call_id: String,
        tool_name: String,
        input: Value,
    },
    ToolEnded {
        tool_call_id: ToolCallId,
        status: ToolStatus,
        exit_code: Option<i32>,
        reason: Option<String>,
        join: Option<Join>,
        output: String,
        output_bytes: u64,
    },
    SessionEnded {
        outcome: Outcome,
        turns: u32,
    },
}

impl Entry {
    /// Whether the entry closes something, and must survive a crash once it was reported.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        match self {
            Self::ModelCompleted { .. }
            | Self::ModelFailed { .. }
            | Self::ToolEnded { .. }
            | Self::SessionEnded { .. } => true,
            Self::SessionStarted { .. }
            | Self::Recovered { .. }
            | Self::Submitted { .. }
            | Self::ModelRequested { .. }
            | Self::ToolIntended { .. } => false,
        }
    }
}

/// An entry with its place in the chain. The order of the fields is the order on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub seq: u64,
    pub at_ms: i64,
    pub prev: String,
    pub entry: Entry,
}

pub(crate) const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const HASH_FIELD: &str = ",\"hash\":\"";
const HASH_HEX: usize = 64;

/// The line's bytes with hash and newline, and the hash.
pub(crate) fn seal(line: &Line) -> Result<(Vec<u8>, String), serde_json::Error> {
    let mut bytes = serde_json::to_vec(line)?;
    // The closing brace comes after the hash.
    bytes.pop();
    let hash = hex(&Sha256::digest(&bytes));
    bytes.extend_from_slice(HASH_FIELD.as_bytes());
    bytes.extend_from_slice(hash.as_bytes());
    bytes.extend_from_slice(b"\"}\n");
    Ok((bytes, hash))
}

/// Splits a line (without newline) into its entry and hash, if the hash is right.
pub(crate) fn unseal(bytes: &[u8]) -> Option<(Line, String)> {
    let hash_at = bytes.len().checked_sub(HASH_FIELD.len() + HASH_HEX + 2)?;
    let (body, tail) = bytes.split_at(hash_at);
    let hash = tail.strip_prefix(HASH_FIELD.as_bytes())?.strip_suffix(b"\"}")?;
    if hex(&Sha256::digest(body)).as_bytes() != hash {
        return None;
    }
    let mut json = body.to_vec();
    json.push(b'}');
    let line = serde_json::from_slice(&json).ok()?;
    Some((line, String::from_utf8(hash.to_vec()).ok()?))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
