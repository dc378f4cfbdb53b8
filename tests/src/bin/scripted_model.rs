//! `scripted-model`: serves the Anthropic Messages API from a script, for harness and client tests.
//!
//! The server itself is `iteron_testkit::scripted_model`; this prints where it listens.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use iteron_testkit::scripted_model::{Script, ScriptedModel};

/// A model server that answers from a script, one turn a request.
#[derive(Debug, Parser)]
#[command(
    name = "scripted-model",
    version,
    after_help = "Example:\n  scripted-model --script turns.toml --listen 127.0.0.1:0\n\nPrints {\"listening\":\"127.0.0.1:PORT\"} on stdout once it listens, and serves until SIGINT or SIGTERM."
)]
struct Arguments {
    /// The turns, TOML when the name ends in .toml and JSON otherwise
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// On exit, write the bodies of the valid requests here, one JSON line each
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let arguments = Arguments::parse();
    let script = Script::load(&arguments.script)?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let server = ScriptedModel::start(script, arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let line = serde_json::json!({"listening": server.address().to_string()});
    writeln!(std::io::stdout(), "{line}")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    if let Some(path) = arguments.requests {
        let lines: String = server.seen().iter().map(|request| format!("{}\n", request.body)).collect();
        std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
    }
    for reason in server.refused() {
        writeln!(std::io::stderr(), "refused: {reason}")?;
    }
    Ok(())
}
