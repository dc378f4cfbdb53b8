//! Judges batches before they are committed: everything that needs neither the disk nor the order of arrival.
//! Runs on the callers' side, in parallel.

use std::cell::RefCell;
use std::collections::BTreeSet;

use activity_schema::admit::{self, Refusal};
use activity_schema::batch::{self, BodyError, Leaf};
use activity_schema::catalog::Row;
use activity_schema::coverage::EventClass;
use activity_schema::event::{ParseError, Retention};
use activity_schema::{BatchHeader, Event, Hash, SignedBatch, merkle};
use bytes::Bytes;
use uuid::Uuid;

use crate::conflicts::RecentIds;
use crate::coverage::is_heard;
use crate::receipts::UnknownReceipt;
use crate::record::{ELIDED, Elided, Places, Withheld};
use crate::summary::Summary;
use crate::terms::{TermKey, TermSet};
use crate::types::{Caller, Instances};

/// zstd level of the sections of a batch whose lines had to be taken apart.
const ZSTD_LEVEL: i32 = 1;
/// Longest reason that is kept with a withheld line, bytes.
const REASON_BYTES_MAX: usize = 160;
/// Most instances of a batch that are told to coverage.
pub(crate) const INSTANCES_MAX: usize = 64;

/// A batch that may be committed.
#[derive(Debug)]
pub(crate) struct Checked {
    pub header: BatchHeader,
    pub header_bytes: Bytes,
    pub signature: [u8; 64],
    pub hash: Hash,
    pub content: Content,
    /// Bytes as they came.
    pub received_bytes: u64,
}

/// The lines of a batch, ready to be sealed.
#[derive(Debug)]
pub(crate) struct Content {
    pub places: Places,
    pub elided: Vec<Elided>,
    /// Retention class, raw length and zstd of each section.
    pub sections: Vec<(Retention, u64, Bytes)>,
    pub facts: Facts,
}

/// What indexes and coverage keep of a batch.
#[derive(Debug)]
pub(crate) struct Facts {
    pub summary: Summary,
    pub terms: Box<[u64]>,
    pub instances: Vec<String>,
    /// The lines that coverage hears of.
    pub telemetry: Vec<Bytes>,
    /// Events whose id was seen with other bytes.
    pub conflicts: Vec<Uuid>,
    /// Events whose name is not in the catalogue.
    pub unknown: u64,
    /// Heartbeats with a receipt that this store did not give.
    pub unknown_receipts: Vec<UnknownReceipt>,
}

impl Facts {
    /// Of a batch without lines, or of one whose lines are not looked at.
    pub(crate) fn of_header(header: &BatchHeader) -> Self {
        Facts {
            summary: Summary::empty(header.occurred_min, header.occurred_max),
            terms: Box::default(),
            instances: Vec::new(),
            telemetry: Vec::new(),
            conflicts: Vec::new(),
            unknown: 0,
            unknown_receipts: Vec::new(),
        }
    }
}

/// Why a batch can never be stored. The text goes to its sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BatchRefusal {
    #[error("the batch's key is not enrolled for this collector and epoch")]
    Key,
    #[error("the batch's key was revoked")]
    Revoked,
    #[error("the signature is not valid")]
    Signature,
    #[error("{0} is not the caller's")]
    NotCallers(&'static str),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("this epoch has too many forked batches; begin another")]
    Forks,
}

/// Signature and ownership. Cheap; comes before anything is decompressed.
pub(crate) fn check_origin(
    batch: &SignedBatch,
    caller: &Caller,
    is_revoked: impl Fn(&BatchHeader) -> bool,
) -> Result<(), BatchRefusal> {
    let header = &batch.header;
    let key = caller.keys.iter().find(|(id, _, epoch)| *id == header.key_id && *epoch == header.epoch);
    let (_, key, _) = key.ok_or(BatchRefusal::Key)?;
    if is_revoked(header) {
        return Err(BatchRefusal::Revoked);
    }
    if key.id() != header.key_id || !batch.is_signed_by(*key) {
        return Err(BatchRefusal::Signature);
    }
    let require = |ok, what| if ok { Ok(()) } else { Err(BatchRefusal::NotCallers(what)) };
    require(header.tenant == caller.tenant, "tenant")?;
    require(header.host == caller.host, "host")?;
    require(header.collector_id == caller.collector_id, "collector_id")
}

/// What the lines of a batch are checked with.
pub(crate) struct LineCheck<'a> {
    pub instances: &'a Instances,
    pub terms: &'a TermKey,
    pub recent: &'a RecentIds,
}

thread_local! {
    /// Lines of the batch that is being checked; at most one batch's raw bytes stay with a thread.
    static RAW: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Body, Merkle root and every line.
pub(crate) fn check_content(batch: &SignedBatch, with: &LineCheck<'_>) -> Result<Content, BatchRefusal> {
    let header = &batch.header;
    let Some(body) = &batch.body else { return Ok(header_alone(header)) };
    RAW.with_borrow_mut(|raw| {
        batch::decompress_again(body, header.raw_bytes, raw)?;
        check_lines(header, body, raw, with)
    })
}

fn check_lines(
    header: &BatchHeader,
    body: &Bytes,
    raw: &[u8],
    with: &LineCheck<'_>,
) -> Result<Content, BatchRefusal> {
    let lines = batch::split_lines(raw, header.count)?;
    let leaves: Vec<Hash> = lines.iter().map(|line| Leaf::Line(line).hash()).collect();
    if merkle::root(&leaves) != header.merkle_root {
        return Err(BodyError::Root.into());
    }
    let mut sorter = Sorter::new(header, with);
    match std::str::from_utf8(raw) {
        Ok(text) => {
            let mut start = 0;
            for (position, (line, leaf)) in lines.iter().zip(&leaves).enumerate() {
                // A line break is a character of its own, so that each line is text.
                let end = start + line.len();
                sorter.line(position, line, Event::parse_str(&text[start..end]), *leaf);
                start = end + 1;
            }
        }
        Err(_) => {
            for (position, (line, leaf)) in lines.iter().zip(&leaves).enumerate() {
                sorter.line(position, line, Event::parse(line), *leaf);
            }
        }
    }
    sorter.finish(&lines, body)
}

/// The content of a header without its lines.
pub(crate) fn header_alone(header: &BatchHeader) -> Content {
    Content {
        places: Places::None,
        elided: Vec::new(),
        sections: Vec::new(),
        facts: Facts::of_header(header),
    }
}

/// Sorts lines into sections, withholding those that are not admitted.
struct Sorter<'a> {
    header: &'a BatchHeader,
    with: &'a LineCheck<'a>,
    stream: String,
    classes: Vec<Retention>,
    map: Vec<u8>,
    elided: Vec<Elided>,
    summary: Summary,
    terms: TermSet<'a>,
    instances: BTreeSet<String>,
    telemetry: Vec<Bytes>,
    ids: Vec<(Uuid, Hash)>,
    unknown: u64,
}

impl<'a> Sorter<'a> {
    fn new(header: &'a BatchHeader, with: &'a LineCheck<'a>) -> Self {
        Sorter {
            header,
            with,
            stream: header.stream().to_string(),
            classes: Vec::new(),
            map: Vec::new(),
            elided: Vec::new(),
            summary: Summary::empty(header.occurred_min, header.occurred_max),
            terms: TermSet::new(with.terms),
            instances: BTreeSet::new(),
            telemetry: Vec::new(),
            ids: Vec::new(),
            unknown: 0,
        }
    }

    fn line(&mut self, position: usize, line: &[u8], event: Result<Event<'_>, ParseError>, leaf: Hash) {
        let event = match event {
            Ok(event) => event,
            Err(error) => return self.withhold(position, leaf, error.to_string(), None),
        };
        match self.admit(&event, position) {
            Ok(row) => self.keep(&event, row, line, leaf),
            Err(refusal) => self.withhold(position, leaf, refusal.to_string(), Some(&event)),
        }
    }

    fn admit(&self, event: &Event<'_>, position: usize) -> Result<Option<&'static Row>, Refusal> {
        let row = admit::admit_in_batch(event, self.header, &self.stream, position as u64)?;
        match self.with.instances {
            Instances::One(own) if event.correlation.instance_id != *own.as_str() => {
                Err(Refusal::Foreign("correlation.instance_id"))
            }
            _ => Ok(row),
        }
    }

    fn keep(&mut self, event: &Event<'_>, row: Option<&'static Row>, line: &[u8], leaf: Hash) {
        let class = event.retention_class;
        let section = self.classes.iter().position(|c| *c == class).unwrap_or_else(|| {
            self.classes.push(class);
            self.classes.len() - 1
        });
        // There are four retention classes.
        self.map.push(u8::try_from(section).unwrap_or(ELIDED));
        self.summary.add(event);
        self.terms.add(event, row);
        self.unknown += u64::from(row.is_none());
        let instance = event.correlation.instance_id.as_str();
        if self.instances.len() < INSTANCES_MAX && !self.instances.contains(instance) {
            self.instances.insert(instance.to_owned());
        }
        if is_heard(&event.event_name) {
            self.telemetry.push(Bytes::copy_from_slice(line));
        }
        self.ids.push((event.event_id, leaf));
    }

    fn withhold(&mut self, position: usize, leaf: Hash, mut reason: String, event: Option<&Event<'_>>) {
        let cut = (0..=REASON_BYTES_MAX).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        reason.truncate(cut);
        self.map.push(ELIDED);
        self.elided.push(Elided {
            position: u32::try_from(position).unwrap_or(u32::MAX),
            reason,
            leaf,
            withheld: Some(about(event, self.with.instances)),
        });
    }

    fn finish(self, lines: &[&[u8]], body: &Bytes) -> Result<Content, BatchRefusal> {
        let whole = self.elided.is_empty() && self.classes.len() == 1;
        let (places, sections) = if whole {
            let sections = vec![(self.classes[0], self.header.raw_bytes, body.clone())];
            (Places::One(0, self.header.count), sections)
        } else {
            let sections = pack_sections(&self.classes, &self.map, lines)?;
            (Places::Map(self.map), sections)
        };
        Ok(Content {
            places,
            elided: self.elided,
            sections,
            facts: Facts {
                summary: self.summary,
                terms: self.terms.finish(),
                instances: self.instances.into_iter().collect(),
                telemetry: self.telemetry,
                conflicts: self.with.recent.conflicts(&self.header.tenant, &self.ids),
                unknown: self.unknown,
                unknown_receipts: Vec::new(),
            },
        })
    }
}

/// What coverage may use of a line that is not kept. Values are kept only when they are ids of the contract.
fn about(event: Option<&Event<'_>>, instances: &Instances) -> Withheld {
    let own = match instances {
        Instances::One(own) => Some(own.as_str().to_owned()),
        Instances::Host => None,
    };
    match event {
        None => Withheld { instance: own, class: None, occurred_at: None },
        Some(event) => {
            let named = event.correlation.instance_id.as_str();
            Withheld {
                instance: own.or_else(|| activity_schema::ids::is_id(named).then(|| named.to_owned())),
                class: EventClass::of(&event.event_name),
                occurred_at: Some(event.occurred_at),
            }
        }
    }
}

fn pack_sections(
    classes: &[Retention],
    map: &[u8],
    lines: &[&[u8]],
) -> Result<Vec<(Retention, u64, Bytes)>, BatchRefusal> {
    let mut sections = Vec::with_capacity(classes.len());
    let mut raw = Vec::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
    for (at, class) in classes.iter().enumerate() {
        let own = map.iter().zip(lines).filter(|(m, _)| usize::from(**m) == at).map(|(_, line)| *line);
        batch::join_lines_again(own, &mut raw);
        let packed = batch::compress_at(&raw, ZSTD_LEVEL).map_err(|e| BodyError::Zstd(e.to_string()))?;
        sections.push((*class, raw.len() as u64, packed.into()));
    }
    Ok(sections)
}
