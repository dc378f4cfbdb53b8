//! The server's configuration: defaults, then the file, then flags. Strict: an unknown key is refused with the
//! nearest known one; every value knows where it came from.

mod keys;

pub use keys::{KEYS, Key, Overrides};

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use activity_store::StoreConfig;

/// The configuration in force.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds the store, the certificates and the tokens.
    pub data: PathBuf,
    pub collector_listen: Option<SocketAddr>,
    pub collector_unix: Option<PathBuf>,
    pub operator_listen: Option<SocketAddr>,
    pub operator_unix: Option<PathBuf>,
    pub collector_lifetime: Duration,
    pub operator_lifetime: Duration,
    pub connections_max: usize,
    pub drain_max: Duration,
    pub stall_max: Duration,
    pub store: StoreConfig,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(PathBuf),
    Flag,
}

/// Why a configuration is not one.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is not TOML", path.display())]
    Toml {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("{}: unknown key {key:?}; the nearest known key is {nearest:?}", path.display())]
    Unknown { path: PathBuf, key: String, nearest: &'static str },
    #[error("{key}: {value:?} is not {wanted} (from {origin})")]
    Value { key: &'static str, value: String, wanted: &'static str, origin: Origin },
}

/// Values by key, with their origin, before they are typed.
#[derive(Debug, Clone)]
pub struct Layers(BTreeMap<&'static str, (String, Origin)>);

impl Layers {
    pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<Self, ConfigError> {
        let mut values: BTreeMap<_, _> =
            KEYS.iter().map(|k| (k.name, (k.default.to_owned(), Origin::Default))).collect();
        if let Some(path) = file {
            for (key, value) in read_file(path)? {
                values.insert(key, (value, Origin::File(path.to_owned())));
            }
        }
        for (key, value) in &overrides.0 {
            values.insert(key, (value.clone(), Origin::Flag));
        }
        Ok(Layers(values))
    }

    /// The configuration as TOML, with the origin of every value; what `--print-config` shows.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        let mut section = "";
        for key in KEYS {
            let (own, leaf) = key.name.rsplit_once('.').unwrap_or(("", key.name));
            if own != section {
                let _ = writeln!(out, "\n[{own}]");
                section = own;
            }
            let Some((value, origin)) = self.0.get(key.name) else { continue };
            let shown = match value.parse::<u64>() {
                Ok(number) => number.to_string(),
                Err(_) => toml::Value::String(value.clone()).to_string(),
            };
            let _ = writeln!(out, "# {} ({origin})\n{leaf} = {shown}", key.doc);
        }
        out
    }

    /// Types every value.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let data = PathBuf::from(self.text("data"));
        let operator_unix = match self.path("operator.unix") {
            Some(path) if path.as_os_str() == "auto" => Some(data.join("operator.sock")),
            path => path,
        };
        Ok(Config {
            collector_listen: self.address("collector.listen")?,
            collector_unix: self.path("collector.unix"),
            operator_listen: self.address("operator.listen")?,
            operator_unix,
            collector_lifetime: self.duration("certificates.collector_lifetime")?,
            operator_lifetime: self.duration("certificates.operator_lifetime")?,
            connections_max: usize::try_from(self.number("limits.connections_max", 1)?).unwrap_or(usize::MAX),
            drain_max: self.duration("limits.drain_max")?,
            stall_max: self.duration("limits.stall_max")?,
            store: StoreConfig {
                dir: data.join("store"),
                commit_rotate_bytes: self.number("store.commit_rotate_bytes", 1 << 20)?,
                commit_rotate_age: self.duration("store.commit_rotate_age")?,
                checkpoint_interval: self.duration("store.checkpoint_interval")?,
                reserve_bytes: self.number("store.reserve_bytes", 0)?,
                accept_control_damage: false,
            },
            data,
        })
    }

    fn text(&self, key: &str) -> &str {
        self.0.get(key).map(|(value, _)| value.as_str()).unwrap_or_default()
    }

    /// An empty value switches the thing off.
    fn path(&self, key: &'static str) -> Option<PathBuf> {
        Some(self.text(key)).filter(|t| !t.is_empty()).map(PathBuf::from)
    }

    fn address(&self, key: &'static str) -> Result<Option<SocketAddr>, ConfigError> {
        match self.text(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| self.wrong(key, "an address and port")),
        }
    }

    fn duration(&self, key: &'static str) -> Result<Duration, ConfigError> {
        parse_duration(self.text(key)).ok_or_else(|| self.wrong(key, "a duration such as 24h or 30s"))
    }

    fn number(&self, key: &'static str, min: u64) -> Result<u64, ConfigError> {
        let number = self.text(key).parse().map_err(|_| self.wrong(key, "a whole number"))?;
        if number < min { Err(self.wrong(key, "large enough to work with")) } else { Ok(number) }
    }

    fn wrong(&self, key: &'static str, wanted: &'static str) -> ConfigError {
        let origin = self.0.get(key).map_or(Origin::Default, |(_, origin)| origin.clone());
        ConfigError::Value { key, value: self.text(key).to_owned(), wanted, origin }
    }
}

/// `24h`, `1h 30m`, `90s`; never negative or zero.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let parsed: jiff::SignedDuration = text.parse().ok()?;
    Duration::try_from(parsed).ok().filter(|d| !d.is_zero())
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Flag => f.write_str("flag"),
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<(&'static str, String)>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let table: toml::Table =
        text.parse().map_err(|e| ConfigError::Toml { path: path.to_owned(), source: Box::new(e) })?;
    let mut values = Vec::new();
    flatten(path, "", &table, &mut values)?;
    Ok(values)
}

fn flatten(
    path: &Path,
    section: &str,
    table: &toml::Table,
    values: &mut Vec<(&'static str, String)>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        let name = if section.is_empty() { key.clone() } else { format!("{section}.{key}") };
        let is_section = KEYS.iter().any(|k| k.name.starts_with(&format!("{name}.")));
        match value {
            toml::Value::Table(inner) if is_section => flatten(path, &name, inner, values)?,
            _ => {
                let Some(known) = KEYS.iter().find(|k| k.name == name) else {
                    let nearest = keys::nearest(&name);
                    return Err(ConfigError::Unknown { path: path.to_owned(), key: name, nearest });
                };
                let text = match value {
                    toml::Value::String(text) => text.clone(),
                    toml::Value::Integer(number) => number.to_string(),
                    other => {
                        let value = other.to_string();
                        return Err(ConfigError::Value {
                            key: known.name,
                            value,
                            wanted: "text or a whole number",
                            origin: Origin::File(path.to_owned()),
                        });
                    }
                };
                values.push((known.name, text));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, flags: &[(&'static str, &str)]) -> Result<Layers, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gateway.toml");
        std::fs::write(&path, text).unwrap();
        Layers::load(Some(&path), &Overrides(flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect()))
    }

    #[test]
    fn flags_outrank_the_file_and_the_file_the_defaults() {
        let text = "data = \"/d\"\n[limits]\nconnections_max = 7\n[collector]\nlisten = \"127.0.0.1:1\"\n";
        let layers = load(text, &[("collector.listen", "127.0.0.1:2")]).unwrap();
        let config = layers.config().unwrap();
        assert_eq!(config.connections_max, 7);
        assert_eq!(config.collector_listen, Some("127.0.0.1:2".parse().unwrap()));
        assert_eq!(config.collector_lifetime, Duration::from_secs(86_400));
        assert_eq!(config.operator_unix, Some("/d/operator.sock".into()));
        let shown = layers.to_toml();
        assert!(shown.contains("(flag)\nlisten = \"127.0.0.1:2\""), "{shown}");
        assert!(shown.contains("gateway.toml)\nconnections_max = 7"), "{shown}");
        assert!(shown.contains("(default)"), "{shown}");
        let again = load(&shown, &[]).unwrap().config().unwrap();
        assert_eq!(again.connections_max, 7, "what is printed can be read");
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        let error = load("[collector]\nlistn = \"127.0.0.1:1\"\n", &[]).unwrap_err();
        assert!(matches!(&error, ConfigError::Unknown { nearest: "collector.listen", .. }), "{error}");
        let error = load("[collectors]\nlisten = \"127.0.0.1:1\"\n", &[]).unwrap_err();
        assert!(matches!(&error, ConfigError::Unknown { .. }), "{error}");
        let error = load("[limits]\nconnections_max = true\n", &[]).unwrap_err();
        assert!(matches!(&error, ConfigError::Value { .. }), "{error}");
        let error = load("[limits]\ndrain_max = \"soon\"\n", &[]).unwrap().config().unwrap_err();
        assert!(error.to_string().contains("24h") && error.to_string().contains("gateway.toml"), "{error}");
        for unusable in ["[limits]\nconnections_max = 0\n", "[store]\ncommit_rotate_bytes = 0\n"] {
            let error = load(unusable, &[]).unwrap().config().unwrap_err();
            assert!(matches!(&error, ConfigError::Value { .. }), "{error}");
        }
    }

    #[test]
    fn what_is_not_said_has_these_values() {
        let config = load("", &[]).unwrap().config().unwrap();
        const DAY: u64 = 86_400;
        for (key, seconds, wanted) in [
            ("collector_lifetime", config.collector_lifetime, DAY),
            ("operator_lifetime", config.operator_lifetime, 90 * DAY),
            ("drain_max", config.drain_max, 30),
            ("stall_max", config.stall_max, 5),
            ("commit_rotate_age", config.store.commit_rotate_age, 600),
            ("checkpoint_interval", config.store.checkpoint_interval, 60),
        ] {
            assert_eq!(seconds, Duration::from_secs(wanted), "{key}");
        }
        assert_eq!(config.connections_max, 1_024);
        assert_eq!(config.store.commit_rotate_bytes, 64 << 20);
        assert_eq!(config.store.reserve_bytes, 512 << 20);
    }
}
