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
