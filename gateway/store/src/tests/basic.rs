use std::path::Path;
use std::time::Duration;

use activity_schema::api::BatchResult;
use activity_schema::{SignedBatch, Timestamp};

use super::kit::{Collector, T0};
use crate::types::{Query, StoreConfig};
use crate::{IngestError, Instances, Store};

pub(crate) fn config(dir: &Path) -> StoreConfig {
    StoreConfig { dir: dir.join("store"), reserve_bytes: 0, ..StoreConfig::default() }
}

pub(crate) fn ingest(
    store: &Store,
    collector: &Collector,
    batches: Vec<SignedBatch>,
) -> Result<Vec<BatchResult>, IngestError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(store.ingest(&collector.caller(), batches))
}

pub(crate) fn seal_all(store: &Store) {
    store.shared().queue.request_seal();
    for _ in 0..6_000 {
        let open: usize = store.shared().all_tenants().iter().map(|t| t.state.read().open.len()).sum();
        if open == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not sealed");
}

#[test]
fn a_batch_is_stored_found_and_acknowledged_once_before_and_after_a_restart_and_sealing() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = Collector::new("tenant-a", "c1");
    let batches: Vec<_> = (0..5).map(|i| collector.processes(10, T0 + i * 1_000_000_000)).collect();
    let store = Store::open(config(dir.path())).unwrap();
    let results = ingest(&store, &collector, batches.clone()).unwrap();
    let receipts: Vec<_> = results
        .iter()
        .map(|r| match r {
            BatchResult::Stored { receipt, withheld: 0 } => receipt.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(receipts.iter().all(|r| r.is_signed_by(store.gateway_key())));
    let check = |store: &Store| {
        let again = ingest(store, &collector, batches.clone()).unwrap();
        for (result, receipt) in again.iter().zip(&receipts) {
            assert_eq!(
                *result,
                BatchResult::Duplicate { receipt: receipt.clone() },
                "the same receipt bytes"
            );
        }
        let answer = store.query(&collector.tenant, &Query::default()).unwrap();
        assert_eq!(answer.events.len(), 50);
        assert!(answer.events.windows(2).all(|w| w[0].leaf_index <= w[1].leaf_index));
        let some = Query {
            events: vec!["process.exec".into()],
            executable: Some("git".into()),
            session: Some("session-1".into()),
            from: Some(Timestamp::from_nanos(T0 + 1_000_000_000)),
            ..Query::default()
        };
        let found = store.query(&collector.tenant, &some).unwrap().events.len();
        assert!((1..40).contains(&found), "{found}");
        let streams = store.streams(&collector.tenant, &collector.id);
        assert_eq!((streams.len(), streams[0].batch_number, streams[0].last_sequence), (1, 5, 50));
        assert_eq!(streams[0].batch_hash, collector.previous);
    };
    check(&store);
    store.close();
    assert!(matches!(ingest(&store, &collector, batches.clone()), Err(IngestError::Stopping)));
    drop(store);
    let store = Store::open(config(dir.path())).unwrap();
    assert_eq!(store.findings(), Vec::<String>::new());
    seal_all(&store);
    check(&store);
    let commit_files = std::fs::read_dir(dir.path().join("store/commit")).unwrap().count();
    assert_eq!(commit_files, 0, "sealed and removed");
    drop(store);
    let store = Store::open(config(dir.path())).unwrap();
    check(&store);
    drop(store);
    std::fs::remove_dir_all(dir.path().join("store/index")).unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    check(&store);
    let reader = Store::open_read_only(&dir.path().join("store")).unwrap();
    let answer = reader.query(&collector.tenant, &Query::default()).unwrap();
    assert_eq!(answer.events.len(), 50);
}

#[test]
fn forks_gaps_and_foreign_batches_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut a = Collector::new("tenant-a", "c1");
    let first = a.processes(4, T0);
    let (number, sequence, previous) = (a.next_number, a.next_sequence, a.previous);
    let second = a.processes(4, T0 + 1_000_000_000);
    let third = a.processes(4, T0 + 2_000_000_000);
    (a.next_number, a.next_sequence, a.previous) = (number, sequence, previous);
    let other = a.processes(4, T0 + 3_000_000_000);
    let gap = ingest(&store, &a, vec![second.clone()]).unwrap();
    assert_eq!(gap, [BatchResult::Gap { next_batch_number: 1 }]);
    let results = ingest(&store, &a, vec![first, second, other.clone(), third]).unwrap();
    assert!(matches!(results[0], BatchResult::Stored { .. }));
    assert!(matches!(results[1], BatchResult::Stored { .. }));
    assert!(matches!(results[3], BatchResult::Stored { .. }), "the stream goes on beside the fork");
    let BatchResult::Fork { receipt } = &results[2] else { panic!("{:?}", results[2]) };
    let again = ingest(&store, &a, vec![other]).unwrap();
    assert_eq!(again, [BatchResult::Fork { receipt: receipt.clone() }]);
    let alarms = store.control_records(0, 10);
    assert!(matches!(&alarms[0].1, crate::ControlRecord::Forked { batch_number: 2, .. }), "{alarms:?}");

    let mut foreign = Collector::new("tenant-b", "c1");
    let batch = foreign.processes(1, T0);
    let refused = ingest(&store, &a, vec![batch.clone()]).unwrap();
    assert!(matches!(&refused[0], BatchResult::Refused { .. }));
    let mut forged = batch;
    forged.signature[3] ^= 1;
    let refused = ingest(&store, &foreign, vec![forged]).unwrap();
    assert!(matches!(&refused[0], BatchResult::Refused { reason } if reason.contains("signature")));
}

#[test]
fn a_bad_line_is_withheld_and_the_rest_of_its_batch_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let mut lines: Vec<Vec<u8>> = (0..400).map(|i| c.line(i, "process.exec", T0, |_| {})).collect();
    lines[17] = c.line(17, "process.exec", T0, |e| {
        e.payload.set("environment", "SECRET=1");
    });
    lines[200] = b"not json".to_vec();
    lines[300] = c.line(300, "agent.tool.invoked", T0, |_| {});
    lines[301] = c.line(301, "process.exec", T0, |e| e.correlation.instance_id = "another".into());
    let batch = c.batch(&lines, (T0, T0));
    let results = ingest(&store, &c, vec![batch]).unwrap();
    assert!(
        matches!(
            results[0],
            BatchResult::Stored { withheld: 4, .. } | BatchResult::Stored { withheld: 3, .. }
        ),
        "{results:?}"
    );
    let answer = store.query(&c.tenant, &Query::default()).unwrap();
    assert!(answer.events.len() >= 396);
    assert!(answer.events.iter().all(|e| !e.line.windows(6).any(|w| w == b"SECRET")));
    assert!(answer.events.iter().all(|e| e.line[..] == lines[e.position as usize][..]));
    seal_all(&store);
    let sealed = store.query(&c.tenant, &Query::default()).unwrap();
    assert_eq!(sealed.events, answer.events);
}

#[test]
fn a_thousand_events_of_one_moment_come_once_each_across_pages_under_ingest() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let moment = |c: &mut Collector| {
        let lines: Vec<_> = (0..250).map(|i| c.line(i, "process.exec", T0, |_| {})).collect();
        c.batch(&lines, (T0, T0))
    };
    let batches = (0..4).map(|_| moment(&mut c)).collect();
    ingest(&store, &c, batches).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let mut query = Query { limit: 7, ..Query::default() };
    for page in 0.. {
        let answer = store.query(&c.tenant, &query).unwrap();
        let told = answer.coverage.reasons.iter().any(|reason| reason.contains("after the first page"));
        assert_eq!(told, page > 20, "what came in between is not vouched for");
        assert!(!told || !answer.coverage.complete);
        for event in &answer.events {
            assert!(seen.insert((event.leaf_index, event.position)), "twice");
        }
        if page == 20 {
            let more = vec![moment(&mut c)];
            ingest(&store, &c, more).unwrap();
        }
        if page == 40 {
            seal_all(&store);
        }
        match answer.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    assert_eq!(seen.len(), 1000);
    let follow = Query { since_leaf: Some(4), ..Query::default() };
    assert_eq!(store.query(&c.tenant, &follow).unwrap().events.len(), 250);
}

#[test]
fn peers_are_found_by_network_and_names_by_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    c.class = activity_schema::Class::Standard;
    let lines: Vec<_> = (0..100)
        .map(|i| {
            c.line(i, "network.flow.closed", T0, |e| {
                e.payload.set("peer_address", format!("10.{}.0.9", i % 4));
            })
        })
        .collect();
    let batch = c.batch(&lines, (T0, T0));
    ingest(&store, &c, vec![batch]).unwrap();
    for sealed in [false, true] {
        if sealed {
            seal_all(&store);
        }
        let count = |query: Query| store.query(&c.tenant, &query).unwrap().events.len();
        let peer = |text: &str| count(Query { peer: Some(text.into()), ..Query::default() });
        assert_eq!(
            (peer("10.0.0.0/8"), peer("10.1.0.9"), peer("10.2.0.0/15"), peer("11.0.0.0/8")),
            (100, 25, 50, 0)
        );
        let name = |text: &str| count(Query { events: vec![text.into()], ..Query::default() });
        assert_eq!((name("network.*"), name("network.flow.*"), name("process.*")), (100, 100, 0));
        assert!(store.query(&c.tenant, &Query { peer: Some("x".into()), ..Query::default() }).is_err());
        assert!(store.query(&c.tenant, &Query { events: vec!["a*".into()], ..Query::default() }).is_err());
    }
}

#[test]
fn one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let _store = Store::open(config(dir.path())).unwrap();
    assert!(matches!(Store::open(config(dir.path())), Err(crate::OpenError::Locked(_))));
    let _ = Instances::Host;
}

#[test]
fn a_tenant_with_evidence_and_without_its_keys_does_not_open_and_reads_as_damaged() {
    for sealed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(config(dir.path())).unwrap();
        let (mut a, mut b) = (Collector::new("tenant-a", "c1"), Collector::new("tenant-b", "c2"));
        for c in [&mut a, &mut b] {
            let batch = c.processes(3, T0);
            ingest(&store, c, vec![batch]).unwrap();
        }
        if sealed {
            seal_all(&store);
        }
        store.close();
        drop(store);
        let keys = dir.path().join("store/keys/tenants/tenant-a");
        let aside = dir.path().join("aside");
        std::fs::rename(&keys, &aside).unwrap();

        let error = Store::open(config(dir.path())).err().unwrap().to_string();
        assert!(error.contains("tenant-a") && error.contains("put ") && !keys.exists(), "{error}");
        let read = Store::open_read_only(&dir.path().join("store")).unwrap();
        let answer = read.query(&a.tenant, &Query::default()).unwrap();
        assert_eq!((answer.events.len(), answer.damaged), (0, 1));
        assert!(answer.unreadable[0].contains("keys/tenants/tenant-a"), "{:?}", answer.unreadable);
        assert!(read.findings().iter().any(|f| f.contains("keys/tenants/tenant-a")), "{:?}", read.findings());
        let other = read.query(&b.tenant, &Query::default()).unwrap();
        assert_eq!((other.events.len(), other.damaged), (3, 0));

        std::fs::rename(&aside, &keys).unwrap();
        let store = Store::open(config(dir.path())).unwrap();
        assert_eq!(store.query(&a.tenant, &Query::default()).unwrap().events.len(), 3);
    }
}
