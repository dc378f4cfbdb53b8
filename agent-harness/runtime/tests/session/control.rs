//! What each control operation does, and what becomes of prompts.

use std::time::Duration;

use iteron_protocol::{
    ControlOp, Operation, Outcome, RejectionReason, RequeueReason, SubmissionEnvelope, SubmissionState,
};
use iteron_runtime::{SubmitError, WAITING_MAX};
use serde_json::json;

use crate::lab::{Lab, shell};

const NEVER_MS: u64 = 600_000;

fn is_applied(state: SubmissionState) -> bool {
    matches!(state, SubmissionState::Applied { record_seq: Some(_) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_run_one_after_the_other_in_one_conversation() {
    let mut lab = Lab::new(&json!([{"text": "one"}, {"text": "two"}])).await;
    let (first, second) = (lab.prompt("first"), lab.prompt("second"));
    assert!(is_applied(lab.end_of(&first).await) && is_applied(lab.end_of(&second).await));
    lab.until("both runs", || lab.entries("run_ended").len() == 2).await;
    let texts = lab.model.seen()[1].body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["content"][0]["text"].as_str().unwrap().to_owned())
        .collect::<Vec<_>>();
    assert_eq!(texts, ["first", "one", "second"]);
    assert_eq!(lab.finish(ControlOp::QuitFrontend).await.0, Outcome::Completed);
}

/// Field cases 37 and 39: a cancel ends the run and not the session; what waited comes back in its
/// order, its text still in the record; what is said afterwards runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_case_39_a_cancel_gives_back_what_waits_and_the_session_goes_on() {
    let silent = json!({"text": "never", "faults": {"stall_ms": NEVER_MS, "stall_at_event": 3}});
    let mut lab = Lab::new(&json!([silent, {"text": "ok"}])).await;
    let running = lab.prompt("running");
    lab.until("some text", || !lab.output().is_empty() && lab.model.seen().len() == 1).await;
    let waiting = [lab.prompt("wait 1"), lab.prompt("wait 2"), lab.prompt("wait 3")];
    for id in &waiting {
        lab.told(id, |state| state == SubmissionState::Received).await;
    }
    let cancel = lab.cancel();
    assert!(is_applied(lab.end_of(&cancel).await) && is_applied(lab.end_of(&running).await));
    for id in &waiting {
        let back = SubmissionState::Requeued { reason: RequeueReason::Cancelled };
        assert_eq!(lab.end_of(id).await, back);
    }
    let returned: Vec<_> =
        lab.entries("returned").iter().map(|entry| entry["submission_id"].clone()).collect();
    assert_eq!(returned, waiting.each_ref().map(|id| json!(id)));
    let texts: Vec<_> = lab.entries("submitted").iter().map(|entry| entry["prompt"].clone()).collect();
    assert_eq!(texts, ["running", "wait 1", "wait 2", "wait 3"]);
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    assert_eq!(lab.entries("run_ended")[0]["outcome"]["status"], "interrupted");

    let next = lab.prompt("next");
    assert!(is_applied(lab.end_of(&next).await));
    lab.until("the next run", || lab.entries("run_ended").len() == 2).await;
    let messages = lab.model.seen()[1].body["messages"].clone();
    assert!(messages[1]["content"][0]["text"].as_str().unwrap().ends_with("[interrupted]"), "{messages}");
    assert_eq!(messages[2]["content"][0]["text"], "next");
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
    assert_eq!(lab.finish(ControlOp::QuitFrontend).await.0, Outcome::Completed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_prompts_that_wait_64_are_kept_and_the_next_is_refused() {
    let silent = json!({"faults": {"stall_ms_before_headers": NEVER_MS}});
    let mut lab = Lab::new(&json!([silent])).await;
    let running = lab.prompt("running");
    lab.end_of(&running).await;
    let mut waiting = Vec::new();
    for number in 0..64 {
        let id = lab.prompt(&format!("wait {number}"));
        lab.told(&id, |state| state == SubmissionState::Received).await;
        waiting.push(id);
    }
    assert_eq!(waiting.len(), WAITING_MAX);
    let refused = lab.prompt("one too many");
    let full = SubmissionState::Rejected { reason: RejectionReason::QueueFull };
    assert_eq!(lab.end_of(&refused).await, full);
    let (outcome, heard) = lab.finish(ControlOp::DrainSession).await;
    assert_eq!(outcome, Outcome::Interrupted);
    for id in waiting {
        assert_eq!(
            heard[&id].last().unwrap().0,
            SubmissionState::Requeued { reason: RequeueReason::Drained }
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_cancel_and_one_of_nothing_are_refused_and_stop_nothing() {
    let mut lab = Lab::new(&json!([{"text": "one"}, shell("sleep 0.3"), {"text": "two"}])).await;
    let nothing = lab.cancel();
    let refused = |reason| SubmissionState::Rejected { reason };
    assert_eq!(lab.end_of(&nothing).await, refused(RejectionReason::NothingRunning));
    let first = lab.prompt("first");
    lab.until("the first run", || lab.entries("run_ended").len() == 1).await;
    lab.prompt("second");
    lab.until("the tool", || lab.entries("tool_intended").len() == 1).await;
    let stale = lab.control(ControlOp::CancelTurn { expected: Some(first) });
    assert_eq!(lab.end_of(&stale).await, refused(RejectionReason::Stale));
    let job = lab.control(ControlOp::StopJob { job: iteron_protocol::JobId(7) });
    assert_eq!(lab.end_of(&job).await, refused(RejectionReason::UnknownJob));
    assert_eq!(lab.finish(ControlOp::QuitFrontend).await.0, Outcome::Completed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_that_comes_twice_is_done_once() {
    let mut lab = Lab::new(&json!([{"text": "one"}, {"text": "two"}])).await;
    let id = lab.prompt("only once");
    lab.until("the run", || lab.entries("run_ended").len() == 1).await;
    let again = SubmissionEnvelope::new(id.clone(), Operation::Prompt("only once".into()));
    lab.submitter.submit(again).unwrap();
    lab.until("the answer", || lab.heard()[&id].len() == 4).await;
    let states = lab.heard()[&id].iter().map(|(state, _)| *state).collect::<Vec<_>>();
    assert_eq!(states[2], states[3], "{states:?}");
    lab.prompt("another");
    lab.until("the second run", || lab.entries("run_ended").len() == 2).await;
    assert_eq!((lab.model.seen().len(), lab.entries("submitted").len()), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envelope_of_another_version_is_refused_and_an_ended_session_takes_none() {
    let mut lab = Lab::new(&json!([])).await;
    let id = lab.id();
    let prompt = Operation::Prompt("x".into());
    let other = SubmissionEnvelope { protocol_version: 2, ..SubmissionEnvelope::new(id.clone(), prompt) };
    lab.submitter.submit(other).unwrap();
    let invalid = SubmissionState::Rejected { reason: RejectionReason::InvalidEnvelope };
    assert_eq!(lab.end_of(&id).await, invalid);
    let submitter = lab.submitter.clone();
    lab.finish(ControlOp::DrainSession).await;
    assert_eq!(submitter.control(ControlOp::DrainSession), Err(SubmitError::Ended));
}

/// Field case 38: no attempt begins after the cancel, and nothing starts again by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_case_38_no_retry_starts_after_a_cancel() {
    let refused = json!({"faults": {"status": 429, "retry_after": "0.4"}});
    let mut lab = Lab::new(&json!([refused, {"text": "must not be asked for"}])).await;
    lab.prompt("do it");
    lab.until("the refusal", || {
        lab.output().iter().any(|event| matches!(event, iteron_protocol::OutputEvent::ModelRetrying { .. }))
    })
    .await;
    lab.cancel();
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(lab.model.seen().len(), 1);
    lab.finish(ControlOp::QuitFrontend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ran_nothing_is_complete_when_left_and_interrupted_when_drained() {
    for (op, expected) in
        [(ControlOp::QuitFrontend, Outcome::Completed), (ControlOp::DrainSession, Outcome::Interrupted)]
    {
        assert_eq!(Lab::new(&json!([])).await.finish(op).await.0, expected);
    }
}
