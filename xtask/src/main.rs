//! Project tasks: `cargo xtask demo | test | soak | bench | dist | ebpf | codegen`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

mod cargo;
mod codegen;
mod dist;
mod ebpf;
mod fuzz;
mod iteron_rpc;
mod skips;
mod test;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the Activity workspace")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Record one agent session on this machine, show its timeline, verify the evidence
    Demo {
        /// Passed on; see `cargo xtask demo -- --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run every layer of tests
    Test,
    /// Run a long campaign: exec, restart, durability, tamper, isolation, fleet, fuzz
    Soak {
        name: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure, each figure beside a peer or a limit of the same run
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build the collector as one static file
    Dist,
    /// Build the kernel programs into collector-ebpf/object
    Ebpf {
        /// Change nothing; fail when the committed object is not what the sources give
        #[arg(long)]
        check: bool,
    },
    /// Generate the catalogue's table, JSON Schemas and reference page
    Codegen {
        /// Change nothing; fail when a generated file is stale
        #[arg(long)]
        check: bool,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Demo { arguments } => cargo::run_binary("activity-demo", &arguments, false),
        Task::Test => test::run(&root()),
        Task::Soak { name, arguments } => {
            let mut all = [&[name.clone()][..], &arguments].concat();
            if name == "fuzz" {
                eprintln!("building the fuzzer");
                all.push(format!("--fuzzer={}", fuzz::build()?.display()));
            }
            cargo::run_binary("activity-soak", &all, name != "fuzz")
        }
        Task::Bench { arguments } => cargo::run_binary("activity-bench", &arguments, true),
        Task::Dist => dist::run(),
        Task::Ebpf { check } => ebpf::run(check),
        Task::Codegen { check } => codegen::run(&root(), check),
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}
