//! SIGINT and SIGTERM end a lab's program as an error does: what it started and made is cleaned up.
#![allow(unsafe_code, reason = "a signal handler that sets a flag")]

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc::c_int;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// From now on the first signal is noted; a second one ends the process at once.
pub fn watch() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESETHAND, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler does nothing but store a flag.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Fails when a signal was noted.
pub fn check() -> anyhow::Result<()> {
    anyhow::ensure!(!ASKED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}
