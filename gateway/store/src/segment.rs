//! Segments: a tenant's batches of one commit file, packed.
//!
//! ```text
//! tenants/<tenant>/segments/<20 digits>.seg, numbered as the commit file it was made of
//! header:  "ACTSEGM1" | u32 LE version | u64 LE number | 16 file id | i64 LE created (ns) | u32 LE crc32c; twice
//! then frames (see `frame`): block frames, and one footer frame
//! trailer: u64 LE offset of the footer frame | "ACTSEGE1"
//!
//! block:   varint first leaf index | bytes head, sealed | sections, sealed (as in a batch frame, see `record`)
//! footer:  bytes sealed under the tenant's head key of the file: varint raw length | zstd of
//!          varint count, each: bytes block entry (see `block_entry`)
//! ```
//!
//! A block holds consecutive batches of one stream, closed above [`BLOCK_RAW_BYTES`] of lines. Its lines are in
//! one section a retention class and day, whatever batch they came in. When the footer is damaged, the blocks
//! say all that it does.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use activity_schema::Timestamp;
use activity_schema::ids::TenantId;

use crate::aead::{SectionKey, Unsealed};
use crate::block_entry::BlockEntry;
use crate::commit::FileId;
use crate::env::Env;
use crate::frame::{FRAME_HEADER_BYTES, Found, Kind, Scan, frame_at, put_frame};
use crate::record::{Keys, RecordError, aad};
use crate::storage::{Storage, numbered_name};
use crate::tenant::{FileKeys, SegmentMeta};
use crate::terms::Filter;
use crate::wire::{Reader, WireError, put_bytes, put_len};

const MAGIC: &[u8; 8] = b"ACTSEGM1";
const END_MAGIC: &[u8; 8] = b"ACTSEGE1";
const VERSION: u32 = 1;
const COPY_BYTES: usize = 48;
pub(crate) const HEADER_BYTES: usize = 2 * COPY_BYTES;
pub(crate) const TRAILER_BYTES: usize = 16;
/// Raw bytes of lines above which a block is closed.
pub(crate) const BLOCK_RAW_BYTES: u64 = 1024 * 1024;
/// Most raw bytes of a footer; an entry is a few KiB.
const FOOTER_RAW_BYTES_MAX: usize = 256 * 1024 * 1024;
const FOOTER_ZSTD_LEVEL: i32 = 3;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub segment: u64,
    pub file_id: FileId,
    pub block: u32,
    /// Of the frame's payload.
    pub offset: u64,
    pub len: usize,
    pub occurred_min: Timestamp,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SegmentError {
    #[error("reading the segment")]
    Io(#[from] io::Error),
    #[error("the segment's header is damaged")]
    Header,
    #[error("the segment's footer is damaged")]
    Footer,
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl From<WireError> for SegmentError {
    fn from(error: WireError) -> Self {
        SegmentError::Record(error.into())
    }
}

impl From<Unsealed> for SegmentError {
    fn from(error: Unsealed) -> Self {
        SegmentError::Record(error.into())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub number: u64,
    pub id: FileId,
    pub created: Timestamp,
}

impl Header {
    fn to_bytes(self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.created.as_nanos().to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(out.len(), COPY_BYTES);
        out.extend_from_within(..);
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let copies = bytes.get(..HEADER_BYTES).ok_or(WireError)?.chunks_exact(COPY_BYTES);
        copies.map(Header::read_copy).find(Result::is_ok).unwrap_or(Err(WireError))
    }

    pub(crate) fn is_intact(bytes: &[u8]) -> bool {
        bytes.len() >= HEADER_BYTES
            && bytes[..COPY_BYTES] == bytes[COPY_BYTES..HEADER_BYTES]
            && Header::read_copy(&bytes[..COPY_BYTES]).is_ok()
    }

    fn read_copy(copy: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(copy);
        if reader.array::<8>()? != *MAGIC || reader.u32()? != VERSION {
            return Err(WireError);
        }
        let number = u64::from_le_bytes(reader.array()?);
        let id = reader.array()?;
        let created = Timestamp::from_nanos(reader.i64()?);
        if crc32c::crc32c(&copy[..COPY_BYTES - 4]) != reader.u32()? {
            return Err(WireError);
        }
        Ok(Header { number, id, created })
    }
}

pub(crate) fn segment_path(tenant_dir: &Path, number: u64) -> PathBuf {
    tenant_dir.join("segments").join(numbered_name(number, "seg"))
}

/// Writes a segment beside its final name; `finish` puts it there.
pub(crate) struct SegmentWriter<'a> {
    env: &'a Env,
    tenant: &'a TenantId,
    header: Header,
    path: PathBuf,
    temporary: PathBuf,
    written: u64,
    buffer: Vec<u8>,
    entries: Vec<BlockEntry>,
}

/// Bytes gathered before they are written.
const WRITE_BYTES: usize = 1024 * 1024;

impl<'a> SegmentWriter<'a> {
    pub(crate) fn begin(
        env: &'a Env,
        tenant: &'a TenantId,
        tenant_dir: &Path,
        number: u64,
    ) -> io::Result<SegmentWriter<'a>> {
        let header = Header { number, id: env.random(), created: env.now() };
        let path = segment_path(tenant_dir, number);
        let temporary = path.with_extension("tmp");
        match env.storage.remove(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let buffer = header.to_bytes();
        Ok(SegmentWriter { env, tenant, header, path, temporary, written: 0, buffer, entries: Vec::new() })
    }

    pub(crate) fn id(&self) -> FileId {
        self.header.id
    }

    /// Leaves nothing behind.
    pub(crate) fn abandon(self) {
        // What is left after a failure is removed when the name is needed next.
        let _ = self.env.storage.remove(&self.temporary);
    }

    /// Adds a block; its entry learns its place.
    pub(crate) fn block(&mut self, payload: &[u8], mut entry: BlockEntry) -> io::Result<()> {
        entry.offset = self.written + self.buffer.len() as u64 + FRAME_HEADER_BYTES as u64;
        entry.len = payload.len();
        entry.block = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        put_frame(&mut self.buffer, Kind::Block, payload);
        self.entries.push(entry);
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.env.storage.write_at(&self.temporary, self.written, &self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Footer, fsync, rename, fsync of the directory. Returns the entries and the file's length.
    pub(crate) fn finish(mut self, keys: &FileKeys<'_>) -> io::Result<(Vec<BlockEntry>, Header, u64)> {
        let footer_offset = self.written + self.buffer.len() as u64;
        let mut plain = Vec::new();
        put_len(&mut plain, self.entries.len());
        for entry in &self.entries {
            put_bytes(&mut plain, &entry.to_bytes());
        }
        let mut packed = Vec::new();
        put_len(&mut packed, plain.len());
        packed.extend_from_slice(&zstd::bulk::compress(&plain, FOOTER_ZSTD_LEVEL)?);
        let mut sealed = Vec::new();
        keys.head().seal(
            self.env,
            &aad(Kind::Footer, self.tenant, self.header.number, None),
            &packed,
            &mut sealed,
        );
        put_frame(&mut self.buffer, Kind::Footer, &sealed);
        self.buffer.extend_from_slice(&footer_offset.to_le_bytes());
        self.buffer.extend_from_slice(END_MAGIC);
        self.flush()?;
        let storage = &self.env.storage;
        storage.sync(&self.temporary)?;
        storage.rename(&self.temporary, &self.path)?;
        storage.sync_dir(self.path.parent().unwrap_or(Path::new("")))?;
        Ok((self.entries, self.header, self.written))
    }
}

/// Block entries of a segment file, read without its blocks.
pub(crate) fn read_footer(
    storage: &dyn Storage,
    path: &Path,
    tenant: &TenantId,
    header: &Header,
    key: &SectionKey,
) -> Result<Vec<BlockEntry>, SegmentError> {
    let end = storage.len(path)?.checked_sub(TRAILER_BYTES as u64).ok_or(SegmentError::Footer)?;
    let trailer = storage.read_at(path, end, TRAILER_BYTES)?;
    let offset = footer_offset(&trailer).filter(|offset| *offset < end).ok_or(SegmentError::Footer)?;
    let len = usize::try_from(end - offset).map_err(|_| SegmentError::Footer)?;
    let frame = storage.read_at(path, offset, len)?;
    footer_entries(&frame, tenant, header, key).ok_or(SegmentError::Footer)
}

/// Block entries of the bytes of a segment file.
pub(crate) fn footer_of(
    bytes: &[u8],
    tenant: &TenantId,
    header: &Header,
    key: &SectionKey,
) -> Result<Vec<BlockEntry>, SegmentError> {
    let (rest, trailer) =
        bytes.split_at_checked(bytes.len().saturating_sub(TRAILER_BYTES)).ok_or(SegmentError::Footer)?;
    let offset = footer_offset(trailer).and_then(|offset| usize::try_from(offset).ok());
    let frame = offset.and_then(|offset| rest.get(offset..));
    frame.and_then(|frame| footer_entries(frame, tenant, header, key)).ok_or(SegmentError::Footer)
}

fn footer_offset(trailer: &[u8]) -> Option<u64> {
    let (offset, magic) = trailer.split_at_checked(8)?;
    (magic == END_MAGIC).then(|| offset.try_into().ok().map(u64::from_le_bytes))?
}

fn footer_entries(
    frame: &[u8],
    tenant: &TenantId,
    header: &Header,
    key: &SectionKey,
) -> Option<Vec<BlockEntry>> {
    let (Kind::Footer, sealed) = frame_at(frame)? else { return None };
    // Nothing may hide between the footer and the trailer.
    if FRAME_HEADER_BYTES + sealed.len() != frame.len() {
        return None;
    }
    let packed = key.open(&aad(Kind::Footer, tenant, header.number, None), sealed).ok()?;
    let mut reader = Reader::new(&packed);
    let raw_len = reader.len().ok().filter(|len| *len <= FOOTER_RAW_BYTES_MAX)?;
    let plain = zstd::bulk::decompress(reader.rest(), raw_len).ok()?;
    let mut reader = Reader::new(&plain);
    let mut entries = Vec::new();
    for _ in 0..reader.len().ok()? {
        entries.push(BlockEntry::read(reader.bytes().ok()?).ok()?);
    }
    Some(entries)
}

/// What a segment file holds between header and footer.
pub(crate) struct ScannedBlocks<'a> {
    /// Offset of each payload, and the payload.
    pub blocks: Vec<(usize, &'a [u8])>,
    /// Offset and length.
    pub damaged: Vec<(u64, u64)>,
}

/// The block frames of a segment file, with damaged ranges.
pub(crate) fn scan_blocks(bytes: &[u8]) -> ScannedBlocks<'_> {
    let (mut blocks, mut damaged) = (Vec::new(), Vec::new());
    let end = bytes.len().saturating_sub(TRAILER_BYTES);
    for found in Scan::new(&bytes[..end], HEADER_BYTES) {
        match found {
            Found::Frame { offset, kind: Kind::Block, payload } => {
                blocks.push((offset + FRAME_HEADER_BYTES, payload));
            }
            Found::Frame { kind: Kind::Footer, .. } => {}
            Found::Frame { offset, payload, .. } => damaged.push((offset as u64, payload.len() as u64)),
            Found::Damaged { offset, len } | Found::Tail { offset, len } => {
                damaged.push((offset as u64, len as u64));
            }
        }
    }
    ScannedBlocks { blocks, damaged }
}

/// What memory keeps of a segment.
pub(crate) fn meta_of(header: &Header, entries: &[BlockEntry]) -> Option<SegmentMeta> {
    let mut summary = entries.first()?.summary;
    entries.iter().skip(1).for_each(|entry| summary.merge(&entry.summary));
    let terms: BTreeSet<u64> = entries.iter().flat_map(|entry| &entry.segment_terms).copied().collect();
    let filter = Filter::build(&terms.into_iter().collect::<Vec<_>>()).into();
    let batches = entries.iter().map(|entry| entry.batches).sum();
    Some(SegmentMeta { number: header.number, file_id: header.id, summary, batches, filter })
}
