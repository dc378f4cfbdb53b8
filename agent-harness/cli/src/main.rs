//! `iteron`: the agent harness on the command line.
//!
//! A thin binary: arguments, signals, and printing. The session is `iteron-runtime`'s.

mod arguments;
mod exec;
mod model;
mod policy;
mod print;
mod record;
mod serve;
mod setup;
mod signals;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command, RecordCommand};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_log();
    match arguments.command {
        Command::Exec(arguments) => exec::run(*arguments),
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Record(RecordCommand::Verify { file, head, trust }) => {
            record::verify(&file, head.as_deref(), &trust)
        }
    }
}

/// Warnings and errors of the harness go to stderr; `ITERON_LOG` sets another filter.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("ITERON_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
