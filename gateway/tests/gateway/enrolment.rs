use activity_schema::api::{BatchResult, CertificateAnswer, RenewRequest, StreamsAnswer};
use http::StatusCode;
use serde_json::json;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_enrols_sends_is_acknowledged_and_resynchronises() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let first = collector.batch(3);
    let second = collector.batch(2);
    let key = world.server.gateway.evidence.gateway_key();
    let results = collector.send(&world, &[first.clone(), second.clone()]).await.results().results;
    for (batch, result) in [&first, &second].into_iter().zip(&results) {
        let BatchResult::Stored { receipt, withheld: 0 } = result else { panic!("{result:?}") };
        assert!(receipt.is_signed_by(key));
        assert_eq!(receipt.body.batch_hash, batch.hash());
    }
    let again = collector.send(&world, &[first]).await.results().results;
    assert!(matches!(again[..], [BatchResult::Duplicate { .. }]), "{again:?}");

    let world = world.restart().await;
    let answer = get(world.collectors(), Some(collector.credentials()), "/v1/streams").await;
    let streams: StreamsAnswer = answer.json();
    assert_eq!(streams.streams.len(), 1);
    assert_eq!((streams.streams[0].batch_number, streams.streams[0].batch_hash), (2, second.hash()));
    let third = collector.batch(1);
    let results = collector.send(&world, &[third]).await.results().results;
    assert!(matches!(results[..], [BatchResult::Stored { .. }]), "enrolment survives a restart: {results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_used_twice_is_refused_also_after_a_restart() {
    let world = World::start().await;
    let token = world.token("acme", Some("sandbox-7"), None);
    let mut first = Collector::new("acme", "sandbox-7", "c-1");
    assert_eq!(first.enrol(&world, &token).await.status, StatusCode::OK);
    let refused = Collector::new("acme", "sandbox-7", "c-1").enrol(&world, &token).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let world = world.restart().await;
    let later = Collector::new("acme", "sandbox-7", "c-1").enrol(&world, &token).await;
    let unknown = Collector::new("acme", "sandbox-7", "c-1").enrol(&world, "act1_guess").await;
    assert_eq!((later.status, &later.body), (unknown.status, &unknown.body), "used and unknown look alike");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_enrolments_at_once_with_one_token_one_succeeds() {
    let world = World::start().await;
    let token = world.token("acme", Some("sandbox-7"), None);
    let mut collectors: Vec<_> = (0..8).map(|_| Collector::new("acme", "sandbox-7", "c-1")).collect();
    let mut won = 0;
    let attempts = collectors.iter_mut().map(|c| c.enrol(&world, &token));
    for answer in futures_join(attempts).await {
        won += usize::from(answer.status == StatusCode::OK);
    }
    assert_eq!(won, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unix_socket_for_collectors_speaks_the_same_tls() {
    let world = World::start().await;
    let collector = world.enrol("acme", "sandbox-7", "c-1").await;
    for (who, expected) in [(collector.credentials().clone(), 200), (anonymous(&world), 401)] {
        let stream = tokio::net::UnixStream::connect(world.path("collector.sock")).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(client_config(&who)));
        let stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
        let answer = Connection::over(stream).await.unwrap().get("/v1/streams").await.unwrap();
        assert_eq!(answer.status.as_u16(), expected);
    }
}

/// Polls all futures together.
async fn futures_join<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (future, output) in &mut pinned {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    pinned.into_iter().filter_map(|(_, output)| output).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_bound_and_a_bad_request_does_not_spend_it() {
    let world = World::start().await;
    let token = world.token("acme", Some("sandbox-7"), Some("host-1"));
    let other_instance = Collector::new("acme", "sandbox-8", "c-1").enrol(&world, &token).await;
    assert_eq!(other_instance.status, StatusCode::FORBIDDEN);
    let mut other_host = Collector::new("acme", "sandbox-7", "c-1");
    other_host.host = "host-2".parse().unwrap();
    assert_eq!(other_host.enrol(&world, &token).await.status, StatusCode::FORBIDDEN);
    let collector = Collector::new("acme", "sandbox-7", "c-1");
    let bad = json!({"token": token, "collector_id": "c-1", "host_id": "host-1", "instance_id": "sandbox-7",
        "csr_pem": "nonsense", "signing_key": collector.signer.public(), "epoch": collector.epoch});
    let answer = post_json(world.collectors(), Some(&anonymous(&world)), "/v1/enroll", &bad).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let mut right = Collector::new("acme", "sandbox-7", "c-1");
    assert_eq!(right.enrol(&world, &token).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collectors_name_cannot_be_taken_over_from_another_instance() {
    let world = World::start().await;
    world.enrol("acme", "sandbox-7", "c-1").await;
    let token = world.token("acme", Some("sandbox-8"), None);
    let answer = Collector::new("acme", "sandbox-8", "c-1").enrol(&world, &token).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    let mut renamed = Collector::new("acme", "sandbox-8", "c-2");
    assert_eq!(renamed.enrol(&world, &token).await.status, StatusCode::OK, "the token was not spent");
    world.enrol("other", "sandbox-8", "c-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_keeps_the_identity_and_takes_a_new_key_and_epoch() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let fresh = Collector::new("acme", "sandbox-7", "c-1");
    let (key, csr_pem) = key_and_csr();
    let request = RenewRequest { csr_pem, signing_key: fresh.signer.public(), epoch: fresh.epoch.clone() };
    let body = serde_json::to_value(&request).unwrap();
    let nobody = post_json(world.collectors(), Some(&anonymous(&world)), "/v1/renew", &body).await;
    assert_eq!(nobody.status, StatusCode::UNAUTHORIZED);
    let answer = post_json(world.collectors(), Some(collector.credentials()), "/v1/renew", &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
    let made: CertificateAnswer = answer.json();
    let mut renewed = fresh;
    renewed.credentials = Some(Credentials { ca: made.ca_pem, certificate: made.certificate_pem, key });
    let batch = renewed.batch(1);
    let results = renewed.send(&world, &[batch]).await.results().results;
    assert!(matches!(results[..], [BatchResult::Stored { .. }]), "{results:?}");
    // What the old epoch still has to send is taken under its own key.
    let old = collector.batch(1);
    let results = collector.send(&world, &[old]).await.results().results;
    assert!(matches!(results[..], [BatchResult::Stored { .. }]), "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fc25_revoked_is_refused_at_once_and_open_connections_are_closed() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let mut bystander = world.enrol("acme", "sandbox-8", "c-2").await;
    let mut open = Connection::open(world.collectors(), Some(collector.credentials())).await.unwrap();
    let mut other = Connection::open(world.collectors(), Some(bystander.credentials())).await.unwrap();
    let batch = collector.batch(1);
    open.send(&[batch]).await.unwrap().results();
    world.revoke("acme", "c-1").await;
    let batch = collector.batch(1);
    let after = open.send(std::slice::from_ref(&batch)).await;
    assert!(after.is_err() || after.unwrap().status == StatusCode::UNAUTHORIZED);
    let again = collector.send(&world, &[batch]).await;
    assert_eq!(again.status, StatusCode::UNAUTHORIZED, "{:?}", again.body);
    let batch = bystander.batch(1);
    other.send(&[batch]).await.unwrap().results();

    let world = world.restart().await;
    let old = collector.credentials().clone();
    assert_eq!(get(world.collectors(), Some(&old), "/v1/streams").await.status, StatusCode::UNAUTHORIZED);
    // A new token lets the collector in again; the revoked certificate stays refused.
    let token = world.token("acme", Some("sandbox-7"), None);
    let mut back = Collector::new("acme", "sandbox-7", "c-1");
    assert_eq!(back.enrol(&world, &token).await.status, StatusCode::OK);
    assert_eq!(get(world.collectors(), Some(back.credentials()), "/v1/streams").await.status, StatusCode::OK);
    assert_eq!(get(world.collectors(), Some(&old), "/v1/streams").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test(flavor = "multi_thread")]
async fn fc25_the_authority_is_rotated_under_load_and_no_batch_is_lost() {
    let world = World::start().await;
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let mut open = Connection::open(world.collectors(), Some(collector.credentials())).await.unwrap();
    for round in 0..4 {
        let batch = collector.batch(10);
        open.send(&[batch]).await.unwrap().results();
        world.server.gateway.authority().rotate(activity_gateway::clock::now()).unwrap();
        world.server.reload_certificates().unwrap();
        // Known: only the first authority. The server's chain leads to it, through the authorities between.
        let batch = collector.batch(10);
        let results = collector.send(&world, &[batch]).await.results().results;
        assert!(matches!(results[..], [BatchResult::Stored { .. }]), "round {round}: {results:?}");
        // A collector that enrols now knows the new authority, and is known.
        let mut newcomer = world.enrol("acme", "sandbox-7", &format!("new-{round}")).await;
        let batch = newcomer.batch(1);
        newcomer.send(&world, &[batch]).await.results();
    }
    let streams: StreamsAnswer =
        get(world.collectors(), Some(collector.credentials()), "/v1/streams").await.json();
    assert_eq!(streams.streams[0].batch_number, 8);
}
