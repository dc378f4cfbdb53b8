//! Answers queries: prune by summary and filter, open what may match, test each line, keep the first of the
//! order.
//!
//! Order: `occurred_at`, then leaf index, then position, so that events of a stream keep their sequence where
//! times are equal. A cursor is the place of the last event given out and the size of the log when the first page
//! was made; later batches are not part of that answer, so pages neither repeat nor skip.

use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use activity_schema::coverage::CoverageReport;
use activity_schema::{Event, Hash, Timestamp};
use bytes::Bytes;

use crate::matcher::{Matcher, QueryError};
use crate::reader::ReadError;
use crate::record::{StoredBatch, StoredLine};
use crate::segment::BlockRef;
use crate::storage::numbered_name;
use crate::store::Shared;
use crate::tenant::{OpenBatch, SegmentMeta, Tenant};
use crate::terms::Filter;
use crate::types::{Answer, CoverageQuery, LIMIT_DEFAULT, LIMIT_MAX, Query, StoredEvent};

/// How often a plan is made anew when files were sealed under it.
const PLANS_MAX: usize = 5;
/// Places of damage that an answer names; the rest is counted.
pub(crate) const UNREADABLE_NAMED_MAX: usize = 16;

/// Where an event stands in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub occurred_at: Timestamp,
    pub leaf_index: u64,
    pub position: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    log_size: u64,
    after: Place,
}

impl Cursor {
    fn to_text(self) -> String {
        let p = self.after;
        format!("{:x}.{:x}.{:x}.{:x}", self.log_size, p.occurred_at.as_nanos(), p.leaf_index, p.position)
    }

    fn parse(text: &str) -> Option<Cursor> {
        let mut parts = text.split('.');
        let mut next = || u64::from_str_radix(parts.next()?, 16).ok();
        let (log_size, at, leaf_index, position) = (next()?, next()?, next()?, next()?);
        let after = Place {
            occurred_at: Timestamp::from_nanos(at.cast_signed()),
            leaf_index,
            position: u32::try_from(position).ok()?,
        };
        parts.next().is_none().then_some(Cursor { log_size, after })
    }
}

/// What may hold matches.
pub(crate) enum Candidate {
    Open(Arc<OpenBatch>),
    Block(BlockRef),
}

impl Candidate {
    /// Where it is, for who looks for damage.
    pub(crate) fn name(&self, tenant: &Tenant) -> String {
        match self {
            Candidate::Open(batch) => {
                format!("commit/{}: batch {} of the log", numbered_name(batch.file, "log"), batch.leaf_index)
            }
            Candidate::Block(block) => {
                let file = numbered_name(block.segment, "seg");
                format!("tenants/{}/segments/{file}: block {}", tenant.id, block.block)
            }
        }
    }

    fn occurred_min(&self) -> Timestamp {
        match self {
            Candidate::Open(batch) => batch.summary.occurred_min,
            Candidate::Block(block) => block.occurred_min,
        }
    }
}

struct Hit {
    place: Place,
    event: StoredEvent,
}

impl PartialEq for Hit {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}
impl Eq for Hit {}
impl PartialOrd for Hit {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Hit {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place.cmp(&other.place)
    }
}

/// The first events of the order, no more than the limit and one (which tells that there are more).
struct Page {
    hits: BinaryHeap<Hit>,
    limit: usize,
    after: Option<Place>,
    erased_lines: u64,
    damaged: u64,
    unreadable: Vec<String>,
}

impl Page {
    fn is_full(&self) -> bool {
        self.hits.len() > self.limit
    }

    /// Whether an event at this place could still be on the page.
    fn wants(&self, place: Place) -> bool {
        self.after.is_none_or(|after| place > after)
            && !(self.is_full() && self.hits.peek().is_some_and(|last| place > last.place))
    }

    /// Whether nothing from `at` on can be on the page.
    fn is_past(&self, at: Timestamp) -> bool {
        self.is_full() && self.hits.peek().is_some_and(|last| at > last.place.occurred_at)
    }

    /// Notes evidence that may hold matches and does not read.
    fn damage(&mut self, batches: u64, what: String) {
        self.damaged += batches;
        if self.unreadable.len() < UNREADABLE_NAMED_MAX {
            self.unreadable.push(what);
        }
    }

    fn push(&mut self, hit: Hit) {
        self.hits.push(hit);
        if self.hits.len() > self.limit + 1 {
            self.hits.pop();
        }
    }
}

impl Shared {
    pub(crate) fn query(&self, tenant: &Tenant, query: &Query) -> Result<Answer, QueryError> {
        self.metrics.queries.add(1);
        let matcher = Matcher::new(query, &tenant.keys.terms)?;
        let cursor =
            query.cursor.as_deref().map(|c| Cursor::parse(c).ok_or(QueryError::Cursor)).transpose()?;
        // Before the end of the log is looked up: what it vouches for lies below that end.
        let mut coverage = self.coverage(tenant, &coverage_of(query));
        let log_size = tenant.state.read().log_size;
        let snapshot = cursor.map_or(log_size, |c| c.log_size);
        if snapshot < log_size && !self.plan(tenant, &matcher, &(snapshot..log_size)).is_empty() {
            // It vouches for more than this listing, which ends where its first page began, can hold.
            coverage.complete = false;
            coverage.reasons.push(
                "events that may be asked for came after the first page: ask again without a cursor"
                    .to_owned(),
            );
        }
        let leaves = query.since_leaf.unwrap_or(0)..snapshot;
        let limit = if query.limit == 0 { LIMIT_DEFAULT } else { query.limit.min(LIMIT_MAX) };
        for _ in 0..PLANS_MAX {
            let mut page = Page {
                hits: BinaryHeap::new(),
                limit,
                after: cursor.map(|c| c.after),
                erased_lines: 0,
                damaged: 0,
                unreadable: Vec::new(),
            };
            if self.fill(tenant, &matcher, &leaves, &mut page).is_ok() {
                return Ok(answer(coverage, page, snapshot));
            }
        }
        Err(QueryError::Busy)
    }

    fn fill(
        &self,
        tenant: &Tenant,
        matcher: &Matcher,
        leaves: &std::ops::Range<u64>,
        page: &mut Page,
    ) -> Result<(), Moved> {
        if let Some((missing, what)) = self.missing(tenant) {
            page.damage(missing, what);
        }
        for candidate in self.plan(tenant, matcher, leaves) {
            if page.is_past(candidate.occurred_min()) {
                break;
            }
            self.metrics.blocks_opened.add(1);
            let read = match &candidate {
                Candidate::Open(batch) => self.read_open(tenant, batch).map(|b| vec![b]),
                Candidate::Block(block) => self.read_block(tenant, block),
            };
            match read {
                Ok(batches) => {
                    for batch in batches.iter().filter(|b| leaves.contains(&b.leaf_index)) {
                        search(batch, matcher, page);
                    }
                }
                Err(ReadError::Gone) => return Err(Moved),
                Err(error) => {
                    tracing::warn!(%error, tenant = %tenant.id, "evidence does not read; run verify");
                    page.damage(1, candidate.name(tenant));
                }
            }
        }
        Ok(())
    }

    /// How many batches of the log were in no file that reads when the store was opened, and where to look.
    pub(crate) fn missing(&self, tenant: &Tenant) -> Option<(u64, String)> {
        let missing = Some(tenant.state.read().missing).filter(|missing| *missing > 0)?;
        let what = format!("{missing} batches of the log are in no file that reads");
        let files = self.doubtful_files(tenant).into_iter();
        Some((missing, files.fold(what, |what, file| format!("{what}; see {file}"))))
    }

    /// Files that opening found amiss and that may hold evidence of the tenant.
    fn doubtful_files(&self, tenant: &Tenant) -> BTreeSet<String> {
        let own = format!("tenants/{}/", tenant.id);
        let findings = self.findings.lock();
        let files = findings.iter().filter_map(|finding| finding.split_once(": ").map(|(file, _)| file));
        let of_tenant = files.filter(|file| file.starts_with("commit/") || file.starts_with(&own));
        of_tenant.take(UNREADABLE_NAMED_MAX).map(str::to_owned).collect()
    }

    /// Open batches and blocks that may hold matches, earliest first.
    pub(crate) fn plan(
        &self,
        tenant: &Tenant,
        matcher: &Matcher,
        leaves: &std::ops::Range<u64>,
    ) -> Vec<Candidate> {
        // Under one lock: a batch is either open or in a listed segment.
        let (open, segments) = {
            let state = tenant.state.read();
            let range = leaves.start..leaves.end.max(leaves.start);
            let holds = |b: &OpenBatch| matcher.may_match(&b.summary, |t| b.terms.binary_search(&t).is_ok());
            let open: Vec<_> =
                state.open.range(range).map(|(_, b)| b).filter(|b| holds(b)).cloned().collect();
            let holds = |s: &&SegmentMeta| matcher.may_match_segment(&s.summary, &Filter::new(&s.filter));
            let segments: Vec<_> = state.segments.values().filter(holds).cloned().collect();
            (open, segments)
        };
        let mut plan: Vec<Candidate> = open.into_iter().map(Candidate::Open).collect();
        for segment in segments {
            self.index.blocks(&tenant.id, segment.number, |entry| {
                let in_log = entry.first_leaf < leaves.end && entry.last_leaf >= leaves.start;
                if in_log && matcher.may_match(&entry.summary, |term| entry.filter.holds(term)) {
                    plan.extend(entry.place(&segment).map(Candidate::Block));
                }
            });
        }
        plan.sort_by_key(Candidate::occurred_min);
        plan
    }
}

/// The coverage that goes with a query.
pub(crate) fn coverage_of(query: &Query) -> CoverageQuery {
    CoverageQuery {
        instance: query.instance.clone(),
        from: query.from,
        to: query.to,
        classes: query.classes.clone(),
    }
}

fn answer(coverage: CoverageReport, page: Page, log_size: u64) -> Answer {
    let mut hits = page.hits.into_sorted_vec();
    let more = hits.len() > page.limit;
    hits.truncate(page.limit);
    let last = hits.last().map(|hit| hit.place);
    Answer {
        coverage,
        next_cursor: last.filter(|_| more).map(|after| Cursor { log_size, after }.to_text()),
        events: hits.into_iter().map(|hit| hit.event).collect(),
        log_size,
        erased_lines: page.erased_lines,
        damaged: page.damaged,
        unreadable: page.unreadable,
    }
}

/// A file went away under the plan.
struct Moved;

fn search(batch: &StoredBatch, matcher: &Matcher, page: &mut Page) {
    for (position, line) in batch.all_lines().enumerate() {
        let line = match line {
            StoredLine::Line(line) => line,
            StoredLine::Elided(_) => continue,
            StoredLine::Erased => {
                page.erased_lines += 1;
                continue;
            }
        };
        if !matcher.may_match_line(line) {
            continue;
        }
        let Ok(event) = Event::parse(line) else { continue };
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        let place = Place { occurred_at: event.occurred_at, leaf_index: batch.leaf_index, position };
        if page.wants(place) && matcher.matches(&event) {
            page.push(Hit { place, event: stored_event(batch, position, line) });
        }
    }
}

/// The line is copied: a page must not keep whole blocks alive.
fn stored_event(batch: &StoredBatch, position: u32, line: &[u8]) -> StoredEvent {
    StoredEvent {
        line: Bytes::copy_from_slice(line),
        leaf_index: batch.leaf_index,
        position,
        received_at: batch.received_at,
        batch_hash: Hash(batch.batch_hash.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_places_of_damage_16_are_named_and_all_are_counted() {
        let mut page = Page {
            hits: BinaryHeap::new(),
            limit: 1,
            after: None,
            erased_lines: 0,
            damaged: 0,
            unreadable: Vec::new(),
        };
        (0..17).for_each(|n| page.damage(2, n.to_string()));
        assert_eq!((page.damaged, page.unreadable.len()), (34, 16));
    }
}
