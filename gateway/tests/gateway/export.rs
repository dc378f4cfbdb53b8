use std::fs;
use std::path::PathBuf;

use activity_store::ControlRecord;

use crate::command_line::{activity, lived, stderr, stdout};
use crate::support::*;

/// Exports through the gateway; the bundle.
fn exported(world: &World, more: &[&str]) -> (Option<i32>, String, PathBuf) {
    let gateway = format!("unix:{}", world.path("operator.sock").display());
    let target = world.path("a.bundle");
    let output =
        activity(&[&["--gateway", &gateway, "export", "-o", target.to_str().unwrap()], more].concat());
    (output.status.code(), stdout(&output) + &stderr(&output), target)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_from_the_gateway_and_from_the_disk_verifies_alone_and_names_what_is_changed() {
    let (world, start) = lived().await;
    let from = start.saturating_add_nanos(200_000_000).to_string();
    let to = start.saturating_add_nanos(900_000_000).to_string();
    let key = activity_store::Store::open_read_only(&world.path("store")).unwrap().gateway_key().to_base64();
    let verify = |file: &str, more: &[&str]| {
        let output = activity(&[&["verify", file], more].concat());
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let complete = ["--instance", "sandbox-7", "--from", &from, "--to", &to, "--class", "process"];
    let (status, text, target) = exported(&world, &complete);
    assert_eq!(status, Some(0), "{text}");
    let (status, text, _) = exported(&world, &["--session", "s-42"]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("is there already; --force replaces it"), "{text}");
    let (status, text, _) = exported(&world, &["--session", "s-42", "--force"]);
    assert_eq!(status, Some(3), "coverage up to now is not complete: {text}");
    let name = target.to_str().unwrap();
    let (status, text) = verify(name, &["--trust", &key]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("signed    by") && text.contains("1 batches with 4 events"), "{text}");
    let (_, text) = verify(name, &[]);
    assert!(text.contains("signer not pinned"), "{text}");
    let (status, text) = verify(name, &["--list"]);
    assert!(status == Some(0) && text.contains("4 of 8 lines  batch 1 of c-1/"), "{text}");
    let bundle = fs::read_to_string(&target).unwrap();
    for (from, to) in [("call-1", "call-2"), ("\"executable\":\"ls", "\"executable\":\"rm")] {
        assert!(bundle.contains(from));
        fs::write(&target, bundle.replacen(from, to, 1)).unwrap();
        let (status, text) = verify(name, &["--trust", &key]);
        assert_eq!(status, Some(5), "{text}");
        assert!(text.contains("DAMAGE") && text.contains("batch 1 of c-1/"), "{text}");
    }
    fs::write(&target, "").unwrap();
    assert_eq!(verify(name, &[]).0, Some(5));
    let dir = world.path("store");
    let World { dir: keep, server } = world;
    server.stop().await.unwrap();
    let output = activity(&["--store", dir.to_str().unwrap(), "export", "--force", "-o", name]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(verify(name, &["--trust", &key]).0, Some(0));
    let left: Vec<_> = fs::read_dir(keep.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with('.')), "{left:?}");
    let store = activity_store::Store::open_read_only(&dir).unwrap();
    let exports = store.control_records(1, 1_000).into_iter().filter(
        |(_, record)| matches!(record, ControlRecord::Read(read) if read.action == "export" && !read.refused),
    );
    assert_eq!(exports.count(), 2, "every export through the gateway is on the record");
}

/// A gateway that begins an answer and does not go on.
fn stalling(path: &std::path::Path) {
    use std::io::{Read as _, Write as _};
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{\"bundle\":");
            held.push(stream);
        }
    });
}

#[test]
fn an_export_that_is_interrupted_or_killed_leaves_nothing() {
    use nix::sys::signal::{Signal, kill};
    let dir = tempfile::tempdir().unwrap();
    let (socket, folder) = (dir.path().join("sock"), dir.path().join("out"));
    stalling(&socket);
    fs::create_dir(&folder).unwrap();
    let target = folder.join("a.bundle");
    let gateway = format!("unix:{}", socket.display());
    let names = || -> Vec<String> {
        let all = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        all.collect()
    };
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mut export = std::process::Command::new(env!("CARGO_BIN_EXE_activity"))
            .args(["--gateway", &gateway, "--tenant", "acme", "export", "-o", target.to_str().unwrap()])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It has begun to write when the file is open: nameless, or not.
        let open = || {
            let fds = fs::read_dir(format!("/proc/{}/fd", export.id())).unwrap().flatten();
            let mut to = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
            to.any(|to| to.starts_with(&folder))
        };
        while !open() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // The handlers are there when it waits for the answer.
        std::thread::sleep(std::time::Duration::from_millis(200));
        kill(nix::unistd::Pid::from_raw(export.id().cast_signed()), signal).unwrap();
        assert!(!export.wait().unwrap().success(), "{signal}");
        if signal != Signal::SIGKILL {
            assert_eq!(names(), Vec::<String>::new(), "{signal}");
        }
    }
    // What a kill leaves where files need a name is removed by the next for the same target.
    assert!(names().iter().all(|name| name == ".a.bundle.partial"), "{:?}", names());
    assert!(!target.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_read_a_tenant_exports_it_and_wrong_arguments_are_told() {
    let (world, _) = lived().await;
    world.enrol("rival", "sandbox-7", "c-9").await;
    let reader = world.operator("alice", "reader@rival").await;
    let ask = async |path: &str| {
        let mut connection = Connection::open(world.operators(), Some(&reader)).await.unwrap();
        connection.ask(http::Method::POST, path, "application/json", Vec::new().into()).await.unwrap()
    };
    assert_eq!(ask("/v1/exports?tenant=acme").await.status, 403);
    assert_eq!(ask("/v1/exports?tenant=rival").await.status, 404, "it sent nothing yet");
    let (status, text, target) = exported(&world, &["--peer", "nonsense"]);
    assert!(status == Some(2) && !target.exists(), "{text}");
    let garbage = world.path("garbage");
    fs::write(&garbage, "garbage").unwrap();
    let garbage = garbage.to_str().unwrap();
    let (status, text, _) = exported(&world, &["--checkpoint", garbage]);
    assert!(status == Some(2) && text.contains("is no checkpoint"), "{text}");
    let store = world.path("store");
    let store = store.to_str().unwrap();
    for (arguments, says) in [
        (["--checkpoint", garbage], "is no checkpoint"),
        (["--trust", garbage], "holds not an Ed25519 public key"),
        (["--trust", "/nonexistent/key"], "nor a file that reads"),
    ] {
        let output = activity(&[&["verify", store][..], &arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
}
