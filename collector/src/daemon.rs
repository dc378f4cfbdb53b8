//! The daemon: one thread records, one waits for the disk, one talks. They share channels, the spool's files and
//! the list of its sealed batches.

pub mod agent;
pub(crate) mod duties;
mod hearing;
mod network;
pub mod quota;
mod recall;
mod rings;
mod start;
mod syncer;
pub mod telemetry;
#[cfg(test)]
mod tests;
mod vouch;

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use activity_schema::Timestamp;
use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};

use crate::agent_socket::{AgentRequest, RequestSink};
use crate::clock::STEP_NS;
use crate::config::Config;
use crate::kernel::{AttachReport, KernelSource, LOOK_AGAIN, RingId, RingPosition};
use crate::observe::Observer;
use crate::observe::procfs::PolledProcesses;
use crate::recorder::Recorder;
use crate::resource::ResourceSource;
use crate::sandbox::Instance;
use crate::spool::{OsDisk, Recovery, RingCursor};
use crate::uplink::FromUplink;
use crate::uplink::identity::IdentityDir;
use duties::Timers;
use hearing::Hearing;
use network::Network;
use rings::Rings;
pub use start::collector_id;
use start::{lock, names, step_down};
use syncer::Syncer;

/// Records of one drain pass: with at most two lines each they fit one frame, so that frame and cursor are one write.
const PASS_RECORDS_MAX: usize = 120;
/// Passes of one ring before the other rings, messages and timers get their turn.
const PASSES_MAX: usize = 64;
/// Messages handled in one turn.
const MESSAGES_MAX: usize = 256;
/// Messages waiting; agents beyond that are told to come back.
const QUEUE_MAX: usize = 1024;

/// To the recording thread.
enum Message {
    Agent(AgentRequest),
    Uplink(FromUplink),
    Stop,
}

#[derive(Clone)]
struct Mailbox {
    sender: mpsc::SyncSender<Message>,
    wake: Arc<EventFd>,
    /// Agents' requests for which there was no room.
    unheard: Arc<AtomicU64>,
}

impl Mailbox {
    fn send(&self, message: Message) -> bool {
        let sent = self.sender.try_send(message).is_ok();
        let _ = self.wake.write(1);
        sent
    }

    /// For messages that must not be dropped: waits for room.
    fn deliver(&self, message: Message) {
        self.leave(message);
        let _ = self.wake.write(1);
    }

    /// As [`Mailbox::deliver`], for what can wait until the recording thread wakes anyway.
    fn leave(&self, message: Message) {
        let _ = self.sender.send(message);
    }
}

impl RequestSink for Mailbox {
    fn send(&self, request: AgentRequest) -> bool {
        let sent = Mailbox::send(self, Message::Agent(request));
        self.unheard.fetch_add(u64::from(!sent), Ordering::Relaxed);
        sent
    }
}

/// Runs until SIGTERM or SIGINT.
pub fn run(config: &Config) -> anyhow::Result<()> {
    let state = &config.state_dir;
    // One that comes while we start is heard as soon as there is something to end well.
    signals().thread_block().context("cannot hold signals back")?;
    let helper = step_down(config)?;
    let _lock = lock(state)?;
    let identity_dir = IdentityDir::new(state);
    let enrolment = identity_dir.load()?;
    let names = names(config, enrolment.as_ref())?;
    let mut daemon = Daemon::start(config, &names, helper)?;
    let (sender, mailbox_out) = mpsc::sync_channel(QUEUE_MAX);
    let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let mailbox = Mailbox { sender, wake: wake.clone(), unheard: daemon.unheard.clone() };
    let network = Network::start(config, enrolment, identity_dir, &daemon, mailbox)?;
    let syncer = Syncer::start(network.told_of_sealed())?;
    daemon.announce(network.listening.clone());
    daemon.work(&mailbox_out, &wake, &syncer);
    daemon.stop(&syncer);
    syncer.finish();
    network.finish(|| {
        daemon.messages(&mailbox_out);
    });
    Ok(())
}

/// What ends the daemon well.
fn signals() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

struct Daemon {
    config: Config,
    recorder: Recorder<OsDisk>,
    observer: Observer,
    kernel: Option<KernelSource>,
    attach: Option<AttachReport>,
    no_kernel: String,
    rings: Rings,
    /// The rings were filled while no collector ran: nothing of the processes was missed.
    watched: bool,
    polled: PolledProcesses,
    resources: Vec<(Arc<Instance>, ResourceSource)>,
    cgroup_root: PathBuf,
    boot_id: String,
    hearing: Hearing,
    /// Sandboxes that have no cgroup yet.
    absent: Vec<Arc<Instance>>,
    /// The ledger of losses cannot be written.
    unkept: bool,
    unheard: Arc<AtomicU64>,
    quota: quota::Quotas,
    scope_log: agent::ScopeLog,
    rejected: u64,
    recovery: Recovery,
    /// The last look at the rings found something.
    busy: bool,
    /// What is waiting beyond this time is not drained yet.
    complete_until: Timestamp,
    timers: Timers,
    /// UDP flows that began until then, boot clock, were told by the run before.
    udp_told_until_ns: u64,
    canary_cpu: usize,
    canary_sent_ns: Option<u64>,
    stopping: bool,
}

impl Daemon {
    fn work(&mut self, mailbox: &mpsc::Receiver<Message>, wake: &EventFd, syncer: &Syncer<OsDisk>) {
        while !self.stopping {
            let _ = wake.read();
            self.read_clock();
            let mut more = self.messages(mailbox);
            more |= self.drain();
            self.duties();
            self.recorder.flush(None);
            syncer.sync(self.recorder.seal_due());
            if !more {
                self.wait(wake);
            }
        }
    }

    fn read_clock(&mut self) {
        let before = *self.recorder.clock();
        let now = before.again();
        self.recorder.set_clock(now);
        let step = now.offset_ns().saturating_sub(before.offset_ns());
        if step.abs() > STEP_NS {
            let own = self.observer.sandboxes.own().clone();
            telemetry::clock_step(&mut self.recorder, &own, step);
        }
    }

    fn messages(&mut self, mailbox: &mpsc::Receiver<Message>) -> bool {
        for _ in 0..MESSAGES_MAX {
            match mailbox.try_recv() {
                Ok(Message::Agent(request)) => {
                    let mut parts = agent::Parts {
                        recorder: &mut self.recorder,
                        observer: &mut self.observer,
                        kernel: self.kernel.as_ref(),
                        quota: &mut self.quota,
                        log: &mut self.scope_log,
                        boot_id: &self.boot_id,
                        rejected: &mut self.rejected,
                    };
                    agent::handle(&mut parts, request);
                }
                Ok(Message::Uplink(from)) => self.uplink_said(from),
                Ok(Message::Stop) => self.stopping = true,
                Err(_) => return false,
            }
        }
        true
    }

    fn uplink_said(&mut self, message: FromUplink) {
        let spool = self.recorder.spool_mut();
        let done = match message {
            FromUplink::Released { epoch, class, number, receipt } => {
                spool.release(&epoch, class, number, receipt)
            }
            FromUplink::Registered { epoch } => spool.set_registered(&epoch),
            FromUplink::Withheld { class, count } => {
                tracing::warn!(%class, count, "the gateway withheld lines");
                Ok(())
            }
            FromUplink::Stranded { .. } => Ok(()),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "the spool cannot note an acknowledgement");
        }
    }

    /// Takes what the rings hold; `true` when something may be left.
    fn drain(&mut self) -> bool {
        let Some(kernel) = &mut self.kernel else {
            self.complete_until = self.recorder.clock().wall;
            return false;
        };
        self.recorder.flush(None);
        let mut left = false;
        let mut newest_ns = 0;
        self.busy = false;
        for (number, ring) in (0u8..).zip(RingId::ALL) {
            for pass in 0..=PASSES_MAX {
                let mut end: Option<RingPosition> = None;
                let (observer, recorder, rings) = (&mut self.observer, &mut self.recorder, &self.rings);
                let taken = kernel.drain(ring, PASS_RECORDS_MAX, &mut |position, record| {
                    end = Some(position);
                    if let Ok(record) = &record {
                        newest_ns = newest_ns.max(record.common().ktime_boot_ns);
                    }
                    let told = RingPosition(rings.position(number, position.0));
                    observer.record(recorder, ring, told, record);
                });
                let Some(end) = end else { break };
                self.busy = true;
                let position = self.rings.position(number, end.0);
                self.recorder.flush(Some(RingCursor { ring: number, position }));
                kernel.commit(ring, end);
                if taken < PASS_RECORDS_MAX {
                    break;
                }
                left |= pass == PASSES_MAX;
            }
        }
        let clock = self.recorder.clock();
        let drained = if left { clock.wall_of(newest_ns) } else { clock.wall };
        // A fork is held back until it is known whether it is followed by an exec.
        let held = self.observer.processes.oldest_untold_ns().map(|ns| clock.wall_of(ns.saturating_sub(1)));
        self.complete_until = held.map_or(drained, |held| held.min(drained));
        left
    }

    /// Sleeps until a message, a duty, a due batch, or ring data that has waited for company.
    fn wait(&self, wake: &EventFd) {
        let mailbox = || PollFd::new(wake.as_fd(), PollFlags::POLLIN);
        let Some(kernel) = &self.kernel else {
            sleep_on(&mut [mailbox()], self.idle());
            return;
        };
        if !self.busy {
            let mut both = [mailbox(), PollFd::new(kernel.poll_fd(), PollFlags::POLLIN)];
            sleep_on(&mut both, self.idle());
            if both[0].any().unwrap_or(false) || !both[1].any().unwrap_or(false) {
                return;
            }
        }
        // The first record waits for company: few wake-ups at low rates.
        sleep_on(&mut [mailbox()], LOOK_AGAIN.min(self.idle()));
    }

    /// Until the next duty or due batch.
    fn idle(&self) -> Duration {
        let now = crate::clock::boot_ns();
        let timers = &self.timers;
        let mut next = timers.heartbeat.min(timers.sample).min(timers.second);
        if self.kernel.is_none() {
            next = next.min(timers.poll);
        }
        let dues = [self.recorder.next_seal_at_ns(), self.observer.processes.next_due_ns()];
        next = dues.into_iter().flatten().fold(next, u64::min);
        Duration::from_nanos(next.saturating_sub(now))
    }

    /// A graceful end: the last records, the word that it is the end, everything sealed, programs unpinned.
    fn stop(&mut self, syncer: &Syncer<OsDisk>) {
        self.read_clock();
        while self.drain() {}
        // Nothing is held back any more.
        self.observer.tell_due(&mut self.recorder, u64::MAX);
        self.complete_until = self.recorder.clock().wall;
        self.tell_udp(self.recorder.clock().boot_ns, 0);
        self.each_second(self.recorder.clock().boot_ns);
        let instances = self.observer.sandboxes.all_and_unknown();
        self.recorder.emit_losses(&instances);
        let own = self.observer.sandboxes.own().clone();
        telemetry::heartbeat(&mut self.recorder, &own, self.complete_until);
        telemetry::stopped(&mut self.recorder, &own, "signal");
        self.recorder.seal_all();
        syncer.sync(self.recorder.seal_due());
        if let Some(kernel) = self.kernel.take() {
            kernel.detach();
        }
    }
}

fn sleep_on(fds: &mut [PollFd<'_>], time: Duration) {
    // Rounded up: waking a millisecond early would spin.
    let ms = u16::try_from(time.as_millis().saturating_add(1)).unwrap_or(u16::MAX);
    let _ = poll(fds, PollTimeout::from(ms));
}
