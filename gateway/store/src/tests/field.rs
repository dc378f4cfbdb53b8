//! Field cases: what hurt the users of systems like this one, by number.

use activity_schema::api::BatchResult;
use activity_schema::event::Value;
use activity_schema::{Event, SignedBatch};

use super::basic::{config, ingest, seal_all};
use super::kit::{Collector, T0};
use super::telemetry::{object, say};
use crate::types::Query;
use crate::{ControlRecord, CoverageQuery, ImportDefaults, Store};

const DAY: i64 = 86_400_000_000_000;

#[test]
fn fc32_a_clock_three_days_behind_is_accepted_ordered_by_sequence_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut right = Collector::new("tenant-a", "right");
    let mut behind = Collector::new("tenant-a", "behind");
    let class = object(&[("class", "process".into()), ("state", "supported".into())]);
    let classes = object(&[("classes", Value::List(vec![class.into()]))]);
    let batch = say(&mut behind, "telemetry.config", T0 - 3 * DAY, classes);
    let batch = unsure(batch, &mut behind);
    ingest(&store, &behind, vec![batch]).unwrap();
    for i in 0..20 {
        let at = T0 + i * 1_000_000_000;
        let batch = right.processes(3, at);
        ingest(&store, &right, vec![batch]).unwrap();
        let batch = behind.processes(3, at - 3 * DAY);
        let batch = unsure(batch, &mut behind);
        let results = ingest(&store, &behind, vec![batch]).unwrap();
        assert!(matches!(results[..], [BatchResult::Stored { withheld: 0, .. }]), "{results:?}");
    }
    for sealed in [false, true] {
        if sealed {
            seal_all(&store);
        }
        let query = Query { instance: Some(behind.instance.to_string()), ..Query::default() };
        let events = store.query(&behind.tenant, &query).unwrap().events;
        let sequence = |line: &[u8]| Event::parse(line).unwrap().integrity.collector_sequence;
        let sequences: Vec<u64> = events.iter().map(|e| sequence(&e.line)).collect();
        assert_eq!(sequences, (1..=61).collect::<Vec<_>>());
    }
    let asked = CoverageQuery { instance: Some(behind.instance.to_string()), ..CoverageQuery::default() };
    let shown = store.coverage(&behind.tenant, &asked).instances[0].clock_error_ns_max;
    assert_eq!(shown, Some(3 * DAY));
    // The gateway's own time stands beside the collector's.
    let query = Query { instance: Some(behind.instance.to_string()), limit: 1, ..Query::default() };
    let first = &store.query(&behind.tenant, &query).unwrap().events[0];
    assert!(
        first.received_at.as_nanos() - Event::parse(&first.line).unwrap().occurred_at.as_nanos() > 3 * DAY
    );
}

/// The batch of a collector that knows that its clock may be days off.
fn unsure(batch: SignedBatch, c: &mut Collector) -> SignedBatch {
    let mut header = batch.header;
    header.clock.error_ns = 3 * DAY;
    header.clock.synchronised = false;
    let batch = SignedBatch::sign(header, batch.body, &c.signer);
    c.previous = batch.hash();
    batch
}

#[test]
fn fc33_the_same_id_with_other_bytes_alarms_and_the_same_content_under_other_ids_is_kept_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let first = c.line(0, "process.exec", T0, |_| {});
    let id = Event::parse(&first).unwrap().event_id;
    let payload = Event::parse(first.clone().leak()).unwrap().payload;
    let twin = c.line(1, "process.exec", T0, |e| e.payload = payload.clone());
    let batch = c.batch(&[first.clone(), twin], (T0, T0));
    ingest(&store, &c, vec![batch]).unwrap();
    assert_eq!(store.control_records(1, 100).iter().filter(|r| is_conflict(r)).count(), 0);
    let other = c.line(0, "process.exec", T0 + 1, |e| {
        e.event_id = id;
        e.payload.set("argc", 8u64);
    });
    let batch = c.batch(&[other], (T0 + 1, T0 + 1));
    ingest(&store, &c, vec![batch]).unwrap();
    let alarms: Vec<_> = store.control_records(1, 100).into_iter().filter(is_conflict).collect();
    assert!(
        matches!(&alarms[..], [(_, ControlRecord::Conflict { event_id, count: 1, leaf_index: 1, .. })] if *event_id == id),
        "{alarms:?}"
    );
    let events = store.query(&c.tenant, &Query::default()).unwrap().events;
    assert_eq!(events.len(), 3, "nothing is dropped");
    assert_eq!(events[0].line, first);
}

#[test]
fn fc33_an_imported_line_with_a_stored_id_and_other_bytes_alarms_and_the_stored_line_itself_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let first = c.line(0, "process.exec", T0, |_| {});
    let id = Event::parse(&first).unwrap().event_id;
    let other = c.line(0, "process.exec", T0, |e| e.event_id = id);
    let batch = c.batch(std::slice::from_ref(&first), (T0, T0));
    ingest(&store, &c, vec![batch]).unwrap();
    let defaults = ImportDefaults { host: c.host.clone(), instance: c.instance.clone() };
    let alarms = |line: &[u8]| {
        assert_eq!(store.import(&c.tenant, &defaults, line).unwrap().stored, 1);
        let records = store.control_records(1, 100);
        let ids = records.into_iter().filter_map(|(_, record)| match record {
            ControlRecord::Conflict { event_id, count: 1, .. } => Some(event_id),
            _ => None,
        });
        (ids.collect::<Vec<_>>(), store.health().counters.event_id_conflicts)
    };
    assert_eq!(alarms(&first), (vec![], 0));
    assert_eq!(alarms(&other), (vec![id], 1));
}

fn is_conflict(record: &(u64, ControlRecord)) -> bool {
    matches!(record.1, ControlRecord::Conflict { .. })
}
