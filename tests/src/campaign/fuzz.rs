//! Fuzzing with coverage: libFuzzer on every target of `tests/fuzz`, one after another.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value, json};

/// An input that takes longer than this is a finding, seconds.
const INPUT_SECONDS_MAX: u32 = 10;
/// A target that uses more memory than this is a finding, MiB.
const MEMORY_MIB_MAX: u32 = 1024;
/// Longest input, bytes: an event line may have 64 KiB.
const INPUT_BYTES_MAX: u32 = 128 * 1024;

/// Runs one target or all, each for `seconds`. Corpora stay beside the fuzzer and grow from run to run; so do the
/// inputs that were found.
pub fn fuzz(fuzzer: &Path, only: Option<&str>, seconds: u32, seed: u64) -> anyhow::Result<Value> {
    let output = Command::new(fuzzer).output().with_context(|| format!("cannot run {}", fuzzer.display()))?;
    let names = String::from_utf8(output.stdout)?;
    let chosen: Vec<&str> = names.lines().filter(|name| only.is_none_or(|only| only == *name)).collect();
    ensure!(!chosen.is_empty(), "there is no target {}; there are:\n{names}", only.unwrap_or_default());
    let folder = fuzzer.parent().context("the fuzzer is in no folder")?;
    let mut results = Map::new();
    for name in chosen {
        results.insert(name.to_owned(), run(fuzzer, folder, name, seconds, seed)?);
    }
    Ok(Value::Object(results))
}

fn run(fuzzer: &Path, folder: &Path, name: &str, seconds: u32, seed: u64) -> anyhow::Result<Value> {
    let [seeds, corpus, found] = ["seeds", "corpus", "found"].map(|kind| folder.join(kind).join(name));
    for dir in [&seeds, &corpus, &found] {
        fs::create_dir_all(dir)?;
    }
    let log = folder.join(format!("{name}.log"));
    let status = Command::new(fuzzer)
        .env("ACTIVITY_FUZZ_TARGET", name)
        .env("ACTIVITY_FUZZ_SEEDS", &seeds)
        // libFuzzer has 32 bits for it, and takes 0 for none.
        .arg(format!("-seed={}", (seed & u64::from(u32::MAX)) | 1))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .args(["-print_final_stats=1", "-use_value_profile=1"])
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args([&corpus, &seeds])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .status()?;
    let log = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    ensure!(status.success(), "{name}:\n{}", tail(&log));
    let stat = |key: &str| {
        let line = log.lines().rev().find_map(|line| line.strip_prefix(key));
        line.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let inputs = stat("stat::number_of_executed_units:").context("the fuzzer gave no figures")?;
    let covered = log
        .lines()
        .rev()
        .find_map(|line| line.split(" cov: ").nth(1)?.split(' ').next()?.parse::<u64>().ok());
    Ok(json!({"inputs": inputs, "covered": covered, "memory_mib": stat("stat::peak_rss_mb:")}))
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
