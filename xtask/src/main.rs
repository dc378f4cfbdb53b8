//! Project tasks: `cargo xtask codegen | ebpf | demo | test | soak | bench`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

mod codegen;

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
    /// Generate the catalogue's table, JSON Schema and reference page
    Codegen {
        /// Change nothing; fail when a generated file is stale
        #[arg(long)]
        check: bool,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Codegen { check } => codegen::run(&root(), check),
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}
