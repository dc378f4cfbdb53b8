//! Block entries made from the blocks themselves, for a segment whose footer is damaged.

use std::collections::BTreeSet;

use activity_schema::BatchHeader;

use crate::block::read_block;
use crate::block_entry::{BlockEntry, ENTRY_FORK, ENTRY_TELEMETRY};
use crate::record::{FLAG_FORK, StoredBatch};
use crate::recover::facts_of;
use crate::segment::{Header, scan_blocks};
use crate::tenant::{Stored, Tenant};
use crate::terms::{Filter, is_of_segments};

/// Entries of every block that reads.
pub(crate) fn entries_of_blocks(bytes: &[u8], tenant: &Tenant, header: &Header) -> Vec<BlockEntry> {
    let keys = tenant.keys.of_file(&header.id);
    let mut entries = Vec::new();
    for (offset, payload) in scan_blocks(bytes).blocks {
        let Ok(batches) = read_block(payload, &keys, &tenant.id) else { continue };
        if let Some(mut entry) = entry_of(&batches, tenant) {
            entry.offset = offset as u64;
            entry.len = payload.len();
            entry.block = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            entries.push(entry);
        }
    }
    entries
}

/// The entry of a block, but for its place in the file. `None` for a block without batches that parse.
pub(crate) fn entry_of(batches: &[StoredBatch], tenant: &Tenant) -> Option<BlockEntry> {
    let headers: Vec<BatchHeader> =
        batches.iter().map(|b| BatchHeader::parse(&b.header_bytes)).collect::<Result<_, _>>().ok()?;
    let (first, last) = (batches.first()?, batches.last()?);
    let (first_header, last_header) = (headers.first()?, headers.last()?);
    let mut terms: Vec<u64> = Vec::new();
    let (mut instances, mut telemetry, mut summary) = (BTreeSet::new(), false, None);
    for (batch, header) in batches.iter().zip(&headers) {
        let facts = facts_of(batch, header, tenant);
        terms.extend_from_slice(&facts.terms);
        instances.extend(facts.instances);
        telemetry |= !facts.telemetry.is_empty();
        let merged = summary.get_or_insert(facts.summary);
        if batch.leaf_index != first.leaf_index {
            merged.merge(&facts.summary);
        }
    }
    terms.sort_unstable();
    terms.dedup();
    let fork = first.flags & FLAG_FORK != 0;
    let forks = batches.iter().filter(|_| fork);
    Some(BlockEntry {
        summary: summary?,
        first_leaf: first.leaf_index,
        last_leaf: last.leaf_index,
        filter: Filter::build(&terms),
        offset: 0,
        len: 0,
        block: 0,
        stream: first_header.stream(),
        host: first_header.host.clone(),
        flags: (if fork { ENTRY_FORK } else { 0 }) | (if telemetry { ENTRY_TELEMETRY } else { 0 }),
        first_number: first_header.batch_number,
        last_number: last_header.batch_number,
        last_sequence: last_header.last_sequence,
        last_hash: last.batch_hash,
        received_min: first.received_at,
        received_max: last.received_at,
        instances: instances.into_iter().collect(),
        forks: forks
            .map(|b| (b.batch_hash, Stored { leaf_index: b.leaf_index, received_at: b.received_at }))
            .collect(),
        batches: batches.len() as u64,
        segment_terms: terms.into_iter().filter(|term| is_of_segments(*term)).collect(),
    })
}
