//! Exec truth: every process present once with the right parent and status, or counted as lost.

use anyhow::{Context as _, ensure};

use super::{events, lab_with, load, load_with, parse_made, settle};
use crate::lab::Arena;
use crate::truth::{Comparison, compare};

/// Makes `count` situations at full speed beside another sandbox's storm. Returns what was compared.
pub fn exec_truth(count: u32) -> anyhow::Result<Comparison> {
    let (arena, other) = (Arena::new("exec")?, Arena::new("storm")?);
    let mut lab = lab_with(&[&arena, &other])?;
    let mut storm = load(&other, count / 2, 0)?;
    let made = load(&arena, count, 0)?;
    let pid = made.id();
    let output = made.wait_with_output()?;
    ensure!(output.status.success(), "the load ended with {}", output.status);
    let mut unread = storm.stdout.take().context("no output")?;
    std::io::copy(&mut unread, &mut std::io::sink())?;
    storm.wait()?;
    settle(&lab)?;
    let found = compare(&parse_made(&output.stdout)?, &events(&arena, &lab)?, pid);
    if let Some(collector) = lab.collector.take() {
        ensure!(collector.stop()?.success(), "the collector did not stop well");
    }
    Ok(found)
}

/// Makes `count` processes that have another parent before they exec: the recorded one is who forked.
pub fn reparented_truth(count: u32) -> anyhow::Result<Comparison> {
    let arena = Arena::new("reparented")?;
    let lab = lab_with(&[&arena])?;
    let made = load_with(&arena, &["--kind", "double_fork", "--count", &count.to_string()])?;
    let pid = made.id();
    let output = made.wait_with_output()?;
    ensure!(output.status.success(), "the load ended with {}", output.status);
    settle(&lab)?;
    Ok(compare(&parse_made(&output.stdout)?, &events(&arena, &lab)?, pid))
}
