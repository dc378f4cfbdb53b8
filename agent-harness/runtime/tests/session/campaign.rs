//! Many cancels at random points, and how fast control is heard while everything is full and hangs.
//! The short forms run with every test; the long ones by
//! `cargo test -p iteron-runtime --release -- --ignored --nocapture`, which print what they measured.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use iteron_protocol::{ControlOp, Operation, RejectionReason, SubmissionEnvelope, SubmissionState};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::hangs::STUBBORN;
use crate::lab::{Lab, alive, shell};

/// Answers among which a cancel may fall: text, a quick tool, slow ones, silence, a refusal.
fn answers() -> Value {
    let silent = json!({"text": "silent", "faults": {"stall_ms": 600_000, "stall_at_event": 3}});
    let refused = json!({"faults": {"status": 429, "retry_after": "0.01"}});
    let turns = [
        shell("echo quick"),
        shell("trap '' TERM; sleep 600"),
        json!({"text": "some text", "tool_use": [
            {"name": "shell", "input": {"command": "sleep 0.02"}},
            {"name": "shell", "input": {"command": "(setsid sleep 600 &) ; sleep 600"}},
        ]}),
        refused,
        silent,
        json!({"text": "done"}),
    ];
    json!({"turns": turns, "repeat": true})
}

/// Field cases 38 and 39: `count` cancels at random moments among prompts.
async fn random_cancels(count: u32, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lab = Lab::new(&answers()).await;
    let mut prompts = 0;
    for number in 0..count {
        for _ in 0..rng.random_range(1..3) {
            lab.prompt(&format!("prompt {number}"));
            prompts += 1;
        }
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..40_000))).await;
        let op = if rng.random_bool(0.2) {
            ControlOp::ForceCancelTurn { expected: None }
        } else {
            ControlOp::CancelTurn { expected: None }
        };
        let cancel = lab.control(op);
        lab.end_of(&cancel).await;
    }
    lab.finish(ControlOp::DrainSession).await;
    assert_eq!(lab.entries("submitted").len(), prompts, "an input is lost");
    let ids = |kind| {
        let entries = lab.entries(kind).into_iter();
        entries.map(|entry| entry["submission_id"].to_string()).collect::<Vec<_>>()
    };
    let admitted = ids("admitted").len();
    assert_eq!(ids("admitted"), ids("run_ended"), "a run has no end, or two");
    let ended = lab.entries("tool_ended").into_iter().map(|entry| entry["tool_call_id"].to_string());
    let ended: Vec<String> = ended.collect();
    let once: BTreeSet<&String> = ended.iter().collect();
    assert_eq!(once.len(), ended.len(), "a call has two ends");
    let intents = lab.entries("tool_intended");
    assert!(intents.iter().all(|intent| once.contains(&intent["tool_call_id"].to_string())));
    let intents = intents.len();
    println!("{count} cancels: {prompts} prompts, {admitted} runs, {intents} tool calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_case_39_after_forty_random_cancels_no_input_is_lost() {
    random_cancels(40, 39).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a campaign of minutes"]
async fn soak_a_thousand_random_cancels() {
    random_cancels(1000, 1).await;
}

/// With a full queue and a stubborn tree: how long until a cancel is received, until the tree is
/// gone, and until its reap is in the record.
async fn latencies(rounds: usize) -> [Vec<Duration>; 3] {
    let mut lab = Lab::new(&json!({"turns": [shell(STUBBORN)], "repeat": true})).await;
    let mut found = [const { Vec::new() }; 3];
    for round in 0..rounds {
        let files = ["root.pid", "grandchild.pid"].map(|name| lab.dir.path().join(name));
        for file in &files {
            let _ = std::fs::remove_file(file);
        }
        let running = lab.prompt("do it");
        lab.end_of(&running).await;
        let pid =
            |file: &PathBuf| std::fs::read_to_string(file).unwrap_or_default().trim().parse().unwrap_or(0);
        lab.until("the tree", || files.iter().all(|file| pid(file) != 0)).await;
        let pids = files.each_ref().map(pid);
        // The queue and its lane are full, and somebody goes on pushing.
        let submitter = lab.submitter.clone();
        let flood = tokio::spawn(async move {
            for number in 0_u64.. {
                let id = format!("flood-{round}-{number}").parse().unwrap();
                let _ = submitter.submit(SubmissionEnvelope::new(id, Operation::Prompt("x".into())));
                tokio::task::yield_now().await;
            }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (tools_ended, begun) = (lab.tools_ended(), Instant::now());
        let cancel = lab.cancel();
        let received = lab.told(&cancel, |state| state == SubmissionState::Received).await;
        flood.abort();
        found[0].push(received.duration_since(begun));
        lab.until("the end of the tree", || pids.iter().all(|pid| !alive(*pid))).await;
        found[1].push(begun.elapsed());
        lab.until("the reap", || lab.tools_ended() > tools_ended).await;
        found[2].push(begun.elapsed());
        // What was pushed after the cancel is a new wish and runs; it is not wanted here.
        loop {
            let cancel = lab.cancel();
            let nothing = SubmissionState::Rejected { reason: RejectionReason::NothingRunning };
            if lab.end_of(&cancel).await == nothing {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let failed = lab.entries("tool_ended").iter().filter(|tool| tool["termination"] == "timed_out").count();
    assert_eq!(failed, 0, "trees that could not be ended");
    lab.finish(ControlOp::DrainSession).await;
    found
}

fn p99(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    values[(values.len() * 99).div_ceil(100) - 1]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark: its figures depend on the machine"]
async fn soak_control_latency_under_a_full_queue() {
    let mut found = latencies(100).await;
    for (name, values) in ["key to received", "tree gone", "reap recorded"].iter().zip(&mut found) {
        let p99 = p99(values);
        println!("{name}: p50 {:?}, p99 {p99:?}, max {:?}", values[values.len() / 2], values.last().unwrap());
    }
}
