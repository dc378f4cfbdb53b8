//! A stored batch, version 1: the form of a batch frame in a commit file, and the decoded form that queries,
//! verification and sealing share.
//!
//! ```text
//! clear:    bytes tenant | varint leaf index | i64 LE received at (ns) | 32 batch hash | u8 flags
//! head:     bytes sealed under the tenant's head key of the file
//! sections: varint count, each: u8 retention | u32 LE day | bytes sealed under the data key of (tenant, retention, day)
//!
//! head, opened:    bytes header | 64 signature | 64 receipt signature | places | varint count of elided lines,
//!                  each: varint position | bytes reason | 32 leaf hash | about
//! about:           u8 0: nothing | u8 1: the gateway withheld it: bytes instance (empty: unknown)
//!                  | u8 event class (255: unknown) | u8 0, or u8 1 and signed varint occurred at (ns)
//! places:          u8 0, u8 section, varint lines: all in it | u8 1, bytes: a section a line, 255 elided, 254 erased with
//!                  its key | u8 2: no lines
//! section, opened: varint raw length | zstd of its lines, joined by \n; one frame or several
//! ```
//!
//! Flags: bit 0 fork, bit 1 header alone. Associated data of every section: a label, frame kind, tenant, leaf
//! index, and the section's retention and day (255 and 0 for the head).

use std::sync::Arc;

use activity_schema::batch::{BATCH_EVENTS_MAX, Leaf};
use activity_schema::coverage::EventClass;
use activity_schema::event::Retention;
use activity_schema::ids::TenantId;
use activity_schema::{Hash, Timestamp};
use bytes::Bytes;

use crate::aead::{SectionKey, Unsealed};
use crate::env::Env;
use crate::frame::Kind;
use crate::wire::{Reader, WireError, put_bytes, put_len, put_signed, put_varint};

pub(crate) const FLAG_FORK: u8 = 1;
pub(crate) const FLAG_HEADER_ONLY: u8 = 2;

/// Place byte of an elided line.
pub(crate) const ELIDED: u8 = 255;
/// Place byte of a line whose key was erased before its batch was sealed into a segment.
pub(crate) const ERASED: u8 = 254;

/// Why stored bytes are not a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Unsealed(#[from] Unsealed),
    #[error("a section does not decompress to its declared length")]
    Body,
    #[error("the lines do not fill their places")]
    Places,
}

/// What a batch frame says in the clear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Clear {
    pub tenant: TenantId,
    pub leaf_index: u64,
    pub received_at: Timestamp,
    pub batch_hash: Hash,
    pub flags: u8,
}

impl Clear {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.tenant.as_str().as_bytes());
        put_varint(out, self.leaf_index);
        out.extend_from_slice(&self.received_at.as_nanos().to_le_bytes());
        out.extend_from_slice(&self.batch_hash.0);
        out.push(self.flags);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Clear {
            tenant: TenantId::new(reader.text()?).map_err(|_| WireError)?,
            leaf_index: reader.varint()?,
            received_at: Timestamp::from_nanos(reader.i64()?),
            batch_hash: reader.hash()?,
            flags: reader.u8()?,
        })
    }
}

/// Which data key a section is sealed under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SectionId {
    pub retention: Retention,
    pub day: u32,
}

/// A line that is kept as its leaf hash only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Elided {
    pub position: u32,
    pub reason: String,
    pub leaf: Hash,
    /// What is known of a line that the gateway did not admit; `None` for lines removed later.
    pub withheld: Option<Withheld>,
}

/// The parts of an inadmissible line that coverage can use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Withheld {
    pub instance: Option<String>,
    pub class: Option<EventClass>,
    pub occurred_at: Option<Timestamp>,
}

impl Withheld {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.instance.as_deref().unwrap_or_default().as_bytes());
        let class = self.class.and_then(|c| EventClass::ALL.iter().position(|x| *x == c));
        out.push(class.and_then(|c| u8::try_from(c).ok()).unwrap_or(255));
        match self.occurred_at {
            Some(at) => {
                out.push(1);
                put_signed(out, at.as_nanos());
            }
            None => out.push(0),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let instance = reader.text()?;
        let class = reader.u8()?;
        Ok(Withheld {
            instance: (!instance.is_empty()).then(|| instance.to_owned()),
            class: EventClass::ALL.get(usize::from(class)).copied(),
            occurred_at: match reader.u8()? {
                0 => None,
                _ => Some(Timestamp::from_nanos(reader.signed()?)),
            },
        })
    }
}

/// Where each line of a batch is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Places {
    /// So many lines, all in one section.
    One(u8, u64),
    /// A section (or [`ELIDED`], [`ERASED`]) a line.
    Map(Vec<u8>),
    /// A header alone.
    None,
}

impl Places {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Places::One(section, count) => {
                out.extend_from_slice(&[0, *section]);
                put_varint(out, *count);
            }
            Places::Map(map) => {
                out.push(1);
                put_bytes(out, map);
            }
            Places::None => out.push(2),
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match reader.u8()? {
            0 => Places::One(reader.u8()?, reader.varint()?),
            1 => Places::Map(reader.bytes()?.to_vec()),
            2 => Places::None,
            _ => return Err(WireError),
        })
    }
}

pub(crate) fn put_elided(out: &mut Vec<u8>, elided: &[Elided]) {
    put_len(out, elided.len());
    for line in elided {
        put_varint(out, u64::from(line.position));
        put_bytes(out, line.reason.as_bytes());
        out.extend_from_slice(&line.leaf.0);
        out.push(u8::from(line.withheld.is_some()));
        if let Some(withheld) = &line.withheld {
            withheld.put(out);
        }
    }
}

pub(crate) fn read_elided(reader: &mut Reader<'_>) -> Result<Vec<Elided>, WireError> {
    let mut elided = Vec::new();
    for _ in 0..reader.len()? {
        elided.push(Elided {
            position: u32::try_from(reader.varint()?).map_err(|_| WireError)?,
            reason: reader.text()?.to_owned(),
            leaf: reader.hash()?,
            withheld: match reader.u8()? {
                0 => None,
                _ => Some(Withheld::read(reader)?),
            },
        });
    }
    Ok(elided)
}

/// What the head section holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub header_bytes: Bytes,
    pub signature: [u8; 64],
    pub receipt_signature: [u8; 64],
    pub places: Places,
    pub elided: Vec<Elided>,
}

impl Head {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.header_bytes.len() + 160);
        put_bytes(&mut out, &self.header_bytes);
        out.extend_from_slice(&self.signature);
        out.extend_from_slice(&self.receipt_signature);
        self.places.put(&mut out);
        put_elided(&mut out, &self.elided);
        out
    }

    fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        Ok(Head {
            header_bytes: Bytes::copy_from_slice(reader.bytes()?),
            signature: reader.array()?,
            receipt_signature: reader.array()?,
            places: Places::read(&mut reader)?,
            elided: read_elided(&mut reader)?,
        })
    }
}

/// A section before it is sealed: its lines compressed.
#[derive(Debug, Clone)]
pub(crate) struct PlainSection {
    pub id: SectionId,
    pub raw_bytes: u64,
    pub compressed: Bytes,
}

impl PlainSection {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.compressed.len() + 8);
        put_varint(&mut out, self.raw_bytes);
        out.extend_from_slice(&self.compressed);
        out
    }

    fn decompress(bytes: &[u8]) -> Result<Vec<u8>, RecordError> {
        let mut reader = Reader::new(bytes);
        let raw_len = reader.len()?;
        if raw_len > SECTION_RAW_BYTES_MAX {
            return Err(RecordError::Body);
        }
        let raw = activity_schema::batch::decompress_within(reader.rest(), raw_len)
            .map_err(|_| RecordError::Body)?;
        if raw.len() == raw_len { Ok(raw) } else { Err(RecordError::Body) }
    }
}

/// Most raw bytes of a section: a block is closed above 1 MiB, so it may hold nearly two full batches.
pub(crate) const SECTION_RAW_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Gives the keys that sections are sealed under.
pub(crate) trait Keys {
    fn head(&self) -> &SectionKey;
    /// `None` when the key was erased.
    fn data(&self, id: SectionId) -> Option<Arc<SectionKey>>;
}

pub(crate) fn aad(kind: Kind, tenant: &TenantId, leaf_index: u64, section: Option<SectionId>) -> Vec<u8> {
    let mut out = b"activity-section-v1\0".to_vec();
    out.push(kind as u8);
    put_bytes(&mut out, tenant.as_str().as_bytes());
    out.extend_from_slice(&leaf_index.to_le_bytes());
    out.push(section.map_or(255, |s| retention_code(s.retention)));
    out.extend_from_slice(&section.map_or(0, |s| s.day).to_le_bytes());
    out
}

pub(crate) fn retention_code(retention: Retention) -> u8 {
    match retention {
        Retention::Standard => 0,
        Retention::Security => 1,
        Retention::ForensicHold => 2,
        Retention::Ephemeral => 3,
    }
}

pub(crate) fn retention_of(code: u8) -> Option<Retention> {
    Retention::ALL.iter().copied().find(|r| retention_code(*r) == code)
}

/// Appends `bytes sealed head | varint count | sections`, the encrypted half of batch frames and blocks.
pub(crate) fn put_sealed(
    out: &mut Vec<u8>,
    env: &Env,
    keys: &dyn Keys,
    place: (Kind, &TenantId, u64),
    head: &[u8],
    sections: &[PlainSection],
) -> Result<(), Unsealed> {
    let (kind, tenant, leaf) = place;
    let mut sealed = Vec::with_capacity(head.len() + 32);
    keys.head().seal(env, &aad(kind, tenant, leaf, None), head, &mut sealed);
    put_bytes(out, &sealed);
    put_len(out, sections.len());
    for section in sections {
        out.push(retention_code(section.id.retention));
        out.extend_from_slice(&section.id.day.to_le_bytes());
        let key = keys.data(section.id).ok_or(Unsealed)?;
        sealed.clear();
        key.seal(env, &aad(kind, tenant, leaf, Some(section.id)), &section.to_bytes(), &mut sealed);
        put_bytes(out, &sealed);
    }
    Ok(())
}

/// The inverse of [`put_sealed`]: the opened head, and the lines of each section, `None` where its key is gone.
pub(crate) struct Opened {
    pub head: Vec<u8>,
    pub sections: Vec<Section>,
}

/// A section as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    pub id: SectionId,
    pub lines: Option<Arc<Vec<u8>>>,
}

pub(crate) fn read_sealed(
    reader: &mut Reader<'_>,
    keys: &dyn Keys,
    place: (Kind, &TenantId, u64),
) -> Result<Opened, RecordError> {
    let (head, packed) = open_sealed(reader, keys, place)?;
    Ok(Opened { head, sections: unpack(&packed)? })
}

/// A section, and its opened bytes unless its key is gone.
type PackedSection = (SectionId, Option<Vec<u8>>);

fn unpack(packed: &[PackedSection]) -> Result<Vec<Section>, RecordError> {
    let section = |(id, plain): &PackedSection| {
        let lines = plain.as_deref().map(PlainSection::decompress).transpose()?.map(Arc::new);
        Ok(Section { id: *id, lines })
    };
    packed.iter().map(section).collect()
}

fn open_sealed(
    reader: &mut Reader<'_>,
    keys: &dyn Keys,
    place: (Kind, &TenantId, u64),
) -> Result<(Vec<u8>, Vec<PackedSection>), RecordError> {
    let (kind, tenant, leaf) = place;
    let head = keys.head().open(&aad(kind, tenant, leaf, None), reader.bytes()?)?;
    let mut sections = Vec::new();
    for _ in 0..reader.len()? {
        let retention = retention_of(reader.u8()?).ok_or(WireError)?;
        let id = SectionId { retention, day: reader.u32()? };
        let sealed = reader.bytes()?;
        let plain = match keys.data(id) {
            None => None,
            Some(key) => Some(key.open(&aad(kind, tenant, leaf, Some(id)), sealed)?),
        };
        sections.push((id, plain));
    }
    Ok((head, sections))
}

/// The payload of a batch frame.
pub(crate) fn batch_payload(
    env: &Env,
    keys: &dyn Keys,
    clear: &Clear,
    head: &Head,
    sections: &[PlainSection],
) -> Result<Vec<u8>, Unsealed> {
    let mut out = Vec::with_capacity(512 + sections.iter().map(|s| s.compressed.len()).sum::<usize>());
    clear.put(&mut out);
    let place = (Kind::Batch, &clear.tenant, clear.leaf_index);
    put_sealed(&mut out, env, keys, place, &head.to_bytes(), sections)?;
    Ok(out)
}

/// A batch as it is read from a commit file or a block.
#[derive(Debug, Clone)]
pub(crate) struct StoredBatch {
    pub leaf_index: u64,
    pub received_at: Timestamp,
    pub batch_hash: Hash,
    pub flags: u8,
    pub header_bytes: Bytes,
    pub signature: [u8; 64],
    pub receipt_signature: [u8; 64],
    /// One a line of the header's count; empty for a header alone.
    pub lines: Vec<Place>,
    pub elided: Vec<Elided>,
    pub sections: Arc<Vec<Section>>,
}

/// Where one line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Bytes `start..end` of a section.
    Line { section: u8, start: u32, end: u32 },
    /// Index into `elided`.
    Elided(u32),
    /// In a section whose key was erased.
    Erased,
}

/// What is left of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredLine<'a> {
    Line(&'a [u8]),
    Elided(&'a Elided),
    Erased,
}

impl StoredBatch {
    pub(crate) fn line(&self, position: usize) -> Option<StoredLine<'_>> {
        Some(match *self.lines.get(position)? {
            Place::Line { section, start, end } => {
                let lines = self.sections.get(usize::from(section))?.lines.as_ref()?;
                StoredLine::Line(lines.get(start as usize..end as usize)?)
            }
            Place::Elided(at) => StoredLine::Elided(self.elided.get(at as usize)?),
            Place::Erased => StoredLine::Erased,
        })
    }

    pub(crate) fn all_lines(&self) -> impl Iterator<Item = StoredLine<'_>> {
        (0..self.lines.len()).filter_map(|at| self.line(at))
    }

    /// The Merkle leaves of the lines; `None` when a line is neither kept nor elided.
    pub(crate) fn leaves(&self) -> Option<Vec<Hash>> {
        self.all_lines()
            .map(|line| match line {
                StoredLine::Line(bytes) => Some(Leaf::Line(bytes).hash()),
                StoredLine::Elided(elided) => Some(elided.leaf),
                StoredLine::Erased => None,
            })
            .collect()
    }
}

/// A batch as it is in a batch frame, opened and still compressed.
pub(crate) struct PackedBatch {
    pub clear: Clear,
    pub head: Head,
    sections: Vec<PackedSection>,
}

/// Id, and raw length and zstd frames, of a section; without them where its key is gone.
type SectionFrames<'a> = (SectionId, Option<(u64, &'a [u8])>);

impl PackedBatch {
    pub(crate) fn read(payload: &[u8], keys: &dyn Keys) -> Result<PackedBatch, RecordError> {
        let mut reader = Reader::new(payload);
        let clear = Clear::read(&mut reader)?;
        let place = (Kind::Batch, &clear.tenant, clear.leaf_index);
        let (head, sections) = open_sealed(&mut reader, keys, place)?;
        Ok(PackedBatch { head: Head::read(&head)?, clear, sections })
    }

    /// The sections as they were compressed.
    pub(crate) fn sections(&self) -> impl Iterator<Item = Result<SectionFrames<'_>, WireError>> {
        self.sections.iter().map(|(id, plain)| {
            let Some(plain) = plain else { return Ok((*id, None)) };
            let mut reader = Reader::new(plain);
            let raw_bytes = reader.varint()?;
            Ok((*id, Some((raw_bytes, reader.rest()))))
        })
    }

    pub(crate) fn unpack(&self) -> Result<StoredBatch, RecordError> {
        let (clear, head) = (&self.clear, self.head.clone());
        let sections = Arc::new(unpack(&self.sections)?);
        let mut cursors = Cursors::new(&sections);
        let lines = cursors.place(&head.places, &head.elided)?;
        Ok(StoredBatch {
            leaf_index: clear.leaf_index,
            received_at: clear.received_at,
            batch_hash: clear.batch_hash,
            flags: clear.flags,
            header_bytes: head.header_bytes,
            signature: head.signature,
            receipt_signature: head.receipt_signature,
            lines,
            elided: head.elided,
            sections,
        })
    }
}

/// Reads the payload of a batch frame.
pub(crate) fn read_batch(payload: &[u8], keys: &dyn Keys) -> Result<StoredBatch, RecordError> {
    PackedBatch::read(payload, keys)?.unpack()
}

/// Walks through the sections of a block, handing out lines in order.
pub(crate) struct Cursors<'a> {
    sections: &'a [Section],
    at: Vec<usize>,
}

impl<'a> Cursors<'a> {
    pub(crate) fn new(sections: &'a [Section]) -> Self {
        Cursors { sections, at: vec![0; sections.len()] }
    }

    /// The next line of a section.
    fn next(&mut self, section: u8) -> Result<Place, RecordError> {
        let index = usize::from(section);
        let (Some(from), Some(at)) = (self.sections.get(index), self.at.get_mut(index)) else {
            return Err(RecordError::Places);
        };
        let Some(lines) = &from.lines else { return Ok(Place::Erased) };
        // One past the end means that the last line was given out.
        let rest = lines.get(*at..).ok_or(RecordError::Places)?;
        let start = *at;
        let end = start + memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        *at = end + 1;
        let narrow = |n: usize| u32::try_from(n).map_err(|_| RecordError::Places);
        Ok(Place::Line { section, start: narrow(start)?, end: narrow(end)? })
    }

    pub(crate) fn place(&mut self, places: &Places, elided: &[Elided]) -> Result<Vec<Place>, RecordError> {
        let map = match places {
            Places::Map(map) => map,
            Places::One(section, count) if *count <= BATCH_EVENTS_MAX => {
                return (0..*count).map(|_| self.next(*section)).collect();
            }
            Places::One(..) => return Err(RecordError::Places),
            Places::None => return Ok(Vec::new()),
        };
        let mut taken = 0u32;
        let lines = map
            .iter()
            .enumerate()
            .map(|(position, section)| {
                if *section == ERASED {
                    return Ok(Place::Erased);
                }
                if *section != ELIDED {
                    return self.next(*section);
                }
                let at = taken;
                taken += 1;
                let fits = elided.get(at as usize).is_some_and(|e| e.position as usize == position);
                if fits { Ok(Place::Elided(at)) } else { Err(RecordError::Places) }
            })
            .collect::<Result<Vec<_>, _>>()?;
        if taken as usize == elided.len() { Ok(lines) } else { Err(RecordError::Places) }
    }
}
