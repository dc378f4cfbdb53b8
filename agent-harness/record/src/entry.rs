//! What an entry can say, and the line it becomes.

use iteron_protocol::{
    AgentId, ClientSubmissionId, ControlOp, Decision, JobId, Join, Outcome, Permissions, ProviderErrorClass,
    Reaped, Rule, SandboxState, SessionId, SubmissionState, Termination, ToolCallId, ToolClass, ToolStatus,
    TurnId, Usage,
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
        /// The rules for tool calls. Absent in records of before there were any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        permissions: Option<Permissions>,
        /// What of the sandbox is enforced. Absent in records of before there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<SandboxState>,
        /// The conversation of the runs before goes on; otherwise it begins anew.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resumed: bool,
    },
    Recovered {
        torn_bytes: u64,
    },
    /// A call was intended, and the process ended before its end was seen. It may have had an effect,
    /// and is not done again.
    EffectUnknown {
        tool_call_id: ToolCallId,
    },
    /// A background job ended.
    JobEnded {
        job: JobId,
        exit_code: Option<i32>,
        termination: Termination,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reaped: Vec<Reaped>,
    },
    /// A prompt came in. Nothing is done about it before it is admitted.
    Submitted {
        #[serde(default)]
        submission_id: Option<ClientSubmissionId>,
        prompt: String,
    },
    /// A prompt became part of the conversation; its run begins.
    Admitted {
        submission_id: ClientSubmissionId,
    },
    /// A submission came back or was refused, and had no effect.
    Returned {
        submission_id: ClientSubmissionId,
        #[serde(flatten)]
        state: SubmissionState,
    },
    /// A control operation is carried out from here on.
    Controlled {
        submission_id: ClientSubmissionId,
        operation: ControlOp,
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
        /// What had come of the answer: evidence, and no answer.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        partial: String,
    },
    /// What the rules say of a call that the model made. Written before it runs, or is denied.
    ToolDecided {
        tool_call_id: ToolCallId,
        provider_call_id: String,
        tool_name: String,
        tool_class: ToolClass,
        rule: Rule,
        decision: Decision,
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
        #[serde(default)]
        provider_call_id: String,
        status: ToolStatus,
        exit_code: Option<i32>,
        reason: Option<String>,
        join: Option<Join>,
        output: String,
        output_bytes: u64,
        /// How its processes ended; nothing when it never ran.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        termination: Option<Termination>,
        /// What was reaped, as `waitpid` told it, the root first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reaped: Vec<Reaped>,
    },
    /// The end of a run. `abandoned`: it did not end within its grace, and what it had running may
    /// still have taken effect.
    RunEnded {
        submission_id: ClientSubmissionId,
        outcome: Outcome,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        abandoned: bool,
    },
    SessionEnded {
        outcome: Outcome,
        turns: u32,
    },
    /// The holder of the key vouches for the record up to the line before this one.
    HeadSigned {
        /// Ed25519, as 64 hex digits.
        public_key: String,
        signature: String,
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
            | Self::RunEnded { .. }
            | Self::SessionEnded { .. } => true,
            Self::SessionStarted { .. }
            | Self::Recovered { .. }
            | Self::EffectUnknown { .. }
            | Self::JobEnded { .. }
            | Self::Submitted { .. }
            | Self::Admitted { .. }
            | Self::Returned { .. }
            | Self::Controlled { .. }
            | Self::ModelRequested { .. }
            | Self::ToolDecided { .. }
            | Self::HeadSigned { .. }
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

/// The bytes of exactly so many hex digits, lower case.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(is_hex) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
