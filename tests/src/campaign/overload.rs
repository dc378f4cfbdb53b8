//! Overload: what cannot be kept is counted, and afterwards nothing of it is left.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::latency::visible_after;
use super::{enrolled_lab, events, load, parse_made, settle};
use crate::bench::host;
use crate::lab::{Arena, Lab};
use crate::truth::compare;

/// The smallest rings.
const SMALL_RINGS: &str = "[kernel]\nring_bytes_max = 262144\n";
/// Loads at once.
const LOADS: usize = 4;
/// More than a load makes in any campaign.
const ENDLESS: u32 = 100_000_000;
/// What the collector's memory may have grown by, bytes: its tables are bounded, and allocators keep some.
const GROWTH_BYTES_MAX: u64 = 16 << 20;

/// Overruns the rings for so long, half of it with a reader that stands still. Then: no more loss, no delay, no memory held.
pub fn overload(time: Duration) -> anyhow::Result<Value> {
    let (storm, calm) = (Arena::new("overload")?, Arena::new("calm")?);
    let mut lab = enrolled_lab(&[&storm, &calm], SMALL_RINGS)?;
    lab.start_collector()?;
    settle(&lab)?;
    let collector = lab.collector.as_ref().context("no collector")?.pid();
    let pid = Pid::from_raw(i32::try_from(collector)?);
    let (memory_before, _) = host::resident_bytes(collector)?;

    let mut loads = (0..LOADS).map(|_| load(&storm, ENDLESS, 0)).collect::<anyhow::Result<Vec<_>>>()?;
    // Nobody reads what they made; a full pipe would stop them.
    loads.iter_mut().filter_map(|load| load.stdout.take()).for_each(|mut unread| {
        std::thread::spawn(move || std::io::copy(&mut unread, &mut std::io::sink()));
    });
    // A reader that gets no time at all, and then again what is left.
    signal::kill(pid, Signal::SIGSTOP)?;
    std::thread::sleep(time / 2);
    signal::kill(pid, Signal::SIGCONT)?;
    std::thread::sleep(time / 2);
    for load in &mut loads {
        load.kill()?;
        load.wait()?;
    }
    settle(&lab)?;
    let lost = lost(&lab)?;
    ensure!(lost > 0, "the rings were not overrun");

    let made = load(&calm, 64, 32)?;
    let load_pid = made.id();
    let output = made.wait_with_output()?;
    ensure!(output.status.success(), "the load ended with {}", output.status);
    settle(&lab)?;
    let found = compare(&parse_made(&output.stdout)?, &events(&calm, &lab)?, load_pid);
    ensure!(found.differences.is_empty(), "after the overload:\n{}", found.differences.join("\n"));
    let lost_after = self::lost(&lab)?;
    ensure!(lost_after == lost, "{} more lost after the overload", lost_after - lost);
    let heartbeats = lab.events(&["--event", "telemetry.heartbeat"])?;
    let last = heartbeats.last().context("no heartbeat")?;
    let oldest_ms = last["payload"]["spool_oldest_ms"].as_u64().context("no spool_oldest_ms")?;
    ensure!(oldest_ms < 2_000, "a batch waits for {oldest_ms} ms");
    let visible = visible_after(&lab, &calm, 5)?;
    let (memory_after, _) = host::resident_bytes(collector)?;
    ensure!(
        memory_after < memory_before + GROWTH_BYTES_MAX,
        "the collector had {memory_before} bytes and has {memory_after}"
    );
    Ok(
        json!({"lost": lost, "visible_ms": u64::try_from(visible.as_millis())?, "memory_bytes_before": memory_before,
        "memory_bytes_after": memory_after}),
    )
}

fn lost(lab: &Lab) -> anyhow::Result<u64> {
    let losses = lab.events(&["--event", "telemetry.loss"])?;
    Ok(losses.iter().filter_map(|loss| loss["payload"]["dropped_count"].as_u64()).sum())
}
