//! What a crash can leave behind the last record of a journal file, and what it cannot.
//!
//! An append is one write, and the next begins only after its fsync. So a crash leaves at most one append behind the last
//! whole record: cut short, or with sectors that never reached the disk and read as zeros. Other bytes were put there.
//! Whether records that were durable are missing is said by `end`.

use crate::frame::{FRAME_HEADER_BYTES, Kind};

/// Zeros in a row that no record has: it is text behind a signature.
const ZEROS_MIN: usize = 12;

/// Whether a crash explains these bytes behind the last record.
pub(super) fn is_torn(tail: &[u8]) -> bool {
    is_cut(tail) || has_lost_part(tail)
}

/// It begins as a frame does, and ends before that frame's end.
fn is_cut(tail: &[u8]) -> bool {
    let Some(header) = tail.first_chunk::<FRAME_HEADER_BYTES>() else { return true };
    let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    header[8] == Kind::Control as u8
        && len <= super::SIGNATURE_BYTES + super::RECORD_BYTES_MAX
        && len > tail.len() - FRAME_HEADER_BYTES
}

fn has_lost_part(tail: &[u8]) -> bool {
    tail.windows(ZEROS_MIN).any(|part| part.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::put_frame;

    #[test]
    fn cut_and_lost_parts_of_an_append_are_torn_and_changed_ones_are_not() {
        let mut frame = Vec::new();
        put_frame(&mut frame, Kind::Control, &vec![b'x'; 1_500]);
        for cut in 1..frame.len() {
            assert!(is_torn(&frame[..cut]), "cut at {cut}");
        }
        for sector in [0, 100, 900] {
            let mut lost = frame.clone();
            lost[sector..sector + 512].fill(0);
            assert!(is_torn(&lost), "a lost sector at {sector}");
        }
        for at in (0..frame.len()).step_by(7) {
            let mut flipped = frame.clone();
            flipped[at] ^= 0x20;
            let grown = at < 4 && is_cut(&flipped);
            assert_eq!(is_torn(&flipped), grown, "flipped at {at}");
        }
        assert!(!is_torn(&[0x5a; 4_000]));
    }
}
