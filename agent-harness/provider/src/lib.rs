//! Asks a model: Anthropic Messages, OpenAI Responses, and chat completions, streamed.
//!
//! Depends on `iteron-protocol` and `iteron-context`; the runtime alone uses it. It owns what lies
//! between a request and a whole answer: transport, timeouts, retries before the first byte, and
//! putting the stream together. It never logs the key or any content.
//!
//! Each API has its form of a question in `iteron-context`, and a state machine for its stream in
//! `assemble/`.

mod api;
mod assemble;
mod config;
mod error;
mod provider;
mod retry;
mod transport;

pub use api::Api;
pub use assemble::{Answer, ToolInput};
pub use config::{ApiKey, BaseUrlError, Limits, ProviderConfig};
pub use error::ProviderError;
pub use provider::{Encoded, Progress, Provider};
pub use transport::TransportError;
