//! What the recording thread does by the clock: each second, each sample, each heartbeat.

use std::sync::atomic::Ordering;

use activity_schema::coverage::LossReason;

use super::{Daemon, telemetry};
use crate::recorder::Draft;
use crate::spool::Loss;

/// UDP flows without a packet for this long are closed, nanoseconds.
pub(crate) const UDP_IDLE_NS: u64 = 30_000_000_000;
/// Polling of procfs where there is no eBPF.
const POLL_INTERVAL_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// When each recurring duty is due, boot clock.
#[derive(Default)]
pub(super) struct Timers {
    pub heartbeat: u64,
    pub sample: u64,
    pub second: u64,
    pub poll: u64,
}

impl Daemon {
    pub(super) fn duties(&mut self) {
        let now = self.recorder.clock().boot_ns;
        self.observer.tell_due(&mut self.recorder, now);
        if now >= self.timers.poll && self.kernel.is_none() {
            self.timers.poll = now + POLL_INTERVAL_NS;
            self.observer.poll(&mut self.recorder, &mut self.polled);
        }
        if now >= self.timers.second.min(self.timers.heartbeat) {
            self.timers.second = now + SECOND_NS;
            self.each_second(now);
        }
        if now >= self.timers.sample {
            self.timers.sample = now + self.config.sample_interval_ms * 1_000_000;
            self.sample();
        }
        // Before the heartbeat, which vouches for what was not lost.
        if !self.recorder.spool().ledger.to_emit().is_empty() {
            let instances = self.observer.sandboxes.all_and_unknown();
            self.recorder.emit_losses(&instances);
        }
        if now >= self.timers.heartbeat {
            self.timers.heartbeat = now + self.config.heartbeat_interval_ms * 1_000_000;
            self.beat(now);
        }
    }

    pub(super) fn each_second(&mut self, now: u64) {
        self.look_for_programs();
        self.listen_well();
        self.look_for_absent();
        self.keep_losses();
        self.tell_udp(now, UDP_IDLE_NS);
        self.tell_kernel_losses();
        self.observer.tell_unplaced(&mut self.recorder);
        let evicted = std::mem::take(&mut self.observer.processes.evicted);
        if evicted > 0 {
            // Parents of processes that were forgotten to stay within bounds.
            self.lose_unplaced(LossReason::MapEvicted, &["process.started"], "process_table", evicted);
        }
        let unheard = self.unheard.swap(0, Ordering::Relaxed);
        if unheard > 0 {
            let names = ["session.started", "agent.tool.invoked"];
            self.lose_unplaced(LossReason::RateLimit, &names, "agent_socket", unheard);
        }
        let undecodable = std::mem::take(&mut self.observer.undecodable);
        if undecodable > 0 {
            let names = ["process.exec", "process.exited", "network.flow.closed"];
            self.lose_unplaced(LossReason::RingFull, &names, "kernel/decode", undecodable);
        }
    }

    /// What the kernel programs counted as lost since the last call.
    pub(super) fn tell_kernel_losses(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        for loss in kernel.losses() {
            self.observer.lost(&mut self.recorder, &loss);
        }
        kernel.commit_losses();
    }

    /// UDP flows are no records of a ring: they are looked for. Those without a packet for `idle_ns` are ended.
    pub(super) fn tell_udp(&mut self, now_ns: u64, idle_ns: u64) {
        let Some(kernel) = &mut self.kernel else { return };
        let found = kernel.udp_flows(now_ns, idle_ns);
        for flow in found.ended {
            self.observer.udp(&mut self.recorder, &flow, true);
        }
        let told_until_ns = std::mem::take(&mut self.udp_told_until_ns);
        for flow in found.opened {
            if flow.first_seen_ns > told_until_ns {
                self.observer.udp(&mut self.recorder, &flow, false);
            } else if told_until_ns.saturating_sub(flow.first_seen_ns) < 2 * SECOND_NS {
                // The run before may have ended between its first packet and the next look.
                let at = self.recorder.clock().wall_of(flow.first_seen_ns);
                let loss = Loss::of(
                    LossReason::CollectorDown,
                    "kernel/udp_flow",
                    &["network.flow.started"],
                    (at, at),
                );
                self.recorder.lose(loss.counted(1, false));
            }
        }
    }

    /// A loss now, of a sandbox that is not known.
    fn lose_unplaced(&mut self, reason: LossReason, names: &[&str], source: &str, count: u64) {
        let now = self.recorder.clock().wall;
        self.recorder.lose(Loss::of(reason, source, names, (now, now)).counted(count, false));
    }

    fn sample(&mut self) {
        let at = self.recorder.clock().wall;
        for (instance, source) in &mut self.resources {
            if let Some(payload) = source.sample(&self.cgroup_root) {
                let draft = Draft::observed("runtime.resource.sample", at, instance, payload);
                crate::observe::warn_refused("runtime.resource.sample", self.recorder.record(draft));
            }
        }
    }

    fn beat(&mut self, now: u64) {
        let own = self.observer.sandboxes.own().clone();
        if self.rejected > 0 {
            telemetry::rejected(&mut self.recorder, &own, std::mem::take(&mut self.rejected));
        }
        if let Some(kernel) = &mut self.kernel {
            if let Some(sent) = self.canary_sent_ns.take() {
                let seen = kernel.last_canary_seen().filter(|c| c.ktime_boot_ns >= sent);
                let lag = seen.map(|c| c.ktime_boot_ns.saturating_sub(sent) / 1_000_000);
                telemetry::probe(&mut self.recorder, &own, seen.is_some(), lag);
            }
            let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            self.canary_cpu = (self.canary_cpu + 1) % cpus;
            match kernel.send_canary(self.canary_cpu) {
                Ok(()) => self.canary_sent_ns = Some(now),
                Err(error) => tracing::debug!(%error, "no canary could be sent"),
            }
        }
        telemetry::heartbeat(&mut self.recorder, &own, self.complete_until);
    }
}
