use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use activity_schema::Timestamp;

use super::*;
use crate::clock::ClockReading;
use crate::spool::{EpochIdentity, OsDisk, Spool, SpoolLimits};

/// Nothing else happens on the connection: the time must come by itself.
#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_on_a_quiet_connection_when_a_third_of_its_life_is_left() {
    const HOUR: Duration = Duration::from_secs(3600);
    let dir = tempfile::tempdir().unwrap();
    let clock = ClockReading::now();
    let wanted = EpochIdentity::of_a_test("e");
    let limits = SpoolLimits::of_total(1 << 24);
    let (spool, _) = Spool::open(OsDisk, dir.path(), limits, wanted, &[7; 32], clock.state).unwrap();
    let key = spool.current().signer.public();
    let identity = Identity {
        tenant: "t".parse().unwrap(),
        host: "h".parse().unwrap(),
        instance: "i".parse().unwrap(),
        only_instance: false,
        collector_id: "c".parse().unwrap(),
        not_after: Timestamp::from_nanos(clock.wall.as_nanos() + 24 * 3_600_000_000_000),
        gateway_key: key,
        gateway_url: "unix:/nowhere".to_owned(),
        server_name: None,
    };
    let feed = EpochFeed {
        epoch: spool.identity().epoch.clone(),
        reader: spool.current().reader(),
        acked: BTreeMap::new(),
        key,
        registered: true,
    };
    let mut uplink =
        Uplink::new(IdentityDir::new(dir.path()), identity, vec![feed], Arc::new(|_| ())).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let gateway = client::tests::gateway_that_answers(move |path| {
        counted.fetch_add(usize::from(path == "/v1/renew"), Ordering::Relaxed);
        Some(if path == "/v1/streams" { (200, r#"{"streams":[]}"#.into()) } else { (500, Bytes::new()) })
    });
    uplink.client = Some(gateway.await);
    let (_recorder, sealed) = mpsc::unbounded_channel();
    let run = uplink.run(sealed, Duration::ZERO);
    tokio::pin!(run);
    assert!(tokio::time::timeout(15 * HOUR, &mut run).await.is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert!(tokio::time::timeout(2 * HOUR, &mut run).await.is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}
