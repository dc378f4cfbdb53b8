//! The script: a list of turns, in JSON or TOML. Unknown keys are refused.
//!
//! ```toml
//! [[turns]]
//! text = "I look first."
//! tool_use = [{ name = "shell", input = { command = "ls" } }]
//!
//! [[turns]]
//! faults = { status = 429, retry_after = "0" }
//!
//! [[turns]]
//! text = "Done."
//! faults = { split_every = 7, unknown_event = true }
//! ```

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    pub turns: Vec<Turn>,
    /// Begin again after the last turn.
    #[serde(default)]
    pub repeat: bool,
}

/// One answer of the model.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Turn {
    pub thinking: Option<String>,
    pub text: Option<String>,
    pub tool_use: Vec<ToolUse>,
    /// By default `tool_use` where there is one, else `end_turn`.
    pub stop_reason: Option<String>,
    pub input_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    pub faults: Faults,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolUse {
    pub name: String,
    pub input: Value,
    /// By default unique in the script.
    pub id: Option<String>,
    /// Sent instead of `input`'s JSON, to script input that does not parse.
    pub raw_input: Option<String>,
}

/// What goes wrong in a turn. Positions count events of the stream, from 0.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Answer with this status and an error body instead of a stream.
    pub status: Option<u16>,
    pub retry_after: Option<String>,
    pub stall_ms_before_headers: Option<u64>,
    /// Be silent for so long before the event at `stall_at_event` (0 unless given).
    pub stall_ms: Option<u64>,
    pub stall_at_event: usize,
    /// And so many bytes into that event.
    pub stall_at_byte: usize,
    /// Send an `error` event of this type in place of the event at `error_at_event`, and end.
    pub error_event: Option<String>,
    pub error_at_event: usize,
    /// Break the connection after so many bytes of the stream.
    pub cut_after_bytes: Option<usize>,
    /// Break the connection after so many events.
    pub cut_after_events: Option<usize>,
    /// End the response in good order after so many events, without `message_stop`.
    pub end_after_events: Option<usize>,
    /// Send an event of a type nobody knows, a delta of an unknown kind, and a ping.
    pub unknown_event: bool,
    /// Cut a tool's input into deltas of so many bytes; 1 splits every escape.
    pub delta_bytes: Option<usize>,
    /// Leave out all usage.
    pub no_usage: bool,
    /// Send the last usage twice.
    pub duplicate_usage: bool,
    /// Cut the stream into chunks at these byte offsets.
    pub split_at: Vec<usize>,
    /// Cut the stream into chunks of so many bytes.
    pub split_every: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("cannot read the script {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the script is not valid JSON")]
    Json(#[from] serde_json::Error),
    #[error("the script is not valid TOML")]
    Toml(#[from] toml::de::Error),
}

impl Script {
    /// Reads TOML from a file named `*.toml`, JSON from any other.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScriptError::Read { path: path.to_owned(), source })?;
        if path.extension().is_some_and(|extension| extension == "toml") {
            Ok(toml::from_str(&text)?)
        } else {
            Self::from_json(&text)
        }
    }

    /// Takes `{"turns": […]}` or just the list.
    pub fn from_json(text: &str) -> Result<Self, ScriptError> {
        if text.trim_start().starts_with('[') {
            return Ok(Self { turns: serde_json::from_str(text)?, repeat: false });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// The turn of the `number`th request, from 1.
    pub(crate) fn turn(&self, number: usize) -> Option<&Turn> {
        let at = number.checked_sub(1)?;
        let at = if self.repeat && !self.turns.is_empty() { at % self.turns.len() } else { at };
        self.turns.get(at)
    }
}

impl Turn {
    /// The turn's calls, each with its id.
    pub(crate) fn calls(&self, number: usize) -> impl Iterator<Item = (String, &ToolUse)> {
        self.tool_use.iter().enumerate().map(move |(at, call)| {
            let id = call.id.clone().unwrap_or_else(|| format!("toolu_scripted_{number}_{at}"));
            (id, call)
        })
    }

    pub(crate) fn stop_reason(&self) -> &str {
        let usual = if self.tool_use.is_empty() { "end_turn" } else { "tool_use" };
        self.stop_reason.as_deref().unwrap_or(usual)
    }
}
