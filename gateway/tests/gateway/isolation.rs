use std::collections::BTreeMap;
use std::net::SocketAddr;

use activity_store::ControlRecord;
use http::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::*;

const READS: [&str; 9] = [
    "/v1/timeline?instance=sandbox-7&tenant=",
    "/v1/query?tenant=",
    "/v1/coverage?instance=sandbox-7&tenant=",
    "/v1/streams?tenant=",
    "/v1/collectors?tenant=",
    "/v1/checkpoint?tenant=",
    "/v1/status?tenant=",
    "/v1/proof/01980000-0000-7000-8000-000000000001?tenant=",
    "/v1/consistency/0/1?tenant=",
];

/// Method, path and JSON body.
type Question = (&'static str, String, String);

/// A question of every route that speaks of a tenant; routes that cannot name one are asked with one all the same.
fn question(route: &str, tenant: &str) -> Question {
    let get = |path: String| ("GET", path, String::new());
    let post = |body: serde_json::Value| ("POST", route.to_owned(), body.to_string());
    match route {
        "/v1/timeline" | "/v1/coverage" => get(format!("{route}?instance=sandbox-7&tenant={tenant}")),
        "/v1/query" | "/v1/streams" | "/v1/collectors" | "/v1/checkpoint" | "/v1/status" | "/v1/tenants" => {
            get(format!("{route}?tenant={tenant}"))
        }
        "/v1/exports" => ("POST", format!("{route}?tenant={tenant}"), String::new()),
        "/v1/proof" => get(format!("{route}/01980000-0000-7000-8000-000000000001?tenant={tenant}")),
        "/v1/consistency" => get(format!("{route}/0/1?tenant={tenant}")),
        "/healthz" | "/readyz" | "/metrics" => get(format!("{route}?tenant={tenant}")),
        "/v1/tokens" => post(json!({"tenant": tenant, "instance": "sandbox-7", "ttl_seconds": 60})),
        "/v1/operators" => post(json!({"name": "eve", "role": format!("reader@{tenant}"), "csr_pem": ""})),
        "/v1/revoke" => post(json!({"collector": {"tenant": tenant, "collector": "c-1", "reason": "x"}})),
        "/v1/import" => {
            ("POST", format!("{route}?tenant={tenant}&host=h&instance=sandbox-7"), "{}".to_owned())
        }
        "/v1/enroll" | "/v1/renew" | "/v1/batches" => post(json!({"tenant": tenant})),
        other => panic!("{other} is new: say how it is asked about a tenant"),
    }
}

/// Everything that comes back, byte for byte.
async fn raw(world: &World, who: &Credentials, path: &str) -> Vec<u8> {
    raw_at(world.operators(), who, &("GET", path.to_owned(), String::new())).await
}

async fn raw_at(address: SocketAddr, who: &Credentials, question: &Question) -> Vec<u8> {
    let mut stream = tls(address, Some(who)).await.unwrap();
    let (method, path, body) = question;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
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
            let existing = raw(&world, &reader, &format!("{path}rival{tail}")).await;
            let missing = raw(&world, &reader, &format!("{path}nobody{tail}")).await;
            let impossible = raw(&world, &reader, &format!("{path}%2F..{tail}")).await;
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
async fn fc34_no_endpoint_tells_a_foreign_tenant_from_one_that_does_not_exist() {
    let world = World::start().await;
    let mut own = world.enrol("acme", "sandbox-7", "c-1").await;
    let mut foreign = world.enrol("rival", "sandbox-7", "c-1").await;
    for collector in [&mut own, &mut foreign] {
        let batch = collector.batch(3);
        collector.send(&world, &[batch]).await.results();
    }
    let reader = world.operator("alice", "reader@acme").await;
    let monitor = world.operator("prom", "monitor").await;
    for address in [world.operators(), world.collectors()] {
        for (name, who) in [("reader", &reader), ("monitor", &monitor), ("collector", own.credentials())] {
            for route in activity_gateway::metrics::ROUTES {
                let existing = raw_at(address, who, &question(route, "rival")).await;
                let missing = raw_at(address, who, &question(route, "nobody")).await;
                let (existing, missing) =
                    (String::from_utf8_lossy(&existing), String::from_utf8_lossy(&missing));
                assert!(existing.starts_with("HTTP/1.1 "), "{name} {route}: {existing}");
                if route != "/metrics" || !existing.starts_with("HTTP/1.1 200") {
                    assert_eq!(existing, missing, "{name} {route}");
                }
                assert!(!existing.contains("rival"), "{name} {route}: {existing}");
            }
        }
    }
    // A batch in the other's name, and a token that was used there.
    let mut answers = Vec::new();
    for tenant in ["rival", "nobody"] {
        let mut forger = Collector::new(tenant, "sandbox-7", "c-1");
        forger.epoch = own.epoch.clone();
        let batch = forger.batch(1);
        let sent = own.send(&world, &[batch]).await;
        let mut applicant = Collector::new(tenant, "sandbox-7", "c-9");
        let token = if tenant == "rival" {
            let token = world.token("rival", Some("sandbox-8"), None);
            let first = Collector::new("rival", "sandbox-8", "c-8").enrol(&world, &token).await;
            assert_eq!(first.status, StatusCode::OK, "{:?}", first.body);
            token
        } else {
            world.token("acme", Some("sandbox-8"), None).replace("act1_", "act1_A")
        };
        let enrolled = applicant.enrol(&world, &token).await;
        assert_eq!(enrolled.status, StatusCode::FORBIDDEN);
        answers.push((sent.status, sent.body, enrolled.body));
    }
    assert_eq!(answers[0], answers[1]);
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
