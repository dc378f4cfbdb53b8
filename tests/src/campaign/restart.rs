//! Restart truth: a collector that is killed and started again misses nothing and doubles nothing.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::{events, lab_with, load, parse_made, settle};
use crate::lab::Arena;
use crate::truth::{Comparison, compare};

/// Kills the collector `kills` times while a load makes `rate` situations a second.
pub fn restart_truth(kills: u32, rate: u32) -> anyhow::Result<Comparison> {
    const BETWEEN: Duration = Duration::from_millis(700);
    let arena = Arena::new("restart")?;
    let mut lab = lab_with(&[&arena])?;
    // A restart and the pause after it take about a second and a half.
    let made = load(&arena, rate * (kills * 3 / 2 + 2), rate)?;
    let pid = made.id();
    let output = std::thread::spawn(move || made.wait_with_output());
    for _ in 0..kills {
        std::thread::sleep(BETWEEN);
        lab.collector.take().context("no collector")?.kill()?;
        std::thread::sleep(Duration::from_millis(rand::random_range(0..300)));
        lab.start_collector()?;
    }
    let output = output.join().map_err(|_| anyhow::anyhow!("the load was lost"))??;
    ensure!(output.status.success(), "the load ended with {}", output.status);
    settle(&lab)?;
    Ok(compare(&parse_made(&output.stdout)?, &events(&arena, &lab)?, pid))
}

/// Stops the collector as an operator does, starts it again, and makes `count` situations: with new rings it must not
/// take old positions for new ones.
pub fn stopped_and_started_truth(count: u32) -> anyhow::Result<Comparison> {
    let arena = Arena::new("stopped")?;
    let mut lab = lab_with(&[&arena])?;
    ensure!(load(&arena, count, 0)?.wait_with_output()?.status.success(), "the first load failed");
    settle(&lab)?;
    lab.collector.take().context("no collector")?.stop()?;
    lab.start_collector()?;
    settle(&lab)?;
    let made = load(&arena, count, 0)?;
    let pid = made.id();
    let output = made.wait_with_output()?;
    ensure!(output.status.success(), "the load ended with {}", output.status);
    settle(&lab)?;
    Ok(compare(&parse_made(&output.stdout)?, &events(&arena, &lab)?, pid))
}
