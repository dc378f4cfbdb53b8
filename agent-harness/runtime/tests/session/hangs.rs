//! Control while something hangs: the model, a tool, or a process that cannot be killed.

use std::path::Path;
use std::time::Duration;

use iteron_protocol::{ControlOp, Outcome, SubmissionState};
use serde_json::{Value, json};

use crate::lab::{Lab, alive, shell};

const NEVER_MS: u64 = 600_000;

/// A tree that ignores TERM and INT, with a grandchild in a session of its own.
pub const STUBBORN: &str = "trap '' TERM INT; \
    setsid sh -c 'trap \"\" TERM INT; (echo $BASHPID; while :; do sleep 0.1; done)& echo $! > grandchild.pid; wait' & \
    echo $$ > root.pid; while :; do sleep 0.1; done";

/// Cancels what `answer` makes hang, and gives the record's entry of the run's end.
async fn cancelled(answer: Value, hangs: impl Fn(&Lab) -> bool) -> (Lab, Value) {
    let mut lab = Lab::new(&json!([answer, {"text": "ok"}])).await;
    lab.prompt("do it");
    lab.until("the hang", || hangs(&lab)).await;
    let cancel = lab.cancel();
    assert!(matches!(lab.end_of(&cancel).await, SubmissionState::Applied { .. }));
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    let ended = lab.entries("run_ended").remove(0);
    assert_eq!(ended["outcome"]["status"], "interrupted");
    (lab, ended)
}

/// Field case 37: a dead provider delays nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_case_37_a_model_that_never_answers_is_left() {
    let silent = json!({"faults": {"stall_ms_before_headers": NEVER_MS}});
    let (mut lab, ended) = cancelled(silent, |lab| lab.model.seen().len() == 1).await;
    assert_eq!(ended.get("abandoned"), None, "it had to be abandoned");
    assert_eq!(lab.entries("model_failed")[0]["error_class"], "cancelled");
    lab.finish(ControlOp::QuitFrontend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_model_said_before_it_fell_silent_is_kept_as_interrupted() {
    let silent = json!({"text": "half of it", "faults": {"stall_ms": NEVER_MS, "stall_at_event": 3}});
    let said = |lab: &Lab| {
        lab.output().iter().any(|event| matches!(event, iteron_protocol::OutputEvent::ModelText { .. }))
    };
    let (mut lab, _) = cancelled(silent, said).await;
    let partial = lab.entries("model_failed")[0]["partial"].as_str().unwrap().to_owned();
    assert!(!partial.is_empty() && "half of it".starts_with(&partial), "{partial:?}");
    assert!(lab.entries("model_completed").is_empty());
    lab.finish(ControlOp::QuitFrontend).await;
}

/// Field cases 35 and 36: the tree is gone, and the record has what `waitpid` told of its root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_case_36_a_stubborn_tree_is_killed_and_its_reap_recorded() {
    let pids = |lab: &Lab| {
        ["root", "grandchild"].map(|name| {
            let text =
                std::fs::read_to_string(lab.dir.path().join(format!("{name}.pid"))).unwrap_or_default();
            text.trim().parse::<i32>().unwrap_or(0)
        })
    };
    let (mut lab, _) = cancelled(shell(STUBBORN), |lab| pids(lab).iter().all(|pid| *pid != 0)).await;
    lab.until("the tool's end", || lab.entries("tool_ended").len() == 1).await;
    let pids = pids(&lab);
    assert!(pids.iter().all(|pid| !alive(*pid)), "survivors among {pids:?}");
    let tool = lab.entries("tool_ended").remove(0);
    assert_eq!((&tool["status"], &tool["termination"]), (&json!("cancelled"), &json!("forced")));
    assert_eq!(tool["reaped"][0], json!({"pid": pids[0], "signal": 9}));
    assert_eq!(lab.finish(ControlOp::QuitFrontend).await.0, Outcome::Interrupted);
}

/// A tool that cannot be killed, for a while: in the frozen state of the version 1 freezer even KILL
/// waits. The run is abandoned within its grace, the session goes on, and the call's end is recorded
/// when it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_over_an_unkillable_tool_is_abandoned_and_the_session_goes_on() {
    let freezer = Path::new("/sys/fs/cgroup/freezer").join(format!("iteron-test-{}", std::process::id()));
    if std::fs::create_dir(&freezer).is_err() {
        println!("skipped: no freezer of cgroups version 1 can be used here");
        return;
    }
    let mut lab = Lab::new(&json!([shell("echo $$ > root.pid; exec sleep 600"), {"text": "ok"}])).await;
    lab.prompt("do it");
    let root = lab.dir.path().join("root.pid");
    lab.until("the tool", || std::fs::read_to_string(&root).is_ok_and(|text| text.ends_with('\n'))).await;
    std::fs::write(freezer.join("cgroup.procs"), std::fs::read_to_string(&root).unwrap()).unwrap();
    std::fs::write(freezer.join("freezer.state"), "FROZEN").unwrap();
    lab.cancel();
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    assert_eq!(lab.entries("run_ended")[0]["abandoned"], true);
    assert!(lab.entries("tool_ended").is_empty(), "it ended although it is frozen");
    let next = lab.prompt("next");
    assert!(matches!(lab.end_of(&next).await, SubmissionState::Applied { .. }));
    assert_eq!(lab.model.seen().len(), 1, "a request began beside an effect");
    std::fs::write(freezer.join("freezer.state"), "THAWED").unwrap();
    lab.until("the next run", || lab.entries("run_ended").len() == 2).await;
    assert_eq!(lab.entries("tool_ended").len(), 1);
    let results = lab.model.seen()[1].body["messages"][2]["content"][0].clone();
    assert!(results["content"].as_str().unwrap().contains("may have had an effect"), "{results}");
    lab.finish(ControlOp::QuitFrontend).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::fs::remove_dir(freezer).unwrap();
}
