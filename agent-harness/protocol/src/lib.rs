//! The words every part of the harness shares: ids, submissions, outcomes, usage, and the events
//! that `iteron exec --json` prints.
//!
//! Pure data: no IO, no clock, no tokio. Every other harness crate may depend on this one; it
//! depends on none of them.

mod ids;
mod output;
mod submission;

pub use ids::{AgentId, IdError, ScopeId, SessionId, TokenId, ToolCallId, TurnId};
pub use output::{Join, OutputEvent, TelemetryCounts, ToolStatus};
pub use submission::{FailureReason, Outcome, ProviderErrorClass, Submission, Usage};
