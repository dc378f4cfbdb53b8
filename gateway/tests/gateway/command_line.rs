use std::path::Path;
use std::process::{Command, Output};

use activity_gateway::clock;
use activity_schema::{Class, Timestamp};
use serde_json::json;

use crate::support::*;

pub fn activity(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_activity"));
    for name in ["ACTIVITY_GATEWAY", "ACTIVITY_STORE", "ACTIVITY_TENANT", "ACTIVITY_CA", "ACTIVITY_CERT"] {
        command.env_remove(name);
    }
    command.args(args).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A second of an agent's life: configuration, heartbeats, a session with a tool call that runs one process.
fn life(collector: &mut Collector, start: Timestamp) -> activity_schema::SignedBatch {
    let at = |ms: i64| start.saturating_add_nanos(ms * 1_000_000);
    let classes: Vec<_> = ["session", "tool", "process", "network", "resource"]
        .into_iter()
        .map(|class| json!({"class": class, "source": "ebpf", "state": "supported"}))
        .collect();
    let mut config = collector.event("telemetry.config", "integrity", "observed", "security", at(0));
    config["payload"] = json!({"profile": "M0", "classes": classes});
    let mut events =
        vec![collector.event("telemetry.started", "integrity", "observed", "security", at(0)), config];
    let with_session = |mut event: serde_json::Value| {
        event["correlation"]["session_id"] = json!("s-42");
        event
    };
    events.push(with_session(collector.event(
        "session.started",
        "session",
        "self-reported",
        "security",
        at(10),
    )));
    let mut invoked = collector.event("agent.tool.invoked", "action", "self-reported", "standard", at(20));
    invoked["payload"] = json!({"tool_name": "shell", "join": "registered"});
    let mut exec = collector.exec(at(30), 0);
    exec["payload"] = json!({"executable": "ls\u{1b}[31m", "argc": 1, "join": "registered"});
    let mut completed =
        collector.event("agent.tool.completed", "action", "self-reported", "standard", at(60));
    completed["payload"] = json!({"tool_name": "shell", "duration_ms": 40});
    for mut event in [invoked, exec, completed] {
        event["correlation"]["tool_call_id"] = json!("call-1");
        events.push(with_session(event));
    }
    for ms in [100, 5_000] {
        let mut heartbeat =
            collector.event("telemetry.heartbeat", "integrity", "observed", "security", at(ms));
        let stream = format!("{}/{}/critical", collector.id, collector.epoch);
        heartbeat["payload"] = json!({
            "streams": [{"stream": stream, "class": "critical", "last_sequence": events.len(), "acked_sequence": 0}],
            "clock_error_ns": 1_000_000, "clock_offset_ns": 0, "clock_synchronised": true,
        });
        events.push(heartbeat);
    }
    collector.seal(Class::Critical, events, at(5_001))
}

pub async fn lived() -> (World, Timestamp) {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let start = clock::now().saturating_add_nanos(-6_000_000_000);
    let batch = life(&mut collector, start);
    let results = collector.send(&world, &[batch]).await.results();
    assert!(
        matches!(results.results[..], [activity_schema::api::BatchResult::Stored { withheld: 0, .. }]),
        "{results:?}"
    );
    (world, start)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_reads_the_same_from_the_gateway_its_socket_and_the_store() {
    let (world, start) = lived().await;
    let from = start.to_string();
    let to = start.saturating_add_nanos(1_000_000_000).to_string();
    let socket = format!("unix:{}", world.path("operator.sock").display());
    let https = format!("https://localhost:{}", world.operators().port());
    let pki = |name: &str| world.path("pki").join(name).display().to_string();
    let store = world.path("store").display().to_string();
    let places: [Vec<String>; 3] = [
        vec!["--gateway".into(), socket],
        vec![
            "--gateway".into(),
            https,
            "--ca".into(),
            pki("ca.pem"),
            "--cert".into(),
            pki("admin.pem"),
            "--key".into(),
            pki("admin.key"),
        ],
        vec!["--store".into(), store],
    ];
    let mut told = Vec::new();
    for place in &places {
        let mut args: Vec<&str> = place.iter().map(String::as_str).collect();
        args.extend(["timeline", "--instance", "sandbox-7", "--from", &from, "--to", &to]);
        let output = activity(&args);
        let text = stdout(&output);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{text}{}", stderr(&output));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("coverage  "), "{text}");
        assert_eq!(lines.first(), lines.last(), "coverage first and last: {text}");
        assert!(text.contains("session s-42"), "{text}");
        assert!(text.contains("└─ tool shell · call-1 · 40 ms · completed"), "{text}");
        assert!(text.contains("ls\\x1b[31m · pid 7"), "control characters are shown: {text}");
        assert!(text.contains("self-reported · registered"), "{text}");
        assert!(!text.contains('\x1b'), "no colours off a terminal");
        told.push(text.lines().skip(1).filter(|l| !l.starts_with("coverage")).collect::<Vec<_>>().join("\n"));
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0], told[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ndjson_is_coverage_then_signed_lines_then_the_tail_and_pages_lose_nothing() {
    let (world, _) = lived().await;
    let gateway = format!("unix:{}", world.path("operator.sock").display());
    let output = activity(&["--gateway", &gateway, "query", "--format", "ndjson"]);
    let text = stdout(&output);
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(lines[0]["coverage"]["instances"].is_array(), "{text}");
    assert_eq!(lines.len(), 8 + 2, "{text}");
    assert!(lines.last().unwrap()["next_cursor"].is_null(), "{text}");
    let mut ids = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut args = vec!["--gateway", &gateway, "query", "--format", "json", "--limit", "3"];
        if let Some(cursor) = &cursor {
            args.extend(["--cursor", cursor]);
        }
        let output = activity(&args);
        let page: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        ids.extend(page["events"].as_array().unwrap().iter().map(|e| e["event_id"].to_string()));
        match page["next_cursor"].as_str() {
            Some(next) => {
                assert!(stderr(&output).contains("there are more events"), "{}", stderr(&output));
                cursor = Some(next.to_owned());
            }
            None => break,
        }
    }
    let all: Vec<String> = lines[1..9].iter().map(|e| e["event_id"].to_string()).collect();
    assert_eq!(ids, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_statuses_are_those_of_the_contract() {
    let (world, start) = lived().await;
    let gateway = format!("unix:{}", world.path("operator.sock").display());
    let code = |args: &[&str]| {
        let output = activity(args);
        (output.status.code().unwrap(), stdout(&output), stderr(&output))
    };
    let ask = |args: &[&str]| code(&[&["--gateway", &gateway], args].concat());
    // Long before the collector began: nothing was watched.
    let (status, out, _) =
        ask(&["coverage", "--instance", "sandbox-7", "--from", "2020-01-01", "--to", "2020-01-02"]);
    assert_eq!(status, 3, "{out}");
    assert!(out.contains("INCOMPLETE"), "{out}");
    let from = start.saturating_add_nanos(200_000_000).to_string();
    let to = start.saturating_add_nanos(900_000_000).to_string();
    let (status, out, err) =
        ask(&["coverage", "--instance", "sandbox-7", "--from", &from, "--to", &to, "--class", "process"]);
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.starts_with("coverage  complete  "), "{out}");
    for usage in [
        &["timeline"][..],
        &["timeline", "--instance", "i", "--from", "yesterday"],
        &["query", "--outcome", "explosion"],
        &["query", "--peer", "not-an-address"],
        &["no-such-command"],
        &["query", "--from", "2026-01-02", "--to", "2026-01-01"],
    ] {
        let (status, out, err) = ask(usage);
        assert_eq!((status, out.as_str()), (2, ""), "{usage:?}: {err}");
        assert!(!err.is_empty());
    }
    let (status, out, err) = code(&["timeline", "--instance", "i"]);
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("--gateway URL or --store DIR"), "says what to do: {err}");
    let (status, _, err) = code(&["--gateway", "unix:/nonexistent/sock", "status"]);
    assert_eq!(status, 1, "{err}");
    let reader = world.operator("alice", "reader@acme").await;
    let file = |name: &str, text: &str| {
        let path = world.path(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (cert, key) = (file("r.pem", &reader.certificate), file("r.key", &reader.key));
    let url = format!("https://localhost:{}", world.operators().port());
    let ca = world.path("pki/ca.pem").display().to_string();
    let as_reader = ["--gateway", &url, "--ca", &ca, "--cert", &cert, "--key", &key];
    let (status, out, err) = code(&[&as_reader[..], &["--tenant", "rival", "query"]].concat());
    assert_eq!((status, out.as_str()), (4, ""), "{err}");
    assert!(err.contains("activity tenants"), "says what to do: {err}");
    let (status, _, _) =
        code(&[&as_reader[..], &["--tenant", "acme", "revoke", "--collector", "c-1"]].concat());
    assert_eq!(status, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_operators_and_revocations_through_the_command_line() {
    let world = World::start().await;
    let gateway = format!("unix:{}", world.path("operator.sock").display());
    let run = |args: &[&str]| activity(&[&["--gateway", &gateway], args].concat());
    let token = run(&["--tenant", "acme", "enroll", "--instance", "sandbox-7", "--ttl", "5m"]);
    let token = stdout(&token).trim().to_owned();
    let mut collector = Collector::new("acme", "sandbox-7", "c-1");
    assert_eq!(collector.enrol(&world, &token).await.status.as_u16(), 200);
    let listed = stdout(&run(&["collectors"]));
    assert!(listed.contains("c-1  host host-1") && listed.contains("has sent nothing"), "{listed}");
    assert_eq!(stdout(&run(&["tenants"])), "acme\n");
    let store = world.path("store").display().to_string();
    let from_disk = |args: &[&str]| stdout(&activity(&[&["--store", &store], args].concat()));
    assert_eq!(from_disk(&["collectors"]), listed, "from the disk as well");
    assert_eq!(from_disk(&["tenants"]), "acme\n");
    let out = world.path("alice");
    let made =
        run(&["enroll", "--operator", "alice", "--role", "reader@acme", "--out", &out.display().to_string()]);
    assert!(made.status.success(), "{}", stderr(&made));
    let file = |name: &str| out.join(name).display().to_string();
    let url = format!("https://localhost:{}", world.operators().port());
    let (ca, cert, key) = (file("ca.pem"), file("alice.pem"), file("alice.key"));
    let alice = ["--gateway", &url, "--ca", &ca, "--cert", &cert, "--key", &key];
    assert_eq!(stdout(&activity(&[&alice[..], &["tenants"]].concat())), "acme\n");
    assert!(run(&["revoke", "--operator", "alice"]).status.success());
    assert_eq!(activity(&[&alice[..], &["tenants"]].concat()).status.code(), Some(4));
    assert!(run(&["--tenant", "acme", "revoke", "--collector", "c-1"]).status.success());
    let refused = get(world.collectors(), Some(collector.credentials()), "/v1/streams").await;
    assert_eq!(refused.status.as_u16(), 401);

    // Beside a running gateway a token can be made; a revocation needs the store to itself.
    let store = world.path("store").display().to_string();
    let offline = |args: &[&str]| activity(&[&["--store", &store, "--tenant", "acme"], args].concat());
    let token = stdout(&offline(&["enroll", "--instance", "sandbox-8"])).trim().to_owned();
    let mut second = Collector::new("acme", "sandbox-8", "c-2");
    assert_eq!(second.enrol(&world, &token).await.status.as_u16(), 200);
    assert_eq!(
        offline(&["revoke", "--collector", "c-2"]).status.code(),
        Some(1),
        "the gateway holds the lock"
    );
    let World { dir, server } = world;
    server.stop().await.unwrap();
    let revoked = offline(&["revoke", "--collector", "c-2"]);
    assert!(revoked.status.success(), "{}", stderr(&revoked));
    let server = activity_gateway::daemon::Server::start(config(dir.path())).await.unwrap();
    let world = World { dir, server };
    let refused = get(world.collectors(), Some(second.credentials()), "/v1/streams").await;
    assert_eq!(refused.status.as_u16(), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_and_proof_hold_for_what_was_stored_and_name_what_was_changed() {
    let (world, _) = lived().await;
    let gateway = format!("unix:{}", world.path("operator.sock").display());
    let key = world.server.gateway.evidence.gateway_key().to_base64();
    let query = activity(&["--gateway", &gateway, "query", "--event", "process.exec", "--format", "json"]);
    let answer: serde_json::Value = serde_json::from_slice(&query.stdout).unwrap();
    let id = answer["events"][0]["event_id"].as_str().unwrap().to_owned();
    let proof = activity(&["--gateway", &gateway, "proof", &id, "--trust", &key]);
    assert_eq!(proof.status.code(), Some(0), "{}{}", stdout(&proof), stderr(&proof));
    assert!(stdout(&proof).contains("(trusted)"), "{}", stdout(&proof));
    let other = activity_schema::keys::Signer::from_seed(&[3; 32]).public().to_base64();
    let proof = activity(&["--gateway", &gateway, "proof", &id, "--trust", &other]);
    assert_eq!(proof.status.code(), Some(5), "{}", stderr(&proof));
    let missing = activity(&["--gateway", &gateway, "proof", "01980000-0000-7000-8000-00000000dead"]);
    assert_eq!(missing.status.code(), Some(2), "{}", stderr(&missing));

    let World { dir, server } = world;
    server.stop().await.unwrap();
    let store = dir.path().join("store").display().to_string();
    let good = activity(&["verify", &store, "--trust", &key]);
    assert_eq!(good.status.code(), Some(0), "{}{}", stdout(&good), stderr(&good));
    assert!(stdout(&good).starts_with("verify    ok\n"), "{}", stdout(&good));
    assert_eq!(stderr(&good), "", "no progress off a terminal");
    let listed = stdout(&activity(&["verify", &store, "--list"]));
    assert_eq!(activity(&["verify", &store, "--trust", &other]).status.code(), Some(5));
    assert_eq!(activity(&["verify", "/nonexistent"]).status.code(), Some(2));
    let holder = listed.lines().find(|f| f.contains("/commit/") || f.contains("/segments/")).unwrap();
    let mut bytes = std::fs::read(holder).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(holder, bytes).unwrap();
    let bad = activity(&["verify", &store]);
    assert_eq!(bad.status.code(), Some(5), "{}", stdout(&bad));
    let name = Path::new(holder).file_name().unwrap().to_str().unwrap();
    for asked in [&["query"][..], &["timeline", "--instance", "sandbox-7"]] {
        let answer = activity(&[&["--store", &store], asked].concat());
        assert_eq!(answer.status.code(), Some(5), "{}{}", stdout(&answer), stderr(&answer));
        assert!(stdout(&answer).starts_with("coverage  "), "what reads is answered: {}", stdout(&answer));
        assert!(stderr(&answer).contains(name), "what does not read is named: {}", stderr(&answer));
    }
    assert!(stdout(&bad).contains(name), "the damaged file is named: {}", stdout(&bad));
    assert!(stderr(&bad).contains("batch 0 "), "the batch is named: {}", stderr(&bad));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_lines_are_imported_as_derived_and_bad_ones_are_named() {
    let world = World::start().await;
    let gateway = format!("unix:{}", world.path("operator.sock").display());
    let mut foreign = Collector::new("acme", "sandbox-7", "foreign");
    let mut exec = foreign.exec(clock::now(), 0);
    exec["payload"]["argv"] = json!(["secret"]);
    foreign.epoch = "01980000-0000-7000-8000-000000000001".parse().unwrap();
    exec["source"]["collector"] = json!("foreign/sensor");
    exec["integrity"]["collector_sequence"] = json!(1);
    let file = world.path("foreign.ndjson");
    std::fs::write(&file, format!("{exec}\nnot an event\n")).unwrap();
    let file = file.display().to_string();
    let run = |args: &[&str]| activity(&[&["--gateway", &gateway, "--tenant", "acme"], args].concat());
    let imported = run(&["import", &file]);
    assert_eq!(imported.status.code(), Some(1), "{}", stderr(&imported));
    assert_eq!(
        stdout(&imported),
        "1 lines stored as derived evidence, 0 were there already, 1 refused, 1 payload keys stripped, 0 names unknown\n"
    );
    assert!(stderr(&imported).contains("line 2: "), "{}", stderr(&imported));
    let found = stdout(&run(&["query", "--trust", "derived", "--format", "ndjson"]));
    assert!(found.contains("\"executable\":\"sh\"") && !found.contains("secret"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fc30_follow_shows_every_event_once() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let batch = collector.batch(3);
    collector.send(&world, &[batch]).await.results();
    let gateway = format!("unix:{}", world.path("operator.sock").display());
    let shown = world.path("shown.ndjson");
    let mut child = Command::new(env!("CARGO_BIN_EXE_activity"))
        .args([
            "--gateway",
            &gateway,
            "--format",
            "ndjson",
            "timeline",
            "--instance",
            "sandbox-7",
            "--follow",
        ])
        .stdout(std::fs::File::create(&shown).unwrap())
        .spawn()
        .unwrap();
    let count = || std::fs::read_to_string(&shown).unwrap().lines().count();
    for _ in 0..20 {
        let batch = collector.batch(50);
        collector.send(&world, &[batch]).await.results();
        tokio::time::sleep(std::time::Duration::from_millis(60)).await;
    }
    for _ in 0..100 {
        if count() >= 1_003 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(matches!(child.wait().unwrap().code(), Some(0 | 3)));
    let text = std::fs::read_to_string(&shown).unwrap();
    let ids: std::collections::BTreeSet<String> = text
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["event_id"].to_string())
        .collect();
    assert_eq!((ids.len(), text.lines().count()), (1_003, 1_003));
}

#[test]
fn when_nobody_reads_the_output_the_exit_status_is_that_of_sigpipe() {
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let mut command = Command::new(env!("CARGO_BIN_EXE_activity"));
    let status = command.args(["completions", "bash"]).stdout(write).status().unwrap();
    assert_eq!(status.code(), Some(141));
}

#[test]
fn help_is_golden() {
    for (name, args) in [("help", &["--help"][..]), ("help_timeline", &["timeline", "--help"])] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_activity")).args(args).env("COLUMNS", "100").output().unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &output.stdout).unwrap();
        }
        assert_eq!(stdout(&output), std::fs::read_to_string(&path).unwrap_or_default(), "{name}");
    }
}
