//! The daemon: one thread records, one waits for the disk, one talks. They share channels, the spool's files and
//! the list of its sealed batches.

pub mod agent;
mod hearing;
mod network;
mod rings;
mod syncer;
pub mod telemetry;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use activity_schema::Timestamp;
use activity_schema::coverage::LossReason;
use activity_schema::ids::{CollectorId, Epoch, HostId, TenantId};
use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};

use crate::agent_socket::{AgentRequest, Listening, RequestSink};
use crate::clock::{ClockReading, STEP_NS};
use crate::config::Config;
use crate::identity::{self, ProcessIds};
use crate::kernel::{
    AttachReport, Helper, KernelConfig, KernelSource, LOOK_AGAIN, RingId, RingPosition, RingSizes,
};
use crate::observe::Observer;
use crate::observe::procfs::PolledProcesses;
use crate::privilege::{self, Owner};
use crate::process::ProcessMemory;
use crate::recorder::{Draft, Recorder};
use crate::resource::ResourceSource;
use crate::sandbox::{Instance, Sandboxes, cgroup2_root};
use crate::scope::ScopeTable;
use crate::spool::{
    Damage, EpochIdentity, Loss, OsDisk, Recovery, RingCursor, Spool, SpoolLimits, SpoolState,
};
use crate::uplink::identity::{Identity, IdentityDir};
use crate::uplink::{FromUplink, full};
use hearing::{Deaf, Hearing};
use network::Network;
use rings::Rings;
use syncer::Syncer;

/// Records of one drain pass: with at most two lines each they fit one frame, so that frame and cursor are one write.
const PASS_RECORDS_MAX: usize = 120;
/// Passes of one ring before the other rings, messages and timers get their turn.
const PASSES_MAX: usize = 64;
/// Messages handled in one turn.
const MESSAGES_MAX: usize = 256;
/// Messages waiting; agents beyond that are told to come back.
const QUEUE_MAX: usize = 1024;
/// UDP flows without a packet for this long are closed, nanoseconds.
pub(crate) const UDP_IDLE_NS: u64 = 30_000_000_000;
/// Polling of procfs where there is no eBPF.
const POLL_INTERVAL_NS: u64 = 100_000_000;

/// What only agents say.
const DECLARED: &[&[&str]] =
    &[&["session.started", "session.ended"], &["agent.tool.invoked", "agent.tool.completed"]];
/// What goes by while no collector runs, whatever the kernel programs do.
const UNHEARD: &[&[&str]] = &[DECLARED[0], DECLARED[1], &["runtime.resource.sample"]];

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

/// Names of this run.
struct Names {
    tenant: TenantId,
    host: HostId,
    collector_id: CollectorId,
    instance_id: String,
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

/// Leaves what needs privileges to a process apart and gives them up: nothing that comes from outside has been read.
fn step_down(config: &Config) -> anyhow::Result<Option<Helper>> {
    let state = &config.state_dir;
    let owner = Owner::of(state).with_context(|| format!("cannot make {}", state.display()))?;
    if let Some(folder) = config.agent_socket.parent() {
        owner.make_folder(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let helper = config.kernel.enabled.then(|| Helper::start(owner)).transpose();
    let helper = helper.context("cannot start the process that attaches kernel programs")?;
    owner.become_it()?;
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(state, private).with_context(|| format!("{}", state.display()))?;
    match privilege::seccomp::apply() {
        Ok(()) => {}
        Err(error) => tracing::warn!(error = %full(&error), "no filter of system calls"),
    }
    Ok(helper)
}

/// One collector a state folder. One that was killed a moment ago may still be on its way out.
fn lock(state: &Path) -> anyhow::Result<nix::fcntl::Flock<std::fs::File>> {
    use std::os::unix::fs::OpenOptionsExt as _;
    const TRIES: u32 = 20;
    const BETWEEN: Duration = Duration::from_millis(100);
    let path = state.join("lock");
    let open = || {
        let mut options = std::fs::OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600).open(&path)
    };
    let mut file = open().with_context(|| format!("cannot open {}", path.display()))?;
    for _ in 0..TRIES {
        match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, _)) => file = back,
        }
        std::thread::sleep(BETWEEN);
    }
    anyhow::bail!("another collector uses {}", state.display())
}

fn names(config: &Config, enrolment: Option<&Identity>) -> anyhow::Result<Names> {
    if let Some(e) = enrolment {
        return Ok(Names {
            tenant: e.tenant.clone(),
            host: e.host.clone(),
            collector_id: e.collector_id.clone(),
            instance_id: e.instance.to_string(),
        });
    }
    let tenant = config.tenant.clone().context(
        "no tenant: enrol first (activity-collector enroll), or set `tenant` to record without a gateway",
    )?;
    let host = config.host_id.clone().unwrap_or_else(identity::default_host_id);
    Ok(Names {
        tenant: tenant.parse().context("tenant")?,
        collector_id: collector_id(config, &host).parse().context("collector_id")?,
        instance_id: config.instance_id.clone().unwrap_or_else(|| host.clone()),
        host: host.parse().context("host_id")?,
    })
}

/// The configured id, else one made of the host's.
pub fn collector_id(config: &Config, host: &str) -> String {
    config.collector_id.clone().unwrap_or_else(|| format!("collector-{host}"))
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
    hearing: Option<Hearing>,
    /// Sandboxes that have no cgroup yet.
    absent: Vec<Arc<Instance>>,
    /// The ledger of losses cannot be written.
    unkept: bool,
    unheard: Arc<AtomicU64>,
    quota: agent::Quota,
    scope_log: agent::ScopeLog,
    rejected: u64,
    recovery: Recovery,
    /// The last look at the rings found something.
    busy: bool,
    /// What is waiting beyond this time is not drained yet.
    complete_until: Timestamp,
    timers: Timers,
    canary_cpu: usize,
    canary_sent_ns: Option<u64>,
    stopping: bool,
}

/// When each recurring duty is due, boot clock.
#[derive(Default)]
struct Timers {
    heartbeat: u64,
    sample: u64,
    second: u64,
    poll: u64,
}

impl Daemon {
    fn start(config: &Config, names: &Names, helper: Option<Helper>) -> anyhow::Result<Self> {
        let clock = ClockReading::now();
        let boot_id = identity::boot_id().context("cannot read the boot id")?;
        let nonce = match &config.nonce_file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("nonce_file {}", path.display()))?
                .trim()
                .to_owned(),
            None => String::new(),
        };
        let epoch = Epoch::new(uuid::Uuid::now_v7().to_string())?;
        let wanted = EpochIdentity {
            format: 1,
            epoch,
            tenant: names.tenant.clone(),
            host: names.host.clone(),
            collector_id: names.collector_id.clone(),
            boot_id: boot_id.clone(),
            nonce: nonce.clone(),
            created: clock.wall,
        };
        let limits = SpoolLimits::of_total(config.spool_bytes_max);
        let spool_dir = config.state_dir.join("spool");
        let seed: [u8; 32] = rand::random();
        let (mut spool, recovery) = Spool::open(OsDisk, &spool_dir, limits, wanted, &seed, clock.state)
            .with_context(|| format!("cannot open the spool {}", spool_dir.display()))?;
        spool.set_policy_digest(config.policy_digest());

        let cgroup_root = cgroup2_root().unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
        let (kernel, attach, no_kernel) = attach_kernel(config, names, &cgroup_root, helper);
        let own = Instance {
            instance_id: names.instance_id.clone(),
            agent_id: config.agent_id.clone(),
            runtime: config.runtime,
            layer: config.layer,
            cgroup: config.cgroup.clone(),
        };
        let others = config.sandbox.iter().map(|s| Instance {
            instance_id: s.instance_id.clone(),
            agent_id: s.agent_id.clone(),
            runtime: s.runtime,
            layer: config.layer,
            cgroup: s.cgroup.clone(),
        });
        let sandboxes = Sandboxes::new(cgroup_root.clone(), own, others.collect());
        let resources =
            sandboxes.all().iter().map(|i| (i.clone(), ResourceSource::new(&cgroup_root, i))).collect();
        let (scope_log, kept) = agent::ScopeLog::open(&config.state_dir.join("scopes.jsonl"), &boot_id)?;
        let mut scopes = ScopeTable::default();
        kept.into_iter().for_each(|scope| scopes.restore(scope));
        let ids = ProcessIds::new(&boot_id, &nonce);
        let recorder = Recorder::new(spool, sandboxes.own().clone(), clock);
        let (rings, same_rings) = match &kernel {
            Some(kernel) => {
                let file = config.state_dir.join("rings");
                Rings::open(&OsDisk, &file, &boot_id, kernel.ring_ids()?, &recovery.cursors)
                    .with_context(|| format!("cannot write {}", file.display()))?
            }
            None => (Rings::default(), false),
        };
        let watched = same_rings && attach.as_ref().is_some_and(|a| a.reused_pins);
        let mut observer = Observer::new(ids, sandboxes, scopes, recovery.cursors.clone());
        match ProcessMemory::open(&config.state_dir.join("processes"), &boot_id) {
            Ok(memory) => observer.processes.set_memory(memory),
            Err(error) => {
                tracing::warn!(%error, "after a kill, parents of running processes will not be known")
            }
        }
        Ok(Daemon {
            config: config.clone(),
            recorder,
            observer,
            kernel,
            attach,
            no_kernel,
            rings,
            watched,
            polled: PolledProcesses::default(),
            resources,
            cgroup_root,
            boot_id,
            hearing: None,
            absent: Vec::new(),
            unkept: false,
            unheard: Arc::default(),
            quota: agent::Quota::new(clock.boot_ns),
            scope_log,
            rejected: 0,
            recovery,
            busy: false,
            complete_until: clock.wall,
            timers: Timers::default(),
            canary_cpu: 0,
            canary_sent_ns: None,
            stopping: false,
        })
    }

    /// Start or restart, what recovery found, what is watched.
    fn announce(&mut self, listening: Option<Arc<Listening>>) {
        let own = self.observer.sandboxes.own().clone();
        let restarted = self.recovery.state == SpoolState::Intact;
        let wall = self.recorder.clock().wall;
        let gap_ms =
            self.recovery.newest.map(|t| u64::try_from(wall.nanos_since(t).max(0) / 1_000_000).unwrap_or(0));
        telemetry::started(&mut self.recorder, &own, restarted, self.recovery.state.as_str(), gap_ms);
        self.account_recovery();
        if let Some(since) = self.recovery.newest {
            self.lose_down_time(since, wall);
        }
        let now_ns = self.recorder.clock().boot_ns;
        self.hearing = listening.map(|listening| Hearing::new(listening, now_ns, wall));
        self.declare_all();
        self.seed(restarted);
        self.recorder.flush(None);
    }

    /// Says how a sandbox is watched. One whose cgroup is not there may be another's by a mistake in its name: until it
    /// is, nothing of it is vouched for.
    fn declare(&mut self, instance: &Arc<Instance>) {
        let source = self.resources.iter().find(|(i, _)| i == instance).map(|(_, source)| source.clone());
        let sampled = source.is_some_and(|mut source| source.sample(&self.cgroup_root).is_some());
        let mut plans =
            telemetry::plan(self.attach.as_ref(), &self.no_kernel, self.hearing.is_some(), sampled);
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

    fn declare_all(&mut self) {
        self.absent.clear();
        for instance in self.observer.sandboxes.all().to_vec() {
            self.declare(&instance);
        }
    }

    /// A collector that cannot keep its losses over a crash is not believed meanwhile.
    fn keep_losses(&mut self) {
        let unkept = !self.recorder.spool_mut().ledger.keep();
        if unkept != self.unkept {
            self.unkept = unkept;
            self.declare_all();
        }
    }

    /// Sandboxes whose cgroup has come are watched from now on.
    fn look_for_absent(&mut self) {
        for instance in std::mem::take(&mut self.absent) {
            if self.observer.sandboxes.path_of(&instance).is_dir() {
                self.declare(&instance);
            } else {
                self.absent.push(instance);
            }
        }
    }

    /// Nobody can have declared anything while the socket was not to be found, or this process did not run.
    fn listen_well(&mut self) {
        let clock = *self.recorder.clock();
        let Some(hearing) = &mut self.hearing else { return };
        let Some(Deaf { since, paused }) = hearing.deaf_since(clock.boot_ns, clock.wall) else { return };
        for names in if paused { UNHEARD } else { DECLARED } {
            let between = (since, clock.wall);
            self.recorder.lose(Loss::of(LossReason::CollectorDown, "agent_socket", names, between));
        }
        let instances = self.observer.sandboxes.all().to_vec();
        self.recorder.emit_losses(&instances);
    }

    /// Processes that ran before this run did. After a restart on pinned programs the rings tell of what was forked
    /// meanwhile, and the memory of what was forked before.
    fn seed(&mut self, restarted: bool) {
        if self.kernel.is_none() {
            return;
        }
        let told_until = match self.recovery.newest {
            Some(_) if restarted && self.watched => u64::MAX,
            Some(newest) if restarted => {
                let offset = self.recorder.clock().offset_ns();
                u64::try_from(newest.as_nanos().saturating_sub(offset)).unwrap_or(0)
            }
            _ => 0,
        };
        self.drain();
        self.observer.seed(&mut self.recorder, told_until);
    }

    /// Nobody could declare anything while the collector was down, and nothing was sampled. Without pinned programs
    /// nothing was watched either.
    fn lose_down_time(&mut self, since: Timestamp, until: Timestamp) {
        const UNSEEN: &[&[&str]] =
            &[&["process.exec", "process.exited"], &["network.flow.started", "network.flow.closed"]];
        let unseen = if self.watched { &[][..] } else { UNSEEN };
        for names in UNHEARD.iter().chain(unseen) {
            self.recorder.lose(Loss::of(LossReason::CollectorDown, "collector", names, (since, until)));
        }
    }

    fn account_recovery(&mut self) {
        let wall = self.recorder.clock().wall;
        let newest = self.recovery.newest.unwrap_or(wall);
        for (epoch, class, damage) in self.recovery.damage.clone() {
            let Damage { torn_bytes, corrupt_batches, broken, headless } = damage;
            // What is left of a headless stream is not sent either, however old it is.
            let since = if headless { began(&epoch).unwrap_or(newest) } else { newest };
            let stream = format!("{}/{epoch}/{class}", self.recorder.spool().identity().collector_id);
            let loss = |until| Loss::of(LossReason::SpoolCorrupt, "spool", &[], (since.min(until), until));
            for (first, last) in corrupt_batches {
                let loss = loss(newest).counted(last - first + 1, true);
                self.recorder.lose(loss.of_stream(class, stream.clone(), Some((first, last))));
            }
            if torn_bytes > 0 || broken {
                self.recorder.lose(loss(wall).counted(1, false).of_stream(class, stream, None));
            }
        }
    }

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
        self.complete_until = if left { clock.wall_of(newest_ns) } else { clock.wall };
        left
    }

    fn duties(&mut self) {
        let now = self.recorder.clock().boot_ns;
        self.observer.tell_due(&mut self.recorder, now);
        if now >= self.timers.poll && self.kernel.is_none() {
            self.timers.poll = now + POLL_INTERVAL_NS;
            self.observer.poll(&mut self.recorder, &mut self.polled);
        }
        if now >= self.timers.second.min(self.timers.heartbeat) {
            self.timers.second = now + 1_000_000_000;
            self.each_second(now);
        }
        if now >= self.timers.sample {
            self.timers.sample = now + self.config.sample_interval_ms * 1_000_000;
            self.sample();
        }
        // Before the heartbeat, which vouches for what was not lost.
        if !self.recorder.spool().ledger.to_emit().is_empty() {
            let instances = self.observer.sandboxes.all().to_vec();
            self.recorder.emit_losses(&instances);
        }
        if now >= self.timers.heartbeat {
            self.timers.heartbeat = now + self.config.heartbeat_interval_ms * 1_000_000;
            self.beat(now);
        }
    }

    fn each_second(&mut self, now: u64) {
        self.listen_well();
        self.look_for_absent();
        self.keep_losses();
        if let Some(kernel) = &mut self.kernel {
            for flow in kernel.udp_flows(now, UDP_IDLE_NS) {
                self.observer.udp(&mut self.recorder, &flow);
            }
            for loss in kernel.losses() {
                self.observer.lost(&mut self.recorder, &loss);
            }
            kernel.commit_losses();
        }
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
        let dues = [self.recorder.spool().next_seal_at_ns(), self.observer.processes.next_due_ns()];
        next = dues.into_iter().flatten().fold(next, u64::min);
        Duration::from_nanos(next.saturating_sub(now))
    }

    /// A graceful end: the last records, the word that it is the end, everything sealed, programs unpinned.
    fn stop(&mut self, syncer: &Syncer<OsDisk>) {
        self.read_clock();
        while self.drain() {}
        self.each_second(self.recorder.clock().boot_ns);
        let instances = self.observer.sandboxes.all().to_vec();
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

/// When an epoch was made, which is in its UUIDv7.
fn began(epoch: &Epoch) -> Option<Timestamp> {
    let (seconds, nanos) = uuid::Uuid::parse_str(epoch.as_str()).ok()?.get_timestamp()?.to_unix();
    let seconds = i64::try_from(seconds).ok()?;
    Some(Timestamp::from_nanos(seconds.checked_mul(1_000_000_000)?.checked_add(i64::from(nanos))?))
}

fn sleep_on(fds: &mut [PollFd<'_>], time: Duration) {
    // Rounded up: waking a millisecond early would spin.
    let ms = u16::try_from(time.as_millis().saturating_add(1)).unwrap_or(u16::MAX);
    let _ = poll(fds, PollTimeout::from(ms));
}

fn attach_kernel(
    config: &Config,
    names: &Names,
    cgroup_root: &Path,
    helper: Option<Helper>,
) -> (Option<KernelSource>, Option<AttachReport>, String) {
    let Some(helper) = helper else {
        return (None, None, "kernel.enabled is false".to_owned());
    };
    let default = || Path::new("/sys/fs/bpf/activity").join(names.collector_id.as_str().replace('.', "_"));
    let page_bytes = usize::try_from(
        nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096),
    )
    .unwrap_or(4096);
    let attached = KernelSource::attach_by(
        helper,
        &KernelConfig {
            pin_dir: config.kernel.pin.then(|| config.kernel.pin_dir.clone().unwrap_or_else(default)),
            ring_bytes: RingSizes::HOST.within(config.kernel.ring_bytes_max, page_bytes),
            cgroup_root: cgroup_root.to_owned(),
            ignore_self_flows: true,
        },
    );
    match attached {
        Ok((source, report)) => {
            if let Some(reason) = &report.not_pinned {
                tracing::warn!(%reason, "without pins: a restart will have a blind spot");
            }
            (Some(source), Some(report), String::new())
        }
        Err(error) => {
            let reason = full(&error);
            tracing::warn!(%reason, "no kernel programs; processes are polled from procfs");
            (None, None, reason)
        }
    }
}
