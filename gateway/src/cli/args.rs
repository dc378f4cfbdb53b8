//! What can be typed.

use std::path::PathBuf;

use activity_schema::ids::{CollectorId, HostId, InstanceId, TenantId};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use uuid::Uuid;

/// What an agent did, and how much of it can be proven.
#[derive(Debug, Parser)]
#[command(
    name = "activity",
    version,
    after_help = "\
Examples:
  activity --store /var/lib/activity-gateway/store timeline --instance sandbox-7
  activity --gateway https://gateway.example:7444 timeline --session s-42 --from -15m
  activity --gateway unix:/var/lib/activity-gateway/operator.sock status
  activity query --event process.exec,network.flow.closed --peer 10.0.0.0/8 --format ndjson
  activity coverage --instance sandbox-7 --from 2026-08-01 --require-complete
  activity verify /var/lib/activity-gateway/store --trust gateway.pub
  activity export --session s-42 -o s-42.bundle && activity verify s-42.bundle --trust gateway.pub

Exit status: 0 answered and complete; 3 answered, coverage incomplete; 2 usage; 4 not authorised;
5 integrity failure; 1 anything else."
)]
pub struct Cli {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub shown: Shown,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the evidence is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Where the evidence is")]
pub struct Place {
    /// A gateway: https://HOST:PORT or unix:PATH.
    #[arg(long, global = true, env = "ACTIVITY_GATEWAY", value_name = "URL", conflicts_with = "store")]
    pub gateway: Option<String>,
    /// A store on disk, read without a gateway.
    #[arg(long, global = true, env = "ACTIVITY_STORE", value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Certificate authority of the gateway, PEM.
    #[arg(long, global = true, env = "ACTIVITY_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Client certificate, PEM.
    #[arg(long, global = true, env = "ACTIVITY_CERT", value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Key of the client certificate, PEM.
    #[arg(long, global = true, env = "ACTIVITY_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Tenant; may be left out where there is only one.
    #[arg(long, global = true, env = "ACTIVITY_TENANT")]
    pub tenant: Option<TenantId>,
}

/// How answers are shown.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How it is shown")]
pub struct Shown {
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Columns to fit into; 0 never cuts. Default: the terminal's.
    #[arg(long, global = true, value_name = "COLUMNS")]
    pub width: Option<usize>,
    /// No colours, also on a terminal.
    #[arg(long, global = true)]
    pub no_color: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One document.
    Json,
    /// One document a line; events as they were signed.
    Ndjson,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Tells the story of a sandbox or session as a tree.
    #[command(after_help = "\
A line says when, what, and at the right how far it can be believed: trust · join.
~ before a time: the clocks of two collectors cannot order this line and a neighbour.
Times are UTC.")]
    Timeline(TimelineArgs),
    /// Finds events by any correlation id, name, outcome, destination or executable.
    Query(Box<QueryArgs>),
    /// Says what was watched, what was lost and what was never visible.
    Coverage(CoverageArgs),
    /// Writes all matching events and what proves them into one file that verifies by itself.
    Export(Box<ExportArgs>),
    /// Checks a store or an exported bundle offline: signatures, chains, roots, log.
    Verify(VerifyArgs),
    /// Takes in foreign activity.event/v1 lines as derived evidence.
    Import(ImportArgs),
    /// Lists collectors, what they acknowledged and when they last spoke.
    Collectors,
    /// Shows whether the gateway or store works.
    Status,
    /// Lists the tenants that you may read.
    Tenants,
    /// Makes a one-time token for a collector, or a certificate for an operator.
    Enroll(EnrollArgs),
    /// Refuses a collector or an operator from now on.
    Revoke(RevokeArgs),
    /// Proves one event: line, batch, log, checkpoint.
    Proof(ProofArgs),
    /// Prints completions for a shell.
    Completions { shell: Shell },
}

/// The interval in question.
#[derive(Debug, Clone, Default, Args)]
pub struct Interval {
    /// RFC 3339, a date (midnight UTC), `now`, or back from now as -15m.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// As --from; exclusive.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["instance", "session"])))]
pub struct TimelineArgs {
    /// The sandbox.
    #[arg(long)]
    pub instance: Option<String>,
    /// The agent's session, in whichever sandbox.
    #[arg(long)]
    pub session: Option<String>,
    #[command(flatten)]
    pub interval: Interval,
    /// Goes on, one line an event as they arrive.
    #[arg(long, conflicts_with = "to")]
    pub follow: bool,
    /// Most events.
    #[arg(long, default_value_t = 100_000, value_parser = at_least_one)]
    pub limit: usize,
    /// Event classes that must be covered for the answer to be complete, e.g. process,network.
    #[arg(long, value_name = "CLASSES")]
    pub class: Option<String>,
}

/// Which events.
#[derive(Debug, Clone, Args)]
pub struct Filter {
    #[arg(long)]
    pub instance: Option<String>,
    #[arg(long)]
    pub session: Option<String>,
    #[arg(long)]
    pub mission: Option<String>,
    #[arg(long)]
    pub task: Option<String>,
    #[arg(long)]
    pub tool_call: Option<String>,
    #[arg(long)]
    pub command: Option<String>,
    #[arg(long)]
    pub process: Option<String>,
    /// Names or prefixes: process.exec,network.*
    #[arg(long, value_name = "NAMES")]
    pub event: Option<String>,
    #[arg(long, value_name = "PLANES")]
    pub plane: Option<String>,
    /// For example denied,failure.
    #[arg(long, value_name = "OUTCOMES")]
    pub outcome: Option<String>,
    #[arg(long, value_name = "TRUSTS")]
    pub trust: Option<String>,
    /// An address or a network such as 10.0.0.0/8.
    #[arg(long, value_name = "CIDR")]
    pub peer: Option<String>,
    /// Basename.
    #[arg(long)]
    pub executable: Option<String>,
    #[command(flatten)]
    pub interval: Interval,
    /// Event classes that must be covered for the answer to be complete.
    #[arg(long, value_name = "CLASSES")]
    pub class: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct QueryArgs {
    #[command(flatten)]
    pub filter: Filter,
    /// Most events.
    #[arg(long, default_value_t = 1_000, value_parser = at_least_one)]
    pub limit: usize,
    /// Goes on where an answer before ended.
    #[arg(long)]
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    pub filter: Filter,
    /// The bundle.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replaces a file that is there.
    #[arg(long)]
    pub force: bool,
    /// A checkpoint that the reader kept from before: the bundle then proves that the log still holds it.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct CoverageArgs {
    #[arg(long)]
    pub instance: Option<String>,
    #[command(flatten)]
    pub interval: Interval,
    /// Event classes that must be covered.
    #[arg(long, value_name = "CLASSES")]
    pub class: Option<String>,
    /// Says on standard error what is missing when the answer is incomplete.
    #[arg(long)]
    pub require_complete: bool,
}

#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// The store's directory, or a bundle.
    pub evidence: PathBuf,
    /// The gateway's public key, base64, or a file that holds it.
    #[arg(long, value_name = "KEY")]
    pub trust: Option<String>,
    /// A checkpoint kept from before.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// What cannot be established is a failure.
    #[arg(long)]
    pub strict: bool,
    /// Lists the evidence files of a store, or the batches of a bundle.
    #[arg(long)]
    pub list: bool,
}

#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// One activity.event/v1 document a line; - reads standard input.
    pub file: PathBuf,
    /// Host of lines whose own is not an id here.
    #[arg(long, default_value = "imported")]
    pub host: HostId,
    /// Instance of lines whose own is not an id here.
    #[arg(long, default_value = "imported")]
    pub instance: InstanceId,
}

#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("whom").required(true).multiple(true).args(["instance", "host", "operator"])))]
pub struct EnrollArgs {
    /// The only instance that may use the token.
    #[arg(long)]
    pub instance: Option<InstanceId>,
    /// The only host that may use the token.
    #[arg(long)]
    pub host: Option<HostId>,
    /// How long the token can be used.
    #[arg(long, default_value = "1h", value_name = "DURATION")]
    pub ttl: String,
    /// Makes a certificate for this operator instead.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["instance", "host"], requires_all = ["role", "out"])]
    pub operator: Option<String>,
    /// admin, monitor or reader@TENANT.
    #[arg(long, requires = "operator")]
    pub role: Option<String>,
    /// Directory for ca.pem, NAME.pem and NAME.key.
    #[arg(long, value_name = "DIR", requires = "operator")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("whom").required(true).args(["collector", "operator"])))]
pub struct RevokeArgs {
    #[arg(long)]
    pub collector: Option<CollectorId>,
    #[arg(long, value_name = "NAME")]
    pub operator: Option<String>,
    /// Kept with the revocation.
    #[arg(long, default_value = "revoked by an administrator")]
    pub reason: String,
}

#[derive(Debug, Clone, Args)]
pub struct ProofArgs {
    pub event_id: Uuid,
    /// The gateway's public key, base64, or a file that holds it.
    #[arg(long, value_name = "KEY")]
    pub trust: Option<String>,
}

fn at_least_one(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|n| *n > 0).ok_or("a whole number from 1 on is wanted")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn a_timeline_has_100_000_events_a_query_1_000_and_a_token_an_hour_unless_said() {
        let parsed = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap().command;
        let Command::Timeline(timeline) = parsed("activity timeline --instance i") else { panic!() };
        let Command::Query(query) = parsed("activity query") else { panic!() };
        let Command::Enroll(enroll) = parsed("activity enroll --tenant t --instance i") else { panic!() };
        let refused = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap_err().to_string();
        assert!(refused("activity timeline").contains("--session"));
        assert!(refused("activity timeline --instance i --follow --to now").contains("--to"));
        assert!(refused("activity query --limit 0").contains("from 1 on"));
        assert_eq!((timeline.limit, query.limit, enroll.ttl.as_str()), (100_000, 1_000, "1h"));
    }
}
