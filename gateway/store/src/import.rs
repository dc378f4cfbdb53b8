//! Foreign `activity.event/v1` lines: parsed strictly, reduced to the catalogue, stored as `derived`.
//!
//! The gateway is the collector of an import: its key signs, and every import has an epoch of its own. A stored line
//! carries the SHA-256 of the original line in `integrity.source_hash`; trust is `derived`, whatever the original
//! claimed. Payload keys that the catalogue does not list are stripped, of a name that it does not have all of them. Lines
//! that are no events, and those that are not `metadata`, are refused and counted. A line whose digest is stored already
//! is passed over: an import may be repeated. Memory does not grow with what is imported, nor with what was.

mod known;

use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Instant;

use activity_schema::api::BatchResult;
use activity_schema::batch::{self, BATCH_VERSION, ClockState, Leaf};
use activity_schema::catalog::{self, Row, State};
use activity_schema::event::{EVENT_BYTES_MAX, Retention, Sensitivity, Trust};
use activity_schema::ids::{self, CollectorId, Epoch, HostId, InstanceId, StreamId, TenantId};
use activity_schema::{BatchHeader, Class, Event, Hash, SignedBatch, Timestamp};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::bundle::{Export, ExportError, ExportRequest};
use crate::check::{Checked, Content, Facts};
use crate::committer::{Job, Judged};
use crate::control::{ControlError, ControlRecord, Import};
use crate::queue::NoRoom;
use crate::record::Places;
use crate::store::{OpenError, Shared, Store};
use crate::summary::Summary;
use crate::tenant::Tenant;
use crate::terms::TermSet;
use crate::types::Query;
use known::Known;

pub(crate) use activity_coverage::IMPORT_COLLECTOR;

/// Lines of one batch.
const BATCH_LINES: usize = 1000;
/// Raw bytes of one batch; a longest line more still fits a batch.
const BATCH_BYTES: usize = 512 * 1024;
/// Refusals that are named in the report; the rest is counted.
const NAMED_MAX: usize = 100;

/// Where foreign lines come from, for those that do not say it in our ids.
#[derive(Debug, Clone)]
pub struct ImportDefaults {
    pub host: HostId,
    pub instance: InstanceId,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportReport {
    pub stored: u64,
    pub refused: u64,
    /// Lines that an import before, or an earlier line, had brought.
    pub already: u64,
    /// Stored under names that the catalogue does not have, without any payload.
    pub unknown_names: u64,
    /// Payload keys that were stripped, of all lines.
    pub keys_stripped: u64,
    /// The first refusals: line number, from 1, and reason.
    pub refusals: Vec<(u64, String)>,
    pub streams: Vec<StreamId>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("the store is open for reading only, or closing")]
    Closed,
    #[error("too many batches wait; {stored} lines are stored")]
    Overloaded { stored: u64 },
    #[error("reading line {line}")]
    Read {
        line: u64,
        #[source]
        source: io::Error,
    },
    #[error("a batch could not be made: {0}")]
    Batch(String),
    #[error("noting what is imported, in a temporary file of the store's folder")]
    Known(#[source] io::Error),
    #[error("a batch is not durable: {reason}; {stored} lines are stored")]
    NotStored { stored: u64, reason: String },
    #[error("the import is stored, but not recorded in the control journal")]
    Control(#[from] ControlError),
    #[error("the tenant's part of the store does not open")]
    Tenant(#[source] Box<OpenError>),
}

impl Store {
    /// Imports foreign lines. Blocks until all are durable: call it from a thread that may block.
    pub fn import(
        &self,
        tenant: &TenantId,
        defaults: &ImportDefaults,
        lines: impl BufRead,
    ) -> Result<ImportReport, ImportError> {
        let shared = self.shared();
        if shared.read_only {
            return Err(ImportError::Closed);
        }
        let tenant = shared.make_tenant(tenant).map_err(|e| ImportError::Tenant(Box::new(e)))?;
        let epoch = new_epoch(shared)?;
        let streams = Class::ALL.iter().map(|class| Importer::new(*class, &epoch, &tenant, defaults));
        let mut streams: Vec<Importer> = streams.collect::<Result<_, _>>()?;
        let mut report = ImportReport::default();
        let mut known = self.imported(&tenant)?;
        for (number, line) in (1..).zip(Lines(lines)) {
            let line = line.map_err(|source| ImportError::Read { line: number, source })?;
            if line.is_empty() {
                continue;
            }
            let refusal = match reduce(&line) {
                Err(reason) => Some(reason),
                Ok(_) if !known.insert(&Hash::of(&[&line])).map_err(ImportError::Known)? => {
                    report.already += 1;
                    None
                }
                Ok(Reduced { event, row, stripped }) => {
                    report.keys_stripped += stripped;
                    report.unknown_names += u64::from(row.is_none());
                    let class = row.map_or(Class::Standard, |row| row.class);
                    let importer = streams.iter_mut().find(|s| s.stream.class == class);
                    if let Some(importer) = importer {
                        importer.push(event, row, &line, defaults);
                        if importer.is_full() {
                            importer.store(shared, &mut report)?;
                        }
                    }
                    None
                }
            };
            if let Some(reason) = refusal {
                report.refused += 1;
                if report.refusals.len() < NAMED_MAX {
                    report.refusals.push((number, reason));
                }
            }
        }
        for importer in &mut streams {
            importer.store(shared, &mut report)?;
            if importer.next_number > 1 {
                report.streams.push(importer.stream.clone());
                shared.record_control(vec![ControlRecord::Imported(Import {
                    tenant: tenant.id.clone(),
                    stream: importer.stream.clone(),
                    stored: importer.stored,
                    refused: report.refused,
                })])?;
            }
        }
        Ok(report)
    }
}

impl Store {
    /// Digests of the lines that were imported before.
    fn imported(&self, tenant: &Arc<Tenant>) -> Result<Known, ImportError> {
        let query = Query { trusts: vec![Trust::Derived], ..Query::default() };
        let request = ExportRequest { query, ..ExportRequest::default() };
        let mut known = Known::new(&self.shared().config.dir).map_err(ImportError::Known)?;
        let read =
            |e: ExportError| ImportError::Batch(format!("what was imported before does not read: {e}"));
        let mut export =
            Export::begin(Arc::clone(self.shared()), Arc::clone(tenant), request).map_err(read)?;
        while let Some(part) = export.next_part().map_err(read)? {
            let events = part.split(|byte| *byte == b'\n').filter_map(|line| Event::parse(line).ok());
            let digests = events.filter_map(|e| Hash::from_hex(e.integrity.source_hash.as_deref()?));
            for digest in digests {
                known.insert(&digest).map_err(ImportError::Known)?;
            }
        }
        Ok(known)
    }
}

/// Lines without newlines, each at most one byte longer than an event may be.
struct Lines<R>(R);

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        let mut line = Vec::new();
        let mut any = false;
        loop {
            let available = match self.0.fill_buf() {
                Ok([]) => return any.then_some(Ok(line)),
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Some(Err(e)),
            };
            any = true;
            let end = memchr::memchr(b'\n', available);
            let part = &available[..end.unwrap_or(available.len())];
            // What is too long is kept only so far that it is refused as too long.
            let room = (EVENT_BYTES_MAX + 1).saturating_sub(line.len());
            line.extend_from_slice(&part[..part.len().min(room)]);
            let used = end.map_or(available.len(), |at| at + 1);
            self.0.consume(used);
            if end.is_some() {
                return Some(Ok(line));
            }
        }
    }
}

fn new_epoch(shared: &Shared) -> Result<Epoch, ImportError> {
    let millis = u64::try_from(shared.env.now().as_nanos() / 1_000_000).unwrap_or(0);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &shared.env.random()).into_uuid();
    Epoch::new(id.hyphenated().to_string()).map_err(|e| ImportError::Batch(e.to_string()))
}

/// A line that can be stored.
struct Reduced<'a> {
    event: Event<'a>,
    /// `None` where the catalogue does not have the name, or only reserves it.
    row: Option<&'static Row>,
    /// Payload keys that were taken out.
    stripped: u64,
}

/// Parses a line and reduces it to what the catalogue admits.
fn reduce(line: &[u8]) -> Result<Reduced<'_>, String> {
    let mut event = Event::parse(line).map_err(|e| e.to_string())?;
    if event.sensitivity != Sensitivity::Metadata {
        return Err("sensitivity is not metadata".to_owned());
    }
    let row = catalog::row(&event.event_name).filter(|row| row.state != State::Reserved);
    let admits = |key: &str, value: &_| {
        row.and_then(|row| row.field(key)).is_some_and(|field| field.kind.admits(value))
    };
    let unlisted: Vec<String> = event
        .payload
        .iter()
        .filter(|(key, value)| !admits(key, value))
        .map(|(key, _)| key.to_owned())
        .collect();
    for key in &unlisted {
        event.payload.remove(key);
    }
    Ok(Reduced { event, row, stripped: unlisted.len() as u64 })
}

/// Builds and stores the batches of one class.
struct Importer {
    stream: StreamId,
    text: String,
    host: HostId,
    tenant: Arc<Tenant>,
    next_number: u64,
    next_sequence: u64,
    previous: Hash,
    lines: Vec<Vec<u8>>,
    /// Id and leaf of the original lines: as such they are told from what collectors sent.
    ids: Vec<(Uuid, Hash)>,
    bytes: usize,
    range: Option<(Timestamp, Timestamp)>,
    stored: u64,
}

impl Importer {
    fn new(
        class: Class,
        epoch: &Epoch,
        tenant: &Arc<Tenant>,
        defaults: &ImportDefaults,
    ) -> Result<Self, ImportError> {
        let collector = CollectorId::new(IMPORT_COLLECTOR).map_err(|e| ImportError::Batch(e.to_string()))?;
        let stream = StreamId { collector, epoch: epoch.clone(), class };
        Ok(Importer {
            text: stream.to_string(),
            stream,
            host: defaults.host.clone(),
            tenant: Arc::clone(tenant),
            next_number: 1,
            next_sequence: 1,
            previous: Hash::default(),
            lines: Vec::new(),
            ids: Vec::new(),
            bytes: 0,
            range: None,
            stored: 0,
        })
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= BATCH_LINES || self.bytes >= BATCH_BYTES
    }

    fn push(
        &mut self,
        mut event: Event<'_>,
        row: Option<&'static Row>,
        original: &[u8],
        defaults: &ImportDefaults,
    ) {
        event.plane = row.map_or(event.plane, |row| row.plane);
        event.retention_class = row.map_or(Retention::Standard, |row| row.retention);
        event.source.trust = Trust::Derived;
        event.source.collector = self.text.clone().into();
        event.correlation.tenant_id = self.tenant.id.as_str().to_owned().into();
        event.correlation.host_id = self.host.as_str().to_owned().into();
        if !ids::is_id(&event.correlation.instance_id) {
            event.correlation.instance_id = defaults.instance.as_str().to_owned().into();
        }
        event.integrity.collector_sequence = self.next_sequence + self.lines.len() as u64;
        event.integrity.source_hash = Some(Hash::of(&[original]).to_hex().into());
        // Chains and signatures of the original spoke of its own bytes.
        event.integrity.source_previous_hash = None;
        event.integrity.timeline_hash = None;
        event.integrity.timeline_previous_hash = None;
        event.integrity.signature = None;
        event.integrity.key_id = None;
        let at = event.occurred_at;
        let (min, max) = self.range.unwrap_or((at, at));
        self.range = Some((min.min(at), max.max(at)));
        self.ids.push((event.event_id, Leaf::Line(original).hash()));
        let line = event.to_line();
        self.bytes += line.len() + 1;
        self.lines.push(line);
    }

    fn store(&mut self, shared: &Shared, report: &mut ImportReport) -> Result<(), ImportError> {
        let Some(range) = self.range.take() else { return Ok(()) };
        let lines = std::mem::take(&mut self.lines);
        self.bytes = 0;
        let raw = batch::join_lines(lines.iter().map(Vec::as_slice));
        let body = batch::compress(&raw).map_err(|e| ImportError::Batch(e.to_string()))?;
        let header = self.header(shared, &lines, raw.len() as u64, range);
        let signed = SignedBatch::sign(header, Some(body.into()), shared.signer());
        self.next_number += 1;
        self.next_sequence += lines.len() as u64;
        self.previous = signed.hash();
        let bytes = raw.len() as u64;
        let _ticket = shared.queue.enter(&self.tenant.id, None, bytes).map_err(|why| match why {
            NoRoom::Stopping => ImportError::Closed,
            NoRoom::Overloaded => ImportError::Overloaded { stored: report.stored },
        })?;
        let ids = std::mem::take(&mut self.ids);
        let mut checked = self.checked(&signed, &lines);
        checked.content.facts.conflicts = shared.recent.conflicts(&self.tenant.id, &ids);
        let (reply, answer) = oneshot::channel();
        let tenant = Arc::clone(&self.tenant);
        shared.queue.push(Job {
            tenant,
            batches: vec![Judged::Checked(Box::new(checked))],
            reply,
            queued_at: Instant::now(),
        });
        let fail = |reason: String, stored| ImportError::NotStored { stored, reason };
        let results = answer.blocking_recv().map_err(|_| ImportError::Closed)?;
        match results.map_err(|e| fail(e.to_string(), report.stored))?.first() {
            Some(BatchResult::Stored { .. }) => {}
            other => return Err(fail(format!("{other:?}"), report.stored)),
        }
        report.stored += lines.len() as u64;
        self.stored += lines.len() as u64;
        Ok(())
    }

    fn header(
        &self,
        shared: &Shared,
        lines: &[Vec<u8>],
        raw_bytes: u64,
        range: (Timestamp, Timestamp),
    ) -> BatchHeader {
        let count = lines.len() as u64;
        BatchHeader {
            batch_number: self.next_number,
            boot_id: String::new(),
            class: self.stream.class,
            clock: ClockState { error_ns: batch::INTEGER_MAX, offset_ns: 0, synchronised: false },
            collector_id: self.stream.collector.clone(),
            count,
            epoch: self.stream.epoch.clone(),
            first_sequence: self.next_sequence,
            host: self.host.clone(),
            key_id: shared.signer().id().clone(),
            last_sequence: self.next_sequence + count - 1,
            merkle_root: batch::lines_root(lines.iter().map(|line| Leaf::Line(line))),
            occurred_max: range.1,
            occurred_min: range.0,
            policy_digest: Hash::default(),
            previous_batch_hash: self.previous,
            raw_bytes,
            ring_cursors: std::collections::BTreeMap::new(),
            sealed_at: shared.env.now(),
            tenant: self.tenant.id.clone(),
            version: BATCH_VERSION,
        }
    }

    /// As `check` would give it, without the catalogue's rules about who may emit what.
    fn checked(&self, signed: &SignedBatch, lines: &[Vec<u8>]) -> Checked {
        let header = &signed.header;
        let mut summary = Summary::empty(header.occurred_min, header.occurred_max);
        let mut terms = TermSet::new(&self.tenant.keys.terms);
        let mut by_class: Vec<(activity_schema::event::Retention, Vec<&[u8]>)> = Vec::new();
        let mut map = Vec::with_capacity(lines.len());
        let mut instances: Vec<String> = Vec::new();
        for line in lines {
            let Ok(event) = Event::parse(line) else { continue };
            summary.add(&event);
            terms.add(&event, catalog::row(&event.event_name));
            let instance = event.correlation.instance_id.as_str();
            if !instances.iter().any(|known| known == instance) {
                instances.push(instance.to_owned());
            }
            let class = event.retention_class;
            let at = by_class.iter().position(|(c, _)| *c == class).unwrap_or_else(|| {
                by_class.push((class, Vec::new()));
                by_class.len() - 1
            });
            by_class[at].1.push(line);
            map.push(u8::try_from(at).unwrap_or(0));
        }
        let sections = by_class.into_iter().filter_map(|(class, lines)| {
            let raw = batch::join_lines(lines);
            Some((class, raw.len() as u64, batch::compress(&raw).ok()?.into()))
        });
        Checked {
            header: header.clone(),
            header_bytes: signed.header_bytes.clone(),
            signature: signed.signature,
            hash: signed.hash(),
            content: Content {
                places: Places::Map(map),
                elided: Vec::new(),
                sections: sections.collect(),
                // What others say of their collectors is not coverage of ours.
                facts: Facts { summary, terms: terms.finish(), instances, ..Facts::of_header(header) },
            },
            received_bytes: header.raw_bytes,
        }
    }
}
