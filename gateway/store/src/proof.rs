//! Proofs out of the log: checkpoint, inclusion of one event, consistency of two sizes.

use activity_schema::checkpoint::Checkpoint;
use activity_schema::ids::TenantId;
use activity_schema::receipt::{Receipt, ReceiptBody};
use activity_schema::{Event, Hash, merkle};
use uuid::Uuid;

use crate::log::read_leaves;
use crate::record::{FLAG_FORK, StoredBatch, StoredLine};
use crate::store::{Shared, Store};
use crate::tenant::Tenant;
use crate::types::EventProof;

/// How far the wall clock of an event may be from the time in its id before every block is searched, nanoseconds.
const ID_TIME_SLACK_NS: i64 = 3_600_000_000_000;

impl Store {
    /// The newest signed checkpoint; the first is made when there is none.
    pub fn checkpoint(&self, tenant: &TenantId) -> Option<String> {
        let tenant = self.shared().tenant(tenant)?;
        self.shared().checkpoint_of(&tenant, None)
    }

    /// Proof that an event is in the log. `None` when it is not stored, or its line is gone.
    pub fn inclusion(&self, tenant: &TenantId, event_id: Uuid) -> Option<EventProof> {
        let shared = self.shared();
        let tenant = shared.tenant(tenant)?;
        let (batch, position) = shared.find_event(&tenant, event_id)?;
        shared.prove(&tenant, &batch, position)
    }

    /// Consistency proof between two sizes of the log (RFC 6962); `None` when there is no such pair.
    pub fn consistency(&self, tenant: &TenantId, old_size: u64, new_size: u64) -> Option<Vec<Hash>> {
        let tenant = self.shared().tenant(tenant)?;
        let leaves = self.shared().leaves(&tenant)?;
        let new = leaves.get(..usize::try_from(new_size).ok()?)?;
        merkle::consistency_proof(new, usize::try_from(old_size).ok()?)
    }
}

impl Shared {
    pub(crate) fn leaves(&self, tenant: &Tenant) -> Option<Vec<Hash>> {
        let result = if self.read_only {
            read_leaves(&self.env, &tenant.dir.join("log"))
        } else {
            tenant.log.lock().leaves(&self.env)
        };
        result.inspect_err(|error| tracing::error!(%error, "the log's leaves do not read")).ok()
    }

    /// The newest checkpoint, of more than the empty log when it is not, and that covers `leaf` when one is given. A
    /// reader has only those that were written.
    fn checkpoint_of(&self, tenant: &Tenant, leaf: Option<u64>) -> Option<String> {
        let mut log = tenant.log.lock();
        let size_min = leaf.map_or(log.size().min(1), |leaf| leaf + 1);
        let covers = |note: &str| Checkpoint::parse(note).is_ok_and(|c| c.size >= size_min);
        if let Some(note) = log.latest().filter(|note| covers(note)) {
            return Some(note.clone());
        }
        if self.read_only {
            return None;
        }
        let made = log.checkpoint(&self.env, self.signer.as_ref()?);
        made.inspect_err(|error| tracing::error!(%error, "no checkpoint")).ok()
    }

    /// The newest checkpoint that covers `size` batches, else the newest that was written.
    pub(crate) fn checkpoint_for_export(&self, tenant: &Tenant, size: u64) -> Option<String> {
        let covering = self.checkpoint_of(tenant, size.checked_sub(1));
        covering.or_else(|| tenant.log.lock().latest().cloned())
    }

    fn find_event(&self, tenant: &Tenant, id: Uuid) -> Option<(StoredBatch, usize)> {
        let text = id.hyphenated().to_string();
        let needle = memchr::memmem::Finder::new(&text);
        let mut beside = None;
        for batch in self.batches_around(tenant, id_time_ns(id)) {
            let is_it = |line: StoredLine<'_>| match line {
                StoredLine::Line(line) => {
                    needle.find(line).is_some() && Event::parse(line).is_ok_and(|e| e.event_id == id)
                }
                _ => false,
            };
            let Some(position) = batch.all_lines().position(is_it) else { continue };
            // A batch of the stream comes before one that was stored beside it.
            if batch.flags & FLAG_FORK == 0 {
                return Some((batch, position));
            }
            beside = Some((batch, position));
        }
        beside
    }

    /// Batches, those whose time range holds `at` first.
    fn batches_around<'a>(
        &'a self,
        tenant: &'a Tenant,
        at: Option<i64>,
    ) -> impl Iterator<Item = StoredBatch> + 'a {
        let near = move |summary: &crate::summary::Summary| {
            at.is_some_and(|at| {
                summary.occurred_min.as_nanos().saturating_sub(ID_TIME_SLACK_NS) <= at
                    && at <= summary.occurred_max.as_nanos().saturating_add(ID_TIME_SLACK_NS)
            })
        };
        let (open, segments) = {
            let state = tenant.state.read();
            let open: Vec<_> = state.open.values().cloned().collect();
            let segments: Vec<_> = state.segments.values().cloned().collect();
            (open, segments)
        };
        let mut blocks = Vec::new();
        for meta in segments {
            self.index.blocks(&tenant.id, meta.number, |entry| {
                if let Ok(place) = entry.place(&meta) {
                    blocks.push((near(&entry.summary), place));
                }
            });
        }
        blocks.sort_by_key(|(near, _)| !near);
        let opened = open.into_iter().filter_map(move |b| self.read_open(tenant, &b).ok());
        let sealed = blocks
            .into_iter()
            .flat_map(move |(_, place)| self.read_block(tenant, &place).unwrap_or_default());
        opened.chain(sealed)
    }

    fn prove(&self, tenant: &Tenant, batch: &StoredBatch, position: usize) -> Option<EventProof> {
        let StoredLine::Line(line) = batch.line(position)? else { return None };
        let line_path = merkle::inclusion_proof(&batch.leaves()?, position)?;
        let checkpoint = self.checkpoint_of(tenant, Some(batch.leaf_index))?;
        let size = usize::try_from(Checkpoint::parse(&checkpoint).ok()?.size).ok()?;
        let leaves = self.leaves(tenant)?;
        let log_path = merkle::inclusion_proof(leaves.get(..size)?, usize::try_from(batch.leaf_index).ok()?)?;
        Some(EventProof {
            line: String::from_utf8(line.to_vec()).ok()?,
            position: position as u64,
            line_path,
            header: String::from_utf8(batch.header_bytes.to_vec()).ok()?,
            signature: batch.signature,
            receipt: receipt_of(batch, tenant.log.lock().origin(), self.meta.gateway_key.id()),
            leaf_index: batch.leaf_index,
            log_path,
            checkpoint,
        })
    }
}

/// The receipt as it was given.
pub(crate) fn receipt_of(batch: &StoredBatch, origin: &str, key_id: activity_schema::keys::KeyId) -> Receipt {
    Receipt {
        body: ReceiptBody {
            batch_hash: batch.batch_hash,
            durable: true,
            gateway_time: batch.received_at,
            key_id,
            leaf_index: batch.leaf_index,
            log_id: origin.to_owned(),
        },
        signature: batch.receipt_signature,
    }
}

/// The time in a UUIDv7, nanoseconds.
fn id_time_ns(id: Uuid) -> Option<i64> {
    (id.get_version_num() == 7).then(|| i64::try_from(id.as_u128() >> 80).ok()?.checked_mul(1_000_000))?
}
