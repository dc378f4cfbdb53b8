//! A whole session over each API.

use std::os::unix::fs::PermissionsExt;

use iteron_testkit::fake_collector::Behaviour;
use serde_json::json;

use crate::lab::{KEY, Lab, Run, shell_then_done};

#[tokio::test]
async fn a_session_is_the_same_over_every_api() {
    for (provider, path) in [("anthropic", "messages"), ("openai", "input"), ("openai-chat", "messages")] {
        let lab = Lab::observed(&shell_then_done("echo from-the-tool; env"), Behaviour::default()).await;
        let arguments = ["--json", "--provider", provider, "--model", "some-model", "--record", "records"];
        let run = lab.run(&[&arguments[..], &["--session", "s", "do it"]].concat()).await;
        assert_eq!(run.code, Some(0), "{provider}: {}", run.stderr);
        assert!(lab.model.refused().is_empty(), "{provider}: {:?}", lab.model.refused());
        let seen = lab.model.seen();
        assert_eq!((seen.len(), seen[0].api_key.as_str()), (2, KEY));
        assert!(seen[1].body[path].to_string().contains("from-the-tool"), "{provider}");
        let lines = run.lines();
        let tool = lines.iter().find(|line| line["type"] == "tool.ended").unwrap();
        assert_eq!(tool["status"], "completed");
        let usage = lines.last().unwrap()["usage"].clone();
        assert_eq!((&usage["input_tokens"], &usage["cache_read_tokens"]), (&json!(200), &json!(10)));
        let events = lab.collector().events();
        assert_eq!(lab.collector().faults(), Vec::<String>::new());
        let said = |name: &str, key: &str| {
            events.iter().find(|event| event["event_name"] == name).unwrap()["payload"][key].clone()
        };
        assert_eq!(said("agent.model.completed", "provider"), json!(provider));
        assert_eq!(said("session.started", "backend"), json!(provider));
        let record = std::fs::read_to_string(lab.path("records/s.jsonl")).unwrap();
        assert!(!record.contains(KEY) && !run.stdout.contains(KEY) && !run.stderr.contains(KEY));

        // What one API began, another goes on with.
        let other = if provider == "anthropic" { "openai" } else { "anthropic" };
        let lab_again = Lab::new(r#"[{"text": "ok"}]"#).await;
        let dir = lab.path("records").display().to_string();
        let arguments = ["--provider", other, "--model", "m", "--record", &dir, "--session", "s"];
        let run = lab_again.run(&[&arguments[..], &["--resume", "go on"]].concat()).await;
        assert_eq!(run.code, Some(0), "{provider}, then {other}: {}", run.stderr);
        assert!(lab_again.model.refused().is_empty(), "{:?}", lab_again.model.refused());
    }
}

#[tokio::test]
async fn a_key_comes_from_a_file_that_is_nobody_elses() {
    let lab = Lab::new(r#"[{"text": "ok"}]"#).await;
    let file = lab.path("key");
    std::fs::write(&file, format!("{KEY}-of-the-file\n")).unwrap();
    let run = |mode: u32| {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut command =
            lab.command(&["--provider", "openai", "--model", "m", "--api-key-file", "key", "x"]);
        command.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY");
        command.spawn().unwrap()
    };
    let refused = Run::of(run(0o640)).await;
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("chmod 600"), "{}", refused.stderr);
    assert_eq!(Run::of(run(0o600)).await.code, Some(0));
    assert_eq!(lab.model.seen()[0].api_key, format!("{KEY}-of-the-file"));
}

#[tokio::test]
async fn what_is_missing_to_ask_is_said_before_anything_is_asked() {
    let lab = Lab::new("[]").await;
    let run = lab.run(&["--provider", "openai", "x"]).await;
    assert!(run.code == Some(2) && run.stderr.contains("--model"), "{}", run.stderr);
    let mut command = lab.command(&["--provider", "openai-chat", "--model", "m", "x"]);
    let run = Run::of(command.env_remove("OPENAI_API_KEY").spawn().unwrap()).await;
    assert!(run.code == Some(2) && run.stderr.contains("set OPENAI_API_KEY"), "{}", run.stderr);
    assert!(lab.model.seen().is_empty());
}
