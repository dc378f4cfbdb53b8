//! What the collector can vouch for now, declared for each sandbox, and declared anew when that changes.

use std::sync::Arc;

use activity_schema::coverage::LossReason;

use super::hearing::Deaf;
use super::{Daemon, telemetry};
use crate::sandbox::Instance;
use crate::spool::Loss;

/// What only agents say.
const DECLARED: &[&[&str]] =
    &[&["session.started", "session.ended"], &["agent.tool.invoked", "agent.tool.completed"]];
/// What goes by while no collector runs, whatever the kernel programs do.
pub(super) const UNHEARD: &[&[&str]] = &[DECLARED[0], DECLARED[1], &["runtime.resource.sample"]];
/// What goes by without kernel programs.
pub(super) const UNSEEN: &[&[&str]] =
    &[&["process.exec", "process.exited"], &["network.flow.started", "network.flow.closed"]];

impl Daemon {
    /// Says how a sandbox is watched. One whose cgroup is not there may be another's by a mistake in its name: until it
    /// is, nothing of it is vouched for.
    fn declare(&mut self, instance: &Arc<Instance>) {
        let source = self.resources.iter().find(|(i, _)| i == instance).map(|(_, source)| source.clone());
        let sampled = source.is_some_and(|mut source| source.sample(&self.cgroup_root).is_some());
        let mut plans =
            telemetry::plan(self.attach.as_ref(), &self.no_kernel, self.hearing.listening.is_some(), sampled);
        if !self.observer.sandboxes.path_of(instance).is_dir() {
            let reason = format!("the sandbox's cgroup {} does not exist", instance.cgroup);
            tracing::warn!(instance = instance.instance_id, %reason);
            telemetry::degrade(&mut plans, &reason);
            self.absent.push(instance.clone());
        }
        if self.unkept {
            let reason = "the state of losses cannot be written: after a crash some would not be counted";
            telemetry::degrade(&mut plans, reason);
        }
        let digest = self.config.policy_digest().to_hex();
        let interval = self.config.heartbeat_interval_ms;
        telemetry::config(&mut self.recorder, instance, &plans, &digest, interval);
    }

    pub(super) fn declare_all(&mut self) {
        self.absent.clear();
        for instance in self.observer.sandboxes.all().to_vec() {
            self.declare(&instance);
        }
    }

    /// A collector that cannot keep its losses over a crash is not believed meanwhile.
    pub(super) fn keep_losses(&mut self) {
        let unkept = !self.recorder.spool_mut().ledger.keep();
        if unkept != self.unkept {
            self.unkept = unkept;
            self.declare_all();
        }
    }

    /// Programs that are not pinned end with the process that holds them. From then on procfs is polled.
    pub(super) fn look_for_programs(&mut self) {
        let Some(kernel) = self.kernel.as_mut() else { return };
        if kernel.is_held() {
            return;
        }
        "the process that held the kernel programs ended".clone_into(&mut self.no_kernel);
        tracing::warn!(reason = self.no_kernel, "processes are polled from procfs");
        while self.drain() {}
        self.tell_udp(self.recorder.clock().boot_ns, 0);
        self.tell_kernel_losses();
        let since = self.hearing.looked_at();
        self.kernel = None;
        self.attach = None;
        self.canary_sent_ns = None;
        let until = self.recorder.clock().wall;
        for names in UNSEEN {
            self.recorder.lose(Loss::of(LossReason::CollectorDown, "kernel", names, (since, until)));
        }
        self.declare_all();
    }

    /// Sandboxes whose cgroup has come are watched from now on, and those whose cgroup is gone no longer.
    pub(super) fn look_for_absent(&mut self) {
        for instance in self.observer.sandboxes.all().to_vec() {
            let was_there = !self.absent.contains(&instance);
            if was_there != self.observer.sandboxes.path_of(&instance).is_dir() {
                self.absent.retain(|absent| *absent != instance);
                self.declare(&instance);
            }
        }
    }

    /// Nobody can have declared anything while the socket was not to be found, or this process did not run.
    pub(super) fn listen_well(&mut self) {
        let clock = *self.recorder.clock();
        let Some(Deaf { since, paused }) = self.hearing.deaf_since(clock.boot_ns, clock.wall) else { return };
        for names in if paused { UNHEARD } else { DECLARED } {
            let between = (since, clock.wall);
            self.recorder.lose(Loss::of(LossReason::CollectorDown, "agent_socket", names, between));
        }
        let instances = self.observer.sandboxes.all_and_unknown();
        self.recorder.emit_losses(&instances);
    }
}
