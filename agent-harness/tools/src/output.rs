//! Output of any size in bounded memory: its beginning, its end, and how much there was.

use std::collections::VecDeque;

/// Keeps the first `head_max` and the last `tail_max` bytes of what it is given.
#[derive(Debug, Clone)]
pub struct BoundedOutput {
    head_max: usize,
    tail_max: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl BoundedOutput {
    #[must_use]
    pub const fn new(head_max: usize, tail_max: usize) -> Self {
        Self { head_max, tail_max, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let room = self.head_max - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.tail_max)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_max);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Bytes produced, kept or not.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.total
    }

    #[must_use]
    pub fn omitted_bytes(&self) -> u64 {
        let kept = u64::try_from(self.head.len() + self.tail.len()).unwrap_or(u64::MAX);
        self.total.saturating_sub(kept)
    }

    /// As text, with what is left out counted in its place. Bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn render(&self) -> String {
        let (front, back) = self.tail.as_slices();
        let tail = [front, back].concat();
        let omitted = self.omitted_bytes();
        if omitted == 0 {
            return String::from_utf8_lossy(&[&self.head[..], &tail].concat()).into_owned();
        }
        let head = String::from_utf8_lossy(&self.head);
        let tail = String::from_utf8_lossy(&tail);
        // A character cut at the gap is no bad byte of the tool's.
        let (head, tail) = (head.trim_end_matches('\u{FFFD}'), tail.trim_start_matches('\u{FFFD}'));
        format!("{head}\n[... {omitted} of {} bytes left out ...]\n{tail}", self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_kept_whole_however_it_arrives() {
        for chunk in 1..12 {
            let mut output = BoundedOutput::new(4, 6);
            for bytes in b"0123456789".chunks(chunk) {
                output.push(bytes);
            }
            assert_eq!(output.render(), "0123456789");
            assert_eq!((output.total_bytes(), output.omitted_bytes()), (10, 0));
        }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        for chunk in [1, 3, 7, 26] {
            let mut output = BoundedOutput::new(4, 6);
            for bytes in b"abcdefghijklmnopqrstuvwxyz".chunks(chunk) {
                output.push(bytes);
            }
            assert_eq!(output.render(), "abcd\n[... 16 of 26 bytes left out ...]\nuvwxyz", "chunk {chunk}");
        }
    }

    #[test]
    fn a_character_cut_by_the_gap_leaves_no_mark() {
        let mut output = BoundedOutput::new(4, 4);
        output.push("ééé…ééé".as_bytes());
        output.push("éé".as_bytes());
        assert!(!output.render().contains('\u{FFFD}'));
    }
}
