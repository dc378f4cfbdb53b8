//! The permissions of a session: defaults, then a file, then flags.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use iteron_protocol::{OnAsk, Permissions, Rule, ToolClass};
use serde::Deserialize;

/// Largest policy file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Keys of the file, for whoever misspells one.
const KEYS: &[&str] = &["permissions"];
const PERMISSION_KEYS: &[&str] = &["read", "write", "execute", "network", "on_ask"];

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
         deny execute as well"
    )]
    NotEnforced { class: &'static str, what: &'static str },
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    permissions: Given,
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
pub fn permissions(arguments: &PolicyArguments) -> Result<Permissions, PolicyError> {
    let mut rules = Permissions::default();
    if let Some(path) = &arguments.policy {
        read(path)?.permissions.apply(&mut rules);
    }
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
    check(&rules)?;
    Ok(rules)
}

/// A rule that nothing enforces is none: a command does what its process may.
fn check(rules: &Permissions) -> Result<(), PolicyError> {
    if !rules.decide(ToolClass::Execute).allows() {
        return Ok(());
    }
    for (class, what) in [
        (ToolClass::Read, "read files"),
        (ToolClass::Write, "change files"),
        (ToolClass::Network, "talk to other machines"),
    ] {
        if !rules.decide(class).allows() {
            return Err(PolicyError::NotEnforced { class: class.as_str(), what });
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
    let unknown = |key: &str, keys| PolicyError::UnknownKey {
        path: path.to_owned(),
        key: key.to_owned(),
        nearest: nearest(key, keys),
    };
    for (key, value) in &table {
        if !KEYS.contains(&key.as_str()) {
            return Err(unknown(key, KEYS));
        }
        for key in value.as_table().into_iter().flat_map(toml::Table::keys) {
            if !PERMISSION_KEYS.contains(&key.as_str()) {
                return Err(unknown(key, PERMISSION_KEYS));
            }
        }
    }
    toml::from_str(&text).map_err(invalid)
}

fn nearest(key: &str, keys: &[&'static str]) -> &'static str {
    keys.iter().min_by_key(|known| strsim::damerau_levenshtein(known, key)).copied().unwrap_or_default()
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
