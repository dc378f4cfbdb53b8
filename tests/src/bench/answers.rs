//! How fast a big store answers: the timeline of one session, the coverage of one instance.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::figure::{Figure, Peer};
use super::fleet::{Fleet, Pace, host_name};
use super::gateway::settle;
use super::host::{self, millis, percentile};
use super::operator::Operator;
use crate::lab::{Lab, TENANT};

pub const NAMES: &[&str] =
    &["timeline_latency_p50", "timeline_latency_p95", "coverage_latency_p50", "coverage_latency_p95"];
const COLLECTORS: usize = 100;
const EVENTS: u64 = 10_000_000;
/// Made and sent at a time.
const CHUNK: u64 = 500_000;
/// The store is as big as it gets within this.
const FILL_MAX: Duration = Duration::from_secs(290);
const QUESTIONS: usize = 200;
const BUDGET_MS: f64 = 50.0;

pub fn run() -> anyhow::Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> anyhow::Result<Vec<Figure>> {
    let mut lab = Lab::new(None)?;
    lab.init_gateway()?;
    let from = host::now()?.saturating_add_nanos(-3_600_000_000_000);
    let pace = Pace { from, per_second: 100, batch_age_ns_max: None };
    let mut fleet = Fleet::enrol(&lab, COLLECTORS, pace).await?;
    let (start, mut events) = (Instant::now(), 0);
    while fleet.made() < EVENTS && start.elapsed() < FILL_MAX {
        let last = fleet.made() + CHUNK >= EVENTS || start.elapsed() + Duration::from_secs(15) > FILL_MAX;
        fleet.generate(CHUNK, last);
        events += fleet.send(FILL_MAX * 2, false).await?.events;
    }
    fleet.generate(0, true);
    events += fleet.send(FILL_MAX, false).await?.events;
    settle(lab.gateway.as_ref().context("no gateway")?.pid()).await?;

    let operator = Operator::of(&lab);
    let sessions = fleet.sessions();
    let mut timelines = Vec::new();
    let mut told = 0;
    for _ in 0..QUESTIONS {
        let (session, expected) = &sessions[rand::random_range(0..sessions.len())];
        let asked = Instant::now();
        let found = operator.timeline(session).await?;
        timelines.push(asked.elapsed());
        ensure!(found == *expected, "session {session}: {found} of {expected} events");
        told += found;
    }
    let mut coverages = Vec::new();
    for n in 0..QUESTIONS {
        let path = format!("/v1/coverage?tenant={TENANT}&instance={}", host_name(n % COLLECTORS));
        let asked = Instant::now();
        operator.get(&path).await?;
        coverages.push(asked.elapsed());
    }
    let note = format!(
        "{events} events, {} sessions, {} events an answer; over the local socket; load average {}",
        sessions.len(),
        told / QUESTIONS as u64,
        host::load_average()
    );
    let figure = |name, times: &mut [Duration], percent, peer| {
        Figure::new(name, millis(percentile(times, percent)), "ms", peer)
    };
    Ok(vec![
        figure(NAMES[0], &mut timelines, 50, None),
        figure(NAMES[1], &mut timelines, 95, Peer::budget(BUDGET_MS)).with_note(note),
        figure(NAMES[2], &mut coverages, 50, None),
        figure(NAMES[3], &mut coverages, 95, Peer::budget(BUDGET_MS)),
    ])
}
