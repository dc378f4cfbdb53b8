//! What happens to evidence later: elision, expiry, import, proofs, revocation.

use activity_schema::api::BatchResult;
use activity_schema::checkpoint::Checkpoint;
use activity_schema::event::Retention;
use activity_schema::ids::{HostId, InstanceId};
use activity_schema::{BatchHeader, Event, merkle};

use super::basic::{config, ingest, seal_all};
use super::kit::{Collector, T0};
use crate::verify::{VerifyOptions, verify_store};
use crate::{ControlRecord, ImportDefaults, Query, Revocation, Selector, Store};

#[test]
fn an_elided_line_is_gone_and_the_rest_stays_provable() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let batches: Vec<_> = (0..6).map(|i| c.processes(10, T0 + i * 1_000_000_000)).collect();
    let store = Store::open(config(dir.path())).unwrap();
    ingest(&store, &c, batches[..3].to_vec()).unwrap();
    seal_all(&store);
    ingest(&store, &c, batches[3..].to_vec()).unwrap();
    let before = store.query(&c.tenant, &Query::default()).unwrap().events;
    let report =
        store.elide(&c.tenant, &Selector::Lines(vec![(1, 4), (4, 0), (4, 9)]), "court order 7").unwrap();
    assert_eq!((report.lines, report.batches, report.segments), (3, 2, 2));
    let check = |store: &Store| {
        let after = store.query(&c.tenant, &Query::default()).unwrap().events;
        let gone: Vec<_> =
            before.iter().filter(|e| !after.contains(e)).map(|e| (e.leaf_index, e.position)).collect();
        assert_eq!(gone, [(1, 4), (4, 0), (4, 9)]);
        assert_eq!(after.len(), 57);
    };
    check(&store);
    let line = |e: &crate::StoredEvent| Event::parse(&e.line).unwrap().event_id;
    assert!(store.inclusion(&c.tenant, line(&before[14])).is_none());
    assert!(
        store.inclusion(&c.tenant, line(&before[15])).is_some(),
        "its neighbour is proven by the hash left"
    );
    drop(store);
    let report = verify_store(&dir.path().join("store"), &VerifyOptions::default(), &mut |_| {});
    let only_keys = report.problems.iter().all(|p| p.what.contains("no enrolment"));
    assert!(only_keys && report.tenants[0].elided == 3, "{:#?}", report.problems);
    check(&Store::open(config(dir.path())).unwrap());
}

#[test]
fn an_expired_day_is_unreadable_and_verification_knows_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let store = Store::open(config(dir.path())).unwrap();
    let lines: Vec<_> = (0..10)
        .map(|i| c.line(i, if i % 2 == 0 { "process.exec" } else { "agent.tool.invoked" }, T0, |_| {}))
        .collect();
    let batch = c.batch(&lines, (T0, T0));
    let results = ingest(&store, &c, vec![batch]).unwrap();
    let BatchResult::Stored { receipt, .. } = &results[0] else { panic!("{results:?}") };
    let stored = store.query(&c.tenant, &Query::default()).unwrap().events.len();
    let day = crate::env::day_of(receipt.body.gateway_time);
    store.expire(&c.tenant, Retention::Security, day, "90 days").unwrap();
    let left = store.query(&c.tenant, &Query::default()).unwrap();
    assert_eq!(left.events.len(), stored - 5);
    assert!(left.events.iter().all(|e| Event::parse(&e.line).unwrap().event_name == "agent.tool.invoked"));
    let report = verify_store(&dir.path().join("store"), &VerifyOptions::default(), &mut |_| {});
    assert!(
        report.problems.iter().all(|p| p.what.contains("no enrolment") || p.what.contains("no checkpoint")),
        "{:#?}",
        report.problems
    );
}

#[test]
fn foreign_lines_are_reduced_stored_as_derived_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut foreign = Collector::new("theirs", "x9");
    let mut text = Vec::new();
    let good = foreign.line(0, "process.exec", T0, |e| {
        e.payload.set("argv", "rm -rf /").set("argc", 3u64);
    });
    text.extend_from_slice(&good);
    text.extend_from_slice(b"\nnot json\n\n");
    text.extend(foreign.line(1, "process.exec", T0, |e| e.event_name = "acme.thing".into()));
    text.push(b'\n');
    text.extend(foreign.line(1, "process.exited", T0, |e| {
        e.sensitivity = activity_schema::event::Sensitivity::RestrictedContent;
    }));
    text.push(b'\n');
    text.extend(std::iter::repeat_n(b'x', 70_000));
    let store = Store::open(config(dir.path())).unwrap();
    let tenant = Collector::new("tenant-a", "c1").tenant;
    let defaults = ImportDefaults {
        host: HostId::new("import").unwrap(),
        instance: InstanceId::new("unknown").unwrap(),
    };
    let report = store.import(&tenant, &defaults, &text[..]).unwrap();
    assert_eq!((report.stored, report.refused, report.unknown_names), (2, 3, 1), "{report:?}");
    assert!(report.keys_stripped > 1, "{report:?}");
    let refused: Vec<u64> = report.refusals.iter().map(|(line, _)| *line).collect();
    assert_eq!(refused, [2, 5, 6]);
    let again = store.import(&tenant, &defaults, &[&text[..], b"\n", &good].concat()[..]).unwrap();
    assert_eq!((again.stored, again.already, again.refused), (0, 3, 3), "{again:?}");
    let events = store.query(&tenant, &Query::default()).unwrap().events;
    assert_eq!(events.len(), 2);
    let find = |name: &str| {
        let mut parsed = events.iter().map(|e| Event::parse(&e.line).unwrap());
        parsed.find(|e| e.event_name == name).unwrap()
    };
    assert_eq!(find("acme.thing").payload.iter().count(), 0);
    let event = find("process.exec");
    assert_eq!(event.source.trust, activity_schema::event::Trust::Derived);
    assert_eq!(event.payload.text("argv"), None);
    let digest = activity_schema::Hash::of(&[&good]).to_hex();
    assert_eq!(event.integrity.source_hash.as_deref(), Some(digest.as_str()));
    assert!(
        matches!(store.control_records(1, 9).last(), Some((_, ControlRecord::Imported(i))) if i.stored == 1)
    );
    drop(store);
    assert!(verify_store(&dir.path().join("store"), &VerifyOptions::default(), &mut |_| {}).ok);
}

#[test]
fn proofs_verify_with_nothing_but_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let store = Store::open(config(dir.path())).unwrap();
    for i in 0..9 {
        let batch = c.processes(5, T0 + i * 1_000_000_000);
        ingest(&store, &c, vec![batch]).unwrap();
        if i == 4 {
            seal_all(&store);
        }
    }
    for event in store.query(&c.tenant, &Query::default()).unwrap().events {
        let id = Event::parse(&event.line).unwrap().event_id;
        let proof = store.inclusion(&c.tenant, id).unwrap();
        let header = BatchHeader::parse(proof.header.as_bytes()).unwrap();
        let leaf = merkle::leaf_hash(proof.line.as_bytes());
        assert!(merkle::verify_inclusion(
            &leaf,
            proof.position,
            header.count,
            &proof.line_path,
            &header.merkle_root
        ));
        let checkpoint = Checkpoint::verify(&proof.checkpoint, store.gateway_key()).unwrap();
        let hash = activity_schema::batch::batch_hash(proof.header.as_bytes(), &proof.signature);
        let log_leaf = merkle::leaf_hash(&hash.0);
        assert!(merkle::verify_inclusion(
            &log_leaf,
            proof.leaf_index,
            checkpoint.size,
            &proof.log_path,
            &checkpoint.root
        ));
        assert!(proof.receipt.is_signed_by(store.gateway_key()) && proof.receipt.body.batch_hash == hash);
    }
    let path = store.consistency(&c.tenant, 3, 9).unwrap();
    let leaves = store.shared().tenant(&c.tenant).unwrap().log.lock().leaves(&store.shared().env).unwrap();
    let (old, new) = (merkle::root(&leaves[..3]), merkle::root(&leaves));
    assert!(merkle::verify_consistency(3, 9, &old, &new, &path));
    assert!(store.consistency(&c.tenant, 3, 10).is_none());
}

#[test]
fn a_revoked_key_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let store = Store::open(config(dir.path())).unwrap();
    let (first, second) = (c.processes(1, T0), c.processes(1, T0 + 1));
    assert!(matches!(ingest(&store, &c, vec![first]).unwrap()[0], BatchResult::Stored { .. }));
    let revocation = Revocation {
        tenant: c.tenant.clone(),
        collector_id: c.id.clone(),
        key_id: None,
        certificate_serial: None,
        reason: "stolen".into(),
        revoked_at: activity_schema::Timestamp::from_nanos(T0),
    };
    store.record_control(ControlRecord::Revoked(revocation)).unwrap();
    let refused = ingest(&store, &c, vec![second.clone()]).unwrap();
    assert!(matches!(&refused[0], BatchResult::Refused { reason } if reason.contains("revoked")));
    drop(store);
    let store = Store::open(config(dir.path())).unwrap();
    let refused = ingest(&store, &c, vec![second]).unwrap();
    assert!(matches!(&refused[0], BatchResult::Refused { .. }));
}
