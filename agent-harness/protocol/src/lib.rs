//! The words every part of the harness shares: ids, submissions and their acknowledgements,
//! outcomes, usage, and the events that `iteron exec --json` prints.
//!
//! Pure data: no IO, no clock, no tokio. Every other harness crate may depend on this one; it
//! depends on none of them.
//!
//! A *submission* is what a front end sends: a prompt or a control operation. A prompt sets off a
//! *run*: turns, one after the other, until the model ends or something stops it. A *turn* is one
//! model request with the tool calls that answer it.

mod acknowledgement;
mod control;
mod ids;
mod ledger;
mod outcome;
mod output;
mod permission;
pub mod rpc;
mod sandbox;
mod submission;
mod tool;

pub use acknowledgement::{Acknowledgement, RejectionReason, RequeueReason, SubmissionState};
pub use control::ControlOp;
pub use ids::{AgentId, ClientSubmissionId, IdError, JobId, ScopeId, SessionId, TokenId, ToolCallId, TurnId};
pub use ledger::{ENDED_MAX, Ledger, TransitionError};
pub use outcome::{FailureReason, Outcome, ProviderErrorClass, Usage};
pub use output::{Join, OutputEvent, Reaped, TelemetryCounts, Termination, ToolStatus};
pub use permission::{Decision, OnAsk, Permissions, Rule};
pub use sandbox::{SandboxPart, SandboxState, Wall};
pub use submission::{EnvelopeError, Operation, PROMPT_BYTES_MAX, PROTOCOL_VERSION, SubmissionEnvelope};
pub use tool::ToolClass;
