//! Loss counters: what the kernel counted, less what was already told. The base lies in maps beside the
//! counters, so that it outlives the collector together with them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use activity_ebpf_abi::maps::{KIND_SLOTS, LossCount, LossKey, PROGRAM_SLOTS};
use activity_ebpf_abi::{LossReason, RecordKind};

use super::sys::{self, ByteMap};

/// Keys read in one walk; the map holds 4,096, and a walk restarts when a key vanishes.
const KEYS_MAX: usize = 8192;
/// A counter that was told and has been quiet for this long is given back.
const QUIET_NS: u64 = 60_000_000_000;

/// What was lost since the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLoss {
    /// `None` when too many cgroups lost something for the map to tell them apart, and for [`LossReason::Nested`]
    /// events that the kernel itself skipped.
    pub cgroup_id: Option<u64>,
    pub kind: RecordKind,
    pub reason: LossReason,
    pub count: u64,
    /// Boot clock; the losses lie between the two.
    pub first_ns: u64,
    pub last_ns: u64,
    /// Whether `count` is all that this cgroup lost of this kind.
    pub exact: bool,
}

/// A running program, for what the kernel skipped of it: an event on a CPU where the same program was at work
/// already (`recursion_misses`), which no program can count.
pub(super) struct Running {
    pub(super) kind: RecordKind,
    /// Place in the map of what was told.
    pub(super) slot: u32,
    pub(super) program: OwnedFd,
}

pub(super) struct LossMaps<'a> {
    pub(super) misses_reported: BorrowedFd<'a>,
    pub(super) losses: BorrowedFd<'a>,
    pub(super) reported: BorrowedFd<'a>,
    pub(super) overflow: BorrowedFd<'a>,
    pub(super) overflow_reported: BorrowedFd<'a>,
}

/// What was told: the base of the next difference.
#[derive(Default)]
pub(super) struct Ledger {
    told: BTreeMap<LossKey, Told>,
    overflow_told: BTreeMap<u32, Told>,
    misses_told: BTreeMap<u32, Told>,
    /// Changed since the maps were last written.
    pending: bool,
}

#[derive(Clone, Copy, Default)]
struct Told {
    count: u64,
    last_ns: u64,
}

impl Ledger {
    /// The base that an earlier collector left.
    pub(super) fn load(maps: &LossMaps<'_>) -> io::Result<Self> {
        let mut ledger = Self::default();
        let reported = ByteMap::<16, 8>(maps.reported);
        for key in reported.keys(KEYS_MAX)? {
            if let Some(count) = reported.get(&key)? {
                ledger.told.insert(key_of(&key), Told { count: u64::from_ne_bytes(count), last_ns: 0 });
            }
        }
        let overflow = ByteMap::<4, 8>(maps.overflow_reported);
        for slot in 0..KIND_SLOTS {
            let count = overflow.get(&slot.to_ne_bytes())?.map_or(0, u64::from_ne_bytes);
            ledger.overflow_told.insert(slot, Told { count, last_ns: 0 });
        }
        let misses = ByteMap::<4, 8>(maps.misses_reported);
        for slot in 0..PROGRAM_SLOTS {
            let count = misses.get(&slot.to_ne_bytes())?.map_or(0, u64::from_ne_bytes);
            ledger.misses_told.insert(slot, Told { count, last_ns: 0 });
        }
        Ok(ledger)
    }

    /// What the kernel skipped since the last call. It does not say when, or in which cgroup.
    pub(super) fn misses(&mut self, programs: &[Running], now_ns: u64) -> Vec<KernelLoss> {
        let mut found = Vec::new();
        for running in programs {
            // Before 5.12 there is no such count.
            let Ok(Some(count)) = sys::recursion_misses(running.program.as_fd()) else { continue };
            let told = self.misses_told.entry(running.slot).or_default();
            let now = LossCount { count, first_ns: told.last_ns, last_ns: now_ns };
            if let Some(loss) = difference(told, &now) {
                self.pending = true;
                found.push(KernelLoss { kind: running.kind, reason: LossReason::Nested, ..loss });
            }
        }
        found
    }

    /// Differences since the last call; tells nothing to the maps, see [`Self::commit`].
    pub(super) fn differences(&mut self, maps: &LossMaps<'_>, now_ns: u64) -> io::Result<Vec<KernelLoss>> {
        let mut found = Vec::new();
        let losses = ByteMap::<16, 24>(maps.losses);
        let mut overflowed = [false; KIND_SLOTS as usize];
        for slot in 0..KIND_SLOTS {
            let bytes = ByteMap::<4, 24>(maps.overflow).get(&slot.to_ne_bytes())?;
            let Some(count) = bytes.map(|bytes| count_of(&bytes)) else { continue };
            if let Some(overflowed) = overflowed.get_mut(slot as usize) {
                *overflowed = count.count > 0;
            }
            let told = self.overflow_told.entry(slot).or_default();
            if let (Some(mut loss), Some(kind)) = (difference(told, &count), kind_of(slot)) {
                self.pending = true;
                loss.kind = kind;
                found.push(loss);
            }
        }
        for bytes in losses.keys(KEYS_MAX)? {
            let key = key_of(&bytes);
            let Some(mut count) = losses.get(&bytes)?.map(|value| count_of(&value)) else { continue };
            let told = self.told.entry(key).or_default();
            let quiet = now_ns.saturating_sub(count.last_ns) > QUIET_NS;
            let gone = quiet && count.count == told.count;
            if gone && let Some(value) = losses.take(&bytes)? {
                // Whatever came between the two reads is in what was taken.
                count = count_of(&value);
            }
            let loss = difference(told, &count);
            if gone {
                ByteMap::<16, 8>(maps.reported).remove(&bytes)?;
                self.told.remove(&key);
            }
            let (Some(kind), Some(reason)) = (kind_of(key.kind), reason_of(key.reason)) else { continue };
            if let Some(loss) = loss {
                self.pending = true;
                // Once the map has been full, this cgroup may have lost more than its own counter says.
                let exact = !overflowed.get(key.kind as usize).copied().unwrap_or(true);
                found.push(KernelLoss { cgroup_id: Some(key.cgroup_id), kind, reason, exact, ..loss });
            }
        }
        Ok(found)
    }

    /// Keeps what was told beside the counters.
    pub(super) fn commit(&mut self, maps: &LossMaps<'_>) -> io::Result<()> {
        if !self.pending {
            return Ok(());
        }
        let reported = ByteMap::<16, 8>(maps.reported);
        for (key, told) in &self.told {
            reported.put(&bytes_of(key), &told.count.to_ne_bytes())?;
        }
        for (slot, told) in &self.overflow_told {
            ByteMap::<4, 8>(maps.overflow_reported).put(&slot.to_ne_bytes(), &told.count.to_ne_bytes())?;
        }
        for (slot, told) in &self.misses_told {
            ByteMap::<4, 8>(maps.misses_reported).put(&slot.to_ne_bytes(), &told.count.to_ne_bytes())?;
        }
        self.pending = false;
        Ok(())
    }
}

fn difference(told: &mut Told, now: &LossCount) -> Option<KernelLoss> {
    let count = now.count.saturating_sub(told.count);
    if count == 0 {
        return None;
    }
    let first_ns = if told.last_ns == 0 { now.first_ns } else { told.last_ns };
    *told = Told { count: now.count, last_ns: now.last_ns };
    Some(KernelLoss {
        cgroup_id: None,
        kind: RecordKind::Fork,
        reason: LossReason::RingFull,
        count,
        first_ns,
        last_ns: now.last_ns,
        exact: false,
    })
}

fn kind_of(value: u32) -> Option<RecordKind> {
    u8::try_from(value).ok().and_then(RecordKind::from_u8)
}

fn reason_of(value: u32) -> Option<LossReason> {
    u8::try_from(value).ok().and_then(LossReason::from_u8)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn key_of(bytes: &[u8; 16]) -> LossKey {
    LossKey { cgroup_id: word(bytes, 0), kind: half(bytes, 8), reason: half(bytes, 12) }
}

fn bytes_of(key: &LossKey) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.cgroup_id.to_ne_bytes());
    bytes[8..12].copy_from_slice(&key.kind.to_ne_bytes());
    bytes[12..].copy_from_slice(&key.reason.to_ne_bytes());
    bytes
}

fn count_of(bytes: &[u8; 24]) -> LossCount {
    LossCount { count: word(bytes, 0), first_ns: word(bytes, 8), last_ns: word(bytes, 16) }
}
