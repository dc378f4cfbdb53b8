//! Frames, the same in commit files, segments and the control journal:
//!
//! ```text
//! u32 LE payload length | u32 LE crc32c(length ‖ kind ‖ payload) | u8 kind | payload
//! ```
//!
//! A reader passes over a damaged frame exactly: when the bytes at a frame's place do not check, it looks for
//! the next place where a frame does, and reports the bytes between as damaged.

/// Length, checksum and kind.
pub(crate) const FRAME_HEADER_BYTES: usize = 9;
/// Longest payload: a block of a segment with its head, with room for incompressible lines.
pub(crate) const FRAME_PAYLOAD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// One batch (commit file).
    Batch = 1,
    /// End of a group commit: how many batches it held (commit file).
    Group = 2,
    /// Consecutive batches of a stream (segment).
    Block = 3,
    /// Index of a segment's blocks (segment).
    Footer = 4,
    /// A control record (control journal).
    Control = 5,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Batch, Kind::Group, Kind::Block, Kind::Footer, Kind::Control]
            .into_iter()
            .find(|k| *k as u8 == byte)
    }
}

/// Appends a frame.
pub(crate) fn put_frame(out: &mut Vec<u8>, kind: Kind, payload: &[u8]) {
    debug_assert!(payload.len() <= FRAME_PAYLOAD_BYTES_MAX);
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
    let crc = checksum(len, kind as u8, payload);
    out.reserve(FRAME_HEADER_BYTES + payload.len());
    out.extend_from_slice(&len);
    out.extend_from_slice(&crc.to_le_bytes());
    out.push(kind as u8);
    out.extend_from_slice(payload);
}

fn checksum(len: [u8; 4], kind: u8, payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&len);
    let crc = crc32c::crc32c_append(crc, &[kind]);
    crc32c::crc32c_append(crc, payload)
}

/// The frame that begins at the front of `bytes`, when one does.
pub(crate) fn frame_at(bytes: &[u8]) -> Option<(Kind, &[u8])> {
    let header = bytes.get(..FRAME_HEADER_BYTES)?;
    let len_bytes: [u8; 4] = header[..4].try_into().ok()?;
    let len = u32::from_le_bytes(len_bytes) as usize;
    let kind = Kind::from_byte(header[8])?;
    if len > FRAME_PAYLOAD_BYTES_MAX {
        return None;
    }
    let payload = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + len)?;
    let crc = u32::from_le_bytes(header[4..8].try_into().ok()?);
    (checksum(len_bytes, header[8], payload) == crc).then_some((kind, payload))
}

/// What a scan met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    Frame {
        offset: usize,
        kind: Kind,
        payload: &'a [u8],
    },
    /// Bytes that are no frame, before another frame.
    Damaged {
        offset: usize,
        len: usize,
    },
    /// Bytes that are no frame, at the end: a write that was cut, or damage.
    Tail {
        offset: usize,
        len: usize,
    },
}

/// Goes through the frames of a file from `offset` on.
pub(crate) struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Scan { bytes, at: offset.min(bytes.len()) }
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Found<'a>;

    fn next(&mut self) -> Option<Found<'a>> {
        let offset = self.at;
        if offset == self.bytes.len() {
            return None;
        }
        if let Some((kind, payload)) = frame_at(&self.bytes[offset..]) {
            self.at = offset + FRAME_HEADER_BYTES + payload.len();
            return Some(Found::Frame { offset, kind, payload });
        }
        // A checksum that holds by chance costs one in 2^32 places; lengths and kinds rule out most before it.
        let next = (offset + 1..self.bytes.len()).find(|at| frame_at(&self.bytes[*at..]).is_some());
        self.at = next.unwrap_or(self.bytes.len());
        let len = self.at - offset;
        Some(if next.is_some() { Found::Damaged { offset, len } } else { Found::Tail { offset, len } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Vec<u8> {
        let mut out = Vec::new();
        for payload in [&b"first"[..], &[7; 300], b"third"] {
            put_frame(&mut out, Kind::Batch, payload);
        }
        out
    }

    fn payloads(bytes: &[u8]) -> (usize, usize) {
        let found: Vec<_> = Scan::new(bytes, 0).collect();
        let frames = found.iter().filter(|f| matches!(f, Found::Frame { .. })).count();
        (frames, found.len() - frames)
    }

    #[test]
    fn any_flipped_byte_costs_exactly_its_frame() {
        let good = three();
        assert_eq!(payloads(&good), (3, 0));
        for at in 0..good.len() {
            for bit in [0, 3, 7] {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(payloads(&bad), (2, 1), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn a_cut_file_keeps_its_whole_frames() {
        let good = three();
        for cut in 0..good.len() {
            let (frames, other) = payloads(&good[..cut]);
            assert_eq!(frames, usize::from(cut >= 14) + usize::from(cut >= 323));
            assert_eq!(other, usize::from(cut != 0 && cut != 14 && cut != 323));
        }
    }

    #[test]
    fn a_frame_holds_8_mib() {
        let framed = |len: usize| {
            let mut bytes = vec![0; FRAME_HEADER_BYTES + len];
            let len_bytes = u32::try_from(len).unwrap().to_le_bytes();
            bytes[..4].copy_from_slice(&len_bytes);
            bytes[8] = Kind::Batch as u8;
            let crc = checksum(len_bytes, bytes[8], &bytes[FRAME_HEADER_BYTES..]);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
            frame_at(&bytes).is_some()
        };
        assert!(framed(8_388_608) && !framed(8_388_609));
    }
}
