//! A request's batches on their way to the committer. They are read a turn at a time, so that a request with many does
//! not keep others waiting, and only as far as they can still be stored: a body of some bytes may hold a mebibyte.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use activity_schema::SignedBatch;
use activity_schema::api::{BatchResult, REQUEST_BYTES_MAX};
use activity_schema::ids::StreamId;
use tokio::sync::oneshot;

use crate::check::{BatchRefusal, Checked, LineCheck, check_content, check_origin, header_alone};
use crate::committer::{CommitError, Job, Judged};
use crate::ingest::IngestError;
use crate::store::Shared;
use crate::tenant::Tenant;
use crate::types::Caller;

/// Raw bytes after which a turn ends: as much as one batch may hold.
const TURN_RAW_BYTES: u64 = activity_schema::batch::BATCH_RAW_BYTES_MAX;
/// Raw bytes of one request that are read; what follows is answered as a gap, and comes again. A collector's request
/// has 2 MiB.
pub(crate) const REQUEST_RAW_BYTES_MAX: u64 = 16 * 1024 * 1024;

pub(crate) type Committed = oneshot::Receiver<Result<Vec<BatchResult>, CommitError>>;

/// A request that is being checked.
pub(crate) struct Checking {
    shared: Arc<Shared>,
    caller: Caller,
    rest: std::vec::IntoIter<SignedBatch>,
    judged: Vec<Judged>,
    /// The number with which a stream can go on: behind what is stored and what came before in this request.
    next: BTreeMap<StreamId, u64>,
    raw_bytes_left: u64,
}

/// What a turn leaves.
pub(crate) enum Turn {
    More(Box<Checking>),
    Queued(Committed),
}

impl Checking {
    pub(crate) fn new(shared: Arc<Shared>, caller: Caller, batches: Vec<SignedBatch>) -> Self {
        let judged = Vec::with_capacity(batches.len());
        let raw_bytes_left = REQUEST_RAW_BYTES_MAX;
        Checking { shared, caller, rest: batches.into_iter(), judged, next: BTreeMap::new(), raw_bytes_left }
    }

    /// Checks the next batches; gives all to the committer after the last.
    pub(crate) fn turn(mut self: Box<Self>) -> Result<Turn, IngestError> {
        let tenant = self.shared.make_tenant(&self.caller.tenant);
        let tenant = tenant.map_err(|e| IngestError::Tenant(Box::new(e)))?;
        let mut raw_bytes = 0;
        while raw_bytes < TURN_RAW_BYTES {
            let Some(batch) = self.rest.next() else { break };
            raw_bytes += raw_bytes_of(&batch);
            let judged = self.check(&tenant, batch).unwrap_or_else(Judged::Refused);
            self.judged.push(judged);
        }
        if !self.rest.as_slice().is_empty() {
            return Ok(Turn::More(self));
        }
        let (reply, answer) = oneshot::channel();
        let batches = std::mem::take(&mut self.judged);
        self.shared.queue.push(Job { tenant, batches, reply, queued_at: Instant::now() });
        Ok(Turn::Queued(answer))
    }

    fn check(&mut self, tenant: &Tenant, batch: SignedBatch) -> Result<Judged, BatchRefusal> {
        let (shared, caller) = (&self.shared, &self.caller);
        check_origin(&batch, caller, |header| {
            shared.control.lock().is_revoked(&caller.tenant, &caller.collector_id, &header.key_id)
        })?;
        let (hash, stream, number) = (batch.hash(), batch.header.stream(), batch.header.batch_number);
        let next = self.next.entry(stream.clone()).or_insert_with(|| {
            tenant.state.read().streams.get(&stream).map_or(0, |known| known.head.batch_number) + 1
        });
        let content = if shared.find_stored(tenant, &stream, number, hash).is_some() {
            // The committer answers with its receipt and stores nothing.
            header_alone(&batch.header)
        } else if number > *next || raw_bytes_of(&batch) > self.raw_bytes_left {
            // A sender has one request of a stream under way; if another fills the gap now, this batch comes again.
            shared.metrics.batches_unread.add(1);
            return Ok(Judged::Unread { stream, number, hash });
        } else {
            self.raw_bytes_left -= raw_bytes_of(&batch);
            let with =
                LineCheck { instances: &caller.instances, terms: &tenant.keys.terms, recent: &shared.recent };
            let mut content = check_content(&batch, &with)?;
            content.facts.unknown_receipts = shared.unknown_receipts(tenant, &content.facts.telemetry);
            content
        };
        if number == *next {
            *next += 1;
        }
        Ok(Judged::Checked(Box::new(Checked {
            received_bytes: batch_bytes(&batch),
            hash,
            content,
            header: batch.header,
            header_bytes: batch.header_bytes,
            signature: batch.signature,
        })))
    }
}

/// What a request may take of memory: its bytes as they came, or its lines as far as they are read.
pub(crate) fn weight(batches: &[SignedBatch]) -> u64 {
    debug_assert!(REQUEST_BYTES_MAX as u64 <= REQUEST_RAW_BYTES_MAX);
    let received: u64 = batches.iter().map(batch_bytes).sum();
    let raw: u64 = batches.iter().map(raw_bytes_of).sum();
    received.max(raw.min(REQUEST_RAW_BYTES_MAX))
}

fn batch_bytes(batch: &SignedBatch) -> u64 {
    (batch.header_bytes.len() + batch.body.as_ref().map_or(0, bytes::Bytes::len)) as u64
}

/// As the header says; a body that holds more is refused.
fn raw_bytes_of(batch: &SignedBatch) -> u64 {
    if batch.body.is_some() { batch.header.raw_bytes } else { 0 }
}
