use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::clock::ClockReading;
use crate::spool::{EpochIdentity, OsDisk, Spool, SpoolLimits};

#[tokio::test]
async fn a_certificate_is_renewed_when_less_than_8_h_are_left() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let dir = tempfile::tempdir().unwrap();
    let clock = ClockReading::now();
    let wanted = EpochIdentity {
        format: 1,
        epoch: "e".parse().unwrap(),
        tenant: "t".parse().unwrap(),
        host: "h".parse().unwrap(),
        collector_id: "c".parse().unwrap(),
        boot_id: "boot".to_owned(),
        nonce: String::new(),
        created: clock.wall,
    };
    let limits = SpoolLimits::of_total(1 << 24);
    let (spool, _) = Spool::open(OsDisk, dir.path(), limits, wanted, &[7; 32], clock.state).unwrap();
    let key = spool.current().signer.public();
    for (left_ns, renewals) in [(8 * HOUR_NS + HOUR_NS / 60, 0), (8 * HOUR_NS - 1, 1)] {
        let identity = Identity {
            tenant: "t".parse().unwrap(),
            host: "h".parse().unwrap(),
            instance: "i".parse().unwrap(),
            collector_id: "c".parse().unwrap(),
            not_after: Timestamp::from_nanos(ClockReading::now().wall.as_nanos() + left_ns),
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
            Some((500, Bytes::new()))
        });
        uplink.client = Some(gateway.await);
        uplink.renew_if_due().await;
        assert_eq!(asked.load(Ordering::Relaxed), renewals);
    }
}
