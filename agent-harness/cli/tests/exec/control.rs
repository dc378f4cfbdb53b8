//! Interrupts: everything ends, everything is told, nothing is left.

use std::time::{Duration, Instant};

use iteron_testkit::fake_collector::Behaviour;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::lab::{Lab, Run, alive, pid_of, until};

fn signal(child: &tokio::process::Child, signal: Signal) {
    kill(Pid::from_raw(pid_of(child)), signal).unwrap();
}

/// A tree that ignores TERM: a root, a child, one that left the session, and one whose parent is
/// gone besides.
const STUBBORN: &str = "trap '' TERM INT; \
    sh -c 'trap \"\" TERM; echo $$ > child.pid; while :; do sleep 0.1; done' & \
    setsid sh -c 'trap \"\" TERM; echo $$ > strayed.pid; while :; do sleep 0.1; done' & \
    (setsid sh -c 'trap \"\" TERM; echo $$ > orphan.pid; while :; do sleep 0.1; done' &) ; \
    echo $$ > root.pid; while :; do sleep 0.1; done";

fn pids(lab: &Lab) -> Vec<i32> {
    ["root", "child", "strayed", "orphan"]
        .iter()
        .filter_map(|name| {
            std::fs::read_to_string(lab.path(&format!("{name}.pid"))).ok()?.trim().parse().ok()
        })
        .collect()
}

async fn interrupted_tool(which: Signal) {
    let script = json!([{"tool_use": [
        {"name": "shell", "input": {"command": STUBBORN}},
        {"name": "shell", "input": {"command": "touch second"}},
    ]}]);
    let lab = Lab::observed(&script.to_string(), Behaviour::default()).await;
    let child = lab.command(&["--json", "do it"]).spawn().unwrap();
    until("the tree", || pids(&lab).len() == 4).await;
    let begun = Instant::now();
    signal(&child, which);
    let run = Run::of(child).await;
    let took = begun.elapsed();
    assert_eq!(run.code, Some(130), "{}", run.stderr);
    assert!(took < Duration::from_secs(3), "{took:?}");
    let pids = pids(&lab);
    assert!(pids.iter().all(|pid| !alive(*pid)), "survivors among {pids:?}");
    assert!(!lab.path("second").exists());
    assert_eq!(
        lab.collector().event_names(),
        [
            "session.started",
            "agent.model.requested",
            "agent.model.completed",
            "agent.tool.invoked",
            "agent.tool.cancelled",
            "agent.tool.cancelled",
            "session.ended",
        ]
    );
    assert_eq!(lab.collector().faults(), Vec::<String>::new());
    let events = lab.collector().events();
    // Which of them is told first depends on how fast the tree dies.
    let mut outcomes = [events[4]["outcome"].clone(), events[5]["outcome"].clone()];
    outcomes.sort_by_key(|outcome| outcome["reason"].as_str().map(str::to_owned));
    assert_eq!(outcomes[0], json!({"status": "unknown", "reason": "interrupted"}));
    assert_eq!(outcomes[1], json!({"status": "failure", "reason": "not_started"}));
    assert_eq!(events[6]["payload"]["reason"], "interrupted");
    assert_eq!(run.types().last().unwrap(), "session.ended");
}

#[tokio::test]
async fn sigint_ends_a_stubborn_tree_and_tells_every_call_once() {
    interrupted_tool(Signal::SIGINT).await;
}

#[tokio::test]
async fn sigterm_does_the_same() {
    interrupted_tool(Signal::SIGTERM).await;
}

#[tokio::test]
async fn an_interrupt_while_the_model_is_silent_ends_the_request() {
    let script = json!([{"text": "long", "faults": {"stall_ms": 30_000, "stall_at_event": 2}}]);
    let lab = Lab::observed(&script.to_string(), Behaviour::default()).await;
    let child = lab.command(&["--json", "do it"]).spawn().unwrap();
    until("the request", || !lab.model.seen().is_empty()).await;
    let begun = Instant::now();
    signal(&child, Signal::SIGINT);
    let run = Run::of(child).await;
    assert_eq!(run.code, Some(130), "{}", run.stderr);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(
        lab.collector().event_names(),
        ["session.started", "agent.model.requested", "agent.model.failed", "session.ended"]
    );
    assert_eq!(lab.collector().events()[2]["payload"]["error_class"], "cancelled");
}

#[tokio::test]
async fn an_interrupt_while_waiting_to_ask_again_tells_no_attempt_twice() {
    let script = json!([{"faults": {"status": 429, "retry_after": "20"}}]);
    let lab = Lab::observed(&script.to_string(), Behaviour::default()).await;
    let child = lab.command(&["do it"]).spawn().unwrap();
    until("the refusal", || lab.collector().event_names().len() == 3).await;
    signal(&child, Signal::SIGINT);
    let run = Run::of(child).await;
    assert_eq!(run.code, Some(130), "{}", run.stderr);
    assert_eq!(
        lab.collector().event_names(),
        ["session.started", "agent.model.requested", "agent.model.failed", "session.ended"]
    );
}

#[tokio::test]
async fn a_timeout_ends_the_command_and_the_session_goes_on() {
    let script = json!([
        {"tool_use": [{"name": "shell", "input": {"command": STUBBORN, "timeout_ms": 1500}}]},
        {"text": "Done."},
    ]);
    let lab = Lab::observed(&script.to_string(), Behaviour::default()).await;
    let run = lab.run(&["--json", "do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let pids = pids(&lab);
    assert_eq!(pids.len(), 4);
    assert!(pids.iter().all(|pid| !alive(*pid)), "survivors among {pids:?}");
    let failed = &lab.collector().events()[4];
    assert_eq!(failed["event_name"], "agent.tool.failed");
    assert_eq!(failed["outcome"]["reason"], "timeout");
}

#[tokio::test]
async fn a_background_process_of_an_earlier_call_survives_a_later_calls_end() {
    let script = json!([
        {"tool_use": [{"name": "shell", "input":
            {"command": "(setsid sleep 60 > /dev/null 2>&1 & echo $! > server.pid)"}}]},
        {"tool_use": [{"name": "shell", "input": {"command": "sleep 60", "timeout_ms": 300}}]},
        {"text": "Done."},
    ]);
    let lab = Lab::new(&script.to_string()).await;
    let run = lab.run(&["do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let server: i32 = std::fs::read_to_string(lab.path("server.pid")).unwrap().trim().parse().unwrap();
    assert!(alive(server), "it was taken for the later call's");
    kill(Pid::from_raw(server), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_the_session() {
    let script = json!([
        {"tool_use": [{"name": "shell", "input": {"command": "sleep 0.5"}}]},
        {"tool_use": [{"name": "shell", "input": {"command": "sleep 60"}}]},
        {"text": "Done."},
    ]);
    let lab = Lab::observed(&script.to_string(), Behaviour::default()).await;
    let mut child = lab.command(&["--json", "do it"]).spawn().unwrap();
    drop(child.stdout.take());
    let run = Run::of(child).await;
    assert_eq!(run.code, Some(130), "{}", run.stderr);
    assert_eq!(lab.collector().event_names().last().unwrap(), "session.ended");
}
