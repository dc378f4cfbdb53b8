//! A collector that starts while processes come and go: each that it tells of ends, and from then on none is missing.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{enrolled_lab, events, load, parse_made, settle};
use crate::lab::Arena;
use crate::truth::{Comparison, compare};

/// Situations between the first that was recorded and the first that must be: some begin before the programs are
/// attached and end after it.
const MARGIN: usize = 20;

/// Starts the collector in the middle of `count` situations made at `rate` a second.
pub fn start_in_storm(count: u32, rate: u32) -> anyhow::Result<Comparison> {
    let arena = Arena::new("storm")?;
    let mut lab = enrolled_lab(&[&arena], "")?;
    let storm = load(&arena, count, rate)?;
    let pid = storm.id();
    let output = std::thread::spawn(move || storm.wait_with_output());
    std::thread::sleep(std::time::Duration::from_millis(500));
    lab.start_collector()?;
    let output = output.join().map_err(|_| anyhow::anyhow!("the load was lost"))??;
    ensure!(output.status.success(), "the load ended with {}", output.status);
    settle(&lab)?;
    let (made, events) = (parse_made(&output.stdout)?, events(&arena, &lab)?);
    let told = pids(&events, &["process.started", "process.exec"]);
    let first =
        made.iter().position(|made| told.contains(&i64::from(made.pid))).context("nothing was recorded")?;
    ensure!(first > 0, "the collector was there before the storm");
    let mut found = compare(made.get(first + MARGIN..).unwrap_or_default(), &events, pid);
    let ended = pids(&events, &["process.exited"]);
    for pid in told.difference(&ended) {
        found.differences.push(format!("process {pid} is left running for ever"));
    }
    if !told.contains(&i64::from(pid)) {
        found.differences.push("the process that made the storm is not known".to_owned());
    }
    Ok(found)
}

fn pids(events: &[Value], names: &[&str]) -> BTreeSet<i64> {
    let of = events.iter().filter(|event| names.iter().any(|name| event["event_name"] == *name));
    of.filter_map(|event| event["actor"]["pid"].as_i64()).collect()
}
