//! What a front end may ask of a session apart from a prompt.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClientSubmissionId, JobId};

/// A control operation. Each is a different wish, and none stands in for another.
///
/// `expected` names the prompt whose run is meant. A session that works on another by then rejects
/// the operation as stale, so that a late key never stops a later run. Without it, whatever runs is
/// meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlOp {
    /// Stop what runs: cooperatively, then by force within a bound. Prompts that wait are given
    /// back. The session and its background jobs go on.
    CancelTurn {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected: Option<ClientSubmissionId>,
    },
    /// Stop what runs by force at once. Never means drain.
    ForceCancelTurn {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected: Option<ClientSubmissionId>,
    },
    /// Cancel what runs, give back what waits, stop background jobs, end the session.
    DrainSession,
    /// Stop every background job; the run goes on.
    CleanBackgroundTerminals,
    /// The front end submits no more: what runs and waits is finished, then the session ends.
    QuitFrontend,
    /// Stop one background job.
    StopJob { job: JobId },
}

impl ControlOp {
    /// The operation's name on the wire and in records.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::CancelTurn { .. } => "cancel_turn",
            Self::ForceCancelTurn { .. } => "force_cancel_turn",
            Self::DrainSession => "drain_session",
            Self::CleanBackgroundTerminals => "clean_background_terminals",
            Self::QuitFrontend => "quit_frontend",
            Self::StopJob { .. } => "stop_job",
        }
    }
}
