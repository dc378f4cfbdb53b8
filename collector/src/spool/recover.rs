//! Reading a stream's segments back after a stop, a kill or a power cut.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use activity_schema::batch::{BatchHeader, SignedBatch};
use activity_schema::merkle::Hash;
use activity_schema::{Event, StreamId, Timestamp};
use bytes::Bytes;
use uuid::Uuid;

use super::disk::{Disk, DiskFile};
use super::frame::{self, Frame, FrameError, SEGMENT_MAGIC};
use super::stream::{BatchIndex, OpenBatch, Segment, StreamLog, lock};
use super::unsynced::SegmentFile;

/// What recovery found wrong in one stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Damage {
    /// Bytes cut from the end of the newest segment.
    pub torn_bytes: u64,
    /// Batches whose lines could not be read; they go out as headers alone.
    pub corrupt_batches: Vec<(u64, u64)>,
    /// The stream cannot be continued: frames are missing inside it.
    pub broken: bool,
    /// Batches in front of the first that is left are gone without an acknowledgement: no gateway takes what is left.
    pub headless: bool,
    /// Lines that were appended and are gone without an acknowledgement, and the newest event of the stream before them.
    pub missing: Option<(u64, Option<Timestamp>)>,
}

/// In a stream's folder: the sequence after the newest line that was appended, u64 LE. It is written after the line, and
/// shows when segments are gone as a whole or cut at the end of a frame. A power cut may lose it or leave it ahead.
const HEAD: &str = "head";

/// What the stream's head says that its segments do not hold, given what is acknowledged.
pub(super) fn missing<D: Disk>(log: &StreamLog<D>, acked: u64) -> u64 {
    let head = log.disk.read(&log.dir.join(HEAD)).ok().and_then(|bytes| bytes.try_into().ok());
    head.map_or(0, u64::from_le_bytes).saturating_sub(log.next_sequence.max(acked + 1))
}

/// Opens a stream's folder, creating it when absent.
pub(super) fn open_stream<D: Disk>(
    disk: &D,
    dir: PathBuf,
    stream: StreamId,
    batches: BatchIndex,
) -> io::Result<(StreamLog<D>, Damage)> {
    disk.create_dir(&dir)?;
    let mut names = disk.list(&dir)?;
    names.retain(|n| n.ends_with(".seg"));
    let mut log = StreamLog {
        disk: disk.clone(),
        dir: dir.clone(),
        stream,
        segments: std::collections::VecDeque::new(),
        file: None,
        batches,
        synced: Arc::default(),
        open: OpenBatch::default(),
        next_sequence: 1,
        next_batch: 1,
        previous_hash: Hash::default(),
        newest_sealed: None,
        losses_told: Vec::new(),
        cursors: BTreeMap::new(),
        head: None,
    };
    let mut damage = Damage::default();
    for (i, name) in names.iter().enumerate() {
        let path = dir.join(name);
        let bytes = disk.read(&path)?;
        if i == 0 {
            log.next_sequence = name.trim_end_matches(".seg").parse().unwrap_or(1);
        }
        let last = i + 1 == names.len();
        read_segment(&mut log, &mut damage, path, &bytes, last)?;
        if damage.broken {
            break;
        }
    }
    if damage.broken {
        // Open lines behind a hole cannot be sealed; they are part of the loss that the damage becomes.
        log.next_sequence -= log.open.count();
        log.open = OpenBatch::default();
    }
    log.head = Some(disk.open(&dir.join(HEAD))?);
    log.sync_recovered()?;
    Ok((log, damage))
}

fn read_segment<D: Disk>(
    log: &mut StreamLog<D>,
    damage: &mut Damage,
    path: PathBuf,
    bytes: &[u8],
    last: bool,
) -> io::Result<()> {
    if !bytes.starts_with(SEGMENT_MAGIC) {
        // Created, its magic not yet on disk: nothing was ever in it.
        damage.torn_bytes += bytes.len() as u64;
        damage.broken |= !last;
        return log.disk.remove(&path);
    }
    log.segments.push_back(Segment {
        path: path.clone(),
        bytes: bytes.len() as u64,
        shed: false,
        sealed: false,
    });
    let mut at = SEGMENT_MAGIC.len();
    let mut start = at;
    let mut corrupt = false;
    let (mut any_shed, mut any_whole) = (false, false);
    while at < bytes.len() {
        match frame::decode(&bytes[at..]) {
            Ok((Frame::Lines { cursors, lines }, len)) => {
                if log.open.count() == 0 {
                    start = at;
                    log.open.start_offset = at as u64;
                }
                for line in &lines {
                    let (occurred_at, loss) = facts(line);
                    log.open.add(line, occurred_at);
                    log.open.losses.extend(loss);
                }
                log.next_sequence += lines.len() as u64;
                for cursor in cursors {
                    let seen = log.cursors.entry(cursor.ring).or_default();
                    *seen = cursor.position.max(*seen);
                }
                any_whole = true;
                at += len;
            }
            Ok((Frame::Seal { header, signature } | Frame::Shed { header, signature }, len)) => {
                let shed = matches!(frame::decode(&bytes[at..]), Ok((Frame::Shed { .. }, _)));
                any_shed |= shed;
                let from = if shed { at } else { start };
                if !take_seal(log, damage, header, signature, (from, at + len), shed, corrupt) {
                    damage.broken = true;
                    return Ok(());
                }
                at += len;
                start = at;
                corrupt = false;
            }
            Err(FrameError::Checksum { len } | FrameError::Malformed { len })
                if frame::decode(&bytes[(at + len).min(bytes.len())..]).is_ok() =>
            {
                corrupt = true;
                at += len;
            }
            Err(_) => break,
        }
    }
    if let Some(segment) = log.segments.back_mut() {
        segment.shed = any_shed && !any_whole;
    }
    if at < bytes.len() || corrupt {
        damage.torn_bytes += (bytes.len() - at) as u64;
        damage.broken |= !last || corrupt;
    }
    if last && !damage.broken {
        if log.open.count() > 0 {
            log.open.frames = bytes[start..at].to_vec();
        }
        resume_segment(log, path, at as u64)?;
    }
    Ok(())
}

/// Opens the newest segment for appending, cut behind its last whole frame.
fn resume_segment<D: Disk>(log: &mut StreamLog<D>, path: PathBuf, len: u64) -> io::Result<()> {
    let Some(segment) = log.segments.back_mut() else { return Ok(()) };
    let file = log.disk.open(&path)?;
    if segment.bytes != len {
        file.truncate(len)?;
        file.sync()?;
        segment.bytes = len;
    }
    if log.open.count() > 0 || !segment.shed {
        log.file = Some(Arc::new(SegmentFile::new(file)));
    }
    Ok(())
}

/// Accepts a seal that continues the stream; `false` when it does not.
fn take_seal<D: Disk>(
    log: &mut StreamLog<D>,
    damage: &mut Damage,
    header: &[u8],
    signature: [u8; 64],
    range: (usize, usize),
    shed: bool,
    corrupt: bool,
) -> bool {
    let Ok(parsed) = BatchHeader::parse(header) else { return false };
    let first_seen = lock(&log.batches).is_empty() && log.next_batch == 1;
    if !first_seen
        && (parsed.batch_number != log.next_batch || parsed.previous_batch_hash != log.previous_hash)
    {
        return false;
    }
    let whole =
        !corrupt && log.open.count() == parsed.count && log.open.frontier.root() == parsed.merkle_root;
    if !shed && !whole {
        damage.corrupt_batches.push((parsed.first_sequence, parsed.last_sequence));
    }
    if whole {
        log.losses_told.append(&mut log.open.losses);
    }
    let batch =
        SignedBatch { header: parsed, header_bytes: Bytes::copy_from_slice(header), signature, body: None };
    let reference = log.sealed(&batch, (range.0 as u64, range.1 as u64), shed || !whole);
    lock(&log.batches).push_back(reference);
    true
}

/// Calls `f` with every seal or shed of a segment.
pub(super) fn for_each_seal(bytes: &[u8], mut f: impl FnMut(&[u8], &[u8; 64])) {
    let mut at = SEGMENT_MAGIC.len();
    while at < bytes.len() {
        match frame::decode(&bytes[at..]) {
            Ok((Frame::Seal { header, signature } | Frame::Shed { header, signature }, len)) => {
                f(header, &signature);
                at += len;
            }
            Ok((Frame::Lines { .. }, len))
            | Err(FrameError::Checksum { len } | FrameError::Malformed { len }) => at += len,
            Err(FrameError::Torn) => return,
        }
    }
}

/// When the event of a line occurred, and its id if it tells a loss.
fn facts(line: &[u8]) -> (Timestamp, Option<Uuid>) {
    let Ok(event) = Event::parse(line) else { return Default::default() };
    (event.occurred_at, (event.event_name == *"telemetry.loss").then_some(event.event_id))
}
