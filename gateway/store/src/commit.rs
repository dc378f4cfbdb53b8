//! The commit log: what is acknowledged is in it, fsynced, until a segment holds it.
//!
//! ```text
//! commit/<20 digits>.log
//! header: "ACTCOMM1" | u32 LE version | u64 LE number | 16 file id | i64 LE created (ns)
//!         | u64 LE previous number | u64 LE previous length | u32 LE crc32c of all before; written twice, since
//!         nothing in the file opens without its id
//! then frames (see `frame`): batch frames, and after each group of them a group frame: varint count of batches
//! | varint bytes of their frames
//! ```
//!
//! A group is written with one call and fsynced once, and the next is written only after that. So a group that is not
//! whole is damage when anything follows it, and at the end of the file it may be one that was never acknowledged. *Previous length* says how far the file before counts:
//! after a failed write or fsync its writer abandons it there and begins the next file, so bytes of a group that
//! was never acknowledged are never taken for stored ones.

use std::io;
use std::path::{Path, PathBuf};

use activity_schema::Timestamp;

use crate::env::Env;
use crate::frame::{Found, Kind, Scan, put_frame};
use crate::storage::{Storage, numbered_name};
use crate::wire::{Reader, WireError, put_varint};

const MAGIC: &[u8; 8] = b"ACTCOMM1";
const VERSION: u32 = 1;
const COPY_BYTES: usize = 64;
/// Both copies of the header.
pub(crate) const HEADER_BYTES: usize = 2 * COPY_BYTES;

pub(crate) type FileId = [u8; 16];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub number: u64,
    pub id: FileId,
    pub created: Timestamp,
    /// 0 when there is none.
    pub previous: u64,
    pub previous_len: u64,
}

impl Header {
    fn to_bytes(self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.created.as_nanos().to_le_bytes());
        out.extend_from_slice(&self.previous.to_le_bytes());
        out.extend_from_slice(&self.previous_len.to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(out.len(), COPY_BYTES);
        out.extend_from_within(..);
        out
    }

    /// The first copy that checks.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let copies = bytes.get(..HEADER_BYTES).ok_or(WireError)?.chunks_exact(COPY_BYTES);
        copies.map(Header::read_copy).find(Result::is_ok).unwrap_or(Err(WireError))
    }

    /// Whether both copies check and agree.
    pub(crate) fn is_intact(bytes: &[u8]) -> bool {
        bytes.len() >= HEADER_BYTES
            && bytes[..COPY_BYTES] == bytes[COPY_BYTES..HEADER_BYTES]
            && Header::read_copy(&bytes[..COPY_BYTES]).is_ok()
    }

    fn read_copy(header: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(header);
        if reader.array::<8>()? != *MAGIC || reader.u32()? != VERSION {
            return Err(WireError);
        }
        let number = u64::from_le_bytes(reader.array()?);
        let id = reader.array()?;
        let created = Timestamp::from_nanos(reader.i64()?);
        let previous = u64::from_le_bytes(reader.array()?);
        let previous_len = u64::from_le_bytes(reader.array()?);
        if crc32c::crc32c(&header[..COPY_BYTES - 4]) != reader.u32()? {
            return Err(WireError);
        }
        Ok(Header { number, id, created, previous, previous_len })
    }
}

pub(crate) fn commit_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(numbered_name(number, "log"))
}

/// Appends groups to the newest commit file.
pub(crate) struct CommitWriter {
    dir: PathBuf,
    header: Header,
    /// Bytes that count: header and whole, fsynced groups.
    len: u64,
    /// The file exists and nothing failed on it.
    usable: bool,
    dir_synced: bool,
}

impl CommitWriter {
    /// A writer that begins file `number` at its first group. `previous` is the file before and how far it counts.
    pub(crate) fn new(env: &Env, dir: &Path, number: u64, previous: (u64, u64)) -> Self {
        let header = Header {
            number,
            id: env.random(),
            created: env.now(),
            previous: previous.0,
            previous_len: previous.1,
        };
        CommitWriter { dir: dir.to_owned(), header, len: 0, usable: false, dir_synced: false }
    }

    pub(crate) fn number(&self) -> u64 {
        self.header.number
    }

    pub(crate) fn id(&self) -> FileId {
        self.header.id
    }

    pub(crate) fn created(&self) -> Timestamp {
        self.header.created
    }

    pub(crate) fn path(&self) -> PathBuf {
        commit_path(&self.dir, self.header.number)
    }

    /// Where the next group will begin.
    pub(crate) fn next_offset(&self) -> u64 {
        self.len.max(HEADER_BYTES as u64)
    }

    pub(crate) fn has_groups(&self) -> bool {
        self.len > HEADER_BYTES as u64
    }

    /// Readies the writer for a group: after a failure the file is abandoned at its last whole group, and the next
    /// begins. A number is never used twice.
    pub(crate) fn prepare(&mut self, env: &Env) {
        if self.len == 0 || self.usable {
            return;
        }
        let previous = if self.has_groups() {
            (self.number(), self.len)
        } else {
            // Holds nothing that counts; if it stays, the next header passes over it.
            let _ = env.storage.remove(&self.path());
            (self.header.previous, self.header.previous_len)
        };
        *self = CommitWriter::new(env, &self.dir, self.number() + 1, previous);
    }

    /// Writes batch frames (already framed) as one group and makes them durable.
    pub(crate) fn append(&mut self, env: &Env, frames: &mut Vec<u8>, batches: u64) -> io::Result<()> {
        let mut group = Vec::new();
        put_varint(&mut group, batches);
        put_varint(&mut group, frames.len() as u64);
        put_frame(frames, Kind::Group, &group);
        let path = self.path();
        let storage = &*env.storage;
        let result = self.write(storage, &path, frames);
        if result.is_err() {
            self.usable = false;
            self.len = self.next_offset();
            // Best effort: what is left behind is ruled out by the next file's header as well.
            let _ = storage.truncate(&path, self.len);
        }
        result
    }

    fn write(&mut self, storage: &dyn Storage, path: &Path, frames: &[u8]) -> io::Result<()> {
        let offset = self.next_offset();
        if self.len == 0 {
            storage.write_at(path, 0, &self.header.to_bytes())?;
        }
        storage.write_at(path, offset, frames)?;
        storage.sync(path)?;
        if !self.dir_synced {
            storage.sync_dir(&self.dir)?;
            self.dir_synced = true;
        }
        self.len = offset + frames.len() as u64;
        self.usable = true;
        Ok(())
    }

    /// Ends the file; the writer begins the next one. Returns the ended file's number and length.
    pub(crate) fn rotate(&mut self, env: &Env) -> (u64, u64) {
        let ended = (self.number(), self.len);
        *self = CommitWriter::new(env, &self.dir, self.number() + 1, ended);
        ended
    }
}

fn read_group(payload: &[u8]) -> Result<(u64, u64), WireError> {
    let mut reader = Reader::new(payload);
    Ok((reader.varint()?, reader.varint()?))
}

/// A commit file as it was found.
pub(crate) struct CommitFile {
    pub header: Header,
    pub bytes: Vec<u8>,
    pub batches: Vec<FoundBatch>,
    /// Damaged ranges: offset and length.
    pub damaged: Vec<(u64, u64)>,
    /// Up to here the file holds what was fsynced; what follows may be a group that was never acknowledged.
    pub grouped_len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundBatch {
    pub offset: u64,
    /// Of the payload.
    pub start: usize,
    pub end: usize,
    /// Beyond `grouped_len`: not acknowledged, unless the log says so.
    pub unfinished: bool,
}

impl CommitFile {
    /// Scans a file. `counted_len` is what the next file's header says of this one.
    pub(crate) fn scan(mut bytes: Vec<u8>, counted_len: Option<u64>) -> Result<Self, WireError> {
        let header = Header::read(&bytes)?;
        if let Some(len) = counted_len {
            bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        }
        let mut batches: Vec<FoundBatch> = Vec::new();
        let mut damaged = Vec::new();
        // Start and end of the last group, and whether all its batches are there.
        let mut last = (HEADER_BYTES as u64, HEADER_BYTES as u64, true);
        for found in Scan::new(&bytes, HEADER_BYTES) {
            match found {
                Found::Frame { offset, kind, payload } => {
                    let start = offset + crate::frame::FRAME_HEADER_BYTES;
                    let end = start + payload.len();
                    match (kind, read_group(payload)) {
                        (Kind::Batch, _) => {
                            batches.push(FoundBatch { offset: offset as u64, start, end, unfinished: true });
                        }
                        (Kind::Group, Ok((count, len))) => {
                            let from = (offset as u64).saturating_sub(len);
                            let own = batches.len() - batches.partition_point(|b| b.offset < from);
                            last = (from, end as u64, own as u64 == count);
                        }
                        // Well-formed, but nothing that belongs here.
                        _ => damaged.push((offset as u64, (end - offset) as u64)),
                    }
                }
                Found::Damaged { offset, len } | Found::Tail { offset, len } => {
                    damaged.push((offset as u64, len as u64));
                }
            }
        }
        let (from, end, whole) = last;
        let grouped_len = if whole || end < bytes.len() as u64 { end } else { from };
        batches.iter_mut().for_each(|b| b.unfinished = b.offset >= grouped_len);
        Ok(CommitFile { header, bytes, batches, damaged, grouped_len })
    }

    pub(crate) fn payload(&self, batch: &FoundBatch) -> &[u8] {
        &self.bytes[batch.start..batch.end]
    }
}
