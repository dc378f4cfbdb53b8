//! A collector without kernel and network: recorder, spool and senders are real, and so is what it says about itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use activity_collector::clock::ClockReading;
use activity_collector::daemon::telemetry::{self, ClassPlan};
use activity_collector::kernel::Support;
use activity_collector::recorder::{Draft, Ids, Recorder};
use activity_collector::sandbox::Instance;
use activity_collector::spool::{
    EpochIdentity, Loss, Recovery, RingCursor, Sealed, Spool, SpoolLimits, SpoolReader, SpoolState, Unsynced,
};
use activity_schema::api::BatchResult;
use activity_schema::batch::ClockState;
use activity_schema::coverage::{EventClass, LossReason};
use activity_schema::event::{Layer, Payload, Runtime};
use activity_schema::ids::Epoch;
use activity_schema::uplink::{Action, Input, Outcome, Sender, SenderConfig};
use activity_schema::{Class, SignedBatch, Timestamp};
use activity_store::{Caller, Instances};
use anyhow::{Context as _, bail, ensure};

use super::disk::MemoryDisk;
use super::gateway::Gateway;

/// Heartbeat interval that it declares, milliseconds of simulated time.
const HEARTBEAT_MS: u64 = 1_000;
/// Time between a step and an accident, and between that and the next start, nanoseconds.
const BETWEEN_NS: u64 = 50_000_000;
/// Bytes of an event in the simulated ring.
const RECORD_BYTES: u64 = 64;

/// What happened to a collector, written down apart from it.
#[derive(Debug, Default)]
pub struct Account {
    /// Events that the sandbox caused, by number from 1.
    pub issued: u64,
    /// The last of them that was surely on disk at some time.
    durable: u64,
    /// Events that a power cut may have taken.
    pub at_risk: u64,
    /// Events that may be counted as lost and read again from the ring after a kill.
    pub read_again: u64,
    /// Something happened after which coverage may be incomplete.
    pub tainted: bool,
    /// Sequences that the gateway gave receipts for, by stream; headers alone are not in it.
    pub acknowledged: Vec<(String, u64, u64)>,
}

/// Batches on their way. An answer counts only on the connection that they were sent on.
pub struct Request {
    pub epoch: Epoch,
    pub class: Class,
    pub first_number: u64,
    pub batches: Vec<SignedBatch>,
    pub connection: u64,
}

struct Lane {
    epoch: Epoch,
    sender: Sender,
    reader: SpoolReader<MemoryDisk>,
}

pub struct Collector {
    name: String,
    disk: MemoryDisk,
    limits: SpoolLimits,
    recorder: Recorder<MemoryDisk>,
    unsynced: Vec<Unsynced<MemoryDisk>>,
    lanes: Vec<Lane>,
    own: Arc<Instance>,
    pub begun: Timestamp,
    clock: ClockReading,
    boot: u32,
    starts: u32,
    /// Events that are not yet given back to the kernel.
    ring: VecDeque<u64>,
    /// Ring positions that a class's stream held at the start.
    held: BTreeMap<(Class, u8), u64>,
    outbox: Vec<Request>,
    pub connection: u64,
    heartbeat_at_ns: u64,
    pub account: Account,
}

impl Collector {
    pub fn new(n: usize, limits: SpoolLimits, wall: Timestamp) -> anyhow::Result<Self> {
        let name = format!("collector-{n}");
        let own = Arc::new(Instance {
            instance_id: name.clone(),
            agent_id: "agent".to_owned(),
            runtime: Runtime::Docker,
            layer: Layer::Guest,
            cgroup: "/".to_owned(),
        });
        let state = ClockState { error_ns: 1_000_000, offset_ns: 0, synchronised: true };
        let clock = ClockReading { boot_ns: 1_000_000_000, wall, state, state_at_ns: 1_000_000_000 };
        let disk = MemoryDisk::default();
        let (recorder, recovery) = open(&name, &disk, limits, clock, (0, 0), &own)?;
        let mut collector = Collector {
            name,
            disk,
            limits,
            recorder,
            unsynced: Vec::new(),
            lanes: Vec::new(),
            own,
            begun: wall,
            clock,
            boot: 0,
            starts: 0,
            ring: VecDeque::new(),
            held: BTreeMap::new(),
            outbox: Vec::new(),
            connection: 0,
            heartbeat_at_ns: 0,
            account: Account::default(),
        };
        collector.begin(&recovery)?;
        Ok(collector)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn now(&self) -> Timestamp {
        self.clock.wall
    }

    pub fn caller(&self) -> anyhow::Result<Caller> {
        let keys = self.recorder.spool().epochs().map(|epoch| {
            let key = epoch.signer.public();
            (key.id(), key, epoch.identity.epoch.clone())
        });
        Ok(Caller {
            tenant: super::fleet::TENANT.parse()?,
            host: self.name.parse()?,
            collector_id: self.name.parse()?,
            instances: Instances::One(self.name.parse()?),
            keys: keys.collect(),
        })
    }

    /// Lets time pass: the sandbox causes events, the collector does its duties.
    pub fn step(&mut self, events: u64, pass_ns: u64, gateway: &Gateway) -> anyhow::Result<()> {
        self.pass(pass_ns);
        self.issue(events);
        self.drain();
        self.ring.clear();
        self.recorder.emit_losses(std::slice::from_ref(&self.own));
        if self.clock.boot_ns >= self.heartbeat_at_ns {
            self.heartbeat_at_ns = self.clock.boot_ns + HEARTBEAT_MS * 1_000_000;
            self.beat();
        }
        let sealed = self.recorder.seal_due();
        self.unsynced.extend(sealed);
        self.sync(gateway)?;
        for lane in 0..self.lanes.len() {
            self.feed(lane, Input::Tick, gateway)?;
        }
        Ok(())
    }

    fn pass(&mut self, ns: u64) {
        self.clock.boot_ns += ns;
        self.clock.wall = self.clock.wall.saturating_add_nanos(i64::try_from(ns).unwrap_or(i64::MAX));
        self.recorder.set_clock(self.clock);
    }

    fn issue(&mut self, events: u64) {
        self.ring.extend(self.account.issued + 1..=self.account.issued + events);
        self.account.issued += events;
    }

    /// Ring to spool; the ring's space is not yet given back.
    fn drain(&mut self) {
        let Some(last) = self.ring.back().copied() else { return };
        for n in self.ring.clone() {
            let (name, class) = kind(n);
            if self.held.get(&(class, 1)).is_some_and(|held| n * RECORD_BYTES <= *held) {
                continue;
            }
            let id = format!("p-{n}");
            let mut draft = Draft::observed(name, self.clock.wall, &self.own, Payload::new());
            draft.ids = Ids { process_id: Some(&id), ..Ids::default() };
            self.recorder.record(draft).expect("the catalogue allows it");
        }
        self.recorder.flush(Some(RingCursor { ring: 1, position: last * RECORD_BYTES }));
    }

    fn beat(&mut self) {
        telemetry::heartbeat(&mut self.recorder, &self.own, self.clock.wall);
    }

    fn sync(&mut self, gateway: &Gateway) -> anyhow::Result<()> {
        Unsynced::sync(&self.unsynced)?;
        for batch in std::mem::take(&mut self.unsynced) {
            let Sealed { epoch, class, number, bytes } = batch.finish();
            if let Some(lane) = self.lanes.iter().position(|lane| lane.epoch == epoch) {
                self.feed(lane, Input::Sealed { class, number, bytes }, gateway)?;
            }
        }
        Ok(())
    }

    pub fn set_full(&mut self, full: bool) {
        self.disk.set_full(full);
        self.account.tainted |= full;
    }

    pub fn step_clock(&mut self, step_ns: i64) {
        self.clock.wall = self.clock.wall.saturating_add_nanos(step_ns);
        self.recorder.set_clock(self.clock);
        telemetry::clock_step(&mut self.recorder, &self.own, step_ns);
        self.account.tainted = true;
    }

    /// The process is killed at the worst place: events are in the spool, and the ring still has them.
    pub fn kill(&mut self, events: u64) -> anyhow::Result<()> {
        self.pass(BETWEEN_NS);
        self.issue(events);
        self.drain();
        self.account.read_again += self.ring.len() as u64;
        self.pass(BETWEEN_NS);
        self.start()
    }

    /// The machine loses power: the ring and what was not synced are gone.
    pub fn cut_power(&mut self, events: u64, part: impl FnMut(usize) -> usize) -> anyhow::Result<()> {
        self.pass(BETWEEN_NS);
        self.issue(events);
        self.drain();
        self.ring.clear();
        self.disk.cut_power(part);
        self.pass(BETWEEN_NS);
        self.boot += 1;
        self.clock.boot_ns = 1_000_000_000;
        self.heartbeat_at_ns = 0;
        self.account.at_risk += self.account.issued - self.account.durable;
        self.account.durable = self.account.issued;
        self.account.tainted = true;
        self.start()
    }

    /// Everything that was recorded is on disk.
    pub fn make_durable(&mut self, gateway: &Gateway) -> anyhow::Result<()> {
        self.recorder.seal_all();
        let sealed = self.recorder.seal_due();
        self.unsynced.extend(sealed);
        self.sync(gateway)?;
        self.account.durable = self.account.issued;
        Ok(())
    }

    fn start(&mut self) -> anyhow::Result<()> {
        self.starts += 1;
        self.unsynced.clear();
        self.outbox.clear();
        self.connection += 1;
        let place = (self.boot, self.starts);
        let open = |disk| open(&self.name, disk, self.limits, self.clock, place, &self.own);
        let opened = open(&self.disk).or_else(|_| {
            // A new epoch needs space: its collector starts when there is some.
            self.disk.set_full(false);
            open(&self.disk)
        });
        let (recorder, recovery) = opened?;
        self.recorder = recorder;
        self.begin(&recovery)
    }

    /// What the daemon does at its start.
    fn begin(&mut self, recovery: &Recovery) -> anyhow::Result<()> {
        let restarted = recovery.state == SpoolState::Intact;
        self.held.clone_from(&recovery.cursors);
        telemetry::started(&mut self.recorder, &self.own, restarted, recovery.state.as_str(), Some(0));
        if let Some(since) = recovery.newest.filter(|_| !restarted) {
            self.lose_down_time(since);
        }
        let plans: Vec<ClassPlan> = EventClass::ALL.iter().map(|class| plan(*class)).collect();
        telemetry::config(&mut self.recorder, &self.own, &plans, &"0".repeat(64), HEARTBEAT_MS);
        self.recorder.flush(None);
        self.lanes.clear();
        for epoch in self.recorder.spool().epochs() {
            let acked = |class: &Class| Some((*class, epoch.acks.streams.get(class.as_str())?.batch_number));
            let acked: BTreeMap<Class, u64> = Class::ALL.iter().filter_map(acked).collect();
            let id = epoch.identity.epoch.clone();
            let mut sender = Sender::new(SenderConfig::default(), id.clone(), &acked);
            let reader = epoch.reader();
            for class in Class::ALL {
                for batch in reader.pending(*class) {
                    let sealed =
                        Input::Sealed { class: *class, number: batch.number, bytes: batch.raw_bytes };
                    // Nothing is connected yet: it asks for a connection at every call until it has one.
                    sender.handle(sealed, self.clock.boot_ns, 0);
                }
            }
            sender.handle(Input::Disconnected, self.clock.boot_ns, 0);
            self.lanes.push(Lane { epoch: id, sender, reader });
        }
        Ok(())
    }

    fn lose_down_time(&mut self, since: Timestamp) {
        let between = (since, self.clock.wall);
        self.recorder.lose(Loss::of(LossReason::CollectorDown, "kernel", &[kind(0).0, kind(1).0], between));
    }

    pub fn take_requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.outbox)
    }

    pub fn disconnect(&mut self, gateway: &Gateway) -> anyhow::Result<()> {
        self.connection += 1;
        self.outbox.clear();
        (0..self.lanes.len()).try_for_each(|lane| self.feed(lane, Input::Disconnected, gateway))
    }

    /// `None` is 503.
    pub fn answered(
        &mut self,
        request: &Request,
        results: Option<&[BatchResult]>,
        gateway: &Gateway,
    ) -> anyhow::Result<()> {
        if request.connection != self.connection {
            return Ok(());
        }
        let lane = self.lanes.iter().position(|lane| lane.epoch == request.epoch).context("no lane")?;
        let class = request.class;
        let Some(results) = results else {
            let busy = Input::Busy { class, retry_after_ns: 1_000_000_000 };
            return self.feed(lane, busy, gateway);
        };
        let mut outcomes = Vec::new();
        for (batch, result) in request.batches.iter().zip(results) {
            outcomes.push(match result {
                BatchResult::Stored { receipt, withheld: 0 } | BatchResult::Duplicate { receipt } => {
                    ensure!(receipt.body.batch_hash == batch.hash(), "a receipt of another batch");
                    ensure!(receipt.is_signed_by(gateway.key()?), "a receipt that is not signed");
                    let header = &batch.header;
                    if batch.body.is_some() {
                        let stream = header.stream().to_string();
                        self.account.acknowledged.push((stream, header.first_sequence, header.last_sequence));
                    }
                    let spool = self.recorder.spool_mut();
                    spool.release(&request.epoch, class, header.batch_number, receipt.hash())?;
                    Outcome::Durable
                }
                BatchResult::Gap { next_batch_number } => {
                    Outcome::Gap { next_batch_number: *next_batch_number }
                }
                other => bail!("{}: an honest batch was answered with {other:?}", self.name),
            });
        }
        self.feed(lane, Input::Answered { class, outcomes }, gateway)
    }

    /// Whether everything that was recorded is acknowledged.
    pub fn is_drained(&self) -> bool {
        let drained = |lane: &Lane| Class::ALL.iter().all(|class| lane.sender.pending(*class) == 0);
        self.unsynced.is_empty() && self.recorder.spool().ledger.is_empty() && self.lanes.iter().all(drained)
    }

    fn feed(&mut self, lane: usize, input: Input, gateway: &Gateway) -> anyhow::Result<()> {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let actions = self.lanes[lane].sender.handle(input, self.clock.boot_ns, self.clock.boot_ns);
            for action in actions {
                match action {
                    Action::Connect => {
                        self.register(gateway)?;
                        inputs.push(Input::Connected);
                    }
                    Action::Resync => {
                        let caller = self.caller()?;
                        let streams = gateway.streams(&caller, &caller.collector_id)?;
                        let epoch = &self.lanes[lane].epoch;
                        let own = streams.into_iter().filter(|stream| stream.epoch == *epoch);
                        inputs.push(Input::Resynced(own.collect()));
                    }
                    Action::Send { class, first_number, count } => {
                        self.send(lane, class, first_number, count)?
                    }
                    Action::Stranded { class, number } => {
                        bail!(
                            "{}: stranded at batch {number} of {class}, and nothing durable was lost",
                            self.name
                        )
                    }
                    Action::Release { .. } | Action::Wake { .. } => {}
                }
            }
        }
        Ok(())
    }

    /// Makes keys known that the gateway does not have.
    fn register(&self, gateway: &Gateway) -> anyhow::Result<()> {
        let spool = self.recorder.spool();
        if spool.epochs().all(|epoch| epoch.is_registered()) {
            return Ok(());
        }
        gateway.enrol(&self.caller()?)?;
        for epoch in spool.epochs() {
            // On a full disk it is told again at the next connection.
            let _ = epoch.set_registered();
        }
        Ok(())
    }

    fn send(&mut self, lane: usize, class: Class, first_number: u64, count: usize) -> anyhow::Result<()> {
        let Lane { epoch, reader, .. } = &self.lanes[lane];
        let batches = (first_number..).take(count).map(|number| {
            Ok(SignedBatch::clone(&*reader.read(class, number).context("a sealed batch does not read")?))
        });
        let batches = batches.collect::<anyhow::Result<_>>()?;
        let (epoch, connection) = (epoch.clone(), self.connection);
        self.outbox.push(Request { epoch, class, first_number, batches, connection });
        Ok(())
    }
}

/// Even events are critical, odd ones standard.
pub fn kind(n: u64) -> (&'static str, Class) {
    if n.is_multiple_of(2) {
        ("process.exec", Class::Critical)
    } else {
        ("network.flow.closed", Class::Standard)
    }
}

fn plan(class: EventClass) -> ClassPlan {
    let seen = matches!(class, EventClass::Process | EventClass::Network);
    let support = if seen { Support::Supported } else { Support::Unsupported("not simulated".to_owned()) };
    ClassPlan { class, source: if seen { "ebpf" } else { "none" }, support, probes: Vec::new() }
}

/// `place` is boot and start: ids, key and epoch are made of it.
fn open(
    name: &str,
    disk: &MemoryDisk,
    limits: SpoolLimits,
    clock: ClockReading,
    place: (u32, u32),
    own: &Arc<Instance>,
) -> anyhow::Result<(Recorder<MemoryDisk>, Recovery)> {
    let (boot, start) = place;
    let wanted = EpochIdentity {
        format: 1,
        epoch: Epoch::new(format!("epoch-{start:06}"))?,
        tenant: super::fleet::TENANT.parse()?,
        host: name.parse()?,
        collector_id: name.parse()?,
        boot_id: format!("boot-{boot}"),
        nonce: String::new(),
        created: clock.wall,
    };
    let mut seed = [0; 32];
    for (byte, from) in seed.iter_mut().zip(name.bytes().chain(start.to_le_bytes())) {
        *byte = from;
    }
    let (spool, recovery) = Spool::open(disk.clone(), "/spool".as_ref(), limits, wanted, &seed, clock.state)?;
    Ok((Recorder::new(spool, own.clone(), clock), recovery))
}
