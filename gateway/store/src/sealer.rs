//! Turns an ended commit file into one segment a tenant, then removes it.
//!
//! Order: segment written, fsynced, renamed, directory fsynced; leaves fsynced; index; memory; only then the commit
//! file goes. A segment has its commit file's number, so a crash between any two steps is finished at the next
//! start without anything twice.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use activity_schema::Event;
use activity_schema::ids::StreamId;

use crate::block::{BlockBuilder, BlockError};
use crate::block_entry::{BlockEntry, ENTRY_FORK, ENTRY_TELEMETRY};
use crate::commit::commit_path;
use crate::reader::ReadError;
use crate::record::{FLAG_FORK, StoredBatch, StoredLine};
use crate::segment::{BLOCK_RAW_BYTES, Header, SegmentWriter, meta_of};
use crate::store::Shared;
use crate::tenant::{FileKeys, OpenBatch, SealedRun, Stored, Tenant, TenantState};
use crate::terms::{Filter, is_of_segments};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error("writing a segment")]
    Io(#[from] io::Error),
    #[error("reading a batch back")]
    Read(#[from] ReadError),
    #[error("packing a block")]
    Block(#[from] BlockError),
    #[error("the index")]
    Index(#[from] sled::Error),
}

/// Seals a commit file. Repeating it after a failure is safe.
pub(crate) fn seal(shared: &Shared, file: u64) -> Result<(), SealError> {
    for tenant in shared.all_tenants() {
        seal_tenant(shared, &tenant, file)?;
    }
    retire(shared, file)?;
    shared.index.flush();
    Ok(())
}

/// The commit file has no batch that is not in a segment. A damaged one is kept under another name, as evidence.
pub(crate) fn retire(shared: &Shared, file: u64) -> io::Result<()> {
    let path = commit_path(&shared.commit_dir(), file);
    let storage = &shared.env.storage;
    let result = if shared.damaged_files.lock().contains(&file) {
        storage.rename(&path, &path.with_extension("log.damaged"))
    } else {
        storage.remove(&path)
    };
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    storage.sync_dir(&shared.commit_dir())
}

fn seal_tenant(shared: &Shared, tenant: &Arc<Tenant>, file: u64) -> Result<(), SealError> {
    let mut streams: BTreeMap<(StreamId, bool), Vec<Arc<OpenBatch>>> = BTreeMap::new();
    for batch in tenant.state.read().open.values().filter(|b| b.file == file) {
        let fork = batch.flags & FLAG_FORK != 0;
        streams.entry((batch.stream.clone(), fork)).or_default().push(Arc::clone(batch));
    }
    if streams.is_empty() {
        return Ok(());
    }
    let mut writer = SegmentWriter::begin(&shared.env, &tenant.id, &tenant.dir, file)?;
    let keys = tenant.keys.of_file(&writer.id());
    for batches in streams.values() {
        seal_stream(shared, tenant, &mut writer, &keys, batches)?;
    }
    let (entries, header, len) = writer.finish(&keys)?;
    tenant.log.lock().sync(&shared.env)?;
    shared.index.put_segment(&tenant.id, file, &header.id, &entries)?;
    shared.metrics.segments_sealed.add(1);
    shared.metrics.bytes_sealed.add(len);
    let mut state = tenant.state.write();
    admit_segment(&mut state, &header, &entries);
    let sealed: Vec<u64> = streams.values().flatten().map(|b| b.leaf_index).collect();
    for leaf in sealed {
        if let Some(batch) = state.open.remove(&leaf)
            && batch.flags & FLAG_FORK == 0
            && let Some(stream) = state.streams.get_mut(&batch.stream)
        {
            stream.open.remove(&batch.batch_number);
        }
    }
    Ok(())
}

/// Makes a segment's blocks known to memory: streams, forks and the segment itself.
pub(crate) fn admit_segment(state: &mut TenantState, header: &Header, entries: &[BlockEntry]) {
    let Some(meta) = meta_of(header, entries) else { return };
    for entry in entries {
        let stream = state
            .streams
            .entry(entry.stream.clone())
            .or_insert_with(|| crate::tenant::StreamState::new(entry.host.clone()));
        stream.last_received_at = stream.last_received_at.max(entry.received_max);
        stream.forks.extend(entry.forks.iter().copied());
        if entry.is_fork() {
            continue;
        }
        let run = SealedRun { last_number: entry.last_number, segment: header.number, block: entry.block };
        stream.sealed.insert(entry.first_number, run);
        if entry.last_number > stream.head.batch_number {
            stream.head = activity_schema::uplink::StreamHead {
                batch_number: entry.last_number,
                last_sequence: entry.last_sequence,
                batch_hash: entry.last_hash,
            };
        }
    }
    state.segments.insert(header.number, meta);
}

fn seal_stream(
    shared: &Shared,
    tenant: &Tenant,
    writer: &mut SegmentWriter<'_>,
    keys: &FileKeys<'_>,
    batches: &[Arc<OpenBatch>],
) -> Result<(), SealError> {
    let mut builder = BlockBuilder::default();
    let mut gathered: Vec<(Arc<OpenBatch>, Vec<String>)> = Vec::new();
    for open in batches {
        let packed = shared.read_packed(tenant, open)?;
        let instances = match &open.instances {
            Some(known) => known.to_vec(),
            None => {
                let read = packed.unpack();
                instances_of(&read.map_err(|source| ReadError::Record { leaf: open.leaf_index, source })?)
            }
        };
        builder.push_packed(&packed)?;
        gathered.push((Arc::clone(open), instances));
        if builder.raw_bytes() >= BLOCK_RAW_BYTES {
            put_block(shared, tenant, writer, keys, &mut builder, &mut gathered)?;
        }
    }
    if builder.is_empty() {
        return Ok(());
    }
    put_block(shared, tenant, writer, keys, &mut builder, &mut gathered)
}

/// Every instance that a batch's lines name.
fn instances_of(batch: &StoredBatch) -> Vec<String> {
    let mut instances: BTreeSet<String> = BTreeSet::new();
    let mut last: &[u8] = b"";
    for line in batch.all_lines() {
        let StoredLine::Line(line) = line else { continue };
        let instance = instance_text(line);
        if instance == Some(last) && !last.is_empty() {
            continue;
        }
        if let Ok(event) = Event::parse(line) {
            last = instance.unwrap_or_default();
            instances.insert(event.correlation.instance_id.as_str().to_owned());
        }
    }
    instances.into_iter().collect()
}

/// The raw bytes after `"instance_id":"`, only to see cheaply that a line names the same instance as the line before.
fn instance_text(line: &[u8]) -> Option<&[u8]> {
    const KEY: &[u8] = b"\"instance_id\":\"";
    let start = memchr::memmem::find(line, KEY)? + KEY.len();
    let len = memchr::memchr2(b'"', b'\\', &line[start..])?;
    (line[start + len] == b'"').then(|| &line[start..start + len])
}

fn put_block(
    shared: &Shared,
    tenant: &Tenant,
    writer: &mut SegmentWriter<'_>,
    keys: &FileKeys<'_>,
    builder: &mut BlockBuilder,
    gathered: &mut Vec<(Arc<OpenBatch>, Vec<String>)>,
) -> Result<(), SealError> {
    let payload = builder.finish(&shared.env, keys, &tenant.id)?;
    let gathered = std::mem::take(gathered);
    if let Some(entry) = entry_of(&gathered) {
        writer.block(&payload, entry)?;
    }
    Ok(())
}

fn entry_of(gathered: &[(Arc<OpenBatch>, Vec<String>)]) -> Option<BlockEntry> {
    let ((first, _), (last, _)) = (gathered.first()?, gathered.last()?);
    let mut summary = first.summary;
    gathered.iter().skip(1).for_each(|(open, _)| summary.merge(&open.summary));
    let mut terms: Vec<u64> = gathered.iter().flat_map(|(open, _)| open.terms.iter().copied()).collect();
    terms.sort_unstable();
    terms.dedup();
    let mut instances: Vec<String> = gathered.iter().flat_map(|(_, own)| own.iter().cloned()).collect();
    instances.sort_unstable();
    instances.dedup();
    let fork = first.flags & FLAG_FORK != 0;
    let forks = gathered
        .iter()
        .filter(|_| fork)
        .map(|(open, _)| (open.hash, Stored { leaf_index: open.leaf_index, received_at: open.received_at }));
    let telemetry = gathered.iter().any(|(open, _)| open.telemetry);
    Some(BlockEntry {
        summary,
        first_leaf: first.leaf_index,
        last_leaf: last.leaf_index,
        filter: Filter::build(&terms),
        offset: 0,
        len: 0,
        block: 0,
        stream: first.stream.clone(),
        host: first.host.clone(),
        flags: (if fork { ENTRY_FORK } else { 0 }) | (if telemetry { ENTRY_TELEMETRY } else { 0 }),
        first_number: first.batch_number,
        last_number: last.batch_number,
        last_sequence: last.last_sequence,
        last_hash: last.hash,
        received_min: first.received_at,
        received_max: last.received_at,
        instances,
        forks: forks.collect(),
        batches: gathered.len() as u64,
        segment_terms: terms.into_iter().filter(|term| is_of_segments(*term)).collect(),
    })
}
