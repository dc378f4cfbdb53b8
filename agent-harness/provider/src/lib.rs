//! Asks a model: Anthropic Messages, streamed.
//!
//! Depends on `iteron-protocol` and `iteron-context`; the runtime alone uses it. It owns what lies
//! between a request and a whole answer: transport, timeouts, retries before the first byte, and
//! putting the stream together. It never logs the key or any content.
//!
//! Wire format: <https://docs.anthropic.com/en/api/messages-streaming>.

mod assemble;
mod config;
mod error;
mod provider;
mod retry;
mod sse;
mod transport;

pub use assemble::{Answer, ToolInput};
pub use config::{ApiKey, BaseUrlError, Limits, ProviderConfig};
pub use error::ProviderError;
pub use provider::{Progress, Provider};
pub use transport::TransportError;
