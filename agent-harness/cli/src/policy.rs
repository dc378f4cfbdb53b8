//! The rules of a session, and the walls that enforce them: defaults, then a file, then flags.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use iteron_protocol::{OnAsk, Permissions, Rule, ToolClass};
use serde::Deserialize;

/// Largest policy file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Keys of the file, for whoever misspells one.
const KEYS: &[(&str, &[&str])] = &[
    ("permissions", &["read", "write", "execute", "network", "on_ask"]),
    ("sandbox", &["mode", "writable"]),
];

/// What holds for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub permissions: Permissions,
    pub sandbox: Mode,
    /// What commands in a sandbox may write to besides the workspace.
    pub writable: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PolicyArguments {
    /// Read the rules for tool calls from this TOML file
    #[arg(long, value_name = "FILE", env = "ITERON_POLICY")]
    pub policy: Option<PathBuf>,

    /// Let calls of these classes run
    #[arg(long, value_name = "CLASS", value_delimiter = ',')]
    pub allow: Vec<Class>,

    /// Ask before calls of these classes; see --on-ask
    #[arg(long, value_name = "CLASS", value_delimiter = ',')]
    pub ask: Vec<Class>,

    /// Refuse calls of these classes
    #[arg(long, value_name = "CLASS", value_delimiter = ',')]
    pub deny: Vec<Class>,

    /// What asking means, since nobody can be asked here
    #[arg(long, value_name = "ANSWER")]
    pub on_ask: Option<Answer>,

    /// Keep commands from changing what is outside of the workspace, and from the network [default: off]
    #[arg(long, value_name = "MODE")]
    pub sandbox: Option<Mode>,

    /// Let commands in the sandbox write to this as well
    #[arg(long, value_name = "PATH")]
    pub writable: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Commands may do what iteron's process may
    Off,
    /// Commands may write to the workspace and to $TMPDIR, and have no network unless it is allowed
    Workspace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Class {
    /// Looking at files of the workspace
    Read,
    /// Changing files of the workspace
    Write,
    /// Running commands
    Execute,
    /// Commands that may talk to other machines
    Network,
}

impl From<Class> for ToolClass {
    fn from(class: Class) -> Self {
        match class {
            Class::Read => Self::Read,
            Class::Write => Self::Write,
            Class::Execute => Self::Execute,
            Class::Network => Self::Network,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Answer {
    Allow,
    Deny,
}

#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("cannot read the policy {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the policy {path} has more than {FILE_BYTES_MAX} bytes")]
    TooLarge { path: PathBuf },
    #[error("the policy {path} is not valid")]
    Toml {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("the policy {path} has a key {key} that is not known; the nearest is {nearest}")]
    UnknownKey { path: PathBuf, key: String, nearest: &'static str },
    #[error("{0} is given two rules")]
    Twice(&'static str),
    #[error(
        "commands could {what} although {class} is not allowed: nothing keeps them from it here; \
         deny execute as well{more}"
    )]
    NotEnforced { class: &'static str, what: &'static str, more: &'static str },
    #[error("what is writable is said, but there is no sandbox; add --sandbox workspace")]
    NoSandbox,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    permissions: Given,
    sandbox: GivenSandbox,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GivenSandbox {
    mode: Option<Mode>,
    writable: Vec<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Given {
    read: Option<Rule>,
    write: Option<Rule>,
    execute: Option<Rule>,
    network: Option<Rule>,
    on_ask: Option<OnAsk>,
}

/// The rules that hold, or why they cannot.
pub fn policy(arguments: &PolicyArguments) -> Result<Policy, PolicyError> {
    let File { permissions, sandbox: GivenSandbox { mode, mut writable } } =
        arguments.policy.as_deref().map(read).transpose()?.unwrap_or_default();
    writable.extend(arguments.writable.iter().cloned());
    let sandbox = arguments.sandbox.or(mode).unwrap_or(Mode::Off);
    if sandbox == Mode::Off && !writable.is_empty() {
        return Err(PolicyError::NoSandbox);
    }
    let mut rules = Permissions::default();
    if sandbox == Mode::Workspace {
        rules.network = Rule::Deny;
    }
    permissions.apply(&mut rules);
    let mut given: Vec<ToolClass> = Vec::new();
    for (rule, classes) in
        [(Rule::Allow, &arguments.allow), (Rule::Ask, &arguments.ask), (Rule::Deny, &arguments.deny)]
    {
        for class in classes.iter().copied().map(ToolClass::from) {
            if given.contains(&class) && rules.rule(class) != rule {
                return Err(PolicyError::Twice(class.as_str()));
            }
            given.push(class);
            rules.set(class, rule);
        }
    }
    if let Some(answer) = arguments.on_ask {
        rules.on_ask = match answer {
            Answer::Allow => OnAsk::Allow,
            Answer::Deny => OnAsk::Deny,
        };
    }
    check(&rules, sandbox)?;
    Ok(Policy { permissions: rules, sandbox, writable })
}

/// A rule that nothing enforces is none: without walls, a command does what its process may. No wall keeps
/// it from reading.
fn check(rules: &Permissions, sandbox: Mode) -> Result<(), PolicyError> {
    if !rules.decide(ToolClass::Execute).allows() {
        return Ok(());
    }
    for (class, what, has_wall) in [
        (ToolClass::Read, "read files", false),
        (ToolClass::Write, "change files", true),
        (ToolClass::Network, "talk to other machines", true),
    ] {
        let enforced = has_wall && sandbox == Mode::Workspace;
        if !enforced && !rules.decide(class).allows() {
            let more = if has_wall { ", or add --sandbox workspace" } else { "" };
            return Err(PolicyError::NotEnforced { class: class.as_str(), what, more });
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<File, PolicyError> {
    use std::io::Read as _;

    let failed = |source| PolicyError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() > usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX) {
        return Err(PolicyError::TooLarge { path: path.to_owned() });
    }
    let invalid =
        |error: toml::de::Error| PolicyError::Toml { path: path.to_owned(), source: Box::new(error) };
    let table: toml::Table = toml::from_str(&text).map_err(invalid)?;
    for (key, value) in &table {
        let sections: Vec<&'static str> = KEYS.iter().map(|(section, _)| *section).collect();
        let keys = KEYS.iter().find(|(section, _)| section == key);
        let Some((_, keys)) = keys else { return Err(unknown(path, key, &sections)) };
        let mut given = value.as_table().into_iter().flat_map(toml::Table::keys);
        if let Some(key) = given.find(|key| !keys.contains(&key.as_str())) {
            return Err(unknown(path, key, keys));
        }
    }
    toml::from_str(&text).map_err(invalid)
}

/// Names the known key that is spelled most alike.
fn unknown(path: &Path, key: &str, keys: &[&'static str]) -> PolicyError {
    let nearest = keys.iter().min_by_key(|known| strsim::damerau_levenshtein(known, key));
    PolicyError::UnknownKey {
        path: path.to_owned(),
        key: key.to_owned(),
        nearest: nearest.copied().unwrap_or_default(),
    }
}

impl Given {
    fn apply(&self, rules: &mut Permissions) {
        rules.read = self.read.unwrap_or(rules.read);
        rules.write = self.write.unwrap_or(rules.write);
        rules.execute = self.execute.unwrap_or(rules.execute);
        rules.network = self.network.unwrap_or(rules.network);
        rules.on_ask = self.on_ask.unwrap_or(rules.on_ask);
    }
}

#[cfg(test)]
mod tests;
