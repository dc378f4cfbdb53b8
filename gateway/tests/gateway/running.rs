use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use activity_schema::api::BatchResult;
use http::StatusCode;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn fc29_ingest_that_stands_still_fails_readiness_while_the_process_lives() {
    let world = World::start().await;
    let admin = world.admin();
    let ready = get(world.operators(), Some(&admin), "/readyz").await;
    assert_eq!(ready.status, StatusCode::OK);
    let stuck = world.server.gateway.ingest.begin(Instant::now());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let stalled = get(world.operators(), Some(&admin), "/readyz").await;
    assert_eq!(stalled.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(&stalled.body[..], b"not ready: ingest stands still\n");
    assert_eq!(get(world.operators(), Some(&admin), "/healthz").await.status, StatusCode::OK);
    let metrics = get(world.operators(), Some(&admin), "/metrics").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("activity_gateway_ready 0"));
    drop(stuck);
    assert_eq!(get(world.operators(), Some(&admin), "/readyz").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn fc29_a_journal_that_cannot_be_written_fails_readiness_until_it_can() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let (commit, away) = (world.path("store/commit"), world.path("store/away"));
    std::fs::rename(&commit, &away).unwrap();
    let batch = collector.batch(1);
    let refused = collector.send(&world, std::slice::from_ref(&batch)).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{:?}", refused.body);
    let admin = world.admin();
    let ready = get(world.operators(), Some(&admin), "/readyz").await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(&ready.body[..], b"not ready: the journal cannot be written\n");
    assert_eq!(get(world.operators(), Some(&admin), "/healthz").await.status, StatusCode::OK);
    std::fs::rename(&away, &commit).unwrap();
    for _ in 0..100 {
        if get(world.operators(), Some(&admin), "/readyz").await.status == StatusCode::OK {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(get(world.operators(), Some(&admin), "/readyz").await.status, StatusCode::OK);
    let stored = collector.send(&world, &[batch]).await.results();
    assert!(matches!(stored.results[..], [BatchResult::Stored { .. }]), "{stored:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fc28_graceful_stop_under_load_what_was_accepted_is_durable() {
    let world = World::start().await;
    let accepted = Arc::new(AtomicU64::new(0));
    let mut senders = Vec::new();
    for number in 0..4 {
        let mut collector = world.enrol("acme", "sandbox-7", &format!("c-{number}")).await;
        let (address, accepted) = (world.collectors(), Arc::clone(&accepted));
        senders.push(tokio::spawn(async move {
            let credentials = collector.credentials().clone();
            let mut connection = Connection::open(address, Some(&credentials)).await.unwrap();
            loop {
                let batch = collector.batch(5);
                match connection.send(&[batch]).await {
                    Ok(answer) if answer.status == StatusCode::OK => {
                        let stored = matches!(answer.results().results[..], [BatchResult::Stored { .. }]);
                        accepted.fetch_add(u64::from(stored) * 5, Ordering::SeqCst);
                    }
                    _ => return,
                }
            }
        }));
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    let World { dir, server } = world;
    let stopped = Instant::now();
    server.stop().await.unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(10));
    for sender in senders {
        sender.await.unwrap();
    }
    let accepted = accepted.load(Ordering::SeqCst);
    assert!(accepted > 0);
    let store = activity_store::Store::open_read_only(&dir.path().join("store")).unwrap();
    let query = activity_store::Query { limit: 100_000, ..Default::default() };
    let stored = store.query(&"acme".parse().unwrap(), &query).unwrap().events.len() as u64;
    assert!(stored >= accepted, "{accepted} accepted, {stored} stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_socket_is_for_this_user_and_its_file_goes_with_the_server() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::start().await;
    let path = world.path("operator.sock");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let World { dir, server } = world;
    server.stop().await.unwrap();
    assert!(!path.exists());
    for name in ["ca.key", "server.key", "admin.key", "ca.pem", "admin.pem"] {
        let mode = std::fs::metadata(dir.path().join("pki").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_by_route_and_never_name_a_tenant() {
    let world = World::start().await;
    let mut collector = world.enrol("secret-tenant", "sandbox-7", "c-1").await;
    let batch = collector.batch(1);
    collector.send(&world, &[batch]).await.results();
    get(world.operators(), Some(&world.admin()), "/v1/proof/x").await;
    get(world.operators(), Some(&world.admin()), "/made/up/secret-path").await;
    let metrics = get(world.operators(), Some(&world.admin()), "/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(text.contains("requests_total{route=\"/v1/batches\",status=\"2xx\"} 1"), "{text}");
    assert!(text.contains("requests_total{route=\"other\",status=\"4xx\"} 1"), "{text}");
    assert!(text.contains("store_batches_stored_total 1"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// Runs the server's binary to its end.
fn gateway(args: &[&str]) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_activity-gateway")).args(args).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_as_a_process_is_made_configured_used_and_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let made = gateway(&["init", "--data", &data, "--name", "localhost"]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    assert!(made["gateway_key"].is_string() && made["admin_certificate"].is_string(), "{made}");
    assert_eq!(gateway(&["init", "--data", &data]).status.code(), Some(1), "never made twice");
    let token = gateway(&["token", "--data", &data, "--tenant", "acme", "--instance", "i", "--ttl", "1m"]);
    let token: serde_json::Value = serde_json::from_slice(&token.stdout).unwrap();
    assert!(token["token"].as_str().unwrap().starts_with("act1_"));
    assert_eq!(
        gateway(&["token", "--data", "/nonexistent", "--tenant", "t", "--host", "h"]).status.code(),
        Some(1)
    );
    assert_eq!(
        gateway(&["token", "--data", &data, "--tenant", "t"]).status.code(),
        Some(2),
        "bound to nothing"
    );

    let file = dir.path().join("gateway.toml");
    std::fs::write(&file, format!("data = \"{data}\"\n[operator]\nlistne = \"127.0.0.1:0\"\n")).unwrap();
    let config = file.display().to_string();
    let refused = gateway(&["run", "--config", &config]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text.contains("operator.listne") && text.contains("operator.listen"), "{text}");
    std::fs::write(&file, format!("data = \"{data}\"\n[operator]\nlisten = \"\"\n")).unwrap();
    let run = ["run", "--config", &config, "--collector-listen", "127.0.0.1:0"];
    let shown = gateway(&[&run[..], &["--print-config"]].concat());
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("(flag)\nlisten = \"127.0.0.1:0\""), "{text}");

    let mut server =
        std::process::Command::new(env!("CARGO_BIN_EXE_activity-gateway")).args(run).spawn().unwrap();
    let socket = dir.path().join("data/operator.sock");
    for _ in 0..200 {
        if socket.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_activity"))
        .args(["--gateway", &format!("unix:{}", socket.display()), "status"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&status.stdout).starts_with("gateway   ready\n"), "{status:?}");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}
