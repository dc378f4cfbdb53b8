//! What a process waits for its exec: without and with the collector, in rounds that alternate.

use std::time::Duration;

use super::figure::{Figure, Peer};
use super::host::{self, micros, percentile};
use super::watched::{self, Execs};
use crate::lab::Lab;

pub const NAMES: &[&str] = &[
    "exec_latency_p50",
    "exec_latency_p95",
    "exec_latency_added_p50",
    "exec_latency_added_p95",
    "exec_program_time",
];
const STATS_PATH: &str = "/proc/sys/kernel/bpf_stats_enabled";
const ROUNDS: u32 = 6;
const EXECS: u32 = 1_500;
const BUDGET_US: f64 = 45.0;

pub fn run() -> anyhow::Result<Vec<Figure>> {
    let execs = Execs::new()?;
    let round = || (0..EXECS).map(|_| execs.once()).collect::<anyhow::Result<Vec<Duration>>>();
    let mut lab = watched::enrolled()?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut added = [Vec::new(), Vec::new()];
    round()?;
    for _ in 0..ROUNDS {
        let mut alone = round()?;
        watched::start_collector(&mut lab)?;
        let mut beside = round()?;
        if let Some(collector) = lab.collector.take() {
            collector.stop()?;
        }
        for (added, percent) in added.iter_mut().zip([50, 95]) {
            added.push(micros(percentile(&mut beside, percent)) - micros(percentile(&mut alone, percent)));
        }
        without.append(&mut alone);
        with.append(&mut beside);
    }
    let mut figures = Vec::new();
    for (name, percent) in NAMES.iter().zip([50, 95]) {
        let peer = Peer { name: "no collector", value: micros(percentile(&mut without, percent)) };
        figures.push(Figure::new(name, micros(percentile(&mut with, percent)), "us", Some(peer)));
    }
    let note = format!(
        "median over {ROUNDS} rounds of {EXECS}; by round {:?}; {} kernel program sets of others attached all along; \
         load average {}",
        added[1].iter().map(|us| format!("{us:.1}")).collect::<Vec<_>>(),
        host::pinned_sets(),
        host::load_average()
    );
    for (name, mut added) in NAMES[2..4].iter().zip(added) {
        added.sort_unstable_by(f64::total_cmp);
        let median = (added[added.len() / 2] + added[(added.len() - 1) / 2]) / 2.0;
        figures.push(Figure::new(name, median, "us", Peer::budget(BUDGET_US)).with_note(note.clone()));
    }
    figures.push(program_time(&mut lab, &execs)?);
    Ok(figures)
}

/// What the kernel programs themselves take of a fork, an exec and an exit together. It says what part of the added
/// latency is theirs, also on a machine that is too busy for the latencies to say much.
fn program_time(lab: &mut Lab, execs: &Execs) -> anyhow::Result<Figure> {
    let before = std::fs::read_to_string(STATS_PATH)?;
    let pid = watched::start_collector(lab)?;
    std::fs::write(STATS_PATH, "1")?;
    let measured = (|| {
        let (forks, spent) = (host::forks()?, host::bpf_program_time(pid)?);
        (0..EXECS).try_for_each(|_| execs.once().map(drop))?;
        anyhow::Ok((host::forks()? - forks, host::bpf_program_time(pid)?.saturating_sub(spent)))
    })();
    std::fs::write(STATS_PATH, before.trim())?;
    let (forks, spent) = measured?;
    let each = micros(spent) / f64::from(u32::try_from(forks)?);
    Ok(Figure::new(NAMES[4], each, "us/process", Peer::budget(BUDGET_US)))
}
