//! How things end: runs and sessions, and what they cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a run or a session ended. Exactly one for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Outcome {
    /// The model ended its turn.
    Completed,
    /// The model stopped without finishing, or a limit stopped it.
    TaskFailed { reason: FailureReason },
    /// The model could not be reached, or broke off its answer.
    ProviderFailed { class: ProviderErrorClass },
    /// The operator stopped it, or the process ended before it did.
    Interrupted,
    /// The harness could not go on: its durable record is broken.
    HarnessFailed,
}

impl Outcome {
    /// The `reason` of `session.ended`: a closed set of words, never free text.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::TaskFailed { reason } => reason.as_str(),
            Self::ProviderFailed { .. } => "provider_failed",
            Self::Interrupted => "interrupted",
            Self::HarnessFailed => "harness_failed",
        }
    }
}

/// Why a task failed although the provider answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureReason {
    TurnLimit,
    MaxTokens,
    Refusal,
    UnknownStopReason,
}

impl FailureReason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TurnLimit => "turn_limit",
            Self::MaxTokens => "max_tokens",
            Self::Refusal => "refusal",
            Self::UnknownStopReason => "unknown_stop_reason",
        }
    }
}

/// The `error_class` of `agent.model.failed`: a closed set of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProviderErrorClass {
    Authentication,
    InvalidRequest,
    RateLimited,
    Overloaded,
    ServerError,
    Connect,
    Timeout,
    IdleTimeout,
    StreamCut,
    Protocol,
    TooLarge,
    Cancelled,
}

impl ProviderErrorClass {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::InvalidRequest => "invalid_request",
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::ServerError => "server_error",
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::StreamCut => "stream_cut",
            Self::Protocol => "protocol",
            Self::TooLarge => "too_large",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Tokens, in the provider-neutral sense: `input_tokens` excludes what came from or went to the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
}

impl Usage {
    pub fn add(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_tokens = self.cache_read_tokens.saturating_add(other.cache_read_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(other.cache_write_tokens);
    }
}
