//! Signals as control operations.

use std::io;

use iteron_protocol::ControlOp;
use iteron_runtime::Submitter;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP from now on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The first one drains the session, every later one forces the cancellation.
    pub async fn submit_to(mut self, submitter: Submitter) {
        let mut op = ControlOp::DrainSession;
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = self.hangup.recv() => {}
            }
            let op = std::mem::replace(&mut op, ControlOp::ForceCancelTurn { expected: None });
            if let Err(error) = submitter.control(op) {
                tracing::debug!(%error, "a signal changes nothing");
            }
        }
    }
}
