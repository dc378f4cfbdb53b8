//! Configuration: strict TOML; unknown keys are refused.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use activity_schema::event::{Layer, Runtime};
use activity_schema::merkle::Hash;
use serde::{Deserialize, Serialize};

/// The whole configuration. Every key has a default but the tenant, which enrolment can give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folder of identity, keys and spool; mode 0700.
    pub state_dir: PathBuf,
    /// Unix socket for the agents of this sandbox.
    pub agent_socket: PathBuf,
    /// Uids that may talk on it; empty admits all that can open it.
    pub agent_uids: Vec<u32>,
    /// Needed only without enrolment.
    pub tenant: Option<String>,
    pub host_id: Option<String>,
    pub instance_id: Option<String>,
    pub collector_id: Option<String>,
    pub agent_id: String,
    /// Nonce of the instance, from outside the guest; a file that is read at every start.
    pub nonce_file: Option<PathBuf>,
    pub layer: Layer,
    pub runtime: Runtime,
    /// cgroup of the instance below the v2 root.
    pub cgroup: String,
    pub gateway: Option<Gateway>,
    pub spool_bytes_max: u64,
    pub kernel: Kernel,
    pub heartbeat_interval_ms: u64,
    pub sample_interval_ms: u64,
    /// Further sandboxes on this host.
    pub sandbox: Vec<Sandbox>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// `https://host:port` or `unix:/path`.
    pub url: String,
    /// Name that the gateway's certificate must carry; the URL's host where absent.
    pub server_name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kernel {
    /// Off: procfs and cgroup only.
    pub enabled: bool,
    /// Folder on a bpffs; absent: `/sys/fs/bpf/activity/<collector>`.
    pub pin_dir: Option<PathBuf>,
    /// Without pins the programs end with the collector.
    pub pin: bool,
    /// Memory of all rings together.
    pub ring_bytes_max: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sandbox {
    pub instance_id: String,
    pub cgroup: String,
    #[serde(default = "unknown")]
    pub agent_id: String,
    #[serde(default = "unknown_runtime")]
    pub runtime: Runtime,
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn unknown_runtime() -> Runtime {
    Runtime::Unknown
}

impl Default for Config {
    fn default() -> Self {
        Config {
            state_dir: "/var/lib/activity-collector".into(),
            agent_socket: "/run/activity/agent.sock".into(),
            agent_uids: Vec::new(),
            tenant: None,
            host_id: None,
            instance_id: None,
            collector_id: None,
            agent_id: unknown(),
            nonce_file: None,
            layer: Layer::Host,
            runtime: Runtime::Host,
            cgroup: "/".to_owned(),
            gateway: None,
            spool_bytes_max: 256 * 1024 * 1024,
            kernel: Kernel::default(),
            heartbeat_interval_ms: 10_000,
            sample_interval_ms: 10_000,
            sandbox: Vec::new(),
        }
    }
}

impl Default for Kernel {
    fn default() -> Self {
        Kernel { enabled: true, pin_dir: None, pin: true, ring_bytes_max: 12 * 1024 * 1024 }
    }
}

/// Why a configuration is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path}: {message}")]
    Toml { path: PathBuf, message: String },
    #[error("{key}: {rule}")]
    Value { key: &'static str, rule: &'static str },
}

impl Config {
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = crate::bounded::read_text(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config: Config = toml::from_str(&text).map_err(|e| ConfigError::Toml {
            path: path.to_owned(),
            message: e.to_string().trim_end().to_owned(),
        })?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let require = |ok: bool, key, rule| if ok { Ok(()) } else { Err(ConfigError::Value { key, rule }) };
        require(self.spool_bytes_max >= 8 << 20, "spool_bytes_max", "must be at least 8 MiB (8388608)")?;
        require(self.agent_socket.is_absolute(), "agent_socket", "must be an absolute path")?;
        require(self.state_dir.is_absolute(), "state_dir", "must be an absolute path")?;
        let mut ids = self.sandbox.iter().map(|s| &s.instance_id).chain(&self.instance_id);
        let rule = "must be 1 to 128 of A-Z a-z 0-9 . _ : @ - and begin with a letter or digit";
        require(ids.all(|id| id.parse::<activity_schema::ids::InstanceId>().is_ok()), "instance_id", rule)?;
        let mut agents = self.sandbox.iter().map(|s| &s.agent_id).chain([&self.agent_id]);
        require(agents.all(|id| activity_schema::ids::is_id(id)), "agent_id", rule)?;
        let mut ids = self.sandbox.iter().map(|s| &s.instance_id).chain(&self.instance_id);
        let rule = "must not be \"unknown\", which is what is nobody's";
        require(ids.all(|id| id != crate::sandbox::UNKNOWN), "instance_id", rule)?;
        let mut pins = self.kernel.pin_dir.iter();
        require(pins.all(|path| path.is_absolute()), "kernel.pin_dir", "must be an absolute path")?;
        let interval = 100..=3_600_000;
        let rule = "must be 100 to 3600000 milliseconds";
        require(interval.contains(&self.heartbeat_interval_ms), "heartbeat_interval_ms", rule)?;
        require(interval.contains(&self.sample_interval_ms), "sample_interval_ms", rule)?;
        require(
            self.kernel.ring_bytes_max >= 256 << 10,
            "kernel.ring_bytes_max",
            "must be at least 256 KiB",
        )?;
        let cgroups = || std::iter::once(&self.cgroup).chain(self.sandbox.iter().map(|s| &s.cgroup));
        let rule = "must start with / (the cgroup v2 root), without a / at its end or // or . or .. inside";
        require(cgroups().all(|c| is_plain_cgroup(c)), "cgroup", rule)?;
        let rule = "each sandbox must have a cgroup of its own";
        require(cgroups().collect::<BTreeSet<_>>().len() == 1 + self.sandbox.len(), "sandbox.cgroup", rule)?;
        let ids = self.instance_id.iter().chain(self.sandbox.iter().map(|s| &s.instance_id));
        let rule = "each sandbox must have an instance_id of its own";
        require(ids.clone().collect::<BTreeSet<_>>().len() == ids.count(), "sandbox.instance_id", rule)
    }

    /// SHA-256 of what decides what is collected.
    pub fn policy_digest(&self) -> Hash {
        let mut policy = self.clone();
        // Where things lie and whom they are sent to is not policy.
        (policy.state_dir, policy.agent_socket) = (PathBuf::new(), PathBuf::new());
        (policy.gateway, policy.nonce_file, policy.kernel.pin_dir) = (None, None, None);
        Hash::of(&[b"activity-policy-v1\0", &serde_json::to_vec(&policy).unwrap_or_default()])
    }
}

fn is_plain_cgroup(path: &str) -> bool {
    path == "/"
        || path.strip_prefix('/').is_some_and(|rest| {
            rest.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains('\0'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sandboxes_on_one_cgroup_or_of_one_name_are_refused() {
        let config = |own: &str, sandboxes: &[(&str, &str)]| {
            let sandbox = sandboxes.iter().map(|(id, cgroup)| Sandbox {
                instance_id: (*id).to_owned(),
                cgroup: (*cgroup).to_owned(),
                agent_id: unknown(),
                runtime: Runtime::Unknown,
            });
            let instance_id = Some("own".to_owned());
            Config { cgroup: own.to_owned(), instance_id, sandbox: sandbox.collect(), ..Config::default() }
                .check()
        };
        assert!(config("/", &[("a", "/a"), ("b", "/a/b")]).is_ok());
        for bad in ["a", "/a/", "/a//b", "/x/../a", "/./a", ""] {
            assert!(config("/", &[("a", bad)]).is_err(), "{bad}");
        }
        assert!(config("/", &[("a", "/a"), ("b", "/a")]).is_err());
        assert!(config("/a", &[("a", "/a")]).is_err());
        assert!(config("/", &[("a", "/a"), ("a", "/b")]).is_err());
        assert!(config("/", &[("own", "/a")]).is_err());
    }

    #[test]
    fn names_that_no_event_may_have_are_refused() {
        let with = |instance: &str, agent: &str, own_agent: &str| {
            let sandbox = Sandbox {
                instance_id: instance.to_owned(),
                cgroup: "/a".to_owned(),
                agent_id: agent.to_owned(),
                runtime: Runtime::Unknown,
            };
            let agent_id = own_agent.to_owned();
            Config { agent_id, sandbox: vec![sandbox], ..Config::default() }.check()
        };
        assert!(with("a", "b", "c").is_ok());
        for (instance, agent, own_agent) in
            [("unknown", "b", "c"), ("a", "", "c"), ("a", "b", ""), ("a", "b c", "c")]
        {
            assert!(with(instance, agent, own_agent).is_err(), "{instance:?} {agent:?} {own_agent:?}");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = toml::from_str::<Config>("spool_byte_max = 1").unwrap_err().to_string();
        assert!(error.contains("spool_byte_max") && error.contains("spool_bytes_max"), "{error}");
    }

    #[test]
    fn the_policy_digest_ignores_places() {
        let a = Config::default();
        let b = Config { state_dir: "/elsewhere".into(), ..Config::default() };
        let c = Config { sample_interval_ms: 1_000, ..Config::default() };
        assert_eq!(a.policy_digest(), b.policy_digest());
        assert_ne!(a.policy_digest(), c.policy_digest());
    }

    #[test]
    fn sizes_and_intervals_have_a_default_and_bounds() {
        let check = |text: &str| toml::from_str::<Config>(text).unwrap().check().is_ok();
        for (least, less) in [
            ("spool_bytes_max = 8388608", "spool_bytes_max = 8388607"),
            ("heartbeat_interval_ms = 100", "heartbeat_interval_ms = 99"),
            ("heartbeat_interval_ms = 3600000", "heartbeat_interval_ms = 3600001"),
            ("sample_interval_ms = 100", "sample_interval_ms = 99"),
            ("sample_interval_ms = 3600000", "sample_interval_ms = 3600001"),
            ("kernel.ring_bytes_max = 262144", "kernel.ring_bytes_max = 262143"),
        ] {
            assert!(check(least) && !check(less), "{least}");
        }
        let config: Config = toml::from_str("").unwrap();
        assert_eq!(
            (config.spool_bytes_max, config.kernel.ring_bytes_max),
            (268_435_456, 12_582_912),
            "256 MiB and 12 MiB"
        );
    }
}
