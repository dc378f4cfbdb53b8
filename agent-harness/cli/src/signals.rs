//! Signals as a rising count of requests to stop.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Counts SIGINT, SIGTERM and SIGHUP from now on.
pub fn count_into(interrupts: watch::Sender<u32>) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            interrupts.send_modify(|count| *count = count.saturating_add(1));
        }
    });
    Ok(())
}
