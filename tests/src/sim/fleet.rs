//! Many collectors and a gateway. At the end: what was acknowledged is stored, each event once; what is missing is
//! counted; and no coverage says complete where the account knows of a gap.

use std::collections::{BTreeMap, BTreeSet};

use activity_collector::spool::SpoolLimits;
use activity_schema::coverage::EventClass;
use activity_store::{CoverageQuery, LIMIT_MAX, Query, VerifyOptions, verify_store};
use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::collector::{Collector, Request, kind};
use super::gateway::Gateway;
use crate::bench::host;

pub const TENANT: &str = "fleet";
/// Simulated time of a step, nanoseconds.
const STEP_NS: u64 = 300_000_000;
/// Most steps until everything is acknowledged once nothing fails any more: longest pauses are thirty seconds.
const DRAIN_STEPS_MAX: u32 = 600;
/// So small that an outage sheds: half a segment.
const SMALL_SPOOL: SpoolLimits = SpoolLimits::of_total(512 * 1024);
const LARGE_SPOOL: SpoolLimits = SpoolLimits::of_total(64 << 20);

struct World {
    rng: StdRng,
    gateway: Gateway,
    gateway_full: bool,
    collectors: Vec<Collector>,
    /// Requests on their way: when each arrives, and of whom it is.
    wire: Vec<(u32, usize, Request)>,
    faults: BTreeMap<&'static str, u64>,
}

/// Runs `size` collectors for `steps` steps with faults, lets everything heal, and checks.
pub fn run(size: usize, steps: u32, seed: u64) -> anyhow::Result<Value> {
    let mut world = World::new(size, steps, seed)?;
    for step in 0..steps {
        world.step(step, true)?;
    }
    world.heal(steps)?;
    let checked = world.check();
    checked
        .with_context(|| format!("seed {seed}, {size} collectors, {steps} steps, faults {:?}", world.faults))
}

impl World {
    fn new(size: usize, steps: u32, seed: u64) -> anyhow::Result<Self> {
        // All of it lies in the past of the gateway's clock, which is real.
        let length = i64::from(steps + DRAIN_STEPS_MAX) * i64::try_from(STEP_NS)?;
        let begin = host::now()?.saturating_add_nanos(-2 * length);
        let limits = |n: usize| if n.is_multiple_of(8) { SMALL_SPOOL } else { LARGE_SPOOL };
        let collectors =
            (0..size).map(|n| Collector::new(n, limits(n), begin)).collect::<anyhow::Result<_>>()?;
        Ok(World {
            rng: StdRng::seed_from_u64(seed),
            gateway: Gateway::new()?,
            gateway_full: false,
            collectors,
            wire: Vec::new(),
            faults: BTreeMap::new(),
        })
    }

    fn step(&mut self, step: u32, faults: bool) -> anyhow::Result<()> {
        for n in 0..self.collectors.len() {
            let events = if self.rng.random_ratio(1, 3) { self.rng.random_range(0..8) } else { 0 };
            let events = if faults { events } else { 0 };
            self.collectors[n].step(events, STEP_NS, &self.gateway)?;
            if faults {
                self.hurt(n)?;
            }
            for request in self.collectors[n].take_requests() {
                let delay = if faults { self.rng.random_range(0..4) } else { 0 };
                self.wire.push((step + delay, n, request));
            }
        }
        if faults {
            self.hurt_gateway()?;
        }
        self.deliver(step, faults)
    }

    fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    /// Something happens to a collector, once in some hundred steps.
    fn hurt(&mut self, n: usize) -> anyhow::Result<()> {
        // A third of the fleet has a bad link and kills, and nothing that evidence is lost by.
        let spared = n % 3 == 1;
        match self.rng.random_range(0..240) {
            0 | 1 => {
                let events = self.rng.random_range(0..8);
                self.collectors[n].kill(events)?;
                self.count("collector killed");
            }
            2 | 3 => {
                self.collectors[n].disconnect(&self.gateway)?;
                self.count("link broken");
            }
            4 => self.collectors[n].make_durable(&self.gateway)?,
            5 if !spared => {
                let (events, rng) = (self.rng.random_range(0..8), &mut self.rng);
                self.collectors[n].cut_power(events, |unsynced| rng.random_range(0..=unsynced))?;
                self.count("power cut");
            }
            6 if !spared => {
                self.collectors[n].set_full(true);
                self.count("collector's disk full");
            }
            7..=20 if !spared => self.collectors[n].set_full(false),
            21 if !spared => {
                let step_ns = self.rng.random_range(-3_600..3_600) * 1_000_000_000;
                self.collectors[n].step_clock(step_ns);
                self.count("clock stepped");
            }
            22 if n.is_multiple_of(8) => {
                self.collectors[n].step(600, STEP_NS, &self.gateway)?;
                self.count("burst");
            }
            _ => {}
        }
        Ok(())
    }

    fn hurt_gateway(&mut self) -> anyhow::Result<()> {
        match self.rng.random_range(0..30) {
            0 => {
                self.gateway.kill()?;
                self.count("gateway killed");
            }
            1 => {
                self.gateway.restart(self.gateway_full)?;
                self.count("gateway restarted");
            }
            2 => {
                self.gateway_full = true;
                self.gateway.restart(true)?;
                self.count("gateway's disk full");
            }
            3..=8 if self.gateway_full => {
                self.gateway_full = false;
                self.gateway.restart(false)?;
                return Ok(());
            }
            _ => return Ok(()),
        }
        (0..self.collectors.len()).try_for_each(|n| self.collectors[n].disconnect(&self.gateway))
    }

    /// What has arrived by now, in any order.
    fn deliver(&mut self, step: u32, faults: bool) -> anyhow::Result<()> {
        let mut arrived: Vec<_> = self.wire.extract_if(.., |(at, _, _)| *at <= step).collect();
        arrived.shuffle(&mut self.rng);
        for (_, n, request) in arrived {
            let fate = if faults { self.rng.random_range(0..20) } else { 19 };
            let caller = self.collectors[n].caller()?;
            // A request whose connection is gone may still have been read by the gateway.
            let results = match fate {
                0 => None,
                _ => Some(self.gateway.ingest(&caller, request.batches.clone())?),
            };
            if fate == 1 {
                self.gateway.ingest(&caller, request.batches.clone())?;
                self.count("request twice");
            }
            match results {
                Some(results) if fate != 2 => {
                    self.collectors[n].answered(&request, results.as_deref(), &self.gateway)?;
                }
                _ => {
                    self.count(if fate == 0 { "request lost" } else { "answer lost" });
                    self.collectors[n].disconnect(&self.gateway)?;
                }
            }
        }
        Ok(())
    }

    /// Nothing fails any more: everything arrives.
    fn heal(&mut self, from: u32) -> anyhow::Result<()> {
        self.gateway_full = false;
        self.gateway.restart(false)?;
        for collector in &mut self.collectors {
            collector.set_full(false);
            collector.disconnect(&self.gateway)?;
        }
        for step in from..from + DRAIN_STEPS_MAX {
            self.step(step, false)?;
            // A loss is told at the next step, a heartbeat confirms what is before it.
            if step > from + 10 && self.wire.is_empty() && self.collectors.iter().all(Collector::is_drained) {
                return Ok(());
            }
        }
        let stuck: Vec<_> = self.collectors.iter().filter(|c| !c.is_drained()).map(Collector::name).collect();
        anyhow::bail!("not acknowledged at the end: {stuck:?}")
    }

    fn check(&mut self) -> anyhow::Result<Value> {
        let stored = self.stored()?;
        let (mut issued, mut lost, mut at_risk, mut complete) = (0, 0, 0, 0);
        for collector in &self.collectors {
            let own = stored.get(collector.name()).map(Vec::as_slice).unwrap_or_default();
            let account = &collector.account;
            let found = check_one(collector, own).with_context(|| collector.name().to_owned())?;
            let is_complete = self.is_complete(collector)?;
            let whole = found.missing == 0;
            ensure!(whole || !is_complete, "{}: complete, and {} missing", collector.name(), found.missing);
            // What was shed is told as lost, though it may have arrived: its acknowledgement was on the way.
            let blameless = !account.tainted && found.told == 0;
            ensure!(
                !blameless || is_complete,
                "{}: nothing is missing, and not complete: {:?}",
                collector.name(),
                self.coverage(collector)?.reasons
            );
            issued += account.issued;
            lost += found.lost;
            at_risk += account.at_risk;
            complete += u64::from(is_complete);
        }
        let counters = self.gateway.store()?.health().counters;
        self.gateway.store()?.close();
        let report = verify_store(&self.gateway.path(), &VerifyOptions::default(), &mut |_| {});
        ensure!(report.ok, "the store does not verify: {:?}", report.problems);
        Ok(json!({"collectors": self.collectors.len(), "issued": issued, "counted_as_lost": lost,
            "at_risk_in_power_cuts": at_risk, "complete": complete, "faults": self.faults,
            "log": report.tenants.iter().map(|tenant| tenant.log_size).sum::<u64>(),
            "forks": counters.batches_forked}))
    }

    /// Every stored event, by instance.
    fn stored(&self) -> anyhow::Result<BTreeMap<String, Vec<Value>>> {
        let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let mut query = Query { limit: LIMIT_MAX, ..Query::default() };
        loop {
            let answer = self.gateway.store()?.query(&TENANT.parse()?, &query)?;
            for event in answer.events {
                let event: Value = serde_json::from_slice(&event.line)?;
                let instance =
                    event["correlation"]["instance_id"].as_str().context("no instance")?.to_owned();
                all.entry(instance).or_default().push(event);
            }
            match answer.next_cursor {
                Some(cursor) => query.cursor = Some(cursor),
                None => return Ok(all),
            }
        }
    }

    fn is_complete(&self, collector: &Collector) -> anyhow::Result<bool> {
        Ok(self.coverage(collector)?.complete)
    }

    /// From the first word to the last heartbeats.
    fn coverage(&self, collector: &Collector) -> anyhow::Result<activity_schema::coverage::CoverageReport> {
        let margin = i64::try_from(STEP_NS)? * 8;
        let query = CoverageQuery {
            instance: Some(collector.name().to_owned()),
            from: Some(collector.begun),
            to: Some(collector.now().saturating_add_nanos(-margin)),
            classes: vec![EventClass::Process, EventClass::Network],
        };
        Ok(self.gateway.store()?.coverage(&TENANT.parse()?, &query))
    }
}

struct Found {
    missing: u64,
    /// Counted as lost, and not stored.
    lost: u64,
    /// Counted as lost.
    told: u64,
}

/// Compares what is stored of a collector with its account.
fn check_one(collector: &Collector, stored: &[Value]) -> anyhow::Result<Found> {
    let account = &collector.account;
    let mut sequences: BTreeSet<(&str, u64)> = BTreeSet::new();
    let mut events: BTreeSet<u64> = BTreeSet::new();
    for event in stored {
        let stream = event["source"]["collector"].as_str().context("no stream")?;
        let sequence = event["integrity"]["collector_sequence"].as_u64().context("no sequence")?;
        ensure!(sequences.insert((stream, sequence)), "{stream} {sequence} is stored twice");
        let id = event["correlation"]["process_id"].as_str().and_then(|id| id.strip_prefix("p-"));
        if let Some(n) = id.and_then(|n| n.parse().ok()) {
            ensure!(event["event_name"] == kind(n).0, "event {n} is {}", event["event_name"]);
            ensure!((1..=account.issued).contains(&n), "event {n} never happened");
            ensure!(events.insert(n), "event {n} is stored twice");
        }
    }
    for (stream, first, last) in &account.acknowledged {
        let missing = (*first..=*last).find(|n| !sequences.contains(&(stream.as_str(), *n)));
        ensure!(missing.is_none(), "{stream} {missing:?} was acknowledged and is not stored");
    }
    let missing = account.issued - events.len() as u64;
    let losses = || stored.iter().filter(|e| e["event_name"] == "telemetry.loss").map(|e| &e["payload"]);
    let lost = losses().map(|loss| lost(loss, &sequences)).sum();
    let told = losses().map(|loss| self::lost(loss, &BTreeSet::new())).sum();
    // A power cut takes what nobody has counted; nothing else does.
    ensure!(
        missing <= lost + account.at_risk,
        "{missing} missing, {lost} counted, {} at risk",
        account.at_risk
    );
    ensure!(lost <= missing + account.read_again, "{lost} counted as lost, only {missing} missing");
    Ok(Found { missing, lost, told })
}

/// Events of the sandbox that a loss counts. Of sheds, those that had not arrived before.
fn lost(loss: &Value, stored: &BTreeSet<(&str, u64)>) -> u64 {
    let range = loss["first_missing_sequence"].as_u64().zip(loss["last_missing_sequence"].as_u64());
    if let (Some((first, last)), Some(stream)) = (range, loss["stream"].as_str()) {
        return (first..=last).filter(|n| !stored.contains(&(stream, *n))).count() as u64;
    }
    let names = loss["event_names"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ours = names.iter().any(|name| (0..2).any(|n| *name == kind(n).0));
    if ours { loss["dropped_count"].as_u64().unwrap_or(0) } else { 0 }
}
