//! When to look at the rings. The programs wake the reader at most once in [`WAKEUP_INTERVAL_MS`], so that a busy
//! workload does not pay an interrupt for each record; the records in between are found because a timer fires
//! after every drain that found something. A drain that finds nothing leaves the timer off, and the next record,
//! at least one interval after the last wakeup, wakes the reader again.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use activity_ebpf_abi::WAKEUP_INTERVAL_MS;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Longer than the programs' interval, whatever the timer's granularity.
const LOOK_AGAIN: Duration = Duration::from_millis(2 * WAKEUP_INTERVAL_MS as u64);

pub(super) struct Pace {
    timer: TimerFd,
    armed: bool,
}

impl Pace {
    pub(super) fn new() -> io::Result<Self> {
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok(Self { timer, armed: false })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Notes that somebody drained a ring and how much was found.
    pub(super) fn drained(&mut self, found: usize) {
        if self.armed && self.timer.wait().is_ok() {
            self.armed = false;
        }
        if found > 0 && !self.armed {
            let again = Expiration::OneShot(TimeSpec::from_duration(LOOK_AGAIN));
            self.armed = self.timer.set(again, TimerSetTimeFlags::empty()).is_ok();
        }
    }
}
