//! The operator's command line. Data goes to standard output and nothing else does; errors say what to do next.
//!
//! Exit status: 0 answered and complete, 3 answered with incomplete coverage, 2 usage, 4 not authorised,
//! 5 integrity failure, 1 anything else.

mod args;
mod bundle;
mod client;
mod enroll;
mod export;
mod import;
mod list;
mod output;
mod page;
mod partial;
mod proof;
mod show;
mod source;
mod times;
mod verify;

pub use args::Cli;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::Command;
use output::Output;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Complete,
    Incomplete,
    /// Some of the evidence does not read.
    Damaged,
}

/// Why a command did not answer.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Unauthorised(String),
    #[error("{0}")]
    Integrity(String),
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl CliError {
    fn status(&self) -> u8 {
        match self {
            CliError::Other(_) => 1,
            CliError::Usage(_) => 2,
            CliError::Unauthorised(_) => 4,
            CliError::Integrity(_) => 5,
        }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        CliError::Other(error.into())
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        CliError::Other(error.into())
    }
}

/// What a shell shows of a program that SIGPIPE ended.
const STATUS_OF_SIGPIPE: u8 = 141;

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(CliError::from).and_then(|runtime| {
        let result = runtime.block_on(run(cli));
        // What still runs there was given up by an interrupted command.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(Ending::Complete) => ExitCode::SUCCESS,
        Ok(Ending::Incomplete) => ExitCode::from(3),
        Ok(Ending::Damaged) => ExitCode::from(5),
        // Nobody is left to tell. It is no success: the ending of the command is not known to have been read.
        Err(CliError::Other(e)) if reader_is_gone(&e) => ExitCode::from(STATUS_OF_SIGPIPE),
        Err(error) => {
            let text = match &error {
                CliError::Other(e) => format!("{e:#}"),
                other => other.to_string(),
            };
            output::complain(&format!("activity: {}", crate::story::escape(&text)));
            ExitCode::from(error.status())
        }
    }
}

async fn run(cli: Cli) -> Result<Ending, CliError> {
    let out = Output::new(&cli.shown);
    match cli.command {
        Command::Timeline(args) => show::timeline(&cli.place, args, &out).await,
        Command::Query(args) => show::query(&cli.place, *args, &out).await,
        Command::Coverage(args) => show::coverage(&cli.place, args, &out).await,
        Command::Export(args) => export::export(&cli.place, *args, &out).await,
        Command::Verify(args) => verify::verify(args, &out),
        Command::Import(args) => import::import(&cli.place, args, &out).await,
        Command::Collectors => list::collectors(&cli.place, &out).await,
        Command::Status => list::status(&cli.place, &out).await,
        Command::Tenants => list::tenants(&cli.place, &out).await,
        Command::Enroll(args) => enroll::enroll(&cli.place, args, &out).await,
        Command::Revoke(args) => enroll::revoke(&cli.place, args, &out).await,
        Command::Proof(args) => proof::proof(&cli.place, args, &out).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "activity", &mut script);
            out.bytes(&script)?;
            Ok(Ending::Complete)
        }
    }
}

fn reader_is_gone(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|e| e.downcast_ref::<std::io::Error>());
    io.filter_map(std::io::Error::get_ref).any(|inner| inner.is::<output::ReaderGone>())
}
