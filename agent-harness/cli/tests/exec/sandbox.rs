//! Commands of a session behind walls, told in the stream and in the record.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::lab::{Lab, Run, alive, pid_of, until};

/// Whether this kernel has Landlock with ABI 3, told by the kernel and not by the harness.
fn has_landlock() -> bool {
    let ask = "import ctypes; print(ctypes.CDLL(None).syscall(444,0,0,1))";
    let output = std::process::Command::new("python3").args(["-c", ask]).output().unwrap();
    let abi = String::from_utf8(output.stdout).unwrap().trim().parse::<i32>().unwrap_or(-1);
    if abi < 3 {
        println!("skipped: no Landlock with ABI 3 here");
    }
    abi >= 3
}

fn shell(input: &Value) -> Value {
    json!({"tool_use": [{"name": "shell", "input": input}]})
}

#[tokio::test]
async fn a_session_in_a_sandbox_changes_its_workspace_and_says_what_held() {
    if !has_landlock() {
        return;
    }
    let outside = tempfile::TempDir::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected");
    let escape = format!("echo x > {}/new", outside.path().display());
    let script = json!([
        shell(&json!({"command": "echo x > made && echo y > $TMPDIR/scratch && cat $TMPDIR/scratch"})),
        shell(&json!({"command": escape})),
        shell(&json!({"command": escape, "background": true})),
        shell(&json!({"command": connect})),
        shell(&json!({"command": connect, "network": true})),
        {"text": "Done."},
    ]);
    let lab = Lab::new(&script.to_string()).await;
    let arguments = ["--json", "--record", "records", "--session", "s", "--sandbox", "workspace", "do it"];
    let run = lab.run(&arguments).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(lab.path("made").exists());
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    let ended: Vec<_> = run.lines().into_iter().filter(|line| line["type"] == "tool.ended").collect();
    let status: Vec<_> = ended.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!(status, ["completed", "failed", "completed", "failed", "denied"]);
    assert_eq!(ended[0]["output"], "y\n");
    assert_eq!(ended[4]["reason"], "policy");
    let started = run.lines().remove(0);
    assert_eq!(started["sandbox"]["mode"], "workspace");
    assert_eq!(started["permissions"]["network"], "deny");
    let walls = started["sandbox"]["parts"].as_array().unwrap();
    for wall in ["files", "system_calls"] {
        assert!(walls.contains(&json!({"wall": wall})), "{walls:?}");
    }
    let record = std::fs::read_to_string(lab.path("records/s.jsonl")).unwrap();
    let first: Value = serde_json::from_str(record.lines().next().unwrap()).unwrap();
    assert_eq!(first["entry"]["sandbox"], started["sandbox"]);
    // The tool says what it does not let a command do, and offers nothing that is denied.
    let tool = lab.model.seen()[0].body["tools"][0].clone();
    assert!(tool["description"].as_str().unwrap().contains("have no network"));
    assert!(tool["input_schema"]["properties"].get("network").is_none());

    let lab = Lab::new(&script.to_string()).await;
    let run = lab.run(&["--json", "--sandbox", "workspace", "--allow", "network", "do it"]).await;
    let ended: Vec<_> = run.lines().into_iter().filter(|line| line["type"] == "tool.ended").collect();
    assert_eq!((&ended[3]["status"], &ended[4]["output"]), (&json!("failed"), &json!("connected\n")));
}

/// What cannot be enforced is refused before anything is asked, and so is a machine without the walls.
#[tokio::test]
async fn where_the_walls_cannot_be_had_nothing_is_asked() {
    let lab = Lab::new("[]").await;
    let run = lab.run(&["--sandbox", "workspace", "--writable", "/nonexistent/x", "do it"]).await;
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("the sandbox is unsupported here: commands cannot be let write"),
        "{}",
        run.stderr
    );
    assert!(lab.model.seen().is_empty());
}

/// A tree behind walls is ended like any other.
#[tokio::test]
async fn an_interrupt_ends_a_stubborn_tree_behind_walls() {
    if !has_landlock() {
        return;
    }
    let tree = "trap '' TERM INT; setsid sh -c 'trap \"\" TERM; echo $$ > strayed.pid; while :; do sleep 0.1; done' & \
        echo $$ > root.pid; while :; do sleep 0.1; done";
    let lab = Lab::new(&json!([shell(&json!({"command": tree}))]).to_string()).await;
    let child = lab.command(&["--json", "--sandbox", "workspace", "do it"]).spawn().unwrap();
    let pid = |name: &str| -> i32 {
        std::fs::read_to_string(lab.path(name)).unwrap_or_default().trim().parse().unwrap_or(0)
    };
    until("the tree", || pid("root.pid") != 0 && pid("strayed.pid") != 0).await;
    let begun = Instant::now();
    kill(Pid::from_raw(pid_of(&child)), Signal::SIGINT).unwrap();
    let run = Run::of(child).await;
    assert_eq!(run.code, Some(130), "{}", run.stderr);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(!alive(pid("root.pid")) && !alive(pid("strayed.pid")));
}
