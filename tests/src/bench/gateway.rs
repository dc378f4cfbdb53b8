//! How fast the gateway takes evidence: validated, signed for, indexed and fsynced, load generator beside it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::figure::{Figure, Peer};
use super::fleet::{Fleet, Pace};
use super::operator::Operator;
use super::{host, limit};
use crate::lab::Lab;

pub const NAMES: &[&str] = &[
    "gateway_throughput",
    "gateway_events_per_cpu_second",
    "gateway_events_per_cpu_second_all",
    "gateway_request_p95",
    "gateway_rss_peak",
];
const COLLECTORS: usize = 100;
/// More than can be sent in [`SEND_MAX`].
const EVENTS: u64 = 2_000_000;
const SEND_MAX: Duration = Duration::from_secs(10);
/// Requests whose lines the plain limit works on; all would not fit into memory uncompressed.
const LIMIT_REQUESTS: usize = 300;
const SAMPLE_SESSIONS: usize = 20;

pub fn run() -> anyhow::Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> anyhow::Result<Vec<Figure>> {
    let mut lab = Lab::new(None)?;
    lab.init_gateway()?;
    let pid = lab.gateway.as_ref().context("no gateway")?.pid();
    let pace = Pace { from: host::now()?, per_second: 1_000, batch_age_ns_max: None };
    let mut fleet = Fleet::enrol(&lab, COLLECTORS, pace).await?;
    fleet.generate(EVENTS, true);

    let cpu = host::cpu_time(pid)?;
    let mut sent = fleet.send(SEND_MAX, true).await?;
    let cpu_sending = host::cpu_time(pid)?.saturating_sub(cpu);
    settle(pid).await?;
    let cpu_all = host::cpu_time(pid)?.saturating_sub(cpu);
    let (_, rss_peak) = host::resident_bytes(pid)?;

    let operator = Operator::of(&lab);
    let stored = operator.counter("events_stored").await?;
    ensure!(stored == sent.events, "{stored} stored, {} receipted", sent.events);
    check_sample(&operator, &fleet, sent.events == fleet.made()).await?;
    drop(lab.gateway.take());

    sent.bodies.truncate(LIMIT_REQUESTS);
    let plain = limit::measure(&sent.bodies, &lab.path(""))?;
    let (events, count) = (rate(sent.events, Duration::from_secs(1)), sent.events);
    let throughput = rate(count, sent.elapsed);
    let plain_wall = Peer { name: "plain limit", value: rate(plain.events, plain.elapsed) };
    let plain_cpu = Peer { name: "plain limit", value: rate(plain.events, plain.cpu) };
    let note = format!(
        "{count} events of {:.0} bytes in {:.1} s over {COLLECTORS} connections, {:.0} events a request, {} times \
         busy; the gateway used {:.1} CPU-seconds, the load {:.1}; load average {}",
        bytes_each(sent.raw_bytes, events),
        sent.elapsed.as_secs_f64(),
        events / rate(sent.requests, Duration::from_secs(1)),
        sent.busy,
        cpu_sending.as_secs_f64(),
        host::own_cpu_time()?.as_secs_f64(),
        host::load_average(),
    );
    let p95 = host::percentile(&mut sent.latencies, 95);
    Ok(vec![
        Figure::new(NAMES[0], throughput, "events/s", Some(plain_wall)).with_note(note),
        Figure::new(NAMES[1], rate(count, cpu_sending), "events/CPU-second", Some(plain_cpu)),
        Figure::new(NAMES[2], rate(count, cpu_all), "events/CPU-second", Some(plain_cpu))
            .with_note("with what the gateway does afterwards: sealing of segments"),
        Figure::new(NAMES[3], host::millis(p95), "ms", None),
        Figure::new(NAMES[4], bytes_each(rss_peak, 1048576.0), "MiB", None),
    ])
}

/// Whole sessions come back with every event they had.
async fn check_sample(operator: &Operator, fleet: &Fleet, all_sent: bool) -> anyhow::Result<()> {
    let sessions = fleet.sessions();
    let step = sessions.len() / SAMPLE_SESSIONS;
    for (session, events) in sessions.iter().step_by(step.max(1)) {
        let found = operator.timeline(session).await?;
        ensure!(found == *events || (!all_sent && found < *events), "{session}: {found} of {events} events");
    }
    Ok(())
}

/// Waits until a process rests: less than a tenth of a core for a second.
pub async fn settle(pid: u32) -> anyhow::Result<()> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        let before = host::cpu_time(pid)?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        if host::cpu_time(pid)?.saturating_sub(before) < Duration::from_millis(100) {
            return Ok(());
        }
    }
    Ok(())
}

fn rate(count: u64, time: Duration) -> f64 {
    bytes_each(count, time.as_secs_f64())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn bytes_each(sum: u64, parts: f64) -> f64 {
    sum as f64 / parts
}
