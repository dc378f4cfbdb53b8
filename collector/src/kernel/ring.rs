//! A reader for `BPF_MAP_TYPE_RINGBUF` that keeps reading and releasing apart: records are read ahead of the
//! consumer position, which moves only when their events are safe elsewhere. After a crash the next reader
//! starts where the last one had committed.
//!
//! Layout (kernel/bpf/ringbuf.c): one page with the consumer position, writable; one page with the producer
//! position; the data, mapped twice in a row so that a record never wraps.
#![allow(unsafe_code, reason = "shared memory with the kernel; bounds are checked before each access")]

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use nix::libc::c_void;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::sys;

/// A byte position in a ring since it was made; never falls while the pinned ring lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingPosition(pub u64);

/// The record is reserved and not yet written.
const BUSY: u32 = 1 << 31;
/// The record was given up and is to be skipped.
const DISCARD: u32 = 1 << 30;
const HEADER_BYTES: u64 = 8;

pub(super) struct Ring {
    fd: OwnedFd,
    consumer: NonNull<c_void>,
    producer: NonNull<c_void>,
    page_bytes: usize,
    data_bytes: usize,
    /// Next byte to read; at or ahead of the consumer position.
    read: u64,
}

// SAFETY: the mappings belong to this value alone and are not tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn open(map: BorrowedFd<'_>) -> io::Result<Self> {
        let data_bytes = sys::max_entries(map)? as usize;
        let page_bytes = page_bytes();
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "ring size is no power of two of pages");
        if !data_bytes.is_power_of_two() || data_bytes < page_bytes {
            return Err(invalid());
        }
        let fd = map.try_clone_to_owned()?;
        let page = NonZeroUsize::new(page_bytes).ok_or_else(invalid)?;
        let readable = NonZeroUsize::new(page_bytes + 2 * data_bytes).ok_or_else(invalid)?;
        let offset = i64::try_from(page_bytes).map_err(|_| invalid())?;
        // SAFETY: new mappings at addresses that the kernel chooses.
        let (consumer, producer) = unsafe {
            let consumer =
                mmap(None, page, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, &fd, 0)?;
            let producer = mmap(None, readable, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &fd, offset);
            match producer {
                Ok(producer) => (consumer, producer),
                Err(error) => {
                    let _ = munmap(consumer, page_bytes);
                    return Err(error.into());
                }
            }
        };
        let mut ring = Self { fd, consumer, producer, page_bytes, data_bytes, read: 0 };
        ring.read = ring.consumer_cell().load(Ordering::Acquire);
        Ok(ring)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn consumer_position(&self) -> RingPosition {
        RingPosition(self.consumer_cell().load(Ordering::Acquire))
    }

    pub(super) fn bytes(&self) -> usize {
        self.data_bytes
    }

    /// Bytes written and not yet committed by the reader.
    pub(super) fn used_bytes(&self) -> u64 {
        self.producer_cell().load(Ordering::Acquire).saturating_sub(self.consumer_position().0)
    }

    /// Passes up to `max` records, in order, with the position behind each; gives no space back.
    pub(super) fn drain(&mut self, max: usize, f: &mut dyn FnMut(RingPosition, &[u8])) -> usize {
        let end = self.producer_cell().load(Ordering::Acquire);
        let mut seen = 0;
        while seen < max && self.read < end {
            let header = self.header_cell(self.read).load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let length = header & !(BUSY | DISCARD);
            let start = self.read + HEADER_BYTES;
            let next = self.read + ((u64::from(length) + HEADER_BYTES + 7) & !7);
            // The kernel writes the header; a length past the producer would be its fault, not a workload's.
            if next > end {
                debug_assert!(next <= end, "ring record runs past the producer");
                break;
            }
            self.read = next;
            if header & DISCARD != 0 {
                continue;
            }
            let at = self.offset(start);
            // SAFETY: `at` is below data_bytes and the record ends before the producer, at most data_bytes later;
            // the second mapping makes that contiguous. The kernel leaves it alone until it is committed.
            let record = unsafe { std::slice::from_raw_parts(self.data().add(at), length as usize) };
            f(RingPosition(next), record);
            seen += 1;
        }
        seen
    }

    /// Gives the space before `position` back to the kernel. A position already given back, or one that was not
    /// read, changes nothing.
    pub(super) fn commit(&mut self, position: RingPosition) {
        let cell = self.consumer_cell();
        if position.0 <= cell.load(Ordering::Acquire) || position.0 > self.read {
            return;
        }
        cell.store(position.0, Ordering::Release);
        // The kernel wakes us for a record only if it sees that we had read everything before it; order our
        // store before the producer's position is looked at again.
        fence(Ordering::SeqCst);
    }

    fn offset(&self, position: u64) -> usize {
        // A power of two below 2^32, so the remainder fits.
        usize::try_from(position & (self.data_bytes as u64 - 1)).unwrap_or(0)
    }

    fn data(&self) -> *const u8 {
        // SAFETY: the mapping is one page longer than the data behind it.
        unsafe { self.producer.as_ptr().cast_const().cast::<u8>().add(self.page_bytes) }
    }

    fn consumer_cell(&self) -> &AtomicU64 {
        // SAFETY: the first word of the page; unsigned long, eight bytes on every target of the collector.
        unsafe { self.consumer.cast::<AtomicU64>().as_ref() }
    }

    fn producer_cell(&self) -> &AtomicU64 {
        // SAFETY: the first word of the page, only loaded from.
        unsafe { self.producer.cast::<AtomicU64>().as_ref() }
    }

    fn header_cell(&self, position: u64) -> &AtomicU32 {
        // SAFETY: positions are multiples of eight, and the offset is inside the data; only loaded from.
        unsafe { &*self.data().add(self.offset(position)).cast::<AtomicU32>() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mappings made in `open`, used by nobody else.
        unsafe {
            let _ = munmap(self.consumer, self.page_bytes);
            let _ = munmap(self.producer, self.page_bytes + 2 * self.data_bytes);
        }
    }
}

pub(super) fn page_bytes() -> usize {
    let value = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    usize::try_from(value).unwrap_or(4096)
}
