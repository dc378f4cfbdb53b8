//! Removes lines and keeps what proves the rest: a line is replaced by its leaf hash, so that header, signature,
//! Merkle root and log stay provable. The decision is in the control journal before anything is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use activity_schema::event::Retention;
use activity_schema::ids::TenantId;
use activity_schema::{BatchHeader, merkle};

use crate::block::{BlockBuilder, BlockError};
use crate::control::{ControlError, ControlRecord};
use crate::coverage::Seen;
use crate::keyring::{KeyringError, day_text};
use crate::matcher::QueryError;
use crate::reader::ReadError;
use crate::rebuild::entry_of;
use crate::record::{Elided, Place, SectionId, StoredBatch};
use crate::sealer::admit_segment;
use crate::segment::SegmentWriter;
use crate::store::{Shared, Store};
use crate::tenant::{SegmentMeta, Tenant};
use crate::types::Query;

/// How long the sealing of open batches may take before an elision gives up.
const SEAL_WAIT: Duration = Duration::from_secs(60);

/// Which lines to remove.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one a call")]
pub enum Selector {
    /// Leaf index of the batch and position in it.
    Lines(Vec<(u64, u32)>),
    /// Everything that the query matches.
    Matching(Query),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ElideReport {
    pub lines: u64,
    pub batches: u64,
    pub segments: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ElideError {
    #[error("the store is open for reading only")]
    ReadOnly,
    #[error("open batches could not be sealed in time")]
    NotSealed,
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("the decision is not in the control journal")]
    Control(#[from] ControlError),
    #[error("rewriting segment {segment}")]
    Rewrite {
        segment: u64,
        #[source]
        source: RewriteError,
    },
    #[error(transparent)]
    Key(#[from] KeyringError),
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RewriteError(Rewrite);

#[derive(Debug, thiserror::Error)]
enum Rewrite {
    #[error("writing")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Block(#[from] BlockError),
    #[error("a stored header does not parse")]
    Header,
    #[error("the index")]
    Index(#[from] sled::Error),
}

impl Store {
    /// Removes lines for good, keeping their leaf hashes. What is still in the commit log is sealed first.
    pub fn elide(
        &self,
        tenant: &TenantId,
        selector: &Selector,
        reason: &str,
    ) -> Result<ElideReport, ElideError> {
        let shared = self.shared();
        let Some(tenant) = shared.tenant(tenant) else { return Ok(ElideReport::default()) };
        let _one_at_a_time = shared.maintenance.lock();
        shared.seal_open(&tenant)?;
        let targets = match selector {
            Selector::Lines(lines) => by_leaf(lines.iter().copied()),
            Selector::Matching(query) => shared.matching(&tenant, query)?,
        };
        shared.elide_lines(&tenant, &targets, reason)
    }

    /// Erases one retention class of one day (days since 1970-01-01, of receipt): its lines become leaf hashes, then
    /// its key is deleted.
    pub fn expire(
        &self,
        tenant: &TenantId,
        retention: Retention,
        day: u32,
        reason: &str,
    ) -> Result<ElideReport, ElideError> {
        let shared = self.shared();
        let Some(tenant) = shared.tenant(tenant) else { return Ok(ElideReport::default()) };
        let _one_at_a_time = shared.maintenance.lock();
        shared.seal_open(&tenant)?;
        let id = SectionId { retention, day };
        let targets = shared.lines_of_section(&tenant, id);
        let report = shared.elide_lines(&tenant, &targets, reason)?;
        shared.record_control(vec![ControlRecord::KeyErased {
            tenant: tenant.id.clone(),
            retention: retention.to_string(),
            day: day_text(day),
            reason: reason.to_owned(),
        }])?;
        tenant.keys.erase(id)?;
        Ok(report)
    }
}

type Targets = BTreeMap<u64, BTreeSet<u32>>;

fn by_leaf(lines: impl Iterator<Item = (u64, u32)>) -> Targets {
    let mut targets = Targets::new();
    for (leaf, position) in lines {
        targets.entry(leaf).or_default().insert(position);
    }
    targets
}

impl Shared {
    /// Waits until nothing of the tenant that is open now is open any more.
    fn seal_open(&self, tenant: &Tenant) -> Result<(), ElideError> {
        if self.read_only {
            return Err(ElideError::ReadOnly);
        }
        let newest = tenant.state.read().open.keys().next_back().copied();
        let Some(newest) = newest else { return Ok(()) };
        self.queue.request_seal();
        let deadline = Instant::now() + SEAL_WAIT;
        while tenant.state.read().open.range(..=newest).next().is_some() {
            if Instant::now() > deadline {
                return Err(ElideError::NotSealed);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn matching(&self, tenant: &Tenant, query: &Query) -> Result<Targets, QueryError> {
        let mut query = Query { cursor: None, limit: 0, ..query.clone() };
        let mut targets = Targets::new();
        loop {
            let answer = self.query(tenant, &query)?;
            for event in &answer.events {
                targets.entry(event.leaf_index).or_default().insert(event.position);
            }
            match answer.next_cursor {
                Some(cursor) => query.cursor = Some(cursor),
                None => return Ok(targets),
            }
        }
    }

    fn lines_of_section(&self, tenant: &Tenant, id: SectionId) -> Targets {
        let segments: Vec<SegmentMeta> = tenant.state.read().segments.values().cloned().collect();
        let mut targets = Targets::new();
        for meta in segments {
            for entry in self.index.entries(&tenant.id, meta.number) {
                let Ok(batches) = self.read_block(tenant, &entry.place(&meta)) else { continue };
                for batch in &batches {
                    for (position, place) in batch.lines.iter().enumerate() {
                        let Place::Line { section, .. } = place else { continue };
                        let own = batch.sections.get(usize::from(*section)).is_some_and(|s| s.id == id);
                        if own && let Ok(position) = u32::try_from(position) {
                            targets.entry(batch.leaf_index).or_default().insert(position);
                        }
                    }
                }
            }
        }
        targets
    }

    fn elide_lines(
        &self,
        tenant: &Tenant,
        targets: &Targets,
        reason: &str,
    ) -> Result<ElideReport, ElideError> {
        let records = targets.iter().map(|(leaf_index, positions)| ControlRecord::Elided {
            tenant: tenant.id.clone(),
            leaf_index: *leaf_index,
            positions: positions.iter().copied().collect(),
            reason: reason.to_owned(),
        });
        self.record_control(records.collect())?;
        let segments: Vec<SegmentMeta> = tenant.state.read().segments.values().cloned().collect();
        let mut report = ElideReport::default();
        for meta in segments {
            let entries = self.index.entries(&tenant.id, meta.number);
            let touched = entries.iter().any(|e| targets.range(e.first_leaf..=e.last_leaf).next().is_some());
            if touched {
                let rewritten = self.rewrite(tenant, &meta, targets, reason);
                let (lines, batches) = rewritten
                    .map_err(|e| ElideError::Rewrite { segment: meta.number, source: RewriteError(e) })?;
                report.lines += lines;
                report.batches += batches;
                report.segments += u64::from(batches > 0);
            }
        }
        if report.segments > 0 {
            crate::snapshot::save_coverage(self);
        }
        Ok(report)
    }

    /// Writes a segment anew without the lines; returns lines and batches that changed.
    fn rewrite(
        &self,
        tenant: &Tenant,
        meta: &SegmentMeta,
        targets: &Targets,
        reason: &str,
    ) -> Result<(u64, u64), Rewrite> {
        let mut writer = SegmentWriter::begin(&self.env, &tenant.id, &tenant.dir, meta.number)?;
        let keys = tenant.keys.of_file(&writer.id());
        let (mut lines, mut changed) = (0, Vec::new());
        for entry in self.index.entries(&tenant.id, meta.number) {
            let mut batches = self.read_block(tenant, &entry.place(meta))?;
            let mut builder = BlockBuilder::default();
            for batch in &mut batches {
                let removed = targets.get(&batch.leaf_index).map_or(0, |at| remove_lines(batch, at, reason));
                lines += removed;
                if removed > 0 {
                    changed.push(batch.clone());
                }
                builder.push(batch);
            }
            let mut renewed = entry_of(&batches, tenant).ok_or(Rewrite::Header)?;
            // Removed lines still count as seen of their instance.
            renewed.instances = entry.instances;
            let payload = builder.finish(&self.env, &keys, &tenant.id)?;
            writer.block(&payload, renewed)?;
        }
        if changed.is_empty() {
            writer.abandon();
            return Ok((0, 0));
        }
        let (entries, header, _) = writer.finish(&keys)?;
        self.index.put_segment(&tenant.id, meta.number, &header.id, &entries)?;
        let mut state = tenant.state.write();
        admit_segment(&mut state, &header, &entries);
        for batch in &changed {
            let Ok(header) = BatchHeader::parse(&batch.header_bytes) else { continue };
            state.coverage.batch(&Seen {
                header: &header,
                received_at: batch.received_at,
                flags: batch.flags,
                elided: &batch.elided,
                instances: &[],
            });
        }
        Ok((lines, changed.len() as u64))
    }
}

/// Replaces lines by their leaf hashes; returns how many there were.
fn remove_lines(batch: &mut StoredBatch, positions: &BTreeSet<u32>, reason: &str) -> u64 {
    let mut removed = 0;
    for position in positions {
        let at = *position as usize;
        let Some(crate::record::StoredLine::Line(line)) = batch.line(at) else { continue };
        let leaf = merkle::leaf_hash(line);
        batch.elided.push(Elided { position: *position, reason: reason.to_owned(), leaf, withheld: None });
        batch.lines[at] = Place::Elided(u32::MAX);
        removed += 1;
    }
    batch.elided.sort_by_key(|e| e.position);
    for (index, elided) in batch.elided.iter().enumerate() {
        batch.lines[elided.position as usize] = Place::Elided(u32::try_from(index).unwrap_or(u32::MAX));
    }
    removed
}
