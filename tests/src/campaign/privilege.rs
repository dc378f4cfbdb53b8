//! Least privilege: what the recording process may do, and that it records all the same, across a kill.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::{enrolled_lab_of, events, load, parse_made, settle};
use crate::lab::Arena;
use crate::truth::{Comparison, compare};

pub struct Privileges {
    pub truth: Comparison,
    /// `/proc/<pid>/task/<tid>/status` of each thread: field to value.
    pub threads: Vec<BTreeMap<String, String>>,
    /// Processes that the recorder still has below it.
    pub children: String,
    /// Pins that are left when the collector has ended gracefully.
    pub pins_after_stop: usize,
}

/// Runs the collector as `uid`, kills it in between, and makes `count` situations before and after.
pub fn least_privilege(uid: u32, count: u32) -> anyhow::Result<Privileges> {
    let arena = Arena::new("privilege")?;
    let mut lab = enrolled_lab_of(&[&arena], "", Some(uid))?;
    lab.start_collector()?;
    settle(&lab)?;
    let made = load(&arena, 2 * count, count)?;
    let pid = made.id();
    lab.collector.take().context("no collector")?.kill()?;
    lab.start_collector()?;
    let output = made.wait_with_output()?;
    settle(&lab)?;
    let truth = compare(&parse_made(&output.stdout)?, &events(&arena, &lab)?, pid);

    let process = format!("/proc/{}/task", lab.collector.as_ref().context("no collector")?.pid());
    let mut threads = Vec::new();
    let mut children = String::new();
    for thread in fs::read_dir(process)? {
        let thread = thread?.path();
        threads.push(status(&fs::read_to_string(thread.join("status"))?));
        children += fs::read_to_string(thread.join("children"))?.trim();
    }
    lab.collector.take().context("no collector")?.stop()?;
    let pins = Path::new("/sys/fs/bpf/activity").join(lab.collector_id());
    let pins_after_stop = fs::read_dir(pins).map_or(0, Iterator::count);
    Ok(Privileges { truth, threads, children, pins_after_stop })
}

fn status(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}
