//! What collectors say of themselves, and what the store makes of it.

use std::path::Path;

use activity_schema::api::BatchResult;
use activity_schema::coverage::CoverageReport;
use activity_schema::event::{Layer, Payload, Value};
use activity_schema::{Class, Event, Hash, SignedBatch, Timestamp};

use super::basic::{config, ingest, seal_all};
use super::kit::{Collector, T0};
use crate::types::{CoverageQuery, Query};
use crate::{ControlRecord, Enrolment, Instances, Revocation, Store};

const SECOND: i64 = 1_000_000_000;

pub(super) fn object(entries: &[(&'static str, Value<'static>)]) -> Payload<'static> {
    let mut payload = Payload::new();
    for (key, value) in entries {
        payload.set(*key, value.clone());
    }
    payload
}

/// One event of this name as a batch.
pub(super) fn say(c: &mut Collector, name: &str, at: i64, payload: Payload<'static>) -> SignedBatch {
    let line = c.line(0, name, at, |e| {
        e.payload = payload;
        e.source.layer = Layer::Host;
        e.outcome = None;
    });
    c.batch(&[line], (at, at))
}

/// The collector starts and watches processes.
fn begin(c: &mut Collector, at: i64) -> Vec<SignedBatch> {
    let class =
        object(&[("class", "process".into()), ("state", "supported".into()), ("source", "ebpf".into())]);
    vec![
        say(c, "telemetry.started", at, object(&[("spool_state", "fresh".into())])),
        say(c, "telemetry.config", at, object(&[("classes", Value::List(vec![class.into()]))])),
    ]
}

/// A heartbeat that names what is sealed so far; `streams` are acknowledged to these sequences.
fn beat(c: &mut Collector, at: i64, receipt: Option<Hash>, streams: &[(String, u64)]) -> SignedBatch {
    let own = c.next_sequence - 1;
    let entry = |(stream, acked): &(String, u64)| {
        let last = if *stream == c.stream() { own } else { *acked };
        object(&[
            ("stream", stream.clone().into()),
            ("last_sequence", last.into()),
            ("acked_sequence", (*acked).into()),
        ])
        .into()
    };
    let mut payload = object(&[("streams", Value::List(streams.iter().map(entry).collect()))]);
    payload.set_some("last_receipt_hash", receipt.map(|hash| hash.to_hex()));
    say(c, "telemetry.heartbeat", at, payload)
}

fn receipt_of(results: &[BatchResult]) -> Hash {
    match results.last() {
        Some(BatchResult::Stored { receipt, withheld: 0 }) => receipt.hash(),
        other => panic!("{other:?}"),
    }
}

fn unknown_receipts(store: &Store) -> Vec<Hash> {
    let records = store.control_records(1, 10_000);
    let unknown = records.into_iter().filter_map(|(_, record)| match record {
        ControlRecord::ReceiptUnknown { receipt, .. } => Some(receipt.receipt_hash),
        _ => None,
    });
    unknown.collect()
}

fn report(store: &Store, c: &Collector, to: i64) -> CoverageReport {
    let query = CoverageQuery {
        instance: Some(c.instance.to_string()),
        to: Some(Timestamp::from_nanos(to)),
        ..CoverageQuery::default()
    };
    store.coverage(&c.tenant, &query)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn receipts_that_the_store_gave_are_recognised_open_and_sealed_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let batches = begin(&mut c, T0);
    let mut receipt = receipt_of(&ingest(&store, &c, batches).unwrap());
    for n in 1..9 {
        let acked = c.next_sequence - 1;
        let streams = [(c.stream(), acked)];
        let batch = beat(&mut c, T0 + n * 10 * SECOND, Some(receipt), &streams);
        receipt = receipt_of(&ingest(&store, &c, vec![batch]).unwrap());
        match n {
            2 | 5 => seal_all(&store),
            4 => {
                drop(store);
                store = Store::open(config(dir.path())).unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(unknown_receipts(&store), []);
    assert_eq!(store.health().counters.receipts_unknown, 0);
    let complete = report(&store, &c, T0 + 60 * SECOND);
    assert!(complete.complete, "{:?}", complete.reasons);
}

#[test]
fn a_store_put_back_to_an_earlier_state_is_found_out_by_the_receipt_of_a_heartbeat() {
    let dir = tempfile::tempdir().unwrap();
    let at = config(dir.path()).dir;
    let store = Store::open(config(dir.path())).unwrap();
    let mut critical = Collector::new("tenant-a", "c1");
    let mut standard = Collector { class: Class::Standard, ..Collector::new("tenant-a", "c1") };
    let batches = begin(&mut critical, T0);
    ingest(&store, &critical, batches).unwrap();
    drop(store);
    copy(&at, &dir.path().join("earlier"));

    let store = Store::open(config(dir.path())).unwrap();
    let flow = standard.line(0, "network.flow.closed", T0 + SECOND, |_| {});
    let batch = standard.batch(&[flow], (T0 + SECOND, T0 + SECOND));
    let receipt = receipt_of(&ingest(&store, &standard, vec![batch]).unwrap());
    drop(store);
    std::fs::remove_dir_all(&at).unwrap();
    std::fs::rename(dir.path().join("earlier"), &at).unwrap();

    let store = Store::open(config(dir.path())).unwrap();
    assert!(report(&store, &critical, T0 + 5 * SECOND).reasons.iter().all(|r| !r.contains("receipt")));
    let streams = [(critical.stream(), critical.next_sequence - 1), (standard.stream(), 1)];
    let batch = beat(&mut critical, T0 + 10 * SECOND, Some(receipt), &streams);
    ingest(&store, &critical, vec![batch]).unwrap();
    let check = |store: &Store| {
        assert_eq!(unknown_receipts(store), [receipt]);
        let report = report(store, &critical, T0 + 5 * SECOND);
        assert!(!report.complete);
        assert!(report.reasons.iter().any(|r| r.contains("receipt")), "{:?}", report.reasons);
    };
    check(&store);
    assert_eq!(store.health().counters.receipts_unknown, 1);
    drop(store);
    std::fs::remove_dir_all(at.join("index")).unwrap();
    check(&Store::open(config(dir.path())).unwrap());
}

#[test]
fn an_event_name_of_a_newer_collector_is_stored_counted_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let strange = |e: &mut Event<'_>| {
        e.event_name = "process.teleported".into();
        e.payload.set("a_new_key", 7i64);
    };
    let mut lines = vec![c.line(0, "process.exec", T0, |_| {}), c.line(1, "process.exec", T0, strange)];
    // What the rest of the envelope forbids stays out.
    lines.push(c.line(2, "process.exec", T0, |e| {
        strange(e);
        e.sensitivity = activity_schema::event::Sensitivity::SecretProhibited;
    }));
    lines.push(c.line(3, "runtime.lifecycle.created", T0, |e| e.source.layer = Layer::Host));
    let batch = c.batch(&lines, (T0, T0));
    let results = ingest(&store, &c, vec![batch]).unwrap();
    assert!(matches!(results[..], [BatchResult::Stored { withheld: 1, .. }]), "{results:?}");
    assert_eq!(store.health().counters.events_unknown, 1);
    let found = |name: &str| {
        let query = Query { events: vec![name.to_owned()], ..Query::default() };
        store.query(&c.tenant, &query).unwrap().events
    };
    for sealed in [false, true] {
        if sealed {
            seal_all(&store);
        }
        let exact = found("process.teleported");
        assert_eq!(exact.len(), 1);
        assert_eq!(exact[0].line, lines[1], "as it was signed");
        assert_eq!(found("process.*").len(), 2);
        assert_eq!(found("runtime.lifecycle.created").len(), 1, "reserved here, active where it was made");
    }
}

#[test]
fn a_destroyed_sandbox_is_not_silent_after_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut guest = Collector::new("tenant-a", "guest");
    let batches = begin(&mut guest, T0);
    ingest(&store, &guest, batches).unwrap();
    let streams = [(guest.stream(), guest.next_sequence - 1)];
    let batch = beat(&mut guest, T0 + 10 * SECOND, None, &streams);
    ingest(&store, &guest, vec![batch]).unwrap();
    let day = T0 + 86_400 * SECOND;
    let silent = report(&store, &guest, day);
    assert!(silent.reasons.iter().any(|r| r.contains("silent since")), "{:?}", silent.reasons);

    let mut host = Collector::new("tenant-a", "host");
    host.instance = guest.instance.clone();
    let batch = say(&mut host, "runtime.lifecycle.destroyed", T0 + 10 * SECOND, Payload::new());
    ingest(&store, &host, vec![batch]).unwrap();
    let check = |store: &Store| {
        let report = report(store, &guest, day);
        assert!(report.complete, "{:?}", report.reasons);
        assert_eq!(report.from, Timestamp::from_nanos(T0), "from its first declaration");
        let ends = report.instances[0].classes.iter().map(|c| c.spans.last().unwrap().to.as_nanos());
        assert!(ends.into_iter().all(|end| end == T0 + 10 * SECOND), "{report:?}");
    };
    check(&store);
    seal_all(&store);
    drop(store);
    std::fs::remove_dir_all(config(dir.path()).dir.join("index")).unwrap();
    check(&Store::open_read_only(&config(dir.path()).dir).unwrap());
}

#[test]
fn a_revocation_ends_the_claim_of_a_killed_collector_until_it_is_enrolled_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let (mut old, mut new) = (Collector::new("tenant-a", "old"), Collector::new("tenant-a", "new"));
    new.instance = old.instance.clone();
    let beats = |c: &mut Collector, at: i64| {
        let mut batches = begin(c, T0);
        let streams = [(c.stream(), c.next_sequence - 1)];
        batches.push(beat(c, at, None, &streams));
        batches
    };
    for (c, at) in [(&mut old, T0 + SECOND), (&mut new, T0 + 100 * SECOND)] {
        let batches = beats(c, at);
        ingest(&store, c, batches).unwrap();
    }
    let complete = |store: &Store| {
        let query = |from: i64| CoverageQuery {
            instance: Some(old.instance.to_string()),
            from: Some(Timestamp::from_nanos(from)),
            to: Some(Timestamp::from_nanos(T0 + 100 * SECOND)),
            ..CoverageQuery::default()
        };
        [T0 + 49 * SECOND, T0 + 50 * SECOND].map(|from| store.coverage(&old.tenant, &query(from)).complete)
    };
    assert_eq!(complete(&store), [false, false], "killed, it claims the time after it");
    let enrolment = ControlRecord::Enrolled(Enrolment {
        tenant: old.tenant.clone(),
        collector_id: old.id.clone(),
        host: old.host.clone(),
        instances: Instances::One(old.instance.clone()),
        signing_key: old.signer.public(),
        epoch: old.epoch.clone(),
        certificate_serial: "01".into(),
        enrolled_at: Timestamp::from_nanos(T0),
    });
    let revocation = |seconds: i64| {
        ControlRecord::Revoked(Revocation {
            tenant: old.tenant.clone(),
            collector_id: old.id.clone(),
            key_id: None,
            certificate_serial: None,
            reason: "killed, and replaced".into(),
            revoked_at: Timestamp::from_nanos(T0 + seconds * SECOND),
        })
    };
    store.record_control(enrolment.clone()).unwrap();
    store.record_control(revocation(50)).unwrap();
    // Saying it again does not move it.
    store.record_control(revocation(90)).unwrap();
    assert_eq!(complete(&store), [false, true]);
    drop(store);
    let store = Store::open(config(dir.path())).unwrap();
    assert_eq!(complete(&store), [false, true], "after a restart");
    store.record_control(enrolment).unwrap();
    assert_eq!(complete(&store), [false, false], "enrolled again");
}

#[test]
fn coverage_of_the_snapshot_is_that_of_the_batches_and_never_vouches_for_a_file_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let at = config(dir.path()).dir;
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let batches = begin(&mut c, T0);
    ingest(&store, &c, batches).unwrap();
    seal_all(&store);
    for n in 1..4 {
        let streams = [(c.stream(), c.next_sequence - 1)];
        let batches =
            vec![beat(&mut c, T0 + n * 10 * SECOND, None, &streams), c.processes(5, T0 + n * 10 * SECOND)];
        ingest(&store, &c, batches).unwrap();
        seal_all(&store);
    }
    store.close();
    drop(store);
    let read = || {
        let store = Store::open_read_only(&at).unwrap();
        let answer = store.query(&c.tenant, &Query::default()).unwrap();
        (report(&store, &c, T0 + 30 * SECOND), answer.events.len(), answer.damaged, answer.unreadable)
    };
    let snapshot = at.join("index/coverage/tenant-a.snapshot");
    let with = read();
    assert!(with.0.complete && with.2 == 0 && with.3.is_empty(), "{with:?}");
    let kept = std::fs::read(&snapshot).unwrap();
    std::fs::remove_file(&snapshot).unwrap();
    assert_eq!(read(), with);
    std::fs::write(&snapshot, &kept[..kept.len() - 1]).unwrap();
    assert_eq!(read(), with, "one that does not open is made anew");
    std::fs::write(&snapshot, &kept).unwrap();
    let segments = at.join("tenants/tenant-a/segments");
    let mut names: Vec<_> = std::fs::read_dir(&segments).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    std::fs::remove_file(&names[1]).unwrap();
    let (report, events, damaged, unreadable) = read();
    assert!(!report.complete, "{report:?}");
    assert_eq!((with.1 - events, damaged), (6, 2), "the batches of the file are missed");
    assert!(unreadable[0].contains("2 batches of the log"), "{unreadable:?}");
}
