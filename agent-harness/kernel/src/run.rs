//! The run reducer: what is done next for one prompt, as a pure function of the state and one event.
//!
//! What always holds, whatever the order of events:
//! - a run ends exactly once, and nothing follows the end;
//! - one effect at a time: at most one model request or one tool runs;
//! - every tool call that the model made ends exactly once: by [`Event::ToolEnded`] after
//!   [`Action::InvokeTool`], or by [`Action::CloseTool`] without having run.

use std::collections::VecDeque;

use iteron_protocol::{FailureReason, Outcome, ProviderErrorClass, ToolCallId};

#[cfg(test)]
mod tests;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Submitted,
    ModelCompleted {
        stop: StopReason,
        calls: Vec<Call>,
    },
    /// No further attempt will be made. Also the answer to [`Action::CancelModel`].
    ModelFailed {
        class: ProviderErrorClass,
    },
    /// The invoked tool is over and reaped, whatever its result.
    ToolEnded {
        id: ToolCallId,
    },
    Stop(StopCause),
}

/// What to do, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    RequestModel { turn: u32 },
    CancelModel,
    InvokeTool { id: ToolCallId },
    CancelTool { id: ToolCallId, urgency: Urgency },
    CloseTool { id: ToolCallId, closing: Closing },
    End(Outcome),
}

/// One tool call of a model answer, and whether it could run at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub id: ToolCallId,
    pub objection: Option<Denial>,
}

/// Why a call is not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    UnknownTool,
    InvalidInput,
    /// The answer was cut, so its input may be too.
    Truncated,
    TurnLimit,
    /// The session's rules deny its class.
    Policy,
    /// Its class must be asked about, and nobody can be.
    NobodyToAsk,
}

impl Denial {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownTool => "unknown_tool",
            Self::InvalidInput => "invalid_input",
            Self::Truncated => "truncated",
            Self::TurnLimit => "turn_limit",
            Self::Policy => "policy",
            Self::NobodyToAsk => "nobody_to_ask",
        }
    }
}

impl Denial {
    /// The `decision` of events.
    #[must_use]
    pub const fn decision(self) -> &'static str {
        match self {
            Self::NobodyToAsk => "ask",
            _ => "deny",
        }
    }
}

/// How a call ends that never ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    Denied(Denial),
    Cancelled,
}

/// How much time a cancelled tool gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// TERM, then KILL.
    Graceful,
    /// KILL at once: the operator asked twice.
    Immediate,
}

/// Who stops the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    Operator,
    /// The durable record can no longer be written: nothing may happen unrecorded.
    RecordBroken,
}

impl StopCause {
    const fn outcome(self) -> Outcome {
        match self {
            Self::Operator => Outcome::Interrupted,
            Self::RecordBroken => Outcome::HarnessFailed,
        }
    }
}

/// Why the model stopped, as the Messages API names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    EndTurn,
    StopSequence,
    ToolUse,
    MaxTokens,
    PauseTurn,
    Refusal,
    Other,
}

impl StopReason {
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "end_turn" => Self::EndTurn,
            "stop_sequence" => Self::StopSequence,
            "tool_use" => Self::ToolUse,
            "max_tokens" => Self::MaxTokens,
            "pause_turn" => Self::PauseTurn,
            "refusal" => Self::Refusal,
            _ => Self::Other,
        }
    }
}

/// A run's control state.
#[derive(Debug, Clone)]
pub struct Run {
    turns_max: u32,
    turn: u32,
    phase: Phase,
    stale_events: u64,
}

#[derive(Debug, Clone)]
enum Phase {
    Idle,
    Model,
    Tools { running: ToolCallId, waiting: VecDeque<Call> },
    Stopping { outcome: Outcome, on: Awaited },
    Ended,
}

#[derive(Debug, Clone, Copy)]
enum Awaited {
    Model,
    Tool(ToolCallId),
}

impl Run {
    /// A run that makes at most `turns_max` model requests (at least one).
    #[must_use]
    pub fn new(turns_max: u32) -> Self {
        Self { turns_max: turns_max.max(1), turn: 0, phase: Phase::Idle, stale_events: 0 }
    }

    /// Turns begun so far.
    #[must_use]
    pub const fn turns(&self) -> u32 {
        self.turn
    }

    #[must_use]
    pub const fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Events that did not fit the phase and changed nothing.
    #[must_use]
    pub const fn stale_events(&self) -> u64 {
        self.stale_events
    }

    /// Takes one event and says what to do. An event that does not fit the phase is counted and
    /// changes nothing: a late answer must never move a run that has gone on.
    pub fn reduce(&mut self, event: Event) -> Vec<Action> {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        match (phase, event) {
            (Phase::Idle, Event::Submitted) => self.request_model(),
            (Phase::Model, Event::ModelCompleted { stop, calls }) => self.model_completed(stop, &calls),
            (Phase::Model, Event::ModelFailed { class }) => end(Outcome::ProviderFailed { class }),
            (Phase::Tools { running, waiting }, Event::ToolEnded { id }) if id == running => {
                self.next_tool(waiting)
            }
            (Phase::Stopping { outcome, on: Awaited::Tool(running) }, Event::ToolEnded { id })
                if id == running =>
            {
                end(outcome)
            }
            (Phase::Stopping { outcome, on: Awaited::Model }, Event::ModelFailed { .. }) => end(outcome),
            (Phase::Stopping { outcome, on: Awaited::Model }, Event::ModelCompleted { calls, .. }) => {
                // The answer overtook the cancellation: what it asks for is not done.
                let mut actions = close_all(&calls, Closing::Cancelled);
                actions.push(Action::End(outcome));
                actions
            }
            (phase, Event::Stop(cause)) => self.stop(phase, cause),
            (phase, _) => {
                self.phase = phase;
                self.stale_events += 1;
                Vec::new()
            }
        }
    }

    fn request_model(&mut self) -> Vec<Action> {
        self.turn += 1;
        self.phase = Phase::Model;
        vec![Action::RequestModel { turn: self.turn }]
    }

    fn model_completed(&mut self, stop: StopReason, calls: &[Call]) -> Vec<Action> {
        let last_turn = self.turn >= self.turns_max;
        let failed = |reason| Action::End(Outcome::TaskFailed { reason });
        let denied_then = |denial, last| {
            let mut actions = close_all(calls, Closing::Denied(denial));
            actions.push(last);
            actions
        };
        match stop {
            StopReason::MaxTokens => denied_then(Denial::Truncated, failed(FailureReason::MaxTokens)),
            StopReason::Refusal => denied_then(Denial::Truncated, failed(FailureReason::Refusal)),
            StopReason::Other => denied_then(Denial::Truncated, failed(FailureReason::UnknownStopReason)),
            // The API marks tool calls by their blocks; what it calls the stop is secondary.
            _ if !calls.is_empty() && last_turn => {
                denied_then(Denial::TurnLimit, failed(FailureReason::TurnLimit))
            }
            _ if !calls.is_empty() => self.next_tool(calls.iter().copied().collect()),
            StopReason::EndTurn | StopReason::StopSequence => end(Outcome::Completed),
            StopReason::PauseTurn if last_turn => vec![failed(FailureReason::TurnLimit)],
            StopReason::PauseTurn => self.request_model(),
            StopReason::ToolUse => end(Outcome::ProviderFailed { class: ProviderErrorClass::Protocol }),
        }
    }

    fn next_tool(&mut self, mut waiting: VecDeque<Call>) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(call) = waiting.pop_front() {
            match call.objection {
                Some(denial) => {
                    actions.push(Action::CloseTool { id: call.id, closing: Closing::Denied(denial) });
                }
                None => {
                    actions.push(Action::InvokeTool { id: call.id });
                    self.phase = Phase::Tools { running: call.id, waiting };
                    return actions;
                }
            }
        }
        actions.extend(self.request_model());
        actions
    }

    fn stop(&mut self, phase: Phase, cause: StopCause) -> Vec<Action> {
        let outcome = cause.outcome();
        match phase {
            Phase::Idle => end(outcome),
            Phase::Model => {
                self.phase = Phase::Stopping { outcome, on: Awaited::Model };
                vec![Action::CancelModel]
            }
            Phase::Tools { running, mut waiting } => {
                self.phase = Phase::Stopping { outcome, on: Awaited::Tool(running) };
                let mut actions = vec![Action::CancelTool { id: running, urgency: Urgency::Graceful }];
                actions.extend(close_all(waiting.make_contiguous(), Closing::Cancelled));
                actions
            }
            Phase::Stopping { outcome, on } => {
                self.phase = Phase::Stopping { outcome, on };
                match on {
                    Awaited::Tool(id) => vec![Action::CancelTool { id, urgency: Urgency::Immediate }],
                    Awaited::Model => Vec::new(),
                }
            }
            Phase::Ended => Vec::new(),
        }
    }
}

fn end(outcome: Outcome) -> Vec<Action> {
    vec![Action::End(outcome)]
}

fn close_all(calls: &[Call], closing: Closing) -> Vec<Action> {
    calls.iter().map(|call| Action::CloseTool { id: call.id, closing }).collect()
}
