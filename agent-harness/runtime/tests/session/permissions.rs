//! What the rules let run, and that they are on the record before it does.

use iteron_protocol::{ControlOp, OnAsk, Permissions, Rule};
use serde_json::{Value, json};

use crate::lab::{Lab, shell};

fn calls() -> Value {
    json!([
        {"tool_use": [
            {"name": "shell", "input": {"command": "touch ran"}},
            {"name": "write", "input": {"path": "written", "content": "x"}},
            {"name": "list", "input": {}},
            {"name": "plan", "input": {"steps": []}},
            {"name": "read", "input": {"file": "x"}},
        ]},
        {"text": "Done."},
    ])
}

async fn run(permissions: Permissions) -> (Lab, Vec<String>) {
    let mut lab = Lab::with(&calls(), permissions).await;
    lab.prompt("do it");
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    let ended = lab
        .entries("tool_ended")
        .into_iter()
        .map(|entry| format!("{} {}", entry["status"].as_str().unwrap(), entry["reason"].as_str().unwrap()));
    let ended = ended.collect();
    (lab, ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_denied_does_not_run_and_the_model_is_told_why() {
    let rules = Permissions { write: Rule::Deny, execute: Rule::Ask, ..Permissions::default() };
    let (mut lab, ended) = run(rules).await;
    let expected =
        ["denied nobody_to_ask", "denied policy", "completed done", "completed done", "denied invalid_input"];
    assert_eq!(ended, expected);
    assert!(!lab.dir.path().join("ran").exists() && !lab.dir.path().join("written").exists());
    let results = lab.model.seen()[1].body["messages"][2]["content"].clone();
    for (at, says) in
        [(0, "class execute: it must be asked about"), (1, "class write: this session's rules deny")]
    {
        let told = results[at]["content"].as_str().unwrap();
        assert!(told.contains(says), "{told}");
    }
    let decided: Vec<_> = lab
        .entries("tool_decided")
        .iter()
        .map(|entry| {
            ["tool_name", "tool_class", "rule", "decision"].map(|key| entry[key].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(
        decided,
        [
            ["shell", "execute", "ask", "nobody_to_ask"],
            ["write", "write", "deny", "denied"],
            ["list", "read", "allow", "allowed"],
        ]
    );
    assert_eq!(lab.entries("session_started")[0]["permissions"], json!(rules));
    // What is always denied is not offered.
    let offered = lab.model.seen()[0].body["tools"].clone();
    let offered: Vec<&str> =
        offered.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(offered, ["shell", "job", "read", "list", "search", "plan"]);
    lab.finish(ControlOp::QuitFrontend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_agreed_to_beforehand_runs_and_the_record_says_how() {
    let rules = Permissions { execute: Rule::Ask, on_ask: OnAsk::Allow, ..Permissions::default() };
    let (mut lab, ended) = run(rules).await;
    assert_eq!(ended[..2], ["completed exit_code", "completed done"]);
    assert!(lab.dir.path().join("ran").exists() && lab.dir.path().join("written").exists());
    assert_eq!(lab.entries("tool_decided")[0]["decision"], "presumed");
    lab.finish(ControlOp::QuitFrontend).await;
}

/// The command reads the record while it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_is_on_the_record_before_the_effect() {
    let mut lab = Lab::new(&json!([shell("cat s.jsonl"), {"text": "Done."}])).await;
    lab.prompt("do it");
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    let seen = lab.entries("tool_ended").remove(0)["output"].as_str().unwrap().to_owned();
    let decided = seen.find("\"kind\":\"tool_decided\"").expect("no decision was there");
    assert!(decided < seen.find("\"kind\":\"tool_intended\"").unwrap());
    lab.finish(ControlOp::QuitFrontend).await;
}
