//! The lines of a batch that an enrolled collector signed: whatever they are, the gateway keeps or withholds each.
//!
//! ```text
//! u8 class | lines, one a line
//! ```

use std::cell::RefCell;

use activity_schema::admit::admit_in_batch;
use activity_schema::api::BatchResult;
use activity_schema::batch::{self, BATCH_EVENTS_MAX, BATCH_RAW_BYTES_MAX, BATCH_VERSION, Leaf};
use activity_schema::ids::Epoch;
use activity_schema::keys::Signer;
use activity_schema::{BatchHeader, Class, Event, Hash, SignedBatch, Timestamp};
use activity_store::{LIMIT_MAX, Query, Store};
use serde_json::Value;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::fixture::{self, CLOCK};
use crate::stored;

/// After so many inputs the store is made anew, so that it stays small.
const INPUTS_MAX: u128 = 2_000;

struct Place {
    store: Store,
    runtime: Runtime,
    /// Inputs so far; each is a stream of its own.
    inputs: u128,
    _dir: tempfile::TempDir,
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

impl Place {
    fn new() -> Self {
        let dir = stored::folder();
        Place { store: stored::open(dir.path()), runtime: stored::runtime(), inputs: 0, _dir: dir }
    }
}

pub fn run(data: &[u8]) {
    let Some((class, raw)) = data.split_first() else { return };
    let lines: Vec<&[u8]> = raw.split(|byte| *byte == b'\n').collect();
    if raw.is_empty() || raw.len() as u64 > BATCH_RAW_BYTES_MAX || lines.len() as u64 > BATCH_EVENTS_MAX {
        return;
    }
    PLACE.with_borrow_mut(|slot| {
        if slot.as_ref().is_some_and(|place| place.inputs >= INPUTS_MAX) {
            *slot = None;
        }
        let place = slot.get_or_insert_with(Place::new);
        place.inputs += 1;
        let epoch = Epoch::new(Uuid::from_u128(place.inputs).to_string()).expect("a UUID is an id");
        let class = Class::ALL[usize::from(*class) % Class::ALL.len()];
        check(place, &epoch, class, raw, &lines);
    });
}

fn check(place: &Place, epoch: &Epoch, class: Class, raw: &[u8], lines: &[&[u8]]) {
    let batch = sign(epoch, class, raw, lines);
    let stream = batch.header.stream().to_string();
    let caller = stored::caller(epoch);
    let results = stored::ingest(&place.runtime, &place.store, &caller, vec![batch.clone()]);
    let [BatchResult::Stored { withheld, receipt }] = results.as_slice() else {
        panic!("a batch whose signature and root are good is stored: {results:?}");
    };
    assert!(receipt.is_signed_by(place.store.gateway_key()));
    let query = Query { since_leaf: Some(receipt.body.leaf_index), limit: LIMIT_MAX, ..Query::default() };
    let answer = place.store.query(&fixture::tenant(), &query).expect("a plain question");
    let mut kept: Vec<&[u8]> = answer.events.iter().map(|event| &event.line[..]).collect();
    assert_eq!(kept.len() as u64 + withheld, lines.len() as u64, "each line is kept or withheld");
    for line in &kept {
        let event = Event::parse(line).expect("what is kept is an event");
        // Names that this gateway does not know are kept too.
        let position = event.integrity.collector_sequence - 1;
        let admitted = admit_in_batch(&event, &batch.header, &stream, position);
        assert!(admitted.is_ok(), "what is kept is admitted: {admitted:?}");
        assert_eq!(event.source.collector.as_str(), stream, "what is kept is of the stream");
        assert_eq!(event.correlation.tenant_id.as_str(), caller.tenant.as_str(), "and of the tenant");
    }
    let mut sent = lines.to_vec();
    kept.sort_unstable();
    sent.sort_unstable();
    let mut sent = sent.into_iter();
    assert!(kept.iter().all(|line| sent.any(|s| s == *line)), "what is kept was sent, byte for byte");
    let again = stored::ingest(&place.runtime, &place.store, &caller, vec![batch]);
    let duplicate = [BatchResult::Duplicate { receipt: receipt.clone() }];
    assert_eq!(again, duplicate, "the same again is acknowledged and not stored");
}

fn sign(epoch: &Epoch, class: Class, raw: &[u8], lines: &[&[u8]]) -> SignedBatch {
    let (identity, signer) = (fixture::identity(), Signer::from_seed(&fixture::KEY));
    let times = || lines.iter().filter_map(|line| Some(Event::parse(line).ok()?.occurred_at));
    let header = BatchHeader {
        batch_number: 1,
        boot_id: identity.boot_id,
        class,
        clock: CLOCK.state,
        collector_id: identity.collector_id,
        count: lines.len() as u64,
        epoch: epoch.clone(),
        first_sequence: 1,
        host: identity.host,
        key_id: signer.id().clone(),
        last_sequence: lines.len() as u64,
        merkle_root: batch::lines_root(lines.iter().map(|line| Leaf::Line(line))),
        occurred_max: times().max().unwrap_or(CLOCK.wall),
        occurred_min: times().min().unwrap_or(CLOCK.wall),
        policy_digest: Hash::default(),
        previous_batch_hash: Hash::default(),
        raw_bytes: raw.len() as u64,
        ring_cursors: [].into(),
        sealed_at: Timestamp::from_nanos(CLOCK.wall.as_nanos()),
        tenant: identity.tenant,
        version: BATCH_VERSION,
    };
    let body = batch::compress(raw).expect("a buffer takes every write");
    SignedBatch::sign(header, Some(body.into()), &signer)
}

/// The examples in the place where the first input puts them, alone and together.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (class, class_index) in Class::ALL.iter().zip(0u8..) {
        let mut all = Vec::new();
        for line in fixture::lines() {
            let mut event: Value = serde_json::from_str(line).expect("a fixture is valid");
            let row = activity_schema::catalog::row(event["event_name"].as_str().unwrap_or_default());
            if row.is_none_or(|row| row.class != *class) {
                continue;
            }
            let stream = format!("collector-1/{}/{class}", Uuid::from_u128(1));
            event["source"]["collector"] = stream.into();
            event["integrity"]["collector_sequence"] = (all.len() + 1).into();
            all.push(event.to_string());
        }
        seeds.push([&[class_index], all.join("\n").as_bytes()].concat());
        seeds.extend(all.first().map(|line| [&[class_index], line.as_bytes()].concat()));
    }
    seeds
}
