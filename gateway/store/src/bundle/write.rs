//! Makes a bundle, part by part: no more of it is in memory than one block.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use activity_schema::coverage::CoverageReport;
use activity_schema::ids::TenantId;
use activity_schema::keys::Purpose;
use activity_schema::{BatchHeader, Event, Hash};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::paths::Paths;
use super::{
    BatchRecord, Consistency, Control, End, FIRST_BYTES_MAX, FORMAT, First, LINE_BYTES_MAX, Line, Loss,
    Manifest, Run, Signature, name_of,
};
use crate::control::{ControlRecord, Signed, signed_records};
use crate::matcher::{Matcher, QueryError};
use crate::query::{Candidate, UNREADABLE_NAMED_MAX, coverage_of};
use crate::reader::ReadError;
use crate::record::{FLAG_FORK, StoredBatch, StoredLine};
use crate::store::{Shared, Store};
use crate::tenant::Tenant;
use crate::types::Query;
use activity_schema::batch::Leaf;
use activity_schema::checkpoint::Checkpoint;
use activity_schema::merkle;

/// How often the plan is made anew without a part in between, when files are sealed under it.
const PLANS_MAX: u32 = 5;

/// What goes into a bundle.
#[derive(Debug, Clone, Default)]
pub struct ExportRequest {
    /// All matches are exported: `limit`, `cursor` and `since_leaf` are not looked at.
    pub query: Query,
    /// Who asks.
    pub actor: String,
    /// Size of a checkpoint that the asker kept from before; the bundle then proves that it still holds.
    pub kept_size: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("the tenant has no evidence yet")]
    Empty,
    #[error("the log has {size} batches under its newest checkpoint, fewer than the {kept} of the kept one")]
    Kept { kept: u64, size: u64 },
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("the control journal")]
    Control(#[source] io::Error),
    #[error("the log's leaves do not read; run verify")]
    Leaves,
    #[error(
        "a line of the bundle would have {0} bytes, more than a reader takes; ask for less with --instance or --from"
    )]
    TooLong(usize),
    #[error("a part does not serialise")]
    Json(#[from] serde_json::Error),
}

impl Store {
    /// Begins a bundle of all events of a tenant that match. What arrives meanwhile is not part of it.
    pub fn export(&self, tenant: &TenantId, request: ExportRequest) -> Result<Export, ExportError> {
        let shared = Arc::clone(self.shared());
        let tenant = shared.tenant(tenant).ok_or(ExportError::Empty)?;
        Export::begin(shared, tenant, request)
    }
}

/// A bundle that is being made. Ask for its parts until there are no more.
pub struct Export {
    shared: Arc<Shared>,
    tenant: Arc<Tenant>,
    matcher: Matcher,
    /// Of the log, when the question was asked.
    log_size: u64,
    paths: Paths,
    /// Enrolments and revocations of the tenant.
    signed: Vec<Signed>,
    /// Sequences of those that are in the bundle.
    stated: BTreeSet<u64>,
    /// `None` before the first part.
    plan: Option<VecDeque<Candidate>>,
    plans: u32,
    /// Batches that are done, a bit each.
    done: Vec<u64>,
    first: Option<Vec<u8>>,
    digest: Sha256,
    end: Option<End>,
}

impl Export {
    pub(crate) fn begin(
        shared: Arc<Shared>,
        tenant: Arc<Tenant>,
        request: ExportRequest,
    ) -> Result<Self, ExportError> {
        let query = Query { limit: 0, cursor: None, since_leaf: None, ..request.query };
        let matcher = Matcher::new(&query, &tenant.keys.terms)?;
        // Before the end of the log is looked up: what it vouches for lies below that end.
        let coverage = shared.coverage(&tenant, &coverage_of(&query));
        let log_size = tenant.state.read().log_size;
        let checkpoint = shared.checkpoint_for_export(&tenant, log_size);
        let signed_size =
            checkpoint.as_deref().and_then(|note| Checkpoint::parse(note).ok()).map_or(0, |c| c.size);
        let mut leaves = shared.leaves(&tenant).ok_or(ExportError::Leaves)?;
        leaves.truncate(usize::try_from(signed_size).unwrap_or(usize::MAX));
        let consistency = request.kept_size.map(|kept| consistency(&leaves, kept)).transpose()?;
        let manifest = Manifest {
            actor: request.actor,
            checkpoint,
            clock_error_ns_max: clock_error(&coverage),
            consistency,
            loss: Loss::of(&coverage),
            coverage,
            gateway_key: shared.meta.gateway_key,
            log_id: tenant.log.lock().origin().to_owned(),
            log_size,
            made_at: shared.env.now(),
            query,
            signed: shared.signer.is_some(),
            store_id: shared.meta.store_id.clone(),
            tenant: tenant.id.clone(),
        };
        let first = line(&First { bundle: FORMAT.to_owned(), manifest }, FIRST_BYTES_MAX)?;
        let of_tenant = |record: &ControlRecord| match record {
            ControlRecord::Enrolled(enrolment) => enrolment.tenant == tenant.id,
            ControlRecord::Revoked(revocation) => revocation.tenant == tenant.id,
            _ => false,
        };
        let control = shared.config.dir.join("control");
        let signed = signed_records(&shared.env, &control, shared.meta.gateway_key, of_tenant);
        Ok(Export {
            signed: signed.map_err(ExportError::Control)?,
            stated: BTreeSet::new(),
            matcher,
            log_size,
            paths: Paths::new(leaves),
            plan: None,
            plans: 0,
            done: vec![0; usize::try_from(log_size / 64 + 1).unwrap_or(usize::MAX)],
            first: Some(first),
            digest: Sha256::new(),
            end: Some(End {
                after: None,
                batches: 0,
                damaged: 0,
                erased_lines: 0,
                events: 0,
                sha256: Hash::default(),
                signature: None,
                unreadable: Vec::new(),
            }),
            shared,
            tenant,
        })
    }

    /// The next bytes of the bundle, which may be none of them yet; `None` after the last.
    pub fn next_part(&mut self) -> Result<Option<Bytes>, ExportError> {
        let Some(mut end) = self.end.take() else { return Ok(None) };
        let part = match self.first.take() {
            Some(first) => first,
            None => match self.next_candidate(&mut end) {
                Some(candidate) => self.candidate(&candidate, &mut end)?,
                None => return self.finish(end).map(Some),
            },
        };
        self.digest.update(&part);
        self.end = Some(end);
        Ok(Some(part.into()))
    }

    fn next_candidate(&mut self, end: &mut End) -> Option<Candidate> {
        if self.plan.is_none() {
            let missing = self.shared.missing(&self.tenant);
            end.damaged = missing.as_ref().map_or(0, |(count, _)| *count);
            end.unreadable.extend(missing.map(|(_, what)| what));
        }
        let (shared, tenant, matcher) = (&self.shared, &self.tenant, &self.matcher);
        self.plan.get_or_insert_with(|| shared.plan(tenant, matcher, &(0..self.log_size)).into()).pop_front()
    }

    fn candidate(&mut self, candidate: &Candidate, end: &mut End) -> Result<Vec<u8>, ExportError> {
        let read = match candidate {
            Candidate::Open(batch) => self.shared.read_open(&self.tenant, batch).map(|b| vec![b]),
            Candidate::Block(block) => self.shared.read_block(&self.tenant, block),
        };
        let batches = match read {
            Ok(batches) => batches,
            Err(ReadError::Gone) if self.plans < PLANS_MAX => {
                self.plans += 1;
                self.plan = Some(self.shared.plan(&self.tenant, &self.matcher, &(0..self.log_size)).into());
                return Ok(Vec::new());
            }
            Err(ReadError::Gone) => return Err(QueryError::Busy.into()),
            Err(error) => {
                tracing::warn!(%error, tenant = %self.tenant.id, "evidence does not read; run verify");
                damaged(end, candidate.name(&self.tenant));
                return Ok(Vec::new());
            }
        };
        self.plans = 0;
        let mut part = Vec::new();
        for batch in &batches {
            if batch.leaf_index < self.log_size && self.is_new(batch.leaf_index) {
                self.batch(batch, end, &mut part)?;
            }
        }
        Ok(part)
    }

    /// Marks a batch as done; false when it was.
    fn is_new(&mut self, leaf: u64) -> bool {
        let word = usize::try_from(leaf / 64).ok().and_then(|at| self.done.get_mut(at));
        let Some(word) = word else { return false };
        let bit = 1 << (leaf % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Appends a batch, when it holds a match.
    fn batch(&mut self, batch: &StoredBatch, end: &mut End, part: &mut Vec<u8>) -> Result<(), ExportError> {
        let (mut places, mut lines, mut erased) = (Vec::new(), Vec::new(), 0);
        for stored in batch.all_lines() {
            match stored {
                StoredLine::Line(line) if self.matches(line) => {
                    lines.push(line);
                    put_place(&mut places, Run::Lines(1));
                }
                StoredLine::Line(line) => put_place(&mut places, Run::Hashes(vec![Leaf::Line(line).hash()])),
                StoredLine::Elided(elided) => put_place(&mut places, Run::Hashes(vec![elided.leaf])),
                StoredLine::Erased => {
                    erased += 1;
                    put_place(&mut places, Run::Erased(1));
                }
            }
        }
        end.erased_lines += erased;
        if lines.is_empty() {
            return Ok(());
        }
        let (text, parsed) =
            (std::str::from_utf8(&batch.header_bytes), BatchHeader::parse(&batch.header_bytes));
        let (Ok(header), Ok(parsed)) = (text, parsed) else {
            damaged(end, format!("the header of the batch at leaf {}", batch.leaf_index));
            return Ok(());
        };
        self.state_key(&parsed, part)?;
        end.batches += 1;
        end.events += lines.len() as u64;
        let record = BatchRecord {
            after: end.after.replace(name_of(&parsed, batch.leaf_index)),
            fork: batch.flags & FLAG_FORK != 0,
            header: header.to_owned(),
            leaf_index: batch.leaf_index,
            number: end.batches,
            path: self.paths.path(batch.leaf_index),
            places,
            receipt: batch.receipt_signature,
            received_at: batch.received_at,
            signature: batch.signature,
        };
        part.extend(line(&Line::Batch(record), LINE_BYTES_MAX)?);
        for line in lines {
            part.extend_from_slice(line);
            part.push(b'\n');
        }
        Ok(())
    }

    fn matches(&self, line: &[u8]) -> bool {
        self.matcher.may_match_line(line)
            && Event::parse(line).is_ok_and(|event| self.matcher.matches(&event))
    }

    /// Appends what the control journal says of the key, and of its collector, and is not in the bundle yet.
    fn state_key(&mut self, header: &BatchHeader, part: &mut Vec<u8>) -> Result<(), ExportError> {
        let concerns = |record: &ControlRecord| match record {
            ControlRecord::Enrolled(e) => {
                e.collector_id == header.collector_id
                    && e.signing_key.id() == header.key_id
                    && e.epoch == header.epoch
            }
            ControlRecord::Revoked(r) => {
                r.collector_id == header.collector_id
                    && r.key_id.as_ref().is_none_or(|id| *id == header.key_id)
            }
            _ => false,
        };
        for signed in self.signed.iter().filter(|signed| concerns(&signed.entry.record)) {
            if self.stated.insert(signed.entry.sequence) {
                let control = Control { entry: signed.json.clone(), signature: signed.signature };
                part.extend(line(&Line::Control(control), LINE_BYTES_MAX)?);
            }
        }
        Ok(())
    }

    fn finish(&mut self, mut end: End) -> Result<Bytes, ExportError> {
        end.sha256 = Hash(std::mem::take(&mut self.digest).finalize().into());
        if let Some(signer) = &self.shared.signer {
            end.signature = Some(Signature(signer.sign(Purpose::Manifest, &end.statement())));
        }
        Ok(line(&Line::End(end), LINE_BYTES_MAX)?.into())
    }
}

/// Notes evidence that may hold matches and does not read.
fn damaged(end: &mut End, what: String) {
    end.damaged += 1;
    if end.unreadable.len() < UNREADABLE_NAMED_MAX {
        end.unreadable.push(what);
    }
}

/// Adds a place to the run that it continues.
fn put_place(places: &mut Vec<Run>, place: Run) {
    match (places.last_mut(), place) {
        (Some(Run::Lines(count)), Run::Lines(more)) | (Some(Run::Erased(count)), Run::Erased(more)) => {
            *count += more
        }
        (Some(Run::Hashes(hashes)), Run::Hashes(more)) => hashes.extend(more),
        (_, place) => places.push(place),
    }
}

fn consistency(leaves: &[Hash], kept: u64) -> Result<Consistency, ExportError> {
    let path = usize::try_from(kept).ok().and_then(|size| merkle::consistency_proof(leaves, size));
    let path = path.ok_or(ExportError::Kept { kept, size: leaves.len() as u64 })?;
    Ok(Consistency { path, size: kept })
}

/// `None` when an instance never declared its clock.
fn clock_error(coverage: &CoverageReport) -> Option<i64> {
    let errors: Option<Vec<i64>> = coverage.instances.iter().map(|i| i.clock_error_ns_max).collect();
    errors?.into_iter().max()
}

fn line(document: &impl serde::Serialize, bytes_max: usize) -> Result<Vec<u8>, ExportError> {
    let mut bytes = serde_json::to_vec(document)?;
    bytes.push(b'\n');
    if bytes.len() > bytes_max { Err(ExportError::TooLong(bytes.len())) } else { Ok(bytes) }
}
