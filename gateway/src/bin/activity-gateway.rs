//! The gateway's server. See `activity-gateway --help`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use activity_gateway::config::{Layers, Overrides, parse_duration};
use activity_gateway::daemon::{self, Server};
use activity_gateway::tokens::Grant;
use activity_gateway::{clock, pki};
use activity_schema::ids::{HostId, InstanceId, TenantId};
use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// Takes signed evidence from collectors, keeps it, and answers operators.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  activity-gateway init --data /var/lib/activity-gateway --name gateway.example --name 192.0.2.1
  activity-gateway run --config /etc/activity/gateway.toml
  activity-gateway run --data ./data --collector-listen 127.0.0.1:7443 --print-config
  activity-gateway token --data ./data --tenant acme --instance sandbox-7 --ttl 15m
Logs go to standard error; RUST_LOG sets their level."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves collectors and operators until SIGTERM or SIGINT; SIGHUP takes up new certificates.
    Run {
        /// Configuration, TOML; see --print-config for every key.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Shows the configuration in force with the origin of every value, and exits.
        #[arg(long)]
        print_config: bool,
        /// Goes on although the control journal lost records; the decision goes on the record.
        #[arg(long)]
        accept_control_damage: bool,
        #[command(flatten)]
        overrides: Overrides,
    },
    /// Makes store, certificate authority, server certificate and an administrator's certificate.
    Init {
        /// Directory for everything; must not hold an authority yet.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// DNS name or IP address that clients call the server by; may be repeated.
        #[arg(long = "name", value_name = "DNS|IP", default_values_t = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()])]
        names: Vec<String>,
    },
    /// Makes a one-time enrolment token, bound to an instance or a host. Works beside a running server.
    #[command(group(clap::ArgGroup::new("bound").required(true).multiple(true).args(["instance", "host"])))]
    Token {
        #[arg(long, value_name = "DIR", default_value = "/var/lib/activity-gateway")]
        data: PathBuf,
        #[arg(long)]
        tenant: TenantId,
        /// The only instance that may use it.
        #[arg(long)]
        instance: Option<InstanceId>,
        /// The only host that may use it. Without --instance the collector speaks for every sandbox on the host.
        #[arg(long)]
        host: Option<HostId>,
        /// How long it can be used, at most 720h.
        #[arg(long, default_value = "1h", value_name = "DURATION")]
        ttl: String,
    },
    /// Replaces the certificate authority; the old one stays trusted. A running server is told with SIGHUP.
    RotateCa {
        #[arg(long, value_name = "DIR", default_value = "/var/lib/activity-gateway")]
        data: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        // A log that cannot be written must not end what it is about.
        .log_internal_errors(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime.context("no runtime").and_then(|runtime| runtime.block_on(execute(cli.command)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run { config, print_config, accept_control_damage, overrides } => {
            let layers = Layers::load(config.as_deref(), &overrides)?;
            let mut config = layers.config()?;
            config.store.accept_control_damage = accept_control_damage;
            if print_config {
                return print(&layers.to_toml());
            }
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let hangup = signal(SignalKind::hangup())?;
            let stopped = async move {
                tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
            };
            let server = Server::start(config).await?;
            server.run(stopped, hangup).await?;
        }
        Command::Init { data, names } => {
            let made = daemon::init(&data, &names, clock::now()).await?;
            print(&(serde_json::to_string_pretty(&made)? + "\n"))?;
        }
        Command::Token { data, tenant, instance, host, ttl } => {
            let now = clock::now();
            let ttl =
                parse_duration(&ttl).with_context(|| format!("{ttl:?} is not a duration such as 1h"))?;
            let ttl = i64::try_from(ttl.as_nanos()).context("the duration is too long")?;
            let grant = Grant { tenant, host, instance, expires_at: now.saturating_add_nanos(ttl) };
            let made = daemon::issue_token(&data, &grant, now)?;
            print(&(serde_json::to_string_pretty(&made)? + "\n"))?;
        }
        Command::RotateCa { data } => {
            pki::Authority::load(&data.join("pki"))?.rotate(clock::now())?;
            tracing::info!("a new authority is in use after SIGHUP or the next start");
        }
    }
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}
