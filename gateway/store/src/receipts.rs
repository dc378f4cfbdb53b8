//! Receipts: given for batches that are durable, and recognised when a heartbeat carries one back.
//!
//! A heartbeat names, for its own epoch, the newest receipt and how far each stream is acknowledged (contract,
//! "telemetry.heartbeat"). The receipt is therefore that of a batch which ends where one of the streams is acknowledged.
//! When no such batch is stored with this receipt, a batch that was acknowledged is missing here.

use activity_schema::event::{Payload, Value};
use activity_schema::ids::StreamId;
use activity_schema::receipt::{Receipt, ReceiptBody};
use activity_schema::{BatchHeader, Event, Hash, Timestamp};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::store::Shared;
use crate::tenant::{SealedRun, Stored, Tenant};

/// A heartbeat with a receipt that this store did not give.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnknownReceipt {
    /// Its event id.
    pub heartbeat: Uuid,
    pub occurred_at: Timestamp,
    pub receipt_hash: Hash,
}

/// The batch of a stream that ends with a sequence.
enum Ending {
    Batch(Hash, Stored),
    Absent,
    /// What is stored does not read, or was stored twice with other bytes: it raises its own alarm.
    Unclear,
}

impl Shared {
    /// Deterministic: Ed25519 gives the same bytes for the same receipt.
    pub(crate) fn receipt(&self, origin: &str, batch_hash: Hash, stored: Stored) -> Receipt {
        let body = ReceiptBody {
            batch_hash,
            durable: true,
            gateway_time: stored.received_at,
            key_id: self.signer().id().clone(),
            leaf_index: stored.leaf_index,
            log_id: origin.to_owned(),
        };
        Receipt::sign(body, self.signer())
    }

    /// Heartbeats among these lines with a receipt that this store did not give.
    pub(crate) fn unknown_receipts(&self, tenant: &Tenant, lines: &[Bytes]) -> Vec<UnknownReceipt> {
        let events = lines.iter().filter_map(|line| Event::parse(line).ok());
        let beats = events.filter(|event| event.event_name == "telemetry.heartbeat");
        beats.filter_map(|beat| self.unknown_receipt(tenant, &beat)).collect()
    }

    fn unknown_receipt(&self, tenant: &Tenant, beat: &Event<'_>) -> Option<UnknownReceipt> {
        let receipt_hash = Hash::from_hex(beat.payload.text("last_receipt_hash")?)?;
        let own: StreamId = beat.source.collector.parse().ok()?;
        let origin = tenant.log.lock().origin().to_owned();
        for (stream, sequence) in acknowledged(beat, &own)? {
            match self.batch_ending(tenant, &stream, sequence) {
                Ending::Absent => {}
                Ending::Unclear => return None,
                Ending::Batch(hash, stored) if self.receipt(&origin, hash, stored).hash() == receipt_hash => {
                    return None;
                }
                Ending::Batch(..) => {}
            }
        }
        Some(UnknownReceipt { heartbeat: beat.event_id, occurred_at: beat.occurred_at, receipt_hash })
    }

    fn batch_ending(&self, tenant: &Tenant, stream: &StreamId, sequence: u64) -> Ending {
        let runs: Vec<SealedRun> = {
            let state = tenant.state.read();
            let Some(known) = state.streams.get(stream) else { return Ending::Absent };
            if !known.forks.is_empty() {
                return Ending::Unclear;
            }
            for open in known.open.values().rev().filter_map(|leaf| state.open.get(leaf)) {
                if open.last_sequence == sequence {
                    let stored = Stored { leaf_index: open.leaf_index, received_at: open.received_at };
                    return Ending::Batch(open.hash, stored);
                }
                if open.last_sequence < sequence {
                    return Ending::Absent;
                }
            }
            known.sealed.values().copied().collect()
        };
        let last_sequence = |run: &SealedRun| {
            self.index.block(&tenant.id, run.segment, run.block).map_or(0, |entry| entry.last_sequence)
        };
        let at = runs.partition_point(|run| last_sequence(run) < sequence);
        runs.get(at).map_or(Ending::Absent, |run| self.sealed_ending(tenant, *run, sequence))
    }

    fn sealed_ending(&self, tenant: &Tenant, run: SealedRun, sequence: u64) -> Ending {
        let meta = tenant.state.read().segments.get(&run.segment).cloned();
        let place = meta.zip(self.index.block(&tenant.id, run.segment, run.block));
        let read = place.map(|(meta, entry)| self.read_block(tenant, &entry.place(&meta)));
        let Some(Ok(batches)) = read else { return Ending::Unclear };
        let ends = |bytes: &[u8]| BatchHeader::parse(bytes).is_ok_and(|h| h.last_sequence == sequence);
        batches.iter().find(|batch| ends(&batch.header_bytes)).map_or(Ending::Absent, |batch| {
            let stored = Stored { leaf_index: batch.leaf_index, received_at: batch.received_at };
            Ending::Batch(batch.batch_hash, stored)
        })
    }
}

/// Streams of the heartbeat's epoch with what they are acknowledged to; `None` when it does not say so.
fn acknowledged(beat: &Event<'_>, own: &StreamId) -> Option<Vec<(StreamId, u64)>> {
    let Some(Value::List(entries)) = beat.payload.get("streams") else { return None };
    let entry = |value: &Value<'_>| {
        let Value::Object(entry) = value else { return None };
        let stream: StreamId = Payload::text(entry, "stream")?.parse().ok()?;
        let sequence = u64::try_from(entry.integer("acked_sequence")?).ok()?;
        (stream.collector == own.collector && stream.epoch == own.epoch && sequence > 0)
            .then_some((stream, sequence))
    };
    let marks: Vec<_> = entries.iter().filter_map(entry).collect();
    (!marks.is_empty()).then_some(marks)
}
