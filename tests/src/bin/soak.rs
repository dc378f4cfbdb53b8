//! `cargo xtask soak NAME`: long campaigns. Each prints its seed and result and appends them to
//! `docs/bench/history.jsonl`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

use std::path::PathBuf;
use std::process::ExitCode;

use activity_tests::bench::history;
use activity_tests::campaign;
use activity_tests::sim::fleet;
use activity_tests::truth::Comparison;
use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

#[derive(Parser)]
#[command(name = "cargo xtask soak")]
struct Cli {
    #[arg(value_enum)]
    name: Name,
    /// Repetitions; each campaign has its own default
    #[arg(long)]
    repeat: Option<u32>,
    /// Size of one repetition: situations, kills or changes
    #[arg(long)]
    size: Option<u32>,
    /// Random by default; printed, so that a failure can be repeated
    #[arg(long)]
    seed: Option<u64>,
    /// Only this target (fuzz)
    #[arg(long)]
    target: Option<String>,
    /// Length of the campaign, of each target of fuzz
    #[arg(long, default_value_t = 120)]
    seconds: u32,
    /// The fuzzer; `cargo xtask soak fuzz` builds and names it
    #[arg(long, hide = true)]
    fuzzer: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// 20,000 processes at full speed, ten times
    Exec,
    /// The collector killed 20 times at 1,000 execs a second
    Restart,
    /// Both daemons killed at 200 random points
    Durability,
    /// 1,000 random changes of the evidence
    Tamper,
    /// 500 simulated collectors and a gateway with every fault, for 400 steps, on fresh seeds
    Fleet,
    /// Every parser of foreign bytes under libFuzzer
    Fuzz,
    /// 10,000 pairs of questions: of a foreign tenant, and of one that does not exist
    Isolation,
}

impl Name {
    fn needs_kernel(self) -> bool {
        !matches!(self, Name::Fleet | Name::Fuzz | Name::Isolation)
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(reason) = campaign::unsupported().filter(|_| cli.name.needs_kernel()) {
        println!("skipped: {reason}");
        return ExitCode::SUCCESS;
    }
    let seed = cli.seed.unwrap_or_else(rand::random);
    eprintln!("seed {seed}");
    let result = run(&cli, seed);
    let record = json!({
        "soak": format!("{:?}", cli.name).to_lowercase(),
        "seed": seed,
        "size": cli.size,
        "target": cli.target,
        "passed": result.is_ok(),
        "result": match &result { Ok(value) => value.clone(), Err(error) => json!(format!("{error:#}")) },
    });
    println!("{record}");
    if let Err(error) = history::append(record) {
        eprintln!("soak: the result was not kept: {error:#}");
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(cli: &Cli, seed: u64) -> anyhow::Result<Value> {
    let size = |default| cli.size.unwrap_or(default);
    match cli.name {
        Name::Exec => repeat(cli.repeat.unwrap_or(10), |_| campaign::exec_truth(size(18_000))),
        Name::Restart => repeat(cli.repeat.unwrap_or(1), |_| campaign::restart_truth(size(20), 1_000)),
        Name::Durability => repeat(cli.repeat.unwrap_or(1), |n| {
            campaign::durability(size(200), seed.wrapping_add(u64::from(n)), |kill| {
                if kill.is_multiple_of(20) {
                    eprintln!("kill {kill}");
                }
            })
        }),
        Name::Tamper => campaign::tamper(size(1_000), seed),
        Name::Isolation => campaign::isolation(size(10_000), seed),
        Name::Fleet => {
            let runs =
                (0..cli.repeat.unwrap_or(5)).map(|n| fleet::run(500, size(400), seed.wrapping_add(n.into())));
            Ok(Value::Array(runs.collect::<anyhow::Result<_>>()?))
        }
        Name::Fuzz => {
            let fuzzer =
                cli.fuzzer.as_deref().context("run `cargo xtask soak fuzz`, which builds the fuzzer")?;
            campaign::fuzz(fuzzer, cli.target.as_deref(), cli.seconds, seed)
        }
    }
}

fn repeat(times: u32, campaign: impl Fn(u32) -> anyhow::Result<Comparison>) -> anyhow::Result<Value> {
    let mut all = Vec::new();
    for n in 0..times {
        let found = campaign(n)?;
        eprintln!("{}: {} processes, {} events, lost {:?}", n + 1, found.processes, found.events, found.lost);
        ensure!(found.differences.is_empty(), "repetition {}:\n{}", n + 1, found.differences.join("\n"));
        all.push(found);
    }
    Ok(serde_json::to_value(all)?)
}
