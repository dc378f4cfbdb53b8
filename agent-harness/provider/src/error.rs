//! How asking a model fails.

use std::time::Duration;

use iteron_protocol::ProviderErrorClass;

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
                _ => ProviderErrorClass::ServerError,
            },
            Self::Protocol(_) => ProviderErrorClass::Protocol,
            Self::TooLarge(_) => ProviderErrorClass::TooLarge,
        }
    }
}
