//! What an operator does by hand, and may do wrong.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use activity_gateway::{clock, daemon};

use crate::command_line::{activity, lived, stderr, stdout};
use crate::support::*;

fn gateway(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_activity-gateway")).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)
        } else {
            drop(fs::copy(entry.path(), target))
        }
    }
}

#[test]
fn init_checks_names_first_and_run_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let named = data.to_str().unwrap();
    let output = gateway(&["init", "--data", named, "--name", "not a name"]);
    assert!(!output.status.success() && !data.exists(), "{}", text(&output));
    assert!(text(&output).contains("is neither a DNS name nor an IP address"), "{}", text(&output));
    let output = gateway(&["run", "--data", named]);
    assert!(!output.status.success() && !data.exists(), "{}", text(&output));
    assert!(text(&output).contains("activity-gateway init --data"), "{}", text(&output));
    assert!(gateway(&["init", "--data", named]).status.success());
    let output = gateway(&["init", "--data", named]);
    assert!(!output.status.success() && text(&output).contains("is there already"), "{}", text(&output));
    let config = dir.path().join("gateway.toml");
    fs::write(&config, "[store]\nreserve_bytes = true\n").unwrap();
    let output = gateway(&["run", "--data", named, "--config", config.to_str().unwrap()]);
    assert!(
        text(&output).contains("store.reserve_bytes") && text(&output).contains("gateway.toml"),
        "{}",
        text(&output)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_init_is_made_anew_or_finished() {
    let made = tempfile::tempdir().unwrap();
    let names = ["localhost".to_owned()];
    daemon::init(made.path(), &names, clock::now()).await.unwrap();
    // Killed while the parts were made: they are made anew.
    let unready = tempfile::tempdir().unwrap();
    copy(&made.path().join("store"), &unready.path().join(".init.unready/store"));
    daemon::init(unready.path(), &names, clock::now()).await.unwrap();
    // Killed while they were put in place: what is ready is finished, and never thrown away.
    let ready = tempfile::tempdir().unwrap();
    copy(&made.path().join("store"), &ready.path().join("store"));
    for part in ["tokens", "pki"] {
        copy(&made.path().join(part), &ready.path().join(".init.ready").join(part));
    }
    let finished = daemon::init(ready.path(), &["other.example".to_owned()], clock::now()).await.unwrap();
    assert_eq!(finished.names, names, "as it was begun");
    for dir in [&unready, &ready] {
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["pki", "store", "tokens"]);
        assert!(dir.path().join("pki/ca.pem").exists() && dir.path().join("store/meta.json").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_is_known_is_revoked_and_the_revoked_are_shown() {
    let (world, _) = lived().await;
    let socket = format!("unix:{}", world.path("operator.sock").display());
    let ask = |args: &[&str]| {
        let output = activity(&[&["--gateway", &socket, "--tenant", "acme"], args].concat());
        (output.status.code(), text(&output))
    };
    for unknown in [["revoke", "--collector", "c-7"], ["revoke", "--operator", "nobody"]] {
        let (status, text) = ask(&unknown);
        assert!(status == Some(1) && text.contains("nobody is revoked"), "{status:?} {text}");
    }
    world.operator("ann", "reader@acme").await;
    let (_, text) = ask(&["collectors"]);
    assert!(text.contains("c-1") && !text.contains("REVOKED"), "{text}");
    assert_eq!(ask(&["revoke", "--collector", "c-1"]).0, Some(0));
    let (_, text) = ask(&["collectors"]);
    assert!(text.lines().any(|line| line.starts_with("c-1 ") && line.contains("REVOKED 20")), "{text}");
    let store = world.path("store");
    let World { dir: keep, server } = world;
    server.stop().await.unwrap();
    let output = activity(&["--store", store.to_str().unwrap(), "--tenant", "acme", "collectors"]);
    assert!(stdout(&output).contains("REVOKED"), "{}", stdout(&output));
    let unknown = ["--store", store.to_str().unwrap(), "--tenant", "acme", "revoke", "--collector", "c-7"];
    let output = activity(&unknown);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    drop(keep);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_trusted_key_is_one_line_and_an_import_twice_is_one() {
    let (world, _) = lived().await;
    let store = world.path("store");
    let lines = world.path("lines.jsonl");
    let socket = format!("unix:{}", world.path("operator.sock").display());
    let text_of = |args: &[&str]| text(&activity(args));
    let found = activity(&["--gateway", &socket, "query", "--event", "process.exec", "--format", "ndjson"]);
    let own: Vec<String> =
        stdout(&found).lines().filter(|l| l.contains("schema_version")).map(str::to_owned).collect();
    fs::write(&lines, own.join("\n")).unwrap();
    let import = ["--gateway", &socket, "--tenant", "theirs", "import", lines.to_str().unwrap()];
    assert!(text_of(&import).starts_with("1 lines stored"));
    assert!(text_of(&import).starts_with("0 lines stored as derived evidence, 1 were there already"));
    let World { dir: keep, server } = world;
    server.stop().await.unwrap();
    let other = activity_schema::keys::Signer::from_seed(&[3; 32]).public().to_base64();
    let output = activity(&["verify", store.to_str().unwrap(), "--trust", &other]);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(stdout(&output).matches("DAMAGE").count(), 1, "{}", stdout(&output));
    drop(keep);
}
