use std::collections::BTreeMap;

use activity_store::ControlRecord;
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::*;

const READS: [&str; 8] = [
    "/v1/timeline?instance=sandbox-7&tenant=",
    "/v1/query?tenant=",
    "/v1/coverage?instance=sandbox-7&tenant=",
    "/v1/streams?tenant=",
    "/v1/collectors?tenant=",
    "/v1/checkpoint?tenant=",
    "/v1/status?tenant=",
    "/v1/proof/01980000-0000-7000-8000-000000000001?tenant=",
];

/// Everything that comes back, byte for byte.
async fn raw(world: &World, who: &Credentials, method: &str, path: &str) -> Vec<u8> {
    let mut stream = tls(world.operators(), Some(who)).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn fc34_a_foreign_tenant_and_none_at_all_are_answered_with_the_same_bytes() {
    let world = World::start().await;
    let mut own = world.enrol("acme", "sandbox-7", "c-1").await;
    let mut foreign = world.enrol("rival", "sandbox-7", "c-1").await;
    for collector in [&mut own, &mut foreign] {
        let batch = collector.batch(3);
        collector.send(&world, &[batch]).await.results();
    }
    let reader = world.operator("alice", "reader@acme").await;
    for path in READS {
        for tail in ["", "&from=nonsense", "&unknown=1"] {
            let existing = raw(&world, &reader, "GET", &format!("{path}rival{tail}")).await;
            let missing = raw(&world, &reader, "GET", &format!("{path}nobody{tail}")).await;
            let impossible = raw(&world, &reader, "GET", &format!("{path}%2F..{tail}")).await;
            let text = String::from_utf8_lossy(&existing).into_owned();
            assert!(text.starts_with("HTTP/1.1 403"), "{path}: {text}");
            assert_eq!(existing, missing, "{path}");
            assert_eq!(existing, impossible, "{path}");
            assert!(!text.contains("rival"), "{text}");
        }
    }
    let own_answer = get(world.operators(), Some(&reader), "/v1/query").await;
    assert_eq!(own_answer.status, StatusCode::OK, "{:?}", own_answer.body);
    assert!(!String::from_utf8_lossy(&own_answer.body).contains("rival"));
    let tenants = get(world.operators(), Some(&reader), "/v1/tenants").await;
    assert_eq!(&tenants.body[..], br#"{"tenants":["acme"]}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn fc34_refused_reads_are_on_the_record_gathered() {
    let world = World::start().await;
    world.enrol("acme", "sandbox-7", "c-1").await;
    let reader = world.operator("alice", "reader@acme").await;
    for _ in 0..5 {
        get(world.operators(), Some(&reader), "/v1/query?tenant=rival").await;
        get(world.operators(), Some(&reader), "/v1/query?tenant=nobody").await;
    }
    let dir = world.path("store");
    let World { dir: keep, server } = world;
    server.stop().await.unwrap();
    let store = activity_store::Store::open_read_only(&dir).unwrap();
    let refused: Vec<_> = store
        .control_records(1, 1_000)
        .into_iter()
        .filter_map(|(_, r)| if let ControlRecord::Read(read) = r { Some(read) } else { None })
        .filter(|read| read.refused)
        .collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0].action, "/v1/query");
    assert_eq!(refused[0].detail, "10 times");
    assert!(refused[0].principal.ends_with("/operator/alice/reader/acme"));
    drop(keep);
}

#[tokio::test(flavor = "multi_thread")]
async fn fc34_a_collector_cannot_speak_for_another_tenant_or_instance() {
    let world = World::start().await;
    let own = world.enrol("acme", "sandbox-7", "c-1").await;
    world.enrol("rival", "sandbox-7", "c-1").await;
    // Signed by its own key, but in another tenant's name.
    let mut forger = Collector::new("rival", "sandbox-7", "c-1");
    forger.signer = activity_schema::keys::Signer::from_seed(&[9; 32]);
    forger.epoch = own.epoch.clone();
    let batch = forger.batch(1);
    let answer = own.send(&world, &[batch]).await.results();
    assert!(matches!(answer.results[..], [activity_schema::api::BatchResult::Refused { .. }]), "{answer:?}");
    let rival = world.operator("bob", "reader@rival").await;
    let seen = get(world.operators(), Some(&rival), "/v1/query").await;
    assert!(!String::from_utf8_lossy(&seen.body).contains("process.exec"));
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_are_kept_apart() {
    let world = World::start().await;
    let collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let who: BTreeMap<&str, Credentials> = [
        ("collector", collector.credentials().clone()),
        ("anonymous", anonymous(&world)),
        ("reader", world.operator("alice", "reader@acme").await),
        ("monitor", world.operator("prom", "monitor").await),
        ("admin", world.admin()),
    ]
    .into();
    let status = async |name: &str, method: Method, path: &str| {
        let mut connection = Connection::open(world.operators(), Some(&who[name])).await.unwrap();
        let answer = connection.ask(method, path, "application/json", "{}".into()).await.unwrap();
        answer.status.as_u16()
    };
    for (name, query, metrics, admin) in [
        ("collector", 403, 403, 403),
        ("anonymous", 401, 401, 401),
        ("reader", 200, 403, 403),
        ("monitor", 403, 200, 403),
        ("admin", 200, 200, 400),
    ] {
        assert_eq!(status(name, Method::GET, "/v1/query").await, query, "{name}");
        assert_eq!(status(name, Method::GET, "/metrics").await, metrics, "{name}");
        assert_eq!(status(name, Method::POST, "/v1/tokens").await, admin, "{name}");
        assert_eq!(status(name, Method::POST, "/v1/revoke").await, admin, "{name}");
        assert_eq!(status(name, Method::POST, "/v1/operators").await, admin, "{name}");
        assert_eq!(status(name, Method::GET, "/healthz").await, 200, "{name}");
    }
    let operator_sends =
        Connection::open(world.collectors(), Some(&world.admin())).await.unwrap().send(&[]).await;
    assert_eq!(operator_sends.unwrap().status, StatusCode::FORBIDDEN);
}
