//! The lines of a batch: joined by `\n`, compressed with zstd.

use crate::batch::BATCH_RAW_BYTES_MAX;

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

/// Compresses joined lines.
pub fn compress(raw: &[u8]) -> std::io::Result<Vec<u8>> {
    zstd::bulk::compress(raw, ZSTD_LEVEL)
}

/// Decompresses into a buffer of exactly the declared size; anything longer or shorter is an error, so a
/// compression bomb costs no more memory than an honest batch.
pub fn decompress(body: &[u8], declared_raw_bytes: u64) -> Result<Vec<u8>, BodyError> {
    let capped = declared_raw_bytes.min(BATCH_RAW_BYTES_MAX);
    let capacity = usize::try_from(capped).map_err(|e| BodyError::Zstd(e.to_string()))?;
    let raw = zstd::bulk::decompress(body, capacity).map_err(|e| BodyError::Zstd(e.to_string()))?;
    if raw.len() as u64 != declared_raw_bytes {
        return Err(BodyError::Length { declared: declared_raw_bytes, actual: raw.len() as u64 });
    }
    Ok(raw)
}

/// Joins lines with `\n`, none at the end.
pub fn join_lines<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut raw = Vec::new();
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            raw.push(b'\n');
        }
        raw.extend_from_slice(line);
    }
    raw
}

/// The inverse of [`join_lines`]; checks the number of lines.
pub fn split_lines(raw: &[u8], declared_count: u64) -> Result<Vec<&[u8]>, BodyError> {
    let lines: Vec<&[u8]> = raw.split(|b| *b == b'\n').collect();
    if lines.len() as u64 != declared_count {
        return Err(BodyError::Count { declared: declared_count, actual: lines.len() as u64 });
    }
    Ok(lines)
}
