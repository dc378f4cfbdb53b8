//! Examples of each transition, and what must hold for any order of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn id(number: u128) -> ToolCallId {
    ToolCallId::from_u128(number)
}

fn call(number: u128) -> Call {
    Call { id: id(number), objection: None }
}

fn answered(stop: StopReason, calls: &[Call]) -> Event {
    Event::ModelCompleted { stop, calls: calls.to_vec() }
}

/// Feeds `events` to a run of ten turns and compares the actions of the last one.
fn check(events: &[Event], expect: &[Action]) {
    let mut run = Run::new(10);
    let mut last = Vec::new();
    for event in events {
        last = run.reduce(event.clone());
    }
    assert_eq!(last, expect);
}

#[test]
fn a_text_answer_completes_the_run() {
    check(&[Event::Submitted, answered(StopReason::EndTurn, &[])], &[Action::End(Outcome::Completed)]);
}

#[test]
fn tools_run_one_after_the_other_then_the_model_is_asked_again() {
    let calls = [call(1), Call { id: id(2), objection: Some(Denial::UnknownTool) }, call(3)];
    check(&[Event::Submitted, answered(StopReason::ToolUse, &calls)], &[Action::InvokeTool { id: id(1) }]);
    check(
        &[Event::Submitted, answered(StopReason::ToolUse, &calls), Event::ToolEnded { id: id(1) }],
        &[
            Action::CloseTool { id: id(2), closing: Closing::Denied(Denial::UnknownTool) },
            Action::InvokeTool { id: id(3) },
        ],
    );
    check(
        &[
            Event::Submitted,
            answered(StopReason::ToolUse, &calls),
            Event::ToolEnded { id: id(1) },
            Event::ToolEnded { id: id(3) },
        ],
        &[Action::RequestModel { turn: 2 }],
    );
}

#[test]
fn a_cut_answer_runs_nothing() {
    check(
        &[Event::Submitted, answered(StopReason::MaxTokens, &[call(1)])],
        &[
            Action::CloseTool { id: id(1), closing: Closing::Denied(Denial::Truncated) },
            Action::End(Outcome::TaskFailed { reason: FailureReason::MaxTokens }),
        ],
    );
}

#[test]
fn the_last_turn_runs_no_tool_whose_result_nobody_would_read() {
    let mut run = Run::new(1);
    run.reduce(Event::Submitted);
    assert_eq!(
        run.reduce(answered(StopReason::ToolUse, &[call(1)])),
        [
            Action::CloseTool { id: id(1), closing: Closing::Denied(Denial::TurnLimit) },
            Action::End(Outcome::TaskFailed { reason: FailureReason::TurnLimit }),
        ]
    );
}

#[test]
fn a_stop_cancels_the_running_tool_closes_the_waiting_ones_and_then_ends() {
    let begin = [Event::Submitted, answered(StopReason::ToolUse, &[call(1), call(2)])];
    let stop = Event::Stop(StopCause::Operator);
    let with = |more: &[Event]| [&begin[..], more].concat();
    check(
        &with(std::slice::from_ref(&stop)),
        &[
            Action::CancelTool { id: id(1), urgency: Urgency::Graceful },
            Action::CloseTool { id: id(2), closing: Closing::Cancelled },
        ],
    );
    check(
        &with(&[stop.clone(), stop.clone()]),
        &[Action::CancelTool { id: id(1), urgency: Urgency::Immediate }],
    );
    check(&with(&[stop.clone(), Event::ToolEnded { id: id(1) }]), &[Action::End(Outcome::Interrupted)]);
}

#[test]
fn an_answer_that_overtakes_the_stop_is_not_acted_on() {
    check(
        &[Event::Submitted, Event::Stop(StopCause::Operator), answered(StopReason::ToolUse, &[call(1)])],
        &[Action::CloseTool { id: id(1), closing: Closing::Cancelled }, Action::End(Outcome::Interrupted)],
    );
}

#[test]
fn a_tool_stop_without_a_tool_call_is_the_providers_fault() {
    check(
        &[Event::Submitted, answered(StopReason::ToolUse, &[])],
        &[Action::End(Outcome::ProviderFailed { class: ProviderErrorClass::Protocol })],
    );
}

/// What a generated world does next; ids are given out by the test so that they are unique.
#[derive(Debug, Clone)]
enum Step {
    Submit,
    Answer { stop: u8, calls: Vec<bool> },
    Fail,
    EndRunning,
    EndUnknown,
    Stop(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Submit),
        6 => (0_u8..7, prop::collection::vec(any::<bool>(), 0..4))
            .prop_map(|(stop, calls)| Step::Answer { stop, calls }),
        1 => Just(Step::Fail),
        6 => Just(Step::EndRunning),
        1 => Just(Step::EndUnknown),
        1 => any::<bool>().prop_map(Step::Stop),
    ]
}

#[derive(Default)]
struct World {
    next_id: u128,
    asked: BTreeSet<ToolCallId>,
    ends: BTreeMap<ToolCallId, u32>,
    running: Option<ToolCallId>,
    model_running: bool,
    turns: u32,
    ended: u32,
}

impl World {
    fn event(&mut self, step: &Step) -> Event {
        match step {
            Step::Submit => Event::Submitted,
            Step::Answer { stop, calls } => {
                let stop = [
                    StopReason::EndTurn,
                    StopReason::StopSequence,
                    StopReason::ToolUse,
                    StopReason::MaxTokens,
                    StopReason::PauseTurn,
                    StopReason::Refusal,
                    StopReason::Other,
                ][usize::from(*stop)];
                let calls = calls.iter().map(|runnable| {
                    self.next_id += 1;
                    let objection = (!runnable).then_some(Denial::InvalidInput);
                    Call { id: id(self.next_id), objection }
                });
                Event::ModelCompleted { stop, calls: calls.collect() }
            }
            Step::Fail => Event::ModelFailed { class: ProviderErrorClass::Timeout },
            Step::EndRunning => Event::ToolEnded { id: self.running.unwrap_or(id(0)) },
            Step::EndUnknown => Event::ToolEnded { id: id(u128::MAX) },
            Step::Stop(operator) => {
                Event::Stop(if *operator { StopCause::Operator } else { StopCause::RecordBroken })
            }
        }
    }

    fn before(&mut self, event: &Event) {
        match event {
            Event::ModelCompleted { calls, .. } if self.model_running => {
                self.asked.extend(calls.iter().map(|call| call.id));
                self.model_running = false;
            }
            Event::ModelFailed { .. } => self.model_running = false,
            Event::ToolEnded { id } if self.running == Some(*id) => {
                *self.ends.entry(*id).or_default() += 1;
                self.running = None;
            }
            _ => {}
        }
    }

    fn after(&mut self, actions: &[Action]) {
        for action in actions {
            assert_eq!(self.ended, 0, "an action after the end");
            match *action {
                Action::RequestModel { turn } => {
                    assert!(!self.model_running && self.running.is_none(), "two effects at once");
                    self.turns += 1;
                    assert_eq!(turn, self.turns);
                    self.model_running = true;
                }
                Action::InvokeTool { id } => {
                    assert!(!self.model_running && self.running.is_none(), "two effects at once");
                    assert!(self.asked.contains(&id));
                    self.running = Some(id);
                }
                Action::CancelTool { id, .. } => assert_eq!(self.running, Some(id)),
                Action::CancelModel => assert!(self.model_running),
                Action::CloseTool { id, .. } => {
                    assert_ne!(self.running, Some(id), "a running call was closed");
                    *self.ends.entry(id).or_default() += 1;
                }
                Action::End(_) => self.ended += 1,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_call_ends_once_and_every_run_ends_once(
        turns_max in 1_u32..6,
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut run = Run::new(turns_max);
        let mut world = World::default();
        // After the generated part, an operator's stop and the pending answers must end it.
        let closing = [Step::Submit, Step::Stop(true), Step::Fail, Step::EndRunning];
        for step in steps.iter().chain(&closing) {
            let event = world.event(step);
            world.before(&event);
            let actions = run.reduce(event);
            world.after(&actions);
            prop_assert!(world.turns <= turns_max);
        }
        prop_assert!(run.ended());
        prop_assert_eq!(world.ended, 1);
        prop_assert!(world.running.is_none());
        for id in &world.asked {
            prop_assert_eq!(world.ends.get(id), Some(&1), "call {} must end once", id);
        }
        prop_assert_eq!(world.ends.len(), world.asked.len());
    }

    #[test]
    fn the_same_events_give_the_same_actions(steps in prop::collection::vec(step(), 0..40)) {
        let replay = || {
            let (mut run, mut world) = (Run::new(3), World::default());
            steps.iter().map(|step| {
                let event = world.event(step);
                world.before(&event);
                let actions = run.reduce(event);
                world.after(&actions);
                actions
            }).collect::<Vec<_>>()
        };
        prop_assert_eq!(replay(), replay());
    }
}
