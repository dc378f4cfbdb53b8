//! How asking a model fails.

use std::time::Duration;

use iteron_protocol::ProviderErrorClass;
use serde::Deserialize;

use crate::transport::TransportError;

#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error("cannot encode the request")]
    Encode(#[source] serde_json::Error),
    #[error("cannot reach the model")]
    Transport(#[source] TransportError),
    #[error("the model did not answer within {} s", .0.as_secs_f32())]
    HeaderTimeout(Duration),
    #[error("the model answered {status}: {message}")]
    Status { status: u16, message: String, retry_after: Option<Duration> },
    #[error("the model was silent for {} s", .0.as_secs_f32())]
    IdleTimeout(Duration),
    #[error("the answer broke off before its end")]
    StreamCut,
    #[error("the model reported {kind}: {message}")]
    Event { kind: String, message: String },
    #[error("the answer is not what the API documents: {0}")]
    Protocol(&'static str),
    #[error("the answer exceeds {0} bytes")]
    TooLarge(usize),
}

impl ProviderError {
    /// The closed word for events and records.
    #[must_use]
    pub fn class(&self) -> ProviderErrorClass {
        match self {
            Self::Encode(_) => ProviderErrorClass::InvalidRequest,
            Self::Transport(_) => ProviderErrorClass::Connect,
            Self::HeaderTimeout(_) => ProviderErrorClass::Timeout,
            Self::Status { status, .. } => match status {
                401 | 403 => ProviderErrorClass::Authentication,
                429 => ProviderErrorClass::RateLimited,
                503 | 529 => ProviderErrorClass::Overloaded,
                408 | 504 => ProviderErrorClass::Timeout,
                413 => ProviderErrorClass::TooLarge,
                500..=599 => ProviderErrorClass::ServerError,
                _ => ProviderErrorClass::InvalidRequest,
            },
            Self::IdleTimeout(_) => ProviderErrorClass::IdleTimeout,
            Self::StreamCut => ProviderErrorClass::StreamCut,
            Self::Event { kind, .. } => match kind.as_str() {
                "overloaded_error" => ProviderErrorClass::Overloaded,
                "rate_limit_error" => ProviderErrorClass::RateLimited,
                "authentication_error" | "permission_error" => ProviderErrorClass::Authentication,
                "invalid_request_error" | "not_found_error" => ProviderErrorClass::InvalidRequest,
                "timeout_error" => ProviderErrorClass::Timeout,
                "server_is_overloaded" => ProviderErrorClass::Overloaded,
                "rate_limit_exceeded" | "insufficient_quota" => ProviderErrorClass::RateLimited,
                "invalid_api_key" => ProviderErrorClass::Authentication,
                "invalid_prompt" | "context_length_exceeded" => ProviderErrorClass::InvalidRequest,
                _ => ProviderErrorClass::ServerError,
            },
            Self::Protocol(_) => ProviderErrorClass::Protocol,
            Self::TooLarge(_) => ProviderErrorClass::TooLarge,
        }
    }
}

/// An error as the APIs write it, in a body or in the stream.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct WireError {
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

/// The body of a refusal.
#[derive(Debug, Deserialize)]
pub(crate) struct ErrorBody {
    pub error: WireError,
}

impl WireError {
    /// The nearest there is to a kind.
    fn kind(&self) -> &str {
        // `type` is "error" itself in events of the Responses API.
        let kind = self.kind.as_deref().filter(|kind| *kind != "error");
        self.code.as_deref().or(kind).unwrap_or("error")
    }

    pub(crate) fn told(&self) -> String {
        format!("{}: {}", self.kind(), self.message.as_deref().unwrap_or_default())
    }
}

impl From<WireError> for ProviderError {
    fn from(error: WireError) -> Self {
        Self::Event { kind: error.kind().to_owned(), message: error.message.unwrap_or_default() }
    }
}
