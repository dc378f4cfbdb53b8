//! Records after a crash: what resumes, what does not, and what a check finds.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
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

/// Killed after each of `delays`, again and again: the record verifies, the next run goes on, no input
/// is lost, and no call has its effect twice.
async fn killed(delays: impl IntoIterator<Item = Duration>) {
    let append = "echo $ITERON_TOOL_CALL_ID >> effects";
    let script = json!({"turns": [
        {"text": "on", "tool_use": [{"name": "shell", "input": {"command": append}},
                                    {"name": "shell", "input": {"command": format!("sleep 0.02; {append}")}}]},
        {"tool_use": [{"name": "write", "input": {"path": "written", "content": "whole\n"}},
                      {"name": "shell", "input": {"command": format!("{append}; sleep 600"), "background": true}},
                      {"name": "search", "input": {"pattern": "absent"}}]},
    ], "repeat": true});
    let lab = Lab::new(&script.to_string()).await;
    let (mut resumed, mut kills, mut prompts) = (false, 0, 0);
    for delay in delays {
        let arguments = if resumed { with(&["--resume", "go on"]) } else { with(&["begin"]) };
        let child = lab.command(&arguments).spawn().unwrap();
        tokio::time::sleep(delay).await;
        kill(Pid::from_raw(pid_of(&child)), Signal::SIGKILL).unwrap();
        let run = Run::of(child).await;
        assert_eq!(run.code, None, "{}", run.stderr);
        kills += 1;
        if lab.path("records/s.jsonl").exists() {
            let (code, answer) = verify(&lab, &[]).await;
            assert_eq!(code, Some(0), "after {kills} kills: {answer}");
        }
        resumed = !entries(&lab).is_empty();
        prompts += usize::from(!of_kind(&lab, "submitted").is_empty());
        if let Ok(text) = std::fs::read_to_string(lab.path("written")) {
            assert_eq!(text, "whole\n", "a part of a file");
        }
    }
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
    honest(&lab);
    let (intended, unknown) = (of_kind(&lab, "tool_intended").len(), of_kind(&lab, "effect_unknown").len());
    let submitted = of_kind(&lab, "submitted").len();
    assert!(intended > 0 && prompts > 0, "no run came as far as a tool");
    println!("{kills} kills: {submitted} prompts, {intended} calls, {unknown} with an unknown effect");
}

/// What the record says against what was done.
fn honest(lab: &Lab) {
    let ids = |kind: &str, key: &str| -> Vec<String> {
        of_kind(lab, kind).iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
    };
    let intended = ids("tool_intended", "tool_call_id");
    let effects = std::fs::read_to_string(lab.path("effects")).unwrap_or_default();
    let effects: Vec<&str> = effects.lines().collect();
    let once: BTreeSet<&str> = effects.iter().copied().collect();
    assert_eq!(once.len(), effects.len(), "an effect happened twice");
    assert!(once.iter().all(|effect| intended.iter().any(|id| id == effect)), "an effect without an intent");
    // Each intent has one end, an unknown one included; but what the last kill left open.
    let unknown = ids("effect_unknown", "tool_call_id");
    let ended = ids("tool_ended", "tool_call_id");
    let open = intended.iter().filter(|id| {
        let ends = ended.iter().chain(&unknown).filter(|end| end == id).count();
        assert!(ends <= 1, "call {id} has {ends} ends");
        ends == 0
    });
    assert!(open.count() <= 1, "a call was forgotten");
    // Each prompt is in exactly one place: applied, returned, or, the last one, on its way.
    let (admitted, returned) = (ids("admitted", "submission_id"), ids("returned", "submission_id"));
    let submitted = ids("submitted", "submission_id");
    for id in &submitted {
        let places = admitted.iter().chain(&returned).filter(|place| *place == id).count();
        assert!(places == 1 || (places == 0 && submitted.last() == Some(id)), "{id} is in {places} places");
    }
    let ends = ids("run_ended", "submission_id");
    let once: BTreeSet<&String> = ends.iter().collect();
    assert_eq!(once.len(), ends.len(), "a run has two ends");
    assert!(admitted.iter().rev().skip(1).all(|id| once.contains(id)), "a run has no end");
}

#[tokio::test]
async fn killed_at_ten_points_a_session_resumes_and_repeats_nothing() {
    // Spread over start, request, scope, effect and record; the numbers are arbitrary.
    killed([9, 23, 31, 47, 64, 83, 110, 150, 210, 290].map(Duration::from_millis)).await;
}

#[tokio::test]
#[ignore = "a campaign of a minute"]
async fn soak_killed_at_two_hundred_random_points() {
    let mut rng = StdRng::seed_from_u64(200);
    killed((0..200).map(|_| Duration::from_micros(rng.random_range(1_000..250_000))).collect::<Vec<_>>())
        .await;
}

/// The key of each process is told when its session begins; whoever kept it finds a record written anew.
#[tokio::test]
async fn heads_are_signed_and_a_record_written_anew_is_found_by_who_kept_the_key() {
    let lab = Lab::new(r#"[{"text": "one"}, {"text": "two"}]"#).await;
    let key_of = |run: &Run| run.lines()[0]["record_key"].as_str().unwrap().to_owned();
    let run = lab.run(&with(&["do it"])).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let key = key_of(&run);
    assert!(run.stderr.contains(&format!("signed by {key}")), "{}", run.stderr);
    let (code, answer) = verify(&lab, &["--trust", &key]).await;
    let entries = answer["entries"].as_u64().unwrap();
    assert_eq!((code, &answer["signed_by"]), (Some(0), &json!([key])));
    assert_eq!(answer["signed_through"], json!(entries - 1), "all but the last signature itself");
    assert_eq!(verify(&lab, &["--trust", &"0".repeat(64)]).await.0, Some(1));

    let second = key_of(&lab.run(&with(&["--resume", "go on"])).await);
    assert_ne!(key, second);
    assert_eq!(verify(&lab, &["--trust", &key]).await.0, Some(1), "somebody else signed too");
    assert_eq!(verify(&lab, &["--trust", &key, "--trust", &second]).await.0, Some(0));

    // Somebody writes all of it anew: the chain is whole, and so are the signatures, of another.
    std::fs::remove_dir_all(lab.path("records")).unwrap();
    let lab_again = Lab::new(r#"[{"text": "one"}]"#).await;
    let dir = lab.path("records").display().to_string();
    let forged = ["--json", "--record", &dir, "--session", "s", "do it not"];
    assert_eq!(lab_again.run(&forged).await.code, Some(0));
    assert_eq!(verify(&lab, &[]).await.0, Some(0));
    assert_eq!(verify(&lab, &["--trust", &key]).await.0, Some(1));
}

#[tokio::test]
async fn a_key_that_is_given_signs_and_is_in_no_output() {
    let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    let lab = Lab::new(&crate::lab::shell_then_done("env")).await;
    std::fs::write(lab.path("seed"), seed).unwrap();
    let run = lab.run(&with(&["--signing-key", "seed", "do it"])).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    // Of RFC 8032, section 7.1.
    let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    assert_eq!(verify(&lab, &["--trust", key]).await.0, Some(0));
    let record = std::fs::read_to_string(lab.path("records/s.jsonl")).unwrap();
    assert!(!run.stdout.contains(seed) && !run.stderr.contains(seed) && !record.contains(seed));
    std::fs::write(lab.path("seed"), "short").unwrap();
    assert_eq!(lab.run(&with(&["--signing-key", "seed", "do it"])).await.code, Some(2));
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
