//! The `plan` tool: the model's list of what is to do. It has no effect; it stands in the conversation
//! and in the record.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

/// Steps of a plan.
const STEPS_MAX: usize = 100;
/// Bytes of a step's text.
const STEP_BYTES_MAX: usize = 500;

/// The input of `plan`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub text: String,
    pub state: StepState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    Open,
    Doing,
    Done,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    #[error("a plan has at most {STEPS_MAX} steps")]
    TooMany,
    #[error("step {0} is empty, or has more than one line or {STEP_BYTES_MAX} bytes")]
    Step(usize),
    #[error("more than one step is being done")]
    Doing,
}

impl PlanRequest {
    pub const NAME: &'static str = "plan";
    pub const DESCRIPTION: &'static str = "Says what is to do and how far it is: the whole list of steps each \
        time, at most one of them being done. Use it for work of several steps.";

    #[must_use]
    pub fn input_schema() -> Value {
        json!({
            "type": "object",
            "properties": {"steps": {
                "type": "array",
                "maxItems": STEPS_MAX,
                "items": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string", "maxLength": STEP_BYTES_MAX},
                        "state": {"type": "string", "enum": ["open", "doing", "done"]},
                    },
                    "required": ["text", "state"],
                    "additionalProperties": false,
                },
            }},
            "required": ["steps"],
            "additionalProperties": false,
        })
    }

    pub(crate) fn check(&self) -> Result<(), PlanError> {
        if self.steps.len() > STEPS_MAX {
            return Err(PlanError::TooMany);
        }
        let bad = |step: &Step| {
            step.text.trim().is_empty() || step.text.contains('\n') || step.text.len() > STEP_BYTES_MAX
        };
        if let Some(at) = self.steps.iter().position(bad) {
            return Err(PlanError::Step(at + 1));
        }
        if self.steps.iter().filter(|step| step.state == StepState::Doing).count() > 1 {
            return Err(PlanError::Doing);
        }
        Ok(())
    }

    /// The list as it is told back.
    #[must_use]
    pub fn told(&self) -> String {
        self.steps.iter().fold(String::new(), |mut told, step| {
            let mark = match step.state {
                StepState::Open => ' ',
                StepState::Doing => '>',
                StepState::Done => 'x',
            };
            // Writing to a String cannot fail.
            let _ = writeln!(told, "[{mark}] {}", step.text);
            told
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(steps: &Value) -> PlanRequest {
        PlanRequest::deserialize(&json!({"steps": steps})).unwrap()
    }

    #[test]
    fn a_plan_is_told_back_as_a_list() {
        let plan = plan(&json!([
            {"text": "look", "state": "done"},
            {"text": "change", "state": "doing"},
            {"text": "check", "state": "open"},
        ]));
        assert_eq!(plan.check(), Ok(()));
        assert_eq!(plan.told(), "[x] look\n[>] change\n[ ] check\n");
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        let step = |text: &str, state: &str| json!({"text": text, "state": state});
        let steps = |count| plan(&json!(vec![step("x", "open"); count])).check();
        assert_eq!((steps(100), steps(101)), (Ok(()), Err(PlanError::TooMany)));
        let text = |text: &str| plan(&json!([step("x", "done"), step(text, "open")])).check();
        assert_eq!((text(&"x".repeat(500)), text(&"x".repeat(501))), (Ok(()), Err(PlanError::Step(2))));
        assert_eq!((text(" "), text("a\nb")), (Err(PlanError::Step(2)), Err(PlanError::Step(2))));
        assert_eq!(plan(&json!([step("a", "doing"), step("b", "doing")])).check(), Err(PlanError::Doing));
        assert!(PlanRequest::deserialize(&json!({"steps": [step("x", "maybe")]})).is_err());
    }
}
