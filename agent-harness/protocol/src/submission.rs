//! What a front end sends: one envelope around a prompt or a control operation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClientSubmissionId, ControlOp};

/// Version of envelopes and acknowledgements. A reader takes this one only.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest prompt, in bytes.
pub const PROMPT_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmissionEnvelope {
    pub protocol_version: u32,
    pub submission_id: ClientSubmissionId,
    pub operation: Operation,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Prompt(String),
    Control(ControlOp),
}

/// Why an envelope is refused before anybody looks at what it asks.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvelopeError {
    #[error("protocol version {0} is not {PROTOCOL_VERSION}")]
    Version(u32),
    #[error("the prompt is empty")]
    Empty,
    #[error("the prompt has more than {PROMPT_BYTES_MAX} bytes")]
    TooLong,
}

impl SubmissionEnvelope {
    /// An envelope of this version.
    #[must_use]
    pub const fn new(submission_id: ClientSubmissionId, operation: Operation) -> Self {
        Self { protocol_version: PROTOCOL_VERSION, submission_id, operation }
    }

    pub fn check(&self) -> Result<(), EnvelopeError> {
        if self.protocol_version != PROTOCOL_VERSION {
            return Err(EnvelopeError::Version(self.protocol_version));
        }
        match &self.operation {
            Operation::Prompt(text) if text.trim().is_empty() => Err(EnvelopeError::Empty),
            Operation::Prompt(text) if text.len() > PROMPT_BYTES_MAX => Err(EnvelopeError::TooLong),
            Operation::Prompt(_) | Operation::Control(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompt(text: &str) -> SubmissionEnvelope {
        SubmissionEnvelope::new("s-1".parse().unwrap(), Operation::Prompt(text.to_owned()))
    }

    #[test]
    fn envelopes_have_this_form_on_the_wire() {
        let cancel = ControlOp::CancelTurn { expected: Some("s-1".parse().unwrap()) };
        for (envelope, wire) in [
            (
                prompt("do it"),
                json!({"protocol_version": 1, "submission_id": "s-1", "operation": {"prompt": "do it"}}),
            ),
            (
                SubmissionEnvelope::new("c-2".parse().unwrap(), Operation::Control(cancel)),
                json!({"protocol_version": 1, "submission_id": "c-2",
                    "operation": {"control": {"op": "cancel_turn", "expected": "s-1"}}}),
            ),
            (
                SubmissionEnvelope::new(
                    "c-3".parse().unwrap(),
                    Operation::Control(ControlOp::StopJob { job: crate::JobId(7) }),
                ),
                json!({"protocol_version": 1, "submission_id": "c-3",
                    "operation": {"control": {"op": "stop_job", "job": 7}}}),
            ),
        ] {
            assert_eq!(serde_json::to_value(&envelope).unwrap(), wire);
            assert_eq!(serde_json::from_value::<SubmissionEnvelope>(wire).unwrap(), envelope);
        }
    }

    #[test]
    fn what_is_not_of_this_version_or_says_nothing_is_refused() {
        assert_eq!(prompt("x").check(), Ok(()));
        assert_eq!(prompt(" \n").check(), Err(EnvelopeError::Empty));
        let other = SubmissionEnvelope { protocol_version: 2, ..prompt("x") };
        assert_eq!(other.check(), Err(EnvelopeError::Version(2)));
        for unknown in [
            json!({"protocol_version": 1, "submission_id": "s", "operation": {"control": {"op": "reboot"}}}),
            json!({"protocol_version": 1, "submission_id": "s", "operation": {"prompt": "x"}, "more": 1}),
            json!({"protocol_version": 1, "submission_id": "../s", "operation": {"prompt": "x"}}),
        ] {
            assert!(serde_json::from_value::<SubmissionEnvelope>(unknown).is_err());
        }
    }

    #[test]
    fn a_prompt_has_4_mib() {
        assert_eq!(prompt(&"x".repeat(4_194_304)).check(), Ok(()));
        assert_eq!(prompt(&"x".repeat(4_194_305)).check(), Err(EnvelopeError::TooLong));
    }
}
