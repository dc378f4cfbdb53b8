//! The binary frame of a batch, the same on the wire, in the spool and in the gateway's commit log:
//!
//! ```text
//! u32 LE header length | header | 64 bytes signature | u32 LE body length | body
//! ```
//!
//! Body length 0 means a header alone. A request body is frames one after another.

use bytes::{Buf as _, BufMut as _, Bytes};

use crate::batch::{BatchHeader, HEADER_BYTES_MAX, HeaderError, SignedBatch};

const SIGNATURE_BYTES: usize = 64;
/// zstd's worst case for incompressible input adds less than this.
const BODY_BYTES_MAX: usize = 1024 * 1024 + 16 * 1024;
const _: () = assert!(BODY_BYTES_MAX as u64 > crate::batch::BATCH_RAW_BYTES_MAX);
/// Longest frame, bytes.
pub const FRAME_BYTES_MAX: usize = 4 + HEADER_BYTES_MAX + SIGNATURE_BYTES + 4 + BODY_BYTES_MAX;

/// Why bytes are not a batch frame.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("the frame ends {missing} bytes early")]
    Truncated { missing: usize },
    #[error("the frame declares a body of {0} bytes, the longest is {BODY_BYTES_MAX}")]
    BodyTooLong(usize),
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl SignedBatch {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let body = self.body.as_deref().unwrap_or_default();
        out.reserve(8 + SIGNATURE_BYTES + self.header_bytes.len() + body.len());
        debug_assert!(self.header_bytes.len() <= HEADER_BYTES_MAX && body.len() <= BODY_BYTES_MAX);
        out.put_u32_le(u32::try_from(self.header_bytes.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(&self.header_bytes);
        out.extend_from_slice(&self.signature);
        out.put_u32_le(u32::try_from(body.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(body);
    }

    /// Takes one frame off the front of `input`, without copying.
    pub fn decode(input: &mut Bytes) -> Result<SignedBatch, DecodeError> {
        let header_len = take_u32(input)?;
        if header_len > HEADER_BYTES_MAX {
            return Err(HeaderError::TooLong(header_len).into());
        }
        let header_bytes = take(input, header_len)?;
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(&take(input, SIGNATURE_BYTES)?);
        let body_len = take_u32(input)?;
        if body_len > BODY_BYTES_MAX {
            return Err(DecodeError::BodyTooLong(body_len));
        }
        let body = take(input, body_len)?;
        let header = BatchHeader::parse(&header_bytes)?;
        Ok(SignedBatch { header, header_bytes, signature, body: (body_len > 0).then_some(body) })
    }
}

fn take_u32(input: &mut Bytes) -> Result<usize, DecodeError> {
    Ok(take(input, 4)?.get_u32_le() as usize)
}

fn take(input: &mut Bytes, len: usize) -> Result<Bytes, DecodeError> {
    if input.len() < len {
        return Err(DecodeError::Truncated { missing: len - input.len() });
    }
    Ok(input.split_to(len))
}
