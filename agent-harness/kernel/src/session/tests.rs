//! Examples of each transition, and what must hold for any order of events.

use proptest::prelude::*;

use super::model::World;
use super::*;

pub(super) fn id(number: u32) -> ClientSubmissionId {
    format!("s-{number}").parse().unwrap()
}

fn prompt(number: u32) -> Event {
    Event::Prompt { id: id(number) }
}

fn control(number: u32, op: ControlOp) -> Event {
    Event::Control { id: id(number), op }
}

const CANCEL: ControlOp = ControlOp::CancelTurn { expected: None };
const FORCE: ControlOp = ControlOp::ForceCancelTurn { expected: None };
const FIRST: Epoch = Epoch(1);

/// Feeds `events` to a session where two prompts may wait, and compares the actions of the last.
fn check(events: &[Event], expect: &[Action]) {
    let mut session = Session::new(2);
    let mut last = Vec::new();
    for event in events {
        last = session.reduce(event.clone());
    }
    assert_eq!(last, expect);
}

fn accepted(number: u32, then: &[Action]) -> Vec<Action> {
    std::iter::once(Action::Accept { id: id(number) }).chain(then.iter().cloned()).collect()
}

fn rejected(number: u32, reason: RejectionReason) -> Vec<Action> {
    vec![Action::Reject { id: id(number), reason }]
}

#[test]
fn prompts_run_one_after_the_other_in_their_order() {
    check(&[prompt(1)], &[Action::Admit { id: id(1), epoch: FIRST }]);
    check(&[prompt(1), prompt(2)], &[]);
    check(&[prompt(1), Event::Applied { epoch: FIRST }], &[Action::Apply { id: id(1) }]);
    check(
        &[prompt(1), prompt(2), prompt(3), Event::Applied { epoch: FIRST }, Event::Ended { epoch: FIRST }],
        &[Action::Admit { id: id(2), epoch: Epoch(2) }],
    );
    check(&[prompt(1), prompt(2), prompt(3), prompt(4)], &rejected(4, RejectionReason::QueueFull));
}

#[test]
fn a_cancel_stops_the_run_gives_back_what_waits_and_does_not_end_the_session() {
    let begin = [prompt(1), prompt(2), prompt(3), control(9, CANCEL)];
    let back = |number| Action::Requeue { id: id(number), reason: RequeueReason::Cancelled };
    check(&begin, &accepted(9, &[Action::Cancel { epoch: FIRST }, back(2), back(3)]));
    let with = |more: &[Event]| [&begin[..], more].concat();
    check(&with(&[control(10, CANCEL)]), &rejected(10, RejectionReason::AlreadyDone));
    check(&with(&[control(10, FORCE)]), &accepted(10, &[Action::Force { epoch: FIRST }]));
    check(&with(&[Event::GraceOver { epoch: FIRST }]), &[Action::Abandon { epoch: FIRST }]);
    // What was said after the cancel is a new wish, and runs.
    let next = Action::Admit { id: id(4), epoch: Epoch(2) };
    let applied = Event::Applied { epoch: FIRST };
    check(&with(&[applied, prompt(4), Event::Ended { epoch: FIRST }]), &[next]);
}

#[test]
fn a_prompt_whose_run_ends_before_it_is_applied_comes_back() {
    check(
        &[prompt(1), control(9, CANCEL), Event::Ended { epoch: FIRST }],
        &[Action::Requeue { id: id(1), reason: RequeueReason::NotApplied }],
    );
}

#[test]
fn a_stale_cancel_never_stops_a_later_run() {
    let expects = |number| ControlOp::CancelTurn { expected: Some(id(number)) };
    let second = [prompt(1), prompt(2), Event::Ended { epoch: FIRST }];
    let with = |more: &[Event]| [&second[..], more].concat();
    check(&with(&[control(9, expects(1))]), &rejected(9, RejectionReason::Stale));
    check(&with(&[control(9, expects(2))]), &accepted(9, &[Action::Cancel { epoch: Epoch(2) }]));
    check(&with(&[control(9, expects(2)), Event::GraceOver { epoch: FIRST }]), &[]);
    check(&with(&[Event::Ended { epoch: FIRST }]), &[]);
    check(&[control(9, CANCEL)], &rejected(9, RejectionReason::NothingRunning));
    check(&[control(9, expects(1))], &rejected(9, RejectionReason::Stale));
}

#[test]
fn drain_cancels_gives_back_stops_jobs_and_ends_the_session() {
    let drain = control(9, ControlOp::DrainSession);
    let begin = [prompt(1), Event::Applied { epoch: FIRST }, prompt(2), drain.clone()];
    let with = |more: &[Event]| [&begin[..], more].concat();
    check(
        &begin,
        &accepted(
            9,
            &[
                Action::Cancel { epoch: FIRST },
                Action::Requeue { id: id(2), reason: RequeueReason::Drained },
                Action::StopAllJobs,
            ],
        ),
    );
    check(&with(&[prompt(3)]), &rejected(3, RejectionReason::Ending));
    check(&with(&[Event::JobStarted { job: JobId(1) }]), &[Action::StopJob { job: JobId(1) }]);
    check(&with(&[Event::Ended { epoch: FIRST }]), &[Action::StopAllJobs, Action::Stop]);
    check(&[drain], &accepted(9, &[Action::StopAllJobs, Action::Stop]));
}

#[test]
fn quit_finishes_what_runs_and_waits() {
    let quit = control(9, ControlOp::QuitFrontend);
    let begin = [prompt(1), prompt(2), quit.clone(), Event::Applied { epoch: FIRST }];
    let with = |more: &[Event]| [&begin[..], more].concat();
    check(&with(&[prompt(3)]), &rejected(3, RejectionReason::Ending));
    check(&with(&[Event::Ended { epoch: FIRST }]), &[Action::Admit { id: id(2), epoch: Epoch(2) }]);
    check(
        &with(&[
            Event::Ended { epoch: FIRST },
            Event::Applied { epoch: Epoch(2) },
            Event::Ended { epoch: Epoch(2) },
        ]),
        &[Action::StopAllJobs, Action::Stop],
    );
    check(&[quit], &accepted(9, &[Action::StopAllJobs, Action::Stop]));
}

#[test]
fn jobs_are_stopped_by_name_or_all_and_outlive_a_cancel() {
    let job = JobId(1);
    let stop = control(9, ControlOp::StopJob { job });
    let begun = Event::JobStarted { job };
    check(&[begun.clone(), stop.clone()], &accepted(9, &[Action::StopJob { job }]));
    check(&[begun, Event::JobEnded { job }, stop], &rejected(9, RejectionReason::UnknownJob));
    check(
        &[prompt(1), control(9, ControlOp::CleanBackgroundTerminals)],
        &accepted(9, &[Action::StopAllJobs]),
    );
}

#[test]
fn a_broken_record_ends_the_session() {
    check(
        &[prompt(1), prompt(2), Event::RecordBroken],
        &[
            Action::Cancel { epoch: FIRST },
            Action::Requeue { id: id(2), reason: RequeueReason::NotApplied },
            Action::StopAllJobs,
        ],
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Field cases 38 and 39, on interleavings longer than the exhaustive check can go.
    #[test]
    fn every_submission_ends_once_in_any_interleaving(
        choices in prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        waiting_max in 0_usize..4,
    ) {
        let mut world = World::new(waiting_max, 40, 40);
        for choice in choices {
            let events = world.possible();
            if events.is_empty() {
                break;
            }
            world.step(choice.get(&events).clone());
        }
        world.close();
    }
}
