//! Records after a crash: what resumes, what does not, and what a check finds.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::lab::{Lab, Run, binary, pid_of, until};

const RECORD: &[&str] = &["--json", "--record", "records", "--session", "s"];

fn entries(lab: &Lab) -> Vec<Value> {
    let text = std::fs::read_to_string(lab.path("records/s.jsonl")).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str::<Value>(line).unwrap()["entry"].take()).collect()
}

fn of_kind(lab: &Lab, kind: &str) -> Vec<Value> {
    entries(lab).into_iter().filter(|entry| entry["kind"] == kind).collect()
}

/// `iteron record verify`: exit status and answer.
async fn verify(lab: &Lab, more: &[&str]) -> (Option<i32>, Value) {
    let mut command = tokio::process::Command::new(binary());
    command.args(["record", "verify"]).arg(lab.path("records/s.jsonl")).args(more);
    let output = command.output().await.unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

fn with(more: &[&'static str]) -> Vec<&'static str> {
    [RECORD, more].concat()
}

#[tokio::test]
async fn what_a_kill_left_open_is_told_as_unknown_and_not_done_again() {
    let script = json!([
        {"tool_use": [{"name": "shell", "input": {"command": "echo once >> effects; sleep 600"}}]},
        {"text": "I look what became of it."},
    ]);
    let lab = Lab::new(&script.to_string()).await;
    let child = lab.command(&with(&["do it"])).spawn().unwrap();
    until("the effect", || lab.path("effects").exists()).await;
    kill(Pid::from_raw(pid_of(&child)), Signal::SIGKILL).unwrap();
    Run::of(child).await;
    let (code, answer) = verify(&lab, &[]).await;
    assert_eq!((code, &answer["runs_open"]), (Some(0), &json!(1)));
    let call = of_kind(&lab, "tool_intended")[0]["tool_call_id"].clone();
    assert_eq!(answer["calls_open"], json!([call]));

    let run = lab.run(&with(&["--resume", "go on"])).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(of_kind(&lab, "effect_unknown")[0]["tool_call_id"], call);
    let closed = &of_kind(&lab, "run_ended")[0];
    assert_eq!((&closed["outcome"]["status"], &closed["abandoned"]), (&json!("interrupted"), &json!(true)));
    let messages = lab.model.seen()[1].body["messages"].clone();
    assert_eq!(messages[0]["content"][0]["text"], "do it");
    let told = messages[2]["content"][0]["content"].as_str().unwrap();
    assert!(told.contains("may have had an effect"), "{told}");
    assert_eq!(messages[4]["content"][0]["text"], "go on");
    assert_eq!(std::fs::read_to_string(lab.path("effects")).unwrap(), "once\n");
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
    let (code, answer) = verify(&lab, &[]).await;
    assert_eq!((code, &answer["runs_open"], &answer["calls_open"]), (Some(0), &json!(0), &json!([])));
}

/// Killed at any point, again and again: the record verifies, the next run goes on, and no call has
/// its effect twice.
#[tokio::test]
async fn killed_at_ten_points_a_session_resumes_and_repeats_nothing() {
    let append = "echo $ITERON_TOOL_CALL_ID >> effects";
    let script = json!({"turns": [
        {"text": "on", "tool_use": [{"name": "shell", "input": {"command": append}},
                                    {"name": "shell", "input": {"command": format!("sleep 0.02; {append}")}}]},
    ], "repeat": true});
    let lab = Lab::new(&script.to_string()).await;
    let mut resumed = false;
    // Spread over start, request, scope, effect and record; the numbers are arbitrary.
    for delay_ms in [9, 23, 31, 47, 64, 83, 110, 150, 210, 290] {
        let arguments = if resumed { with(&["--resume", "go on"]) } else { with(&["begin"]) };
        let child = lab.command(&arguments).spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        kill(Pid::from_raw(pid_of(&child)), Signal::SIGKILL).unwrap();
        let run = Run::of(child).await;
        assert_eq!(run.code, None, "{}", run.stderr);
        if lab.path("records/s.jsonl").exists() {
            assert_eq!(verify(&lab, &[]).await.0, Some(0));
        }
        resumed = !entries(&lab).is_empty();
    }
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
    let intended: Vec<String> = of_kind(&lab, "tool_intended")
        .iter()
        .map(|entry| entry["tool_call_id"].as_str().unwrap().to_owned())
        .collect();
    assert!(!intended.is_empty(), "no run came as far as a tool");
    let effects = std::fs::read_to_string(lab.path("effects")).unwrap_or_default();
    let effects: Vec<&str> = effects.lines().collect();
    let once: BTreeSet<&str> = effects.iter().copied().collect();
    assert_eq!(once.len(), effects.len(), "an effect happened twice");
    assert!(once.iter().all(|effect| intended.iter().any(|id| id == effect)), "an effect without an intent");
}

#[tokio::test]
async fn verify_finds_a_change_a_cut_and_a_record_written_anew() {
    let lab = Lab::new(&crate::lab::shell_then_done("echo x")).await;
    assert_eq!(lab.run(&with(&["do it"])).await.code, Some(0));
    let path = lab.path("records/s.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    let (code, answer) = verify(&lab, &[]).await;
    assert_eq!((code, &answer["torn_bytes"]), (Some(0), &json!(0)));
    assert_eq!(answer["entries"], json!(whole.lines().count()));
    let head = answer["head"].as_str().unwrap().to_owned();
    assert_eq!(verify(&lab, &["--head", &head]).await.0, Some(0));

    std::fs::write(&path, &whole[..whole.len() - 7]).unwrap();
    let (code, answer) = verify(&lab, &[]).await;
    assert!(code == Some(0) && answer["torn_bytes"].as_u64().unwrap() > 7, "{answer}");
    // Cut off at an entry the chain is whole: only a head from elsewhere tells.
    let cut = whole.trim_end().rfind('\n').unwrap() + 1;
    std::fs::write(&path, &whole[..cut]).unwrap();
    assert_eq!(verify(&lab, &[]).await.0, Some(0));
    assert_eq!(verify(&lab, &["--head", &head]).await.0, Some(1));

    std::fs::write(&path, whole.replacen("do it", "do at", 1)).unwrap();
    assert_eq!(verify(&lab, &[]).await.0, Some(1));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(verify(&lab, &[]).await.0, Some(2));
}

#[tokio::test]
async fn only_what_has_a_past_is_resumed() {
    let lab = Lab::new(r#"[{"text": "ok"}]"#).await;
    let run = lab.run(&with(&["--resume", "go on"])).await;
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("nothing that could be resumed"), "{}", run.stderr);
    assert_eq!(lab.run(&["--resume", "go on"]).await.code, Some(2));
}
