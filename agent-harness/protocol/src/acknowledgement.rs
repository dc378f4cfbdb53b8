//! What became of a submission.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClientSubmissionId, PROTOCOL_VERSION};

/// Where a submission is on its way. `Received` comes first, `Admitted` at most once, and exactly
/// one of the other three is the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SubmissionState {
    /// The session has it.
    Received,
    /// A prompt: its run begins. It may still come back.
    Admitted,
    /// It took effect and is in the record, as the entry of this number. Nothing when no record is
    /// kept.
    Applied {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record_seq: Option<u64>,
    },
    /// It took no effect and is the front end's again, to send under another id or to drop.
    Requeued { reason: RequeueReason },
    /// It cannot be carried out.
    Rejected { reason: RejectionReason },
}

impl SubmissionState {
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Applied { .. } | Self::Requeued { .. } | Self::Rejected { .. })
    }

    /// Whether a submission in this state may go to `next`.
    #[must_use]
    pub(crate) const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Received => !matches!(next, Self::Received),
            Self::Admitted => next.is_terminal(),
            Self::Applied { .. } | Self::Requeued { .. } | Self::Rejected { .. } => false,
        }
    }
}

/// Why a prompt comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequeueReason {
    /// It waited when the operator cancelled.
    Cancelled,
    /// It waited when the session was drained.
    Drained,
    /// Its run ended before it was part of the conversation.
    NotApplied,
    /// It was waiting when the process ended; found in the record afterwards.
    Crashed,
}

/// Why a submission cannot be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RejectionReason {
    /// As many prompts wait as may.
    QueueFull,
    /// The session takes no more prompts.
    Ending,
    /// Nothing runs that could be cancelled.
    NothingRunning,
    /// Something else runs than was expected.
    Stale,
    /// What is asked for is under way already.
    AlreadyDone,
    UnknownJob,
    /// Another version, an empty or an overlong prompt.
    InvalidEnvelope,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Acknowledgement {
    pub protocol_version: u32,
    pub submission_id: ClientSubmissionId,
    #[serde(flatten)]
    pub state: SubmissionState,
}

impl Acknowledgement {
    #[must_use]
    pub const fn new(submission_id: ClientSubmissionId, state: SubmissionState) -> Self {
        Self { protocol_version: PROTOCOL_VERSION, submission_id, state }
    }
}
