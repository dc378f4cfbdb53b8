//! Sending records, and counting those that could not be sent: attempts = emitted + lost, always.

use activity_ebpf_abi::maps::{LossCount, LossKey};
use activity_ebpf_abi::{LossReason, RecordKind, WAKEUP_INTERVAL_MS};
use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::{
    bpf_ktime_get_boot_ns, bpf_ringbuf_output, bpf_ringbuf_reserve, bpf_ringbuf_submit,
};
use aya_ebpf::maps::RingBuf;

use crate::maps::{ISSUED, LOSS_OVERFLOW, LOSSES, RING_FLOW, RING_PROCESS, WAKEUPS};

#[inline(always)]
fn add_one(counter: *mut u64) {
    // SAFETY: an aligned counter in a map value.
    unsafe { add(counter, 1) };
}

/// Adds to a counter in a map value atomically: another CPU may use the value, and a softirq may run another
/// program on this CPU between a load and a store. This form of the instruction is as old as BPF itself.
///
/// # Safety
/// `counter` is an aligned word inside a map value.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, amount: u64) {
    // SAFETY: see the function's contract.
    unsafe {
        core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) amount, options(nostack));
    }
}

/// Shortest time between two wakeups of the reader. A wakeup costs the workload an interrupt, and the reader
/// looks again by itself for a while after each (collector/src/kernel/pace.rs).
const WAKEUP_INTERVAL_NS: u64 = WAKEUP_INTERVAL_MS as u64 * 1_000_000;

/// A ring with its slot in `wakeups`.
#[derive(Clone, Copy)]
pub struct Ring {
    pub map: &'static RingBuf,
    pub slot: u32,
}

pub static PROCESS: Ring = Ring { map: &RING_PROCESS, slot: 1 };
pub static FLOW: Ring = Ring { map: &RING_FLOW, slot: 2 };

/// Flags for a record that is sent now: wake the reader, unless that was done a moment ago.
#[inline(always)]
fn wakeup(slot: u32) -> u64 {
    let Some(last) = WAKEUPS.get_ptr_mut(slot) else { return 0 };
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    // SAFETY: a non-null map value. Two CPUs may both find it due; one wakeup too many does no harm.
    unsafe {
        if now.wrapping_sub(last.read_volatile()) < WAKEUP_INTERVAL_NS {
            return u64::from(BPF_RB_NO_WAKEUP);
        }
        last.write_volatile(now);
    }
    u64::from(BPF_RB_FORCE_WAKEUP)
}

/// Copies `length` bytes of a record into `ring`.
#[inline(always)]
pub fn emit(ring: Ring, kind: RecordKind, cgroup_id: u64, record: *const u8, length: u64) {
    // SAFETY: callers pass a record of `length` initialised bytes; a RingBuf is its definition, whose address
    // the loader replaces with the map.
    let failed = unsafe {
        bpf_ringbuf_output(
            core::ptr::from_ref(ring.map).cast_mut().cast(),
            record.cast_mut().cast(),
            length,
            wakeup(ring.slot),
        )
    } != 0;
    if failed {
        record_lost(kind, LossReason::RingFull, cgroup_id);
    } else if let Some(issued) = ISSUED.get_ptr_mut(kind as u32) {
        // SAFETY: a non-null map value.
        add_one(unsafe { &raw mut (*issued).emitted });
    }
}

/// Room for a `T` in `ring`, to be filled completely and passed to [`submit`]; `None` is counted as lost.
#[inline(always)]
pub fn reserve<T>(ring: Ring, kind: RecordKind, cgroup_id: u64) -> Option<*mut T> {
    // SAFETY: a RingBuf is its definition, whose address the loader replaces with the map.
    let place = unsafe {
        bpf_ringbuf_reserve(core::ptr::from_ref(ring.map).cast_mut().cast(), size_of::<T>() as u64, 0)
    };
    if place.is_null() {
        record_lost(kind, LossReason::RingFull, cgroup_id);
        return None;
    }
    Some(place.cast())
}

/// Makes a reserved record visible to the reader.
#[inline(always)]
pub fn submit<T>(ring: Ring, kind: RecordKind, record: *mut T) {
    // SAFETY: a pointer that `reserve` gave, every byte of which was written.
    unsafe { bpf_ringbuf_submit(record.cast(), wakeup(ring.slot)) };
    if let Some(issued) = ISSUED.get_ptr_mut(kind as u32) {
        // SAFETY: a non-null map value.
        add_one(unsafe { &raw mut (*issued).emitted });
    }
}

/// Counts a record that was due and could not be sent.
#[inline(always)]
pub fn record_lost(kind: RecordKind, reason: LossReason, cgroup_id: u64) {
    lost(kind, reason, cgroup_id);
    if let Some(issued) = ISSUED.get_ptr_mut(kind as u32) {
        // SAFETY: a non-null map value.
        add_one(unsafe { &raw mut (*issued).lost });
    }
}

/// Counts one loss (of a record, or of what a map would have held) against the cgroup that suffered it.
///
/// Not mangled: a mangled name depends on where the sources and the toolchain lie, and the committed object should
/// come out the same everywhere.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn lost(kind: RecordKind, reason: LossReason, cgroup_id: u64) {
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let key = LossKey { cgroup_id, kind: kind as u32, reason: reason as u32 };
    if add_to(&key, now) {
        return;
    }
    let first = LossCount { count: 1, first_ns: now, last_ns: now };
    if LOSSES.insert(&key, &first, u64::from(BPF_NOEXIST)).is_ok() {
        return;
    }
    // Another CPU was faster, or the map is full.
    if add_to(&key, now) {
        return;
    }
    if let Some(overflow) = LOSS_OVERFLOW.get_ptr_mut(kind as u32) {
        count(overflow, now);
    }
}

#[inline(always)]
fn add_to(key: &LossKey, now: u64) -> bool {
    match LOSSES.get_ptr_mut(key) {
        Some(value) => {
            count(value, now);
            true
        }
        None => false,
    }
}

#[inline(always)]
fn count(value: *mut LossCount, now: u64) {
    // SAFETY: a non-null map value. The times are advisory and may be written by two CPUs at once.
    unsafe {
        add_one(&raw mut (*value).count);
        if (*value).first_ns == 0 {
            (*value).first_ns = now;
        }
        (*value).last_ns = now;
    }
}
