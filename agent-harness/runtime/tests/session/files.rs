//! File tools in a session: intent before effect, and what the model is told.

use std::fs;

use iteron_protocol::ControlOp;
use serde_json::{Value, json};

use crate::lab::Lab;

fn call(name: &str, input: &Value) -> Value {
    json!({"tool_use": [{"name": name, "input": input}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_plans_looks_changes_and_is_told_what_came_of_it() {
    let patch = "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1 +1 @@\n-fn two() {}\n+fn three() {}\n";
    let mut lab = Lab::new(&json!([
        call("plan", &json!({"steps": [{"text": "rename", "state": "doing"}]})),
        call("write", &json!({"path": "src/a.rs", "content": "fn one() {}\n"})),
        call("edit", &json!({"path": "src/a.rs", "old": "one", "new": "two"})),
        call("patch", &json!({"patch": patch})),
        call("read", &json!({"path": "src/a.rs"})),
        call("list", &json!({"path": "src"})),
        call("search", &json!({"pattern": "three", "path": "src"})),
        call("read", &json!({"path": "../secret"})),
        call("edit", &json!({"path": "src/a.rs", "old": "absent", "new": "x"})),
        call("write", &json!({"path": "src/a.rs"})),
        {"text": "Done."},
    ]))
    .await;
    lab.prompt("rename it");
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    assert_eq!(fs::read_to_string(lab.dir.path().join("src/a.rs")).unwrap(), "fn three() {}\n");
    let ended = lab.entries("tool_ended");
    let told: Vec<&str> = ended.iter().map(|entry| entry["output"].as_str().unwrap()).collect();
    assert_eq!(
        told[..8],
        [
            "[>] rename\n",
            "made src/a.rs, 12 bytes",
            "replaced 1 at line 1",
            "changed src/a.rs\n",
            "     1\tfn three() {}\n",
            "src/a.rs (14 bytes)\n",
            "src/a.rs:1:fn three() {}\n",
            "../secret leads out of the workspace",
        ]
    );
    let ends: Vec<_> = ended.iter().map(|entry| (entry["status"].clone(), entry["reason"].clone())).collect();
    assert!(ends[..7].iter().all(|end| *end == (json!("completed"), json!("done"))), "{ends:?}");
    assert_eq!(ends[7], (json!("failed"), json!("outside_workspace")));
    assert_eq!(ends[8], (json!("failed"), json!("no_match")));
    assert_eq!(ends[9], (json!("denied"), json!("invalid_input")));
    // Whatever took effect was intended first.
    assert_eq!(lab.entries("tool_intended").len(), 9);
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
    lab.finish(ControlOp::QuitFrontend).await;
}

/// A search over much is left at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_search() {
    let mut lab = Lab::new(&json!([call("search", &json!({"pattern": "absent"}))])).await;
    for dir in 0..40 {
        let dir = lab.dir.path().join(format!("d{dir}"));
        fs::create_dir(&dir).unwrap();
        (0..500).for_each(|file| fs::write(dir.join(file.to_string()), "x\n".repeat(500)).unwrap());
    }
    lab.prompt("search it");
    lab.until("the search", || lab.entries("tool_intended").len() == 1).await;
    lab.cancel();
    lab.until("the end of the call", || lab.entries("tool_ended").len() == 1).await;
    let ended = lab.entries("tool_ended").remove(0);
    assert_eq!((&ended["status"], &ended["reason"]), (&json!("cancelled"), &json!("interrupted")));
    lab.finish(ControlOp::QuitFrontend).await;
}
