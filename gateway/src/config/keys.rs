//! Every key of the configuration: name, flag, default, meaning.

use clap::{Arg, ArgMatches, Command};

/// One key.
#[derive(Debug)]
pub struct Key {
    /// As in the file: `section.key`.
    pub name: &'static str,
    pub flag: &'static str,
    pub default: &'static str,
    pub doc: &'static str,
}

macro_rules! keys {
    ($(($name:literal, $flag:literal, $default:literal, $doc:literal)),+ $(,)?) => {
        &[$(Key { name: $name, flag: $flag, default: $default, doc: $doc }),+]
    };
}

/// In the order in which they are shown.
pub const KEYS: &[Key] = keys![
    ("data", "data", "/var/lib/activity-gateway", "directory of the store, the certificates and the tokens"),
    ("collector.listen", "collector-listen", "0.0.0.0:7443", "address for collectors; empty: none"),
    ("collector.unix", "collector-unix", "", "Unix socket for collectors, TLS as over TCP; empty: none"),
    ("operator.listen", "operator-listen", "127.0.0.1:7444", "address for operators; empty: none"),
    (
        "operator.unix",
        "operator-unix",
        "auto",
        "Unix socket for local administrators; auto: operator.sock in data; empty: none"
    ),
    ("certificates.collector_lifetime", "collector-lifetime", "24h", "lifetime of a collector's certificate"),
    ("certificates.operator_lifetime", "operator-lifetime", "2160h", "lifetime of an operator's certificate"),
    ("limits.connections_max", "connections-max", "1024", "most connections of each listener"),
    ("limits.drain_max", "drain-max", "30s", "longest wait for requests under way when stopping"),
    ("limits.stall_max", "stall-max", "5s", "not ready when a batch waits longer for its commit"),
    (
        "store.commit_rotate_bytes",
        "commit-rotate-bytes",
        "67108864",
        "a commit file is sealed at this length, bytes"
    ),
    ("store.commit_rotate_age", "commit-rotate-age", "10m", "a commit file is sealed at this age"),
    ("store.checkpoint_interval", "checkpoint-interval", "1m", "cadence of signed checkpoints"),
    (
        "store.reserve_bytes",
        "reserve-bytes",
        "536870912",
        "free space below which collectors are asked to wait, bytes"
    ),
];

/// Values given as flags.
#[derive(Debug, Clone, Default)]
pub struct Overrides(pub Vec<(&'static str, String)>);

impl clap::Args for Overrides {
    fn augment_args(command: Command) -> Command {
        KEYS.iter().fold(command, |command, key| {
            let default = if key.default.is_empty() { "none" } else { key.default };
            command.arg(
                Arg::new(key.name)
                    .long(key.flag)
                    .value_name("VALUE")
                    .help(format!("{} [default: {default}] [key: {}]", key.doc, key.name))
                    .help_heading("Configuration"),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |key: &Key| Some((key.name, matches.get_one::<String>(key.name)?.clone()));
        Ok(Overrides(KEYS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The known key that is spelled most alike.
pub(super) fn nearest(name: &str) -> &'static str {
    let distance = |key: &&Key| strsim::damerau_levenshtein(key.name, name);
    KEYS.iter().min_by_key(distance).map(|k| k.name).unwrap_or_default()
}
