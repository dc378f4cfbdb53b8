//! Opens what a store left behind, however it ended: checks, repairs what a crash explains, reports the rest.
//!
//! - Segments are indexed unless the index has them; their blocks give streams and heads.
//! - Commit frames that no segment holds become open batches again. Frames after the last whole group of the newest
//!   file were never acknowledged, unless the tenant's log has their leaf; they are cut off.
//! - The log's leaves are brought in line with the batches that are stored.
//! - Coverage starts from its snapshot and hears of everything newer again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use activity_schema::catalog;
use activity_schema::ids::TenantId;
use activity_schema::{BatchHeader, Event, Hash, merkle};

use crate::block_entry::BlockEntry;
use crate::commit::{CommitFile, CommitWriter, FoundBatch, commit_path};
use crate::coverage::{Files, Seen, is_heard, may_be_heard};
use crate::frame::{Found, Kind, Scan};
use crate::log::{read_leaves, repair_leaves};
use crate::record::{Clear, FLAG_FORK, StoredBatch, StoredLine, read_batch};
use crate::sealer::admit_segment;
use crate::segment::{self, Header as SegmentHeader, SegmentError};
use crate::snapshot::load_coverage;
use crate::store::{OpenError, Shared, keys_lost};
use crate::summary::Summary;
use crate::tenant::{OpenBatch, StreamState, Tenant, few, holds_evidence, open_tenant, tenant_dir};
use crate::terms::TermSet;
use crate::wire::Reader;

/// What recovery leaves to do.
pub(crate) struct Recovered {
    /// Begins the next commit file.
    pub writer: CommitWriter,
    /// Commit files to seal, oldest first.
    pub ended: Vec<u64>,
    pub findings: Vec<String>,
}

pub(crate) fn recover(shared: &Shared) -> Result<Recovered, OpenError> {
    let mut recovery = Recovery {
        shared,
        findings: Vec::new(),
        stored: BTreeMap::new(),
        next_number: 1,
        sealed_meanwhile: Vec::new(),
    };
    for id in tenant_ids(shared)? {
        recovery.segments(&id)?;
    }
    let (ended, previous) = recovery.commit_files()?;
    recovery.sealed_meanwhile()?;
    recovery.logs()?;
    let control = shared.control.lock();
    for (tenant, collector, receipt) in control.unknown_receipts() {
        if let Some(tenant) = shared.tenant(tenant) {
            tenant.state.write().coverage.unknown_receipt(collector, receipt);
        }
    }
    for ((tenant, collector), at) in control.refused() {
        if let Some(tenant) = shared.tenant(tenant) {
            tenant.state.write().coverage.revoke(collector, Some(*at));
        }
    }
    drop(control);
    let number = recovery.next_number;
    Ok(Recovered {
        writer: CommitWriter::new(&shared.env, &shared.commit_dir(), number, previous),
        ended,
        findings: recovery.findings,
    })
}

fn tenant_ids(shared: &Shared) -> Result<Vec<TenantId>, OpenError> {
    let dir = shared.config.dir.join("tenants");
    let names = shared.env.storage.list(&dir).map_err(|source| OpenError::Io { path: dir, source })?;
    Ok(names.into_iter().filter_map(|name| TenantId::new(name).ok()).collect())
}

/// Ending of the name under which the damaged end of a commit file is kept as evidence.
pub(crate) const TAIL: &str = "tail";

struct Recovery<'a> {
    shared: &'a Shared,
    findings: Vec<String>,
    /// Leaf hashes of the batches in the commit log, by tenant and index.
    stored: BTreeMap<TenantId, BTreeMap<u64, Hash>>,
    next_number: u64,
    /// Commit files that went away between their listing and their reading.
    sealed_meanwhile: Vec<u64>,
}

impl Recovery<'_> {
    fn found(&mut self, finding: String) {
        tracing::warn!(finding, "recovery");
        self.findings.push(finding);
    }

    fn segments(&mut self, id: &TenantId) -> Result<(), OpenError> {
        let shared = self.shared;
        let dir = tenant_dir(&shared.config.dir, id);
        if shared.read_only && shared.keyring.head_key(id).is_err() {
            // Otherwise it is the name of a crashed tenant creation: no key, nothing stored.
            if holds_evidence(&shared.env, &dir)? {
                shared.keyless.lock().insert(id.clone());
                self.found(keys_lost(id));
            }
            return Ok(());
        }
        let tenant = shared.make_tenant(id)?;
        // Before the segments are listed: it must not have heard of one that is not in the list.
        let snapshot = load_coverage(shared, &tenant);
        let segments = dir.join("segments");
        let numbers = shared
            .env
            .storage
            .numbered(&segments, "seg")
            .map_err(|source| OpenError::Io { path: segments.clone(), source })?;
        for number in numbers {
            self.next_number = self.next_number.max(number + 1);
            self.admit(&tenant, number);
        }
        self.coverage_of_segments(&tenant, snapshot);
        Ok(())
    }

    fn is_keyless(&self, id: &TenantId) -> bool {
        self.shared.keyless.lock().contains(id)
    }

    fn admit(&mut self, tenant: &Tenant, number: u64) {
        match self.segment(tenant, number) {
            Ok((header, entries)) => {
                let mut state = tenant.state.write();
                admit_segment(&mut state, &header, &entries);
                let last = entries.iter().map(|e| e.received_max).max();
                state.last_received_at = state.last_received_at.max(last);
            }
            Err(error) => self.found(format!("tenants/{}/segments/{number:020}.seg: {error}", tenant.id)),
        }
    }

    /// Takes the segments of commit files that a running gateway sealed after the segments were listed.
    fn sealed_meanwhile(&mut self) -> Result<(), OpenError> {
        let numbers = std::mem::take(&mut self.sealed_meanwhile);
        if numbers.is_empty() {
            return Ok(());
        }
        for id in tenant_ids(self.shared)? {
            if self.is_keyless(&id) {
                continue;
            }
            let tenant = self.shared.make_tenant(&id)?;
            for number in &numbers {
                if self.shared.env.storage.len(&segment::segment_path(&tenant.dir, *number)).is_ok() {
                    self.admit(&tenant, *number);
                    let meta = tenant.state.read().segments.get(number).cloned();
                    meta.iter().for_each(|meta| self.shared.cover_segment(&tenant, meta));
                }
            }
        }
        Ok(())
    }

    /// A segment's entries: from the index, from its footer, or from its blocks.
    fn segment(
        &mut self,
        tenant: &Tenant,
        number: u64,
    ) -> Result<(SegmentHeader, Vec<BlockEntry>), SegmentError> {
        let shared = self.shared;
        let path = segment::segment_path(&tenant.dir, number);
        let head = shared.env.storage.read_at(&path, 0, segment::HEADER_BYTES)?;
        let header = SegmentHeader::read(&head).map_err(|_| SegmentError::Header)?;
        if shared.index.has_segment(&tenant.id, number, &header.id) {
            return Ok((header, shared.index.entries(&tenant.id, number)));
        }
        let key = tenant.keys.head_of(&header.id);
        let storage = &*shared.env.storage;
        let entries = match segment::read_footer(storage, &path, &tenant.id, &header, &key) {
            Err(SegmentError::Footer) => {
                self.found(format!(
                    "tenants/{}/segments/{number:020}.seg: the footer is damaged; its blocks are read instead",
                    tenant.id
                ));
                crate::rebuild::entries_of_blocks(&storage.read(&path)?, tenant, &header)
            }
            other => other?,
        };
        if let Err(error) = shared.index.put_segment(&tenant.id, number, &header.id, &entries) {
            tracing::error!(%error, "the index does not take a segment");
        }
        Ok((header, entries))
    }

    /// Commit files that hold open batches, and what the next file follows.
    fn commit_files(&mut self) -> Result<(Vec<u64>, (u64, u64)), OpenError> {
        let shared = self.shared;
        let dir = shared.commit_dir();
        let at = |path: &std::path::Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { path, source }
        };
        let numbers = shared.env.storage.numbered(&dir, "log").map_err(at(&dir))?;
        // Newest first: each header says how far the file before it counts.
        let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
        let mut void: BTreeSet<u64> = BTreeSet::new();
        let mut files = Vec::new();
        for number in numbers.iter().rev() {
            self.next_number = self.next_number.max(number + 1);
            let path = commit_path(&dir, *number);
            if void.contains(number) {
                self.remove(&path)?;
                continue;
            }
            let bytes = match shared.env.storage.read(&path) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    self.sealed_meanwhile.push(*number);
                    continue;
                }
                Err(e) => return Err(at(&path)(e)),
            };
            match CommitFile::scan(bytes, counted.get(number).copied()) {
                Ok(file) => {
                    counted.insert(file.header.previous, file.header.previous_len);
                    void.extend(numbers.iter().filter(|n| **n > file.header.previous && *n < number));
                    files.push(file);
                }
                Err(_) => self.headless(*number, files.is_empty(), &path)?,
            }
        }
        files.reverse();
        let newest = files.last().map(|f| f.header.number);
        let (mut ended, mut previous) = (Vec::new(), (0, 0));
        for file in files {
            let number = file.header.number;
            let len = self.commit_file(&file, Some(number) == newest)?;
            if len == crate::commit::HEADER_BYTES as u64 && file.damaged.is_empty() {
                self.remove(&commit_path(&dir, number))?;
                continue;
            }
            previous = (number, len);
            ended.push(number);
        }
        Ok((ended, previous))
    }

    /// A commit file without a readable header: nothing in it opens. With no good file after it, it is what a crash
    /// before its first fsync leaves, unless a log has a batch of it.
    fn headless(&mut self, number: u64, newest: bool, path: &std::path::Path) -> Result<(), OpenError> {
        let bytes = self.shared.env.storage.read(path);
        let bytes = bytes.map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        let mut acknowledged = false;
        for found in Scan::new(&bytes, crate::commit::HEADER_BYTES) {
            let Found::Frame { kind: Kind::Batch, payload, .. } = found else { continue };
            let Ok(clear) = Clear::read(&mut Reader::new(payload)) else { continue };
            if self.is_keyless(&clear.tenant) {
                continue;
            }
            let tenant = self.shared.make_tenant(&clear.tenant)?;
            acknowledged |= self.is_logged(&tenant, clear.leaf_index, merkle::leaf_hash(&clear.batch_hash.0));
        }
        if newest && !acknowledged {
            return self.remove(path);
        }
        self.found(format!(
            "commit/{number:020}.log: both copies of the header are damaged; nothing in it opens"
        ));
        self.shared.damaged_files.lock().insert(number);
        if self.shared.read_only {
            return Ok(());
        }
        crate::sealer::retire(self.shared, number)
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })
    }

    fn remove(&self, path: &std::path::Path) -> Result<(), OpenError> {
        if self.shared.read_only {
            return Ok(());
        }
        match self.shared.env.storage.remove(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(OpenError::Io { path: path.to_owned(), source })
            }
            _ => Ok(()),
        }
    }

    /// Takes the batches of one file; returns the length that counts.
    fn commit_file(&mut self, file: &CommitFile, newest: bool) -> Result<u64, OpenError> {
        let number = file.header.number;
        let mut unacknowledged = 0u64;
        let mut end = file.grouped_len;
        for batch in &file.batches {
            let payload = file.payload(batch);
            let Ok(clear) = Clear::read(&mut Reader::new(payload)) else {
                self.found(format!("commit/{number:020}.log: the frame at {} is no batch", batch.offset));
                self.shared.damaged_files.lock().insert(number);
                continue;
            };
            if self.is_keyless(&clear.tenant) {
                continue;
            }
            let tenant = self.shared.make_tenant(&clear.tenant)?;
            let leaf = merkle::leaf_hash(&clear.batch_hash.0);
            if batch.unfinished && newest && !self.is_logged(&tenant, clear.leaf_index, leaf) {
                unacknowledged += 1;
                continue;
            }
            end = end.max(batch.end as u64);
            self.stored.entry(clear.tenant.clone()).or_default().insert(clear.leaf_index, leaf);
            if tenant.state.read().segments.contains_key(&number) {
                continue;
            }
            if let Err(error) = self.open_batch(file, batch, &tenant, payload) {
                self.found(format!(
                    "commit/{number:020}.log: leaf {} of tenant {}: {error}",
                    clear.leaf_index, clear.tenant
                ));
                self.shared.damaged_files.lock().insert(number);
            }
        }
        self.report_damage(file, newest, end, unacknowledged)?;
        Ok(end)
    }

    fn report_damage(
        &mut self,
        file: &CommitFile,
        newest: bool,
        end: u64,
        unacknowledged: u64,
    ) -> Result<(), OpenError> {
        let number = file.header.number;
        let inside = file.damaged.iter().filter(|(offset, _)| *offset < end).copied().collect::<Vec<_>>();
        for (offset, len) in &inside {
            self.shared.metrics.frames_damaged.add(1);
            self.found(format!("commit/{number:020}.log: {len} damaged bytes at {offset}"));
        }
        if !inside.is_empty() {
            self.shared.damaged_files.lock().insert(number);
        }
        let tail = (file.bytes.len() as u64).saturating_sub(end);
        if newest && tail > 0 {
            self.shared.metrics.tail_bytes_truncated.add(tail);
            let lost = self.lost_leaves();
            if lost == 0 {
                self.found(format!(
                    "commit/{number:020}.log: {tail} bytes of an unfinished group at the end ({unacknowledged} whole batches, never acknowledged) are cut off"
                ));
            } else {
                self.keep_tail(file, end)?;
                self.found(format!(
                    "commit/{number:020}.log: {tail} bytes at the end are no whole group, and {lost} batches of the logs are in no file: they were acknowledged, and are damaged; the bytes are kept as commit/{number:020}.{TAIL}"
                ));
            }
            if !self.shared.read_only {
                let path = commit_path(&self.shared.commit_dir(), number);
                let storage = &self.shared.env.storage;
                storage
                    .truncate(&path, end)
                    .and_then(|()| storage.sync(&path))
                    .map_err(|source| OpenError::Io { path, source })?;
            }
        }
        Ok(())
    }

    /// Leaves of all logs whose batches no file holds. A leaf is written after its batch is durable: no crash explains one.
    fn lost_leaves(&self) -> u64 {
        let lost = self.shared.all_tenants().into_iter().map(|tenant| {
            let logged = tenant.log.lock().size();
            let state = tenant.state.read();
            let held = state.segments.values().map(|s| s.batches).sum::<u64>() + state.open.len() as u64;
            logged.saturating_sub(held)
        });
        lost.sum()
    }

    /// Keeps what stands behind the last whole group of a file before it is cut off.
    fn keep_tail(&self, file: &CommitFile, end: u64) -> Result<(), OpenError> {
        if self.shared.read_only {
            return Ok(());
        }
        let path = commit_path(&self.shared.commit_dir(), file.header.number).with_extension(TAIL);
        let tail = &file.bytes[usize::try_from(end).unwrap_or(0)..];
        self.shared.env.storage.replace(&path, tail).map_err(|source| OpenError::Io { path, source })
    }

    fn is_logged(&self, tenant: &Tenant, index: u64, leaf: Hash) -> bool {
        let log = tenant.log.lock();
        index < log.size() && log.leaf_at(&self.shared.env, index).is_ok_and(|stored| stored == leaf)
    }

    fn open_batch(
        &self,
        file: &CommitFile,
        found: &FoundBatch,
        tenant: &Tenant,
        payload: &[u8],
    ) -> Result<(), SegmentError> {
        let batch = read_batch(payload, &tenant.keys.of_file(&file.header.id))?;
        let header = BatchHeader::parse(&batch.header_bytes).map_err(|_| crate::wire::WireError)?;
        let facts = facts_of(&batch, &header, tenant);
        let open = OpenBatch {
            file: file.header.number,
            file_id: file.header.id,
            offset: found.start as u64,
            len: found.end - found.start,
            leaf_index: batch.leaf_index,
            received_at: batch.received_at,
            hash: batch.batch_hash,
            flags: batch.flags,
            stream: header.stream(),
            batch_number: header.batch_number,
            last_sequence: header.last_sequence,
            host: header.host.clone(),
            summary: facts.summary,
            terms: facts.terms,
            instances: few(facts.instances.clone()),
            telemetry: !facts.telemetry.is_empty(),
        };
        let mut state = tenant.state.write();
        state.last_received_at = state.last_received_at.max(Some(batch.received_at));
        state.coverage.batch(&Seen {
            header: &header,
            received_at: batch.received_at,
            flags: batch.flags,
            elided: &batch.elided,
            instances: &facts.instances,
        });
        if batch.flags & FLAG_FORK == 0 {
            facts.telemetry.iter().for_each(|line| state.coverage.telemetry(line));
        }
        let stream =
            state.streams.entry(open.stream.clone()).or_insert_with(|| StreamState::new(header.host.clone()));
        stream.admit(&open, &header, batch.flags & FLAG_FORK != 0);
        state.open.insert(open.leaf_index, Arc::new(open));
        Ok(())
    }

    /// Brings every tenant's leaves in line with what is stored.
    fn logs(&mut self) -> Result<(), OpenError> {
        for tenant in self.shared.all_tenants() {
            let stored = self.stored.remove(&tenant.id).unwrap_or_default();
            if tenant.log.lock().checkpoints_lost {
                self.found(format!(
                    "tenants/{}/log/checkpoints: no checkpoint, though batches were acknowledged",
                    tenant.id
                ));
            }
            let dir = tenant.dir.join("log");
            let io = |source| OpenError::Io { path: dir.clone(), source };
            if !self.shared.read_only {
                let rewritten = repair_leaves(&self.shared.env, &dir, &stored).map_err(io)?;
                if rewritten > 0 {
                    tracing::info!(tenant = %tenant.id, rewritten, "leaves brought up to the commit log");
                }
                tenant.log.lock().reload(&self.shared.env).map_err(io)?;
            }
            let size = read_leaves(&self.shared.env, &dir).map_err(io)?.len() as u64;
            let known = stored.keys().next_back().map_or(0, |last| last + 1);
            // A reader's log is as long as it was before the files were listed: what came later may not be in them.
            let logged = tenant.log.lock().size();
            let mut state = tenant.state.write();
            state.log_size = size.max(known);
            let held = state.segments.values().map(|s| s.batches).sum::<u64>() + state.open.len() as u64;
            state.missing = logged.saturating_sub(held);
        }
        Ok(())
    }

    fn coverage_of_segments(&self, tenant: &Tenant, snapshot: Option<Vec<u8>>) {
        let mut state = tenant.state.write();
        let segments: Vec<_> = state.segments.values().cloned().collect();
        let files: Files = segments.iter().map(|s| (s.number, s.file_id)).collect();
        let heard = state.coverage.restore(snapshot.as_deref(), &files);
        drop(state);
        for meta in segments.into_iter().filter(|s| !heard.contains_key(&s.number)) {
            self.shared.cover_segment(tenant, &meta);
        }
    }
}

/// What memory keeps of a batch, found again from its lines.
pub(crate) struct BatchFacts {
    pub summary: Summary,
    pub terms: Box<[u64]>,
    pub instances: Vec<String>,
    pub telemetry: Vec<Vec<u8>>,
}

pub(crate) fn facts_of(batch: &StoredBatch, header: &BatchHeader, tenant: &Tenant) -> BatchFacts {
    let mut summary = Summary::empty(header.occurred_min, header.occurred_max);
    let mut terms = TermSet::new(&tenant.keys.terms);
    let mut instances = BTreeSet::new();
    let mut telemetry = Vec::new();
    for line in batch.all_lines() {
        let StoredLine::Line(line) = line else { continue };
        let Ok(event) = Event::parse(line) else { continue };
        summary.add(&event);
        terms.add(&event, catalog::row(&event.event_name));
        if !instances.contains(event.correlation.instance_id.as_str()) {
            instances.insert(event.correlation.instance_id.as_str().to_owned());
        }
        if is_heard(&event.event_name) {
            telemetry.push(line.to_vec());
        }
    }
    BatchFacts { summary, terms: terms.finish(), instances: instances.into_iter().collect(), telemetry }
}

impl Shared {
    /// The tenant, opened on first sight.
    pub(crate) fn make_tenant(&self, id: &TenantId) -> Result<Arc<Tenant>, OpenError> {
        if let Some(tenant) = self.tenant(id) {
            return Ok(tenant);
        }
        let mut tenants = self.tenants.write();
        if let Some(tenant) = tenants.get(id) {
            return Ok(Arc::clone(tenant));
        }
        let tenant = open_tenant(&self.env, &self.config.dir, id, &self.keyring, self.read_only)?;
        if !self.read_only {
            let begun = tenant.log.lock().begin(&self.env, self.signer());
            begun.map_err(|source| OpenError::Io {
                path: tenant.dir.join("log").join("checkpoints"),
                source,
            })?;
        }
        let tenant = Arc::new(tenant);
        tenants.insert(id.clone(), Arc::clone(&tenant));
        Ok(tenant)
    }

    /// Tells coverage of everything in a segment.
    pub(crate) fn cover_segment(&self, tenant: &Tenant, meta: &crate::tenant::SegmentMeta) {
        for entry in self.index.entries(&tenant.id, meta.number) {
            let block = entry.place(meta);
            match self.read_block(tenant, &block) {
                Ok(batches) => cover_block(tenant, &entry, &batches),
                Err(error) => tracing::error!(%error, "coverage misses a block"),
            }
        }
    }
}

fn cover_block(tenant: &Tenant, entry: &BlockEntry, batches: &[StoredBatch]) {
    let mut state = tenant.state.write();
    for batch in batches {
        let Ok(header) = BatchHeader::parse(&batch.header_bytes) else { continue };
        state.coverage.batch(&Seen {
            header: &header,
            received_at: batch.received_at,
            flags: batch.flags,
            elided: &batch.elided,
            instances: &entry.instances,
        });
        if !entry.has_telemetry() || entry.is_fork() {
            continue;
        }
        for line in batch.all_lines() {
            if let StoredLine::Line(line) = line
                && may_be_heard(line)
            {
                state.coverage.telemetry(line);
            }
        }
    }
}
