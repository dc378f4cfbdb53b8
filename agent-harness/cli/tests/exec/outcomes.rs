//! What a run answers and how it exits.

use serde_json::json;

use crate::lab::{KEY, Lab, Run, binary, shell_then_done};

#[tokio::test]
async fn a_task_is_done_with_a_tool_and_its_result() {
    let lab = Lab::new(&shell_then_done("echo from-the-tool; echo $ITERON_SESSION_ID")).await;
    let run = lab.run(&["--session", "s-1", "do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stdout, "I look.\nDone.\n");
    assert_eq!(run.stderr.matches("effects are unobserved").count(), 1, "{}", run.stderr);
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
    let seen = lab.model.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].api_key, KEY);
    let result = &seen[1].body["messages"][2]["content"][0];
    assert_eq!(result["type"], "tool_result");
    assert_eq!(result["content"], "from-the-tool\ns-1\n");
}

#[tokio::test]
async fn the_json_stream_tells_everything_once_and_ends_with_the_session() {
    let lab = Lab::new(&shell_then_done("exit 3")).await;
    let run = lab.run(&["--json", "do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(
        run.types(),
        [
            "session.started",
            "turn.started",
            "model.completed",
            "tool.invoked",
            "tool.ended",
            "turn.started",
            "model.completed",
            "session.ended",
        ]
    );
    let lines = run.lines();
    let ended = lines.iter().find(|line| line["type"] == "tool.ended").unwrap();
    assert_eq!((&ended["status"], &ended["exit_code"]), (&json!("failed"), &json!(3)));
    let last = lines.last().unwrap();
    assert_eq!(last["outcome"], json!({"status": "completed"}));
    assert_eq!(
        last["usage"],
        json!({"input_tokens": 200, "output_tokens": 40,
        "cache_read_tokens": 10, "cache_write_tokens": 6})
    );
}

#[tokio::test]
async fn what_cannot_run_is_denied_and_the_model_is_told() {
    let script = json!([
        {"tool_use": [
            {"name": "launch", "input": {}},
            {"name": "shell", "input": {"cmd": "ls"}},
            {"name": "shell", "input": {}, "raw_input": "{\"command\":"},
            {"name": "shell", "input": {"command": "echo ran"}},
        ]},
        {"text": "Done."},
    ]);
    let lab = Lab::new(&script.to_string()).await;
    let run = lab.run(&["--json", "do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let ended: Vec<_> = run.lines().into_iter().filter(|line| line["type"] == "tool.ended").collect();
    let status: Vec<_> = ended.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!(status, ["denied", "denied", "denied", "completed"]);
    assert_eq!(ended[0]["reason"], "unknown_tool");
    assert_eq!(ended[2]["reason"], "invalid_input");
    let results = lab.model.seen()[1].body["messages"][2]["content"].as_array().unwrap().clone();
    assert_eq!(results.len(), 4);
    assert_eq!(results[0]["is_error"], true);
    assert_eq!(results[3]["content"], "ran\n");
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
}

#[tokio::test]
async fn exit_codes_are_the_documented_ones() {
    let call = json!({"tool_use": [{"name": "shell", "input": {"command": "touch ran"}}]});
    let looping = json!({"turns": [call], "repeat": true}).to_string();
    for (script, arguments, code) in [
        (json!([{"text": "ok"}]).to_string(), &["x"][..], 0),
        (looping, &["--max-turns", "1", "x"], 1),
        (json!([{"text": "half", "stop_reason": "max_tokens"}]).to_string(), &["x"], 1),
        (json!([{"text": "no", "stop_reason": "refusal"}]).to_string(), &["x"], 1),
        (json!([{"faults": {"status": 401}}]).to_string(), &["x"], 3),
        (json!([{"text": "half", "faults": {"cut_after_bytes": 500}}]).to_string(), &["x"], 3),
        (
            json!([{"text": "x", "faults": {"stall_ms": 9000, "stall_at_event": 2}}]).to_string(),
            &["--model-idle-timeout", "0.3", "x"],
            3,
        ),
        (json!([{"faults": {"status": 429, "retry_after": "0"}}, {"text": "ok"}]).to_string(), &["x"], 0),
        (json!([]).to_string(), &["x"], 3),
        (json!([{"text": "ok"}]).to_string(), &[" "], 2),
        (json!([{"text": "ok"}]).to_string(), &["--session", "../x", "x"], 2),
        (json!([{"text": "ok"}]).to_string(), &["--cwd", "/nonexistent", "x"], 2),
        (json!([{"text": "ok"}]).to_string(), &["--no-such-option", "x"], 2),
        (json!([{"text": "ok"}]).to_string(), &["--deny", "write", "x"], 2),
        (json!([{"text": "ok"}]).to_string(), &["--policy", "/nonexistent", "x"], 2),
    ] {
        let lab = Lab::new(&script).await;
        let run = lab.run(arguments).await;
        assert_eq!(run.code, Some(code), "{script} {arguments:?}\n{}", run.stderr);
        assert!(!lab.path("ran").exists(), "the last turn's tool ran");
        assert!(code != 2 || lab.model.seen().is_empty());
    }
}

#[tokio::test]
async fn a_missing_key_and_a_clear_text_address_are_configuration_errors() {
    let lab = Lab::new("[]").await;
    let run = Run::of(lab.command(&["x"]).env_remove("ANTHROPIC_API_KEY").spawn().unwrap()).await;
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("ANTHROPIC_API_KEY"), "{}", run.stderr);
    let address = "http://model.example";
    let run = Run::of(lab.command(&["x"]).env("ANTHROPIC_BASE_URL", address).spawn().unwrap()).await;
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("https://"), "{}", run.stderr);
}

#[tokio::test]
async fn the_key_is_in_no_output_no_log_no_record_and_no_command() {
    let lab = Lab::new(&shell_then_done("env; tr '\\0' '\\n' < /proc/self/environ")).await;
    let mut command = lab.command(&["--json", "--record", "records", "--session", "s", "do it"]);
    let run = Run::of(command.env("ITERON_LOG", "trace").spawn().unwrap()).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("ITERON_TOOL_CALL_ID"));
    let record = std::fs::read_to_string(lab.path("records/s.jsonl")).unwrap();
    for (place, text) in [("stdout", &run.stdout), ("stderr", &run.stderr), ("record", &record)] {
        assert!(!text.contains(KEY), "the key is in {place}");
    }
}

#[tokio::test]
async fn the_record_has_intent_before_end_and_goes_on_in_the_next_run() {
    let lab = Lab::new(&shell_then_done("cat records/s.jsonl")).await;
    let run = lab.run(&["--json", "--record", "records", "--session", "s", "do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let kinds = |text: &str| -> Vec<String> {
        let kind = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["entry"]["kind"].as_str().unwrap().to_owned()
        };
        // That the front end submits no more may come at any moment, and ends are signed.
        text.lines().map(kind).filter(|kind| kind != "controlled" && kind != "head_signed").collect()
    };
    let all = std::fs::read_to_string(lab.path("records/s.jsonl")).unwrap();
    let expected = [
        "session_started",
        "submitted",
        "admitted",
        "model_requested",
        "model_completed",
        "tool_decided",
        "tool_intended",
        "tool_ended",
        "model_requested",
        "model_completed",
        "run_ended",
        "session_ended",
    ];
    assert_eq!(kinds(&all), expected);
    let tool = run.lines().into_iter().find(|line| line["type"] == "tool.ended").unwrap();
    assert_eq!(kinds(tool["output"].as_str().unwrap()), expected[..7], "the intent was not there first");

    let lab_again = Lab::new(r#"[{"text": "ok"}]"#).await;
    let dir = lab.path("records");
    let torn = format!("{all}{{\"seq\":10,\"at_ms\"");
    std::fs::write(lab.path("records/s.jsonl"), torn).unwrap();
    let run = lab_again.run(&["--record", dir.to_str().unwrap(), "--session", "s", "again"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("torn"), "{}", run.stderr);
    let text = std::fs::read_to_string(dir.join("s.jsonl")).unwrap();
    assert_eq!(kinds(&text)[12..14], ["recovered", "session_started"]);

    std::fs::write(dir.join("s.jsonl"), text.replacen("echo", "ehco", 1).replacen("do it", "do not", 1))
        .unwrap();
    let run = lab_again.run(&["--record", dir.to_str().unwrap(), "--session", "s", "again"]).await;
    assert_eq!(run.code, Some(2), "a changed record was continued");
}

#[tokio::test]
async fn help_and_version_are_there() {
    for (arguments, expect) in [
        (&["--version"][..], concat!("iteron ", env!("CARGO_PKG_VERSION"))),
        (&["exec", "--help"], "Examples:"),
        (&["exec", "--help"], "Exit status:"),
    ] {
        let output = tokio::process::Command::new(binary()).args(arguments).output().await.unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains(expect), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_task_has_4_mib() {
    let lab = Lab::new("[]").await;
    for (bytes, says) in
        [(4_194_304, "the task is empty"), (4_194_305, "the task has more than 4194304 bytes")]
    {
        let path = lab.path("task");
        std::fs::write(&path, " ".repeat(bytes)).unwrap();
        let task = std::fs::File::open(&path).unwrap();
        let run = Run::of(lab.command(&["-"]).stdin(task).spawn().unwrap()).await;
        assert!(run.code == Some(2) && run.stderr.contains(says), "{}", run.stderr);
    }
}
