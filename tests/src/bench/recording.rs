//! One collector's evidence, made without a kernel: events of [`super::mix`] in batches that are chained and signed
//! as the spool does it.

use activity_schema::batch::{BATCH_VERSION, BatchHeader, ClockState, compress};
use activity_schema::ids::{CollectorId, Epoch, HostId, InstanceId, TenantId};
use activity_schema::keys::Signer;
use activity_schema::merkle::{Frontier, leaf_hash};
use activity_schema::{Class, Hash, SignedBatch, Timestamp};

/// Events of a batch, as the collector bounds them.
const BATCH_EVENTS_MAX: u64 = 256;

/// Who records.
pub struct Identity {
    pub tenant: TenantId,
    pub host: HostId,
    pub instance: InstanceId,
    pub collector: CollectorId,
    pub epoch: Epoch,
    pub signer: Signer,
    pub boot_id: String,
}

/// A batch as it goes over the wire.
pub struct Batch {
    pub class: Class,
    pub events: u64,
    /// Bytes of the lines.
    pub raw_bytes: u64,
    pub frame: Vec<u8>,
}

/// The two streams that agents and processes fill.
pub struct Recorder {
    pub identity: Identity,
    streams: [Stream; 2],
    /// A batch is sealed when its first event is that old, nanoseconds; `None`: when it is full.
    age_ns_max: Option<i64>,
    ready: Vec<Batch>,
}

struct Stream {
    class: Class,
    /// `source.collector` of its events.
    text: String,
    next_sequence: u64,
    batch_number: u64,
    previous: Hash,
    raw: Vec<u8>,
    frontier: Frontier,
    occurred: Option<(i64, i64)>,
}

impl Recorder {
    pub fn new(identity: Identity, age_ns_max: Option<i64>) -> Self {
        let stream = |class: Class| Stream {
            class,
            text: format!("{}/{}/{class}", identity.collector, identity.epoch),
            next_sequence: 1,
            batch_number: 1,
            previous: Hash::default(),
            raw: Vec::new(),
            frontier: Frontier::default(),
            occurred: None,
        };
        let streams = [stream(Class::Critical), stream(Class::Standard)];
        Recorder { identity, streams, age_ns_max, ready: Vec::new() }
    }

    /// Text and next sequence of a class's stream.
    pub fn place(&self, class: Class) -> (&str, u64) {
        let stream = &self.streams[index(class)];
        (&stream.text, stream.next_sequence)
    }

    /// Takes the line of the event whose place was asked for; seals what is full or, by then, old.
    pub fn append(&mut self, class: Class, occurred_ns: i64, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(age) = self.age_ns_max {
            for at in 0..self.streams.len() {
                if self.streams[at].occurred.is_some_and(|(first, _)| occurred_ns - first >= age) {
                    self.seal(at);
                }
            }
        }
        let stream = &mut self.streams[index(class)];
        if stream.occurred.is_some() {
            stream.raw.push(b'\n');
        }
        let start = stream.raw.len();
        write(&mut stream.raw);
        stream.frontier.push(leaf_hash(&stream.raw[start..]));
        stream.next_sequence += 1;
        let first = stream.occurred.map_or(occurred_ns, |(first, _)| first);
        stream.occurred = Some((first, occurred_ns));
        if stream.frontier.size() == BATCH_EVENTS_MAX {
            self.seal(index(class));
        }
    }

    /// What is sealed and not yet taken.
    pub fn take(&mut self) -> Vec<Batch> {
        std::mem::take(&mut self.ready)
    }

    pub fn seal_all(&mut self) {
        (0..self.streams.len()).for_each(|at| self.seal(at));
    }

    fn seal(&mut self, at: usize) {
        let (id, stream) = (&self.identity, &mut self.streams[at]);
        let Some((first, last)) = stream.occurred.take() else { return };
        let (count, raw_bytes) = (stream.frontier.size(), stream.raw.len() as u64);
        let header = BatchHeader {
            batch_number: stream.batch_number,
            boot_id: id.boot_id.clone(),
            class: stream.class,
            clock: ClockState { error_ns: 16_000_000, offset_ns: 0, synchronised: true },
            collector_id: id.collector.clone(),
            count,
            epoch: id.epoch.clone(),
            first_sequence: stream.next_sequence - count,
            host: id.host.clone(),
            key_id: id.signer.id().clone(),
            last_sequence: stream.next_sequence - 1,
            merkle_root: stream.frontier.root(),
            occurred_max: Timestamp::from_nanos(last),
            occurred_min: Timestamp::from_nanos(first),
            policy_digest: Hash::of(&[b"bench"]),
            previous_batch_hash: stream.previous,
            raw_bytes,
            ring_cursors: [("process".to_owned(), 96 * (stream.next_sequence - 1))].into(),
            sealed_at: Timestamp::from_nanos(last),
            tenant: id.tenant.clone(),
            version: BATCH_VERSION,
        };
        let body = compress(&stream.raw).expect("a buffer in memory takes every write");
        let batch = SignedBatch::sign(header, Some(body.into()), &id.signer);
        stream.previous = batch.hash();
        stream.batch_number += 1;
        stream.raw.clear();
        stream.frontier = Frontier::default();
        let mut frame = Vec::new();
        batch.encode(&mut frame);
        self.ready.push(Batch { class: stream.class, events: count, raw_bytes, frame });
    }
}

fn index(class: Class) -> usize {
    usize::from(class != Class::Critical)
}
