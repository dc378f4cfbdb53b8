//! Frames of a spool segment, format version 1.
//!
//! ```text
//! segment  = magic "ACTSPOL1" | frame*
//! frame    = u32 LE length of rest | u32 LE crc32c of rest | u8 kind | payload
//! LINES    = u8 n | n × (u8 ring, u64 LE position) | (u32 LE length, line)*      no line is empty or has a newline
//! SEAL     = u16 LE header length | header | 64 bytes signature      the lines since the last seal
//! SHED     = as SEAL; the lines are gone
//! ```

use bytes::{Buf as _, BufMut as _};

pub const SEGMENT_MAGIC: &[u8; 8] = b"ACTSPOL1";
const FRAME_HEAD: usize = 8;
/// No frame is longer: a drain pass is bounded far below.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

const LINES: u8 = 1;
const SEAL: u8 = 2;
const SHED: u8 = 3;

/// Position up to which a kernel ring is held by the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingCursor {
    pub ring: u8,
    pub position: u64,
}

/// A frame, borrowed from the segment's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    Lines { cursors: Vec<RingCursor>, lines: Vec<&'a [u8]> },
    Seal { header: &'a [u8], signature: [u8; 64] },
    Shed { header: &'a [u8], signature: [u8; 64] },
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the frame is cut short")]
    Torn,
    #[error("the frame's checksum does not match")]
    Checksum {
        /// Length of the whole frame, as far as its length field can be believed.
        len: usize,
    },
    #[error("the frame's content is malformed")]
    Malformed { len: usize },
}

pub fn encode_lines<'a>(
    cursors: &[RingCursor],
    lines: impl IntoIterator<Item = &'a [u8]>,
    out: &mut Vec<u8>,
) {
    frame(LINES, out, |out| {
        debug_assert!(cursors.len() < 256);
        out.put_u8(u8::try_from(cursors.len()).unwrap_or(u8::MAX));
        for cursor in cursors {
            out.put_u8(cursor.ring);
            out.put_u64_le(cursor.position);
        }
        for line in lines {
            out.put_u32_le(u32::try_from(line.len()).unwrap_or(u32::MAX));
            out.put_slice(line);
        }
    });
}

pub fn encode_seal(header: &[u8], signature: &[u8; 64], shed: bool, out: &mut Vec<u8>) {
    frame(if shed { SHED } else { SEAL }, out, |out| {
        out.put_u16_le(u16::try_from(header.len()).unwrap_or(u16::MAX));
        out.put_slice(header);
        out.put_slice(signature);
    });
}

fn frame(kind: u8, out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_slice(&[0; FRAME_HEAD]);
    out.put_u8(kind);
    payload(out);
    let rest = &out[start + FRAME_HEAD..];
    let (len, crc) = (u32::try_from(rest.len()).unwrap_or(u32::MAX), crc32c::crc32c(rest));
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// Reads the frame at the front of `bytes`; returns it and its length.
pub fn decode(bytes: &[u8]) -> Result<(Frame<'_>, usize), FrameError> {
    let mut head = bytes;
    if head.len() < FRAME_HEAD {
        return Err(FrameError::Torn);
    }
    let (len, crc) = (head.get_u32_le() as usize, head.get_u32_le());
    if len == 0 || len > FRAME_BYTES_MAX || head.len() < len {
        return Err(FrameError::Torn);
    }
    let rest = &head[..len];
    let whole = FRAME_HEAD + len;
    if crc32c::crc32c(rest) != crc {
        return Err(FrameError::Checksum { len: whole });
    }
    let parsed = match rest[0] {
        LINES => lines(&rest[1..]),
        SEAL => seal(&rest[1..]).map(|(header, signature)| Frame::Seal { header, signature }),
        SHED => seal(&rest[1..]).map(|(header, signature)| Frame::Shed { header, signature }),
        _ => None,
    };
    parsed.map(|frame| (frame, whole)).ok_or(FrameError::Malformed { len: whole })
}

fn lines(mut p: &[u8]) -> Option<Frame<'_>> {
    let n = p.try_get_u8().ok()?;
    let mut cursors = Vec::with_capacity(usize::from(n));
    for _ in 0..n {
        cursors.push(RingCursor { ring: p.try_get_u8().ok()?, position: p.try_get_u64_le().ok()? });
    }
    let mut lines = Vec::new();
    while !p.is_empty() {
        let len = p.try_get_u32_le().ok()? as usize;
        let (line, rest) = p.split_at_checked(len)?;
        // Within a batch lines are told apart by newlines.
        if line.is_empty() || line.contains(&b'\n') {
            return None;
        }
        lines.push(line);
        p = rest;
    }
    Some(Frame::Lines { cursors, lines })
}

fn seal(mut p: &[u8]) -> Option<(&[u8], [u8; 64])> {
    let len = usize::from(p.try_get_u16_le().ok()?);
    let (header, signature) = p.split_at_checked(len)?;
    Some((header, signature.try_into().ok()?))
}
