//! Durability truth: both daemons killed at random points; acknowledged ⊆ stored, nothing twice, nothing missing.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

use super::{events, lab_with, load, parse_made, settle};
use crate::lab::{Arena, Lab};
use crate::truth::{Comparison, compare};

/// How far back a look at what is stored goes.
const LOOK_BACK: Duration = Duration::from_secs(10);

/// Kills gateway or collector `kills` times under load. The seed decides which and when; `progress` gets each number.
pub fn durability(kills: u32, seed: u64, progress: impl Fn(u32)) -> anyhow::Result<Comparison> {
    let mut rng = StdRng::seed_from_u64(seed);
    let arena = Arena::new("durability")?;
    let mut lab = lab_with(&[&arena])?;
    const RATE: u32 = 200;
    let made = load(&arena, RATE * (kills + 4), RATE)?;
    let pid = made.id();
    let output = std::thread::spawn(move || made.wait_with_output());
    for n in 1..=kills {
        std::thread::sleep(Duration::from_millis(rng.random_range(20..600)));
        // What is older was looked at before.
        let from = (jiff::Timestamp::now() - LOOK_BACK).to_string();
        let stored = highest(&lab.events(&["--from", &from])?)?;
        progress(n);
        if rng.random_bool(0.5) {
            lab.collector.take().context("no collector")?.kill()?;
            lab.start_collector()?;
        } else {
            lab.gateway.take().context("no gateway")?.kill()?;
            lab.start_gateway()?;
            stored_at_least(&lab, &from, &stored)?;
        }
    }
    let output = output.join().map_err(|_| anyhow::anyhow!("the load was lost"))??;
    ensure!(output.status.success(), "the load ended with {}", output.status);
    settle(&lab)?;
    let events = events(&arena, &lab)?;
    let mut found = compare(&parse_made(&output.stdout)?, &events, pid);
    contiguous(&lab.events(&[])?, &mut found.differences);
    Ok(found)
}

/// The newest sequence of each stream.
fn highest(events: &[Value]) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut highest = BTreeMap::new();
    for event in events {
        let stream = event["source"]["collector"].as_str().context("no stream")?.to_owned();
        let sequence = event["integrity"]["collector_sequence"].as_u64().context("no sequence")?;
        let seen = highest.entry(stream).or_insert(0);
        *seen = sequence.max(*seen);
    }
    Ok(highest)
}

/// What could be read before the kill can be read after it.
fn stored_at_least(lab: &Lab, from: &str, before: &BTreeMap<String, u64>) -> anyhow::Result<()> {
    let after = highest(&lab.events(&["--from", from])?)?;
    for (stream, sequence) in before {
        let now = after.get(stream).copied().unwrap_or(0);
        ensure!(now >= *sequence, "{stream}: {sequence} was stored, after the kill only {now}");
    }
    Ok(())
}

/// Every sequence of every stream is there once.
fn contiguous(events: &[Value], differences: &mut Vec<String>) {
    let mut streams: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for event in events {
        let stream = event["source"]["collector"].as_str().unwrap_or("");
        let sequence = event["integrity"]["collector_sequence"].as_u64().unwrap_or(0);
        streams.entry(stream).or_default().push(sequence);
    }
    for (stream, mut sequences) in streams {
        sequences.sort_unstable();
        let whole = sequences.iter().zip(1..).all(|(seen, expected)| *seen == expected);
        if !whole {
            differences.push(format!("{stream}: sequences are not 1 to {}", sequences.len()));
        }
    }
}
