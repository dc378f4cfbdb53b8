//! The kernel's clocks: boot time for order, wall time derived from it with an error bound.
#![allow(unsafe_code, reason = "adjtimex(2) has no safe wrapper in nix")]

use activity_schema::Timestamp;
use activity_schema::batch::{ClockState, INTEGER_MAX};
use nix::libc;
use nix::time::{ClockId, clock_gettime};

/// A wall clock that moves more than this against boot time was stepped, nanoseconds.
pub const STEP_NS: i64 = 50_000_000;

/// One look at all clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    pub boot_ns: u64,
    pub wall: Timestamp,
    pub state: ClockState,
    /// When `state` was read, boot clock.
    pub state_at_ns: u64,
}

impl ClockReading {
    /// Reads the clocks now.
    pub fn now() -> ClockReading {
        let boot_ns = boot_ns();
        let wall = read(ClockId::CLOCK_REALTIME);
        let wall = Timestamp::from_nanos(wall);
        ClockReading { boot_ns, wall, state: kernel_state(), state_at_ns: boot_ns }
    }

    /// Reads the clocks again; the kernel's word on their error once a second.
    pub fn again(&self) -> ClockReading {
        const STATE_AGE_NS: u64 = 1_000_000_000;
        let boot_ns = boot_ns();
        if boot_ns.saturating_sub(self.state_at_ns) >= STATE_AGE_NS {
            return ClockReading::now();
        }
        ClockReading { boot_ns, wall: Timestamp::from_nanos(read(ClockId::CLOCK_REALTIME)), ..*self }
    }

    /// Wall minus boot clock, nanoseconds.
    pub fn offset_ns(&self) -> i64 {
        self.wall.as_nanos().saturating_sub(i64::try_from(self.boot_ns).unwrap_or(i64::MAX))
    }

    /// Wall time of a boot-clock instant.
    pub fn wall_of(&self, boot_ns: u64) -> Timestamp {
        Timestamp::from_nanos(self.offset_ns().saturating_add(i64::try_from(boot_ns).unwrap_or(i64::MAX)))
    }

    pub fn error_ms(&self) -> f64 {
        // Bounds above 2^53 ns lose precision that nobody needs.
        #[expect(clippy::cast_precision_loss, reason = "a bound of months needs no nanoseconds")]
        let ns = self.state.error_ns as f64;
        (ns / 1e6 * 1000.0).ceil() / 1000.0
    }
}

/// `CLOCK_BOOTTIME`, nanoseconds: goes on while suspended, never steps.
pub fn boot_ns() -> u64 {
    u64::try_from(read(ClockId::CLOCK_BOOTTIME)).unwrap_or(0)
}

fn read(clock: ClockId) -> i64 {
    let Ok(t) = clock_gettime(clock) else { return 0 };
    t.tv_sec().saturating_mul(1_000_000_000).saturating_add(t.tv_nsec())
}

/// Error bound and synchronisation as the kernel's NTP discipline states them (adjtimex(2)).
fn kernel_state() -> ClockState {
    // SAFETY: `timex` is plain integers, for which zero is a value; modes = 0 only reads.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live, writable timex.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    let unit = if timex.status & libc::STA_NANO == 0 { 1_000 } else { 1 };
    let synchronised = state >= 0 && state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
    ClockState {
        error_ns: (timex.maxerror.saturating_mul(1_000)).clamp(0, INTEGER_MAX),
        offset_ns: (timex.offset.saturating_mul(unit)).clamp(-INTEGER_MAX, INTEGER_MAX),
        synchronised,
    }
}
