//! A collector at 100 and at 1,000 events a second: how long until an event has its receipt, and what it costs.
//!
//! An exec of `/bin/true` makes two events. An event has its receipt when the spool's `acks.state` is past it: the
//! collector has checked the receipt and forgets the batch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use activity_schema::Timestamp;
use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::figure::{Figure, Peer};
use super::host::{self, millis, percentile};
use super::watched;
use crate::lab::Lab;

pub const NAMES: &[&str] = &[
    "receipt_p50_100",
    "receipt_p95_100",
    "receipt_p50_1000",
    "receipt_p95_1000",
    "collector_cpu_100",
    "collector_cpu_1000",
    "collector_rss",
    "collector_bpf_maps",
];
const TIME: Duration = Duration::from_secs(30);
const RECEIPT_BUDGET_MS: f64 = 250.0;
const RSS_BUDGET_MIB: f64 = 48.0;

struct Run {
    receipts: Vec<Duration>,
    cpu_percent: f64,
    note: String,
}

pub fn run() -> anyhow::Result<Vec<Figure>> {
    let mut lab = watched::enrolled()?;
    let pid = watched::start_collector(&mut lab)?;
    let mut figures = Vec::new();
    let mut cpu = Vec::new();
    for (n, (rate, cpu_budget)) in [(100, 0.5), (1_000, 2.0)].into_iter().enumerate() {
        let mut found = at_rate(&lab, pid, rate)?;
        let names = &NAMES[n * 2..];
        let p50 = millis(percentile(&mut found.receipts, 50));
        let p95 = millis(percentile(&mut found.receipts, 95));
        figures.push(Figure::new(names[0], p50, "ms", None));
        figures.push(Figure::new(names[1], p95, "ms", Peer::budget(RECEIPT_BUDGET_MS)));
        let figure = Figure::new(NAMES[4 + n], found.cpu_percent, "% of a core", Peer::budget(cpu_budget));
        cpu.push(figure.with_note(found.note));
    }
    figures.append(&mut cpu);
    let (rss, peak) = host::resident_bytes(pid)?;
    let rss_note = format!("at most {:.1} MiB; mapped rings are counted in it", mib(peak));
    let budget = Some(Peer { name: "budget", value: RSS_BUDGET_MIB });
    figures.push(Figure::new(NAMES[6], mib(rss), "MiB", budget).with_note(rss_note));
    figures.push(Figure::new(NAMES[7], mib(host::bpf_map_bytes(pid)?), "MiB", None));
    Ok(figures)
}

/// `events` a second, for [`TIME`].
fn at_rate(lab: &Lab, pid: u32, events: u32) -> anyhow::Result<Run> {
    let watch = AckWatch::new(&lab.spool())?;
    let (from, stored) = (host::now()?, watched::counter(lab, "events_stored")?);
    let stop = AtomicBool::new(false);
    let (acked, cpu, elapsed) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let watcher = scope.spawn(|| watch.until(&stop));
        let (start, before) = (Instant::now(), host::cpu_time(pid)?);
        let load = watched::paced(events / 2, TIME);
        let (cpu, elapsed) = (host::cpu_time(pid)?.saturating_sub(before), start.elapsed());
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        load?;
        Ok((watcher.join().unwrap_or_else(|e| std::panic::resume_unwind(e))?, cpu, elapsed))
    })?;
    let stored = watched::counter(lab, "events_stored")? - stored;
    let seen = lab.events(&["--executable", "true", "--from", &from.to_string()])?;
    let receipts: Vec<Duration> = seen.iter().filter_map(|event| acked.latency(event)).collect();
    ensure!(receipts.len() * 10 > seen.len() * 9, "{} receipts of {} events", receipts.len(), seen.len());
    let cpu_percent = cpu.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    #[expect(clippy::cast_precision_loss, reason = "a count far below 2^53")]
    let rate = stored as f64 / elapsed.as_secs_f64();
    let note = format!(
        "{rate:.0} events/s in all for {:.0} s, {} of them of the load; load average {}",
        elapsed.as_secs_f64(),
        seen.len(),
        host::load_average()
    );
    Ok(Run { receipts, cpu_percent, note })
}

/// Looks at a spool's acknowledgements every millisecond.
struct AckWatch {
    path: PathBuf,
}

/// When which sequence of a class was acknowledged.
struct Acked(BTreeMap<String, Vec<(u64, Timestamp)>>);

impl AckWatch {
    fn new(spool: &Path) -> anyhow::Result<Self> {
        let epochs = std::fs::read_dir(spool)?.flatten().map(|e| e.path().join("acks.state"));
        Ok(AckWatch { path: epochs.into_iter().find(|p| p.exists()).context("the spool has no epoch")? })
    }

    fn until(&self, stop: &AtomicBool) -> anyhow::Result<Acked> {
        let mut acked = Acked(BTreeMap::new());
        while !stop.load(Ordering::Relaxed) {
            let (bytes, now) = (std::fs::read(&self.path)?, host::now()?);
            for (class, sequence) in newest(&bytes).unwrap_or_default() {
                let steps = acked.0.entry(class).or_default();
                if steps.last().is_none_or(|(last, _)| *last < sequence) {
                    steps.push((sequence, now));
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(acked)
    }
}

impl Acked {
    /// From the event to its receipt; `None` when none was seen.
    fn latency(&self, event: &Value) -> Option<Duration> {
        let class = event["source"]["collector"].as_str()?.rsplit('/').next()?;
        let sequence = event["integrity"]["collector_sequence"].as_u64()?;
        let occurred: Timestamp = event["occurred_at"].as_str()?.parse().ok()?;
        let steps = self.0.get(class)?;
        let (_, at) = steps.get(steps.partition_point(|(acked, _)| *acked < sequence))?;
        Some(Duration::from_nanos(u64::try_from(at.nanos_since(occurred)).unwrap_or(0)))
    }
}

/// The newer of the two slots (`collector/src/spool/slots.rs`): generation, length, checksum, JSON. A slot that is
/// being written does not parse and is found a millisecond later.
fn newest(bytes: &[u8]) -> Option<Vec<(String, u64)>> {
    let slots = bytes.chunks_exact(bytes.len() / 2).filter_map(|slot| {
        let generation = u64::from_le_bytes(slot.get(..8)?.try_into().ok()?);
        let len = u32::from_le_bytes(slot.get(8..12)?.try_into().ok()?) as usize;
        let state: Value = serde_json::from_slice(slot.get(16..16 + len)?).ok()?;
        Some((generation, state))
    });
    let (_, state) = slots.max_by_key(|(generation, _)| *generation)?;
    let streams = state["streams"].as_object()?;
    Some(
        streams
            .iter()
            .filter_map(|(class, acked)| Some((class.clone(), acked["sequence"].as_u64()?)))
            .collect(),
    )
}

#[expect(clippy::cast_precision_loss, reason = "bytes far below 2^53")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}
