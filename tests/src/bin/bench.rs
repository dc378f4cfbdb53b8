//! `cargo xtask bench [NAME…]`: measures, prints one line a figure and appends all to `docs/bench/history.jsonl`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

use std::process::ExitCode;

use activity_tests::bench::{Figure, GROUPS, history};
use clap::Parser;
use serde_json::json;

#[derive(Parser)]
#[command(name = "cargo xtask bench")]
struct Cli {
    /// Beginnings of names of figures; all when none is given
    names: Vec<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Show the names only
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let wanted = |name: &str| cli.names.is_empty() || cli.names.iter().any(|n| name.starts_with(n.as_str()));
    if cli.list {
        GROUPS.iter().flat_map(|g| g.names).for_each(|name| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = cli.names.iter().find(|name| !GROUPS.iter().any(|g| g.has(name))) {
        eprintln!("bench: no figure begins with {unknown:?}; --list shows them all");
        return ExitCode::from(2);
    }
    if cfg!(debug_assertions) {
        eprintln!("bench: built without optimisation; the figures are of no use");
    }
    let mut kept = Vec::new();
    let mut failed = false;
    for group in GROUPS.iter().filter(|g| g.names.iter().any(|name| wanted(name))) {
        match group.run() {
            Ok(figures) => {
                let figures: Vec<Figure> = figures.into_iter().filter(|f| wanted(f.name)).collect();
                figures.iter().for_each(|figure| show(figure, cli.json));
                kept.extend(figures);
            }
            Err(error) => {
                eprintln!("bench: {}: {error:#}", group.names.join(", "));
                failed = true;
            }
        }
    }
    if let Err(error) = history::append(json!({ "bench": kept, "passed": !failed })) {
        eprintln!("bench: the figures were not kept: {error:#}");
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn show(figure: &Figure, as_json: bool) {
    if as_json {
        println!("{}", json!(figure));
    } else {
        println!("{figure}");
        if let Some(note) = &figure.note {
            eprintln!("    {note}");
        }
    }
}
