//! Blocks: batches of one stream packed together, and unpacked again.
//!
//! The head of a block, opened:
//!
//! ```text
//! bytes (varint raw length | zstd of the texts) | the binaries
//! texts:    varint count of batches; each: varint leaf index - the one before | signed varint received at - the one
//!           before (ns) | u8 flags | places | elided lines (see `record`) | u8 form | bytes header
//! binaries: each batch: 64 signature | 64 receipt signature | form 1, 2: 32 merkle root | form 1: 32 previous batch hash
//! ```
//!
//! Form 0: the header as it is. Forms 1 and 2: the hex of `merkle_root` and `previous_batch_hash` is cut out of the
//! header; in form 2 the latter is the hash of the batch before in the block. What is random is kept apart from
//! what compresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use activity_schema::batch::{self, batch_hash};
use activity_schema::ids::TenantId;
use activity_schema::{Hash, Timestamp};
use bytes::Bytes;

use crate::aead::Unsealed;
use crate::env::Env;
use crate::frame::Kind;
use crate::record::{
    Cursors, ELIDED, ERASED, Elided, Keys, PackedBatch, Place, Places, PlainSection, RecordError, SectionId,
    StoredBatch, put_elided, put_sealed, read_elided, read_sealed,
};
use crate::wire::{Reader, WireError, put_bytes, put_len, put_signed, put_varint};

const ZSTD_LEVEL: i32 = 3;
const TEXTS_RAW_BYTES_MAX: usize = 64 * 1024 * 1024;
const HEX_HASH: usize = 64;
const ROOT_KEY: &[u8] = b"\"merkle_root\":\"";
const PREVIOUS_KEY: &[u8] = b"\"previous_batch_hash\":\"";

/// Raw bytes from which the lines of a batch's section are kept as they were compressed: packing them anew with others
/// would gain little and cost most of what sealing costs.
const WHOLE_BYTES_MIN: u64 = 64 * 1024;
/// A zstd frame (RFC 8878) of one line break: it stands between two bodies.
const NEWLINE_FRAME: [u8; 10] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x01, 0x09, 0x00, 0x00, b'\n'];

/// What a block's head says of one batch.
struct Texts<'a> {
    leaf_index: u64,
    received_at: Timestamp,
    flags: u8,
    places: &'a Places,
    elided: &'a [Elided],
    header: &'a [u8],
    signature: &'a [u8; 64],
    receipt_signature: &'a [u8; 64],
    hash: Hash,
}

/// Gathers batches of one stream.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    first_leaf: u64,
    count: usize,
    texts: Vec<u8>,
    binaries: Vec<u8>,
    sections: BTreeMap<SectionId, Gathered>,
    raw_bytes: u64,
    last_leaf: u64,
    last_received: i64,
    last_hash: Option<Hash>,
}

/// The lines of one section.
struct Gathered {
    number: u8,
    /// Frames that are compressed already.
    packed: Vec<u8>,
    /// Lines that are not.
    open: Vec<u8>,
    raw_bytes: u64,
}

impl Gathered {
    fn separate(&mut self) {
        if self.raw_bytes > 0 {
            self.open.push(b'\n');
            self.raw_bytes += 1;
        }
    }

    fn line(&mut self, line: &[u8]) {
        self.separate();
        self.open.extend_from_slice(line);
        self.raw_bytes += line.len() as u64;
    }

    /// Takes lines that are compressed already.
    fn frames(&mut self, raw_bytes: u64, frames: &[u8]) -> std::io::Result<()> {
        self.separate();
        self.pack()?;
        self.packed.extend_from_slice(frames);
        self.raw_bytes += raw_bytes;
        Ok(())
    }

    fn pack(&mut self) -> std::io::Result<()> {
        if self.open == b"\n" {
            self.packed.extend_from_slice(&NEWLINE_FRAME);
        } else if !self.open.is_empty() {
            self.packed.extend_from_slice(&batch::compress_at(&self.open, ZSTD_LEVEL)?);
        }
        self.open.clear();
        Ok(())
    }
}

impl BlockBuilder {
    pub(crate) fn raw_bytes(&self) -> u64 {
        self.raw_bytes + (self.texts.len() + self.binaries.len()) as u64 / 4
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn push(&mut self, batch: &StoredBatch) {
        let places = self.take_lines(batch);
        self.put_batch(&Texts {
            leaf_index: batch.leaf_index,
            received_at: batch.received_at,
            flags: batch.flags,
            places: &places,
            elided: &batch.elided,
            header: &batch.header_bytes,
            signature: &batch.signature,
            receipt_signature: &batch.receipt_signature,
            hash: batch.batch_hash,
        });
    }

    /// Adds a batch of a commit file. Sections that are long enough to compress well by themselves stay as they are.
    pub(crate) fn push_packed(&mut self, batch: &PackedBatch) -> Result<(), BlockError> {
        // Section of the block, or `ERASED`, by section of the batch.
        let mut numbers = Vec::new();
        for section in batch.sections() {
            let (id, plain) = section?;
            let Some((raw_bytes, frames)) = plain else {
                numbers.push(ERASED);
                continue;
            };
            let section = self.section(id);
            if raw_bytes >= WHOLE_BYTES_MIN {
                section.frames(raw_bytes, frames)?;
            } else {
                section.line(&decompress(raw_bytes, frames)?);
            }
            numbers.push(section.number);
            self.raw_bytes += raw_bytes + 1;
        }
        let number = |at: u8| numbers.get(usize::from(at)).copied().unwrap_or(ERASED);
        let places = match &batch.head.places {
            Places::One(at, count) if number(*at) < ERASED => Places::One(number(*at), *count),
            Places::One(_, count) => Places::Map((0..*count).map(|_| ERASED).collect()),
            Places::Map(map) => {
                Places::Map(map.iter().map(|at| if *at < ERASED { number(*at) } else { *at }).collect())
            }
            Places::None => Places::None,
        };
        self.put_batch(&Texts {
            leaf_index: batch.clear.leaf_index,
            received_at: batch.clear.received_at,
            flags: batch.clear.flags,
            places: &places,
            elided: &batch.head.elided,
            header: &batch.head.header_bytes,
            signature: &batch.head.signature,
            receipt_signature: &batch.head.receipt_signature,
            hash: batch.clear.batch_hash,
        });
        Ok(())
    }

    fn put_batch(&mut self, batch: &Texts<'_>) {
        if self.count == 0 {
            self.first_leaf = batch.leaf_index;
            self.last_leaf = batch.leaf_index;
        }
        put_varint(&mut self.texts, batch.leaf_index - self.last_leaf);
        put_signed(&mut self.texts, batch.received_at.as_nanos().wrapping_sub(self.last_received));
        self.texts.push(batch.flags);
        batch.places.put(&mut self.texts);
        put_elided(&mut self.texts, batch.elided);
        self.put_header(batch);
        self.last_leaf = batch.leaf_index;
        self.last_received = batch.received_at.as_nanos();
        self.last_hash = Some(batch.hash);
        self.count += 1;
    }

    fn take_lines(&mut self, batch: &StoredBatch) -> Places {
        if batch.lines.is_empty() {
            return Places::None;
        }
        let mut map = Vec::with_capacity(batch.lines.len());
        for place in &batch.lines {
            map.push(match place {
                Place::Elided(_) => ELIDED,
                Place::Erased => ERASED,
                Place::Line { section, start, end } => {
                    let from = batch.sections.get(usize::from(*section));
                    let line = from
                        .and_then(|s| s.lines.as_ref())
                        .and_then(|lines| lines.get(*start as usize..*end as usize));
                    match (from, line) {
                        (Some(from), Some(line)) => self.put_line(from.id, line),
                        _ => ERASED,
                    }
                }
            });
        }
        let first = map[0];
        if first < ERASED && map.iter().all(|m| *m == first) {
            Places::One(first, map.len() as u64)
        } else {
            Places::Map(map)
        }
    }

    fn put_line(&mut self, id: SectionId, line: &[u8]) -> u8 {
        self.raw_bytes += line.len() as u64 + 1;
        let section = self.section(id);
        section.line(line);
        section.number
    }

    fn section(&mut self, id: SectionId) -> &mut Gathered {
        // Four retention classes and two days (a file is rotated long before a third) stay far below the bound.
        let number = u8::try_from(self.sections.len()).unwrap_or(ERASED - 1);
        self.sections.entry(id).or_insert(Gathered {
            number,
            packed: Vec::new(),
            open: Vec::new(),
            raw_bytes: 0,
        })
    }

    fn put_header(&mut self, batch: &Texts<'_>) {
        self.binaries.extend_from_slice(batch.signature);
        self.binaries.extend_from_slice(batch.receipt_signature);
        match cut_header(batch.header) {
            None => {
                self.texts.push(0);
                put_bytes(&mut self.texts, batch.header);
            }
            Some((text, root, previous)) => {
                let chained = self.last_hash == Some(previous);
                self.texts.push(if chained { 2 } else { 1 });
                put_bytes(&mut self.texts, &text);
                self.binaries.extend_from_slice(&root.0);
                if !chained {
                    self.binaries.extend_from_slice(&previous.0);
                }
            }
        }
    }

    /// The payload of the block frame. The builder is empty afterwards.
    pub(crate) fn finish(
        &mut self,
        env: &Env,
        keys: &dyn Keys,
        tenant: &TenantId,
    ) -> Result<Vec<u8>, BlockError> {
        let built = std::mem::take(self);
        let mut texts = Vec::with_capacity(built.texts.len() + 4);
        put_len(&mut texts, built.count);
        texts.extend_from_slice(&built.texts);
        let mut packed = Vec::new();
        put_len(&mut packed, texts.len());
        packed.extend_from_slice(&batch::compress_at(&texts, ZSTD_LEVEL)?);
        let mut head = Vec::with_capacity(packed.len() + built.binaries.len() + 4);
        put_bytes(&mut head, &packed);
        head.extend_from_slice(&built.binaries);
        let mut sections: Vec<(SectionId, Gathered)> = built.sections.into_iter().collect();
        sections.sort_unstable_by_key(|(_, section)| section.number);
        let sections = sections
            .into_iter()
            .map(|(id, mut section)| {
                section.pack()?;
                Ok(PlainSection { id, raw_bytes: section.raw_bytes, compressed: section.packed.into() })
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let mut out = Vec::new();
        put_varint(&mut out, built.first_leaf);
        put_sealed(&mut out, env, keys, (Kind::Block, tenant, built.first_leaf), &head, &sections)?;
        Ok(out)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BlockError {
    #[error("compressing a block")]
    Zstd(#[from] std::io::Error),
    #[error("a data key is gone")]
    Key(#[from] Unsealed),
    #[error("a section of a batch")]
    Section(#[from] WireError),
}

fn decompress(raw_bytes: u64, frames: &[u8]) -> Result<Vec<u8>, BlockError> {
    let raw_len = usize::try_from(raw_bytes).map_err(|_| WireError)?;
    let raw = batch::decompress_within(frames, raw_len).map_err(|_| WireError)?;
    if raw.len() == raw_len { Ok(raw) } else { Err(WireError.into()) }
}

/// Unpacks a block.
pub(crate) fn read_block(
    payload: &[u8],
    keys: &dyn Keys,
    tenant: &TenantId,
) -> Result<Vec<StoredBatch>, RecordError> {
    let mut reader = Reader::new(payload);
    let first_leaf = reader.varint()?;
    let opened = read_sealed(&mut reader, keys, (Kind::Block, tenant, first_leaf))?;
    let mut head = Reader::new(&opened.head);
    let mut packed = Reader::new(head.bytes()?);
    let raw_len = packed.len()?;
    if raw_len > TEXTS_RAW_BYTES_MAX {
        return Err(RecordError::Body);
    }
    let texts = batch::decompress_within(packed.rest(), raw_len).map_err(|_| RecordError::Body)?;
    let mut texts = Reader::new(&texts);
    let sections = Arc::new(opened.sections);
    let mut cursors = Cursors::new(&sections);
    let mut batches: Vec<StoredBatch> = Vec::new();
    let (mut leaf_index, mut received_at) = (first_leaf, 0i64);
    for _ in 0..texts.len()? {
        leaf_index = leaf_index.checked_add(texts.varint()?).ok_or(WireError)?;
        received_at = received_at.wrapping_add(texts.signed()?);
        let flags = texts.u8()?;
        let places = Places::read(&mut texts)?;
        let elided: Vec<Elided> = read_elided(&mut texts)?;
        let previous = batches.last().map(|b| b.batch_hash);
        let (header_bytes, signature, receipt_signature) = read_header(&mut texts, &mut head, previous)?;
        batches.push(StoredBatch {
            leaf_index,
            received_at: Timestamp::from_nanos(received_at),
            batch_hash: batch_hash(&header_bytes, &signature),
            flags,
            header_bytes,
            signature,
            receipt_signature,
            lines: cursors.place(&places, &elided)?,
            elided,
            sections: Arc::clone(&sections),
        });
    }
    Ok(batches)
}

type HeaderParts = (Bytes, [u8; 64], [u8; 64]);

fn read_header(
    texts: &mut Reader<'_>,
    binaries: &mut Reader<'_>,
    previous: Option<Hash>,
) -> Result<HeaderParts, WireError> {
    let form = texts.u8()?;
    let text = texts.bytes()?;
    let signature = binaries.array()?;
    let receipt_signature = binaries.array()?;
    let header = match form {
        0 => text.to_vec(),
        1 | 2 => {
            let root = binaries.hash()?;
            let previous = if form == 1 { binaries.hash()? } else { previous.ok_or(WireError)? };
            join_header(text, root, previous).ok_or(WireError)?
        }
        _ => return Err(WireError),
    };
    Ok((header.into(), signature, receipt_signature))
}

/// The header without the hex of its two hashes; `None` when it would not come back as it was.
fn cut_header(header: &[u8]) -> Option<(Vec<u8>, Hash, Hash)> {
    let (text, root) = cut_hash(header, ROOT_KEY)?;
    let (text, previous) = cut_hash(&text, PREVIOUS_KEY)?;
    (join_header(&text, root, previous)? == header).then_some((text, root, previous))
}

fn join_header(text: &[u8], root: Hash, previous: Hash) -> Option<Vec<u8>> {
    put_hash(&put_hash(text, PREVIOUS_KEY, previous)?, ROOT_KEY, root)
}

fn cut_hash(text: &[u8], key: &[u8]) -> Option<(Vec<u8>, Hash)> {
    let at = memchr::memmem::find(text, key)? + key.len();
    let hash = Hash::from_hex(std::str::from_utf8(text.get(at..at + HEX_HASH)?).ok()?)?;
    Some(([&text[..at], &text[at + HEX_HASH..]].concat(), hash))
}

fn put_hash(text: &[u8], key: &[u8], hash: Hash) -> Option<Vec<u8>> {
    let at = memchr::memmem::find(text, key)? + key.len();
    Some([&text[..at], hash.to_hex().as_bytes(), &text[at..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_between_bodies_is_a_line_break() {
        assert_eq!(batch::decompress_within(&NEWLINE_FRAME, 1).unwrap(), b"\n");
        let mut section = Gathered { number: 0, packed: Vec::new(), open: Vec::new(), raw_bytes: 0 };
        section.frames(3, &batch::compress(b"a\nb").unwrap()).unwrap();
        section.frames(1, &batch::compress(b"c").unwrap()).unwrap();
        section.line(b"d");
        section.line(b"e");
        section.frames(1, &batch::compress(b"f").unwrap()).unwrap();
        section.pack().unwrap();
        assert_eq!(batch::decompress_within(&section.packed, 11).unwrap(), b"a\nb\nc\nd\ne\nf");
        assert_eq!(section.raw_bytes, 11);
    }
}
