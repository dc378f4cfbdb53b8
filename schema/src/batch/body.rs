//! The lines of a batch: joined by `\n`, compressed with zstd.

use std::cell::RefCell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

use crate::batch::{BATCH_EVENTS_MAX, BATCH_RAW_BYTES_MAX};

/// Why a body is not the lines that its header declares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body does not decompress: {0}")]
    Zstd(String),
    #[error("the body holds {actual} raw bytes, the header declares {declared}")]
    Length { declared: u64, actual: u64 },
    #[error("the body holds {actual} lines, the header declares {declared}")]
    Count { declared: u64, actual: u64 },
    #[error("the Merkle root of the lines is not the header's")]
    Root,
}

/// zstd level of batches: the fastest of the normal levels; density comes from repacking at the gateway.
const ZSTD_LEVEL: i32 = 1;

/// Most bytes that a thread keeps for its next frame.
const PACKED_KEPT_MAX: usize = 2 * 1024 * 1024;

thread_local! {
    // A context is a megabyte of tables: made once a thread, not once a batch.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    /// Holds the longest frame that a body of the thread could have become; what is given out is as long as it is.
    static PACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Compresses joined lines.
pub fn compress(raw: &[u8]) -> io::Result<Vec<u8>> {
    compress_at(raw, ZSTD_LEVEL)
}

/// One zstd frame of `raw`, at a level.
pub fn compress_at(raw: &[u8], level: i32) -> io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|slot| {
        let compressor = match slot {
            Some(compressor) => compressor,
            None => slot.insert(Compressor::new(level)?),
        };
        compressor.set_compression_level(level)?;
        PACKED.with_borrow_mut(|packed| {
            packed.clear();
            packed.reserve(zstd::zstd_safe::compress_bound(raw.len()));
            compressor.compress_to_buffer(raw, packed)?;
            let exact = packed.as_slice().to_vec();
            packed.shrink_to(PACKED_KEPT_MAX);
            Ok(exact)
        })
    })
}

/// Decompresses zstd frames, one after another, to at most `capacity` bytes.
pub fn decompress_within(body: &[u8], capacity: usize) -> io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    decompress_into(body, capacity, &mut raw)?;
    Ok(raw)
}

fn decompress_into(body: &[u8], capacity: usize, raw: &mut Vec<u8>) -> io::Result<()> {
    raw.clear();
    raw.reserve_exact(capacity);
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(Decompressor::new()?),
        };
        decompressor.decompress_to_buffer(body, raw).map(drop)
    })
}

/// Decompresses into a buffer of exactly the declared size; anything longer or shorter is an error, so a
/// compression bomb costs no more memory than an honest batch.
pub fn decompress(body: &[u8], declared_raw_bytes: u64) -> Result<Vec<u8>, BodyError> {
    let mut raw = Vec::new();
    decompress_again(body, declared_raw_bytes, &mut raw)?;
    Ok(raw)
}

/// [`decompress`] into a buffer that was used before.
pub fn decompress_again(body: &[u8], declared_raw_bytes: u64, raw: &mut Vec<u8>) -> Result<(), BodyError> {
    let capped = declared_raw_bytes.min(BATCH_RAW_BYTES_MAX);
    let capacity = usize::try_from(capped).map_err(|e| BodyError::Zstd(e.to_string()))?;
    decompress_into(body, capacity, raw).map_err(|e| BodyError::Zstd(e.to_string()))?;
    if raw.len() as u64 != declared_raw_bytes {
        return Err(BodyError::Length { declared: declared_raw_bytes, actual: raw.len() as u64 });
    }
    Ok(())
}

/// Joins lines with `\n`, none at the end.
pub fn join_lines<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut raw = Vec::new();
    join_lines_again(lines, &mut raw);
    raw
}

/// [`join_lines`] into a buffer that was used before.
pub fn join_lines_again<'a>(lines: impl IntoIterator<Item = &'a [u8]>, raw: &mut Vec<u8>) {
    raw.clear();
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            raw.push(b'\n');
        }
        raw.extend_from_slice(line);
    }
}

/// The inverse of [`join_lines`]; checks the number of lines.
pub fn split_lines(raw: &[u8], declared_count: u64) -> Result<Vec<&[u8]>, BodyError> {
    let mut lines = Vec::with_capacity(usize::try_from(declared_count.min(BATCH_EVENTS_MAX)).unwrap_or(0));
    let mut start = 0;
    for at in memchr::memchr_iter(b'\n', raw) {
        lines.push(&raw[start..at]);
        start = at + 1;
    }
    lines.push(&raw[start..]);
    if lines.len() as u64 != declared_count {
        return Err(BodyError::Count { declared: declared_count, actual: lines.len() as u64 });
    }
    Ok(lines)
}
