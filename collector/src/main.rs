//! `activity-collector`: the daemon beside the sandbox.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use activity_collector::config::Config;
use activity_collector::privilege::Owner;
use activity_collector::uplink::identity::{Applicant, IdentityDir, enroll, read_certificates};
use activity_collector::{bounded, daemon, identity};
use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Records what happens in a sandbox and sends it, signed, to the gateway")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Record until SIGTERM
    Run {
        #[arg(long, env = "ACTIVITY_COLLECTOR_CONFIG")]
        config: PathBuf,
        /// Print the configuration with its defaults and stop
        #[arg(long)]
        print_config: bool,
    },
    /// Trade a one-time token for a certificate
    #[command(
        after_help = "Example:\n  activity-collector enroll --config collector.toml --gateway https://gateway:7443 --ca ca.pem --token-file token"
    )]
    Enroll {
        #[arg(long, env = "ACTIVITY_COLLECTOR_CONFIG")]
        config: PathBuf,
        /// `https://HOST:PORT` or `unix:/PATH`
        #[arg(long)]
        gateway: String,
        /// Name in the gateway's certificate, if it is not the URL's host
        #[arg(long)]
        server_name: Option<String>,
        /// PEM of the CA that issued the gateway's certificate
        #[arg(long)]
        ca: PathBuf,
        /// File with the token; `-` reads standard input. A token on the command line would show in `ps`.
        #[arg(long)]
        token_file: PathBuf,
    },
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        // A log that cannot be written must not end what it is about.
        .log_internal_errors(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("ACTIVITY_LOG").unwrap_or_else(|_| "info".into()),
        )
        .init();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Run { config, print_config } => {
            let config = Config::load(&config)?;
            if print_config {
                return print(&toml::to_string_pretty(&config)?);
            }
            daemon::run(&config)
        }
        Command::Enroll { config, gateway, server_name, ca, token_file } => {
            let config = Config::load(&config)?;
            let token = bounded::read_text(&token_file)
                .with_context(|| format!("cannot read a token from {}", token_file.display()))?;
            let ca = read_certificates(&ca)?;
            // The files belong to whoever will run on them.
            let owner = Owner::of(&config.state_dir)
                .with_context(|| format!("cannot make {}", config.state_dir.display()))?;
            owner.become_it()?;
            let host = config.host_id.clone().unwrap_or_else(identity::default_host_id);
            let applicant = Applicant {
                collector_id: daemon::collector_id(&config, &host).parse()?,
                instance: config.instance_id.clone().unwrap_or_else(|| host.clone()).parse()?,
                host: host.parse()?,
                // The spool's own epoch and key are made known when it first connects.
                signing_key: activity_schema::keys::Signer::from_seed(&rand::random()).public(),
                epoch: activity_schema::Epoch::new(uuid::Uuid::now_v7().to_string())?,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let dir = IdentityDir::new(&config.state_dir);
            let done = runtime.block_on(enroll(
                &dir,
                &gateway,
                server_name.as_deref(),
                ca,
                token_in(&token)?.as_str(),
                &applicant,
            ))?;
            activity_collector::spool::forget_registrations(&config.state_dir.join("spool"))?;
            print(&(serde_json::to_string_pretty(&done)? + "\n"))
        }
    }
}

/// The token of a file: alone, or in the JSON that `activity-gateway token` prints.
fn token_in(text: &str) -> anyhow::Result<String> {
    let text = text.trim();
    if !text.starts_with('{') {
        return Ok(text.to_owned());
    }
    let made: serde_json::Value = serde_json::from_str(text).context("--token-file: not JSON")?;
    Ok(made["token"].as_str().context("--token-file: no \"token\" in the JSON")?.to_owned())
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}
