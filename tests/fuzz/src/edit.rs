//! Files as a disk may give them back: an edit of a valid file, with checksums made good or left wrong.

/// How an input of this form begins: which file, and how it is changed.
///
/// ```text
/// u8 file | u8 how | rest      how: 0 replace, 1 xor, 2 insert, 3 delete, 4 cut off; 0x80: checksums are made good
/// ```
pub struct Edit<'a> {
    file: u8,
    how: u8,
    rest: &'a [u8],
}

impl<'a> Edit<'a> {
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let [file, how, rest @ ..] = data else { return None };
        Some(Edit { file: *file, how: *how, rest })
    }

    /// Which of `count` files.
    pub fn file(&self, count: usize) -> usize {
        usize::from(self.file) % count
    }

    /// The changed file.
    pub fn apply(&self, whole: &[u8], format: Format) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        match self.how & 0x7f {
            0 => bytes = self.rest.to_vec(),
            1 => {
                for change in self.rest.chunks_exact(3) {
                    let at = offset(change, bytes.len());
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= change[2];
                    }
                }
            }
            2 => {
                if let [low, high, inserted @ ..] = self.rest {
                    let at = offset(&[*low, *high], bytes.len());
                    bytes.splice(at..at, inserted.iter().copied());
                }
            }
            3 => {
                for range in self.rest.chunks_exact(4) {
                    let at = offset(range, bytes.len());
                    let end = (at + usize::from(u16::from_le_bytes([range[2], range[3]]))).min(bytes.len());
                    bytes.drain(at..end);
                }
            }
            _ => {
                if let [low, high, ..] = self.rest {
                    bytes.truncate(offset(&[*low, *high], bytes.len()));
                }
            }
        }
        if self.how & 0x80 != 0 {
            format.repair(&mut bytes);
        }
        bytes
    }
}

fn offset(bytes: &[u8], len: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) % (len + 1)
}

/// Where a file has checksums.
#[derive(Clone, Copy)]
pub enum Format {
    /// `collector/src/spool/frame.rs`
    SpoolSegment,
    /// `collector/src/spool/slots.rs`
    Slots,
    /// `gateway/store/src/frame.rs`, behind a header of two copies of so many bytes.
    StoreFrames {
        copy: usize,
    },
    Plain,
}

impl Format {
    fn repair(self, bytes: &mut [u8]) {
        match self {
            Format::SpoolSegment => frames(bytes, 8, 8, |frame| {
                let crc = crc32c::crc32c(&frame[8..]);
                frame[4..8].copy_from_slice(&crc.to_le_bytes());
            }),
            Format::Slots => bytes.chunks_exact_mut(16 * 1024).for_each(slot),
            Format::StoreFrames { copy } => {
                if copy > 0 {
                    bytes.chunks_exact_mut(copy).take(2).for_each(header);
                }
                frames(bytes, 2 * copy, 9, |frame| {
                    let crc = crc32c::crc32c_append(crc32c::crc32c(&frame[..4]), &frame[8..]);
                    frame[4..8].copy_from_slice(&crc.to_le_bytes());
                });
            }
            Format::Plain => {}
        }
    }
}

/// Calls `repair` with every frame whose length field can be followed: `head` bytes and as many as it says.
fn frames(bytes: &mut [u8], start: usize, head: usize, repair: impl Fn(&mut [u8])) {
    let mut at = start;
    while let Some(len) = bytes.get(at..at + head).map(|h| u32::from_le_bytes([h[0], h[1], h[2], h[3]])) {
        let end = at.saturating_add(head).saturating_add(len as usize);
        let Some(frame) = bytes.get_mut(at..end) else { return };
        repair(frame);
        at = end;
    }
}

fn header(copy: &mut [u8]) {
    let at = copy.len() - 4;
    let crc = crc32c::crc32c(&copy[..at]);
    copy[at..].copy_from_slice(&crc.to_le_bytes());
}

fn slot(slot: &mut [u8]) {
    let len = u32::from_le_bytes([slot[8], slot[9], slot[10], slot[11]]) as usize;
    slot[12..16].fill(0);
    if let Some(state) = slot.get(..16 + len) {
        let crc = crc32c::crc32c(state);
        slot[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Each of the files left as it is, written whole, emptied, and changed in every way.
pub fn seeds(files: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (file, content) in (0..=u8::MAX).zip(files) {
        seeds.push(vec![file, 1]);
        seeds.push([&[file, 0x80], content.as_slice()].concat());
        seeds.push(vec![file, 0]);
        for how in [1, 0x81, 2, 0x82, 3, 0x83, 4, 0x84] {
            seeds.push([file, how, 90, 0, 2, 0].to_vec());
        }
    }
    seeds
}
