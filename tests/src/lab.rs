//! A gateway, a collector and what they need, as real processes in a folder of their own.

mod arena;
pub mod interrupt;
mod pins;
mod process;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

pub use arena::{Arena, cgroup2_root};
pub use process::Daemon;

/// Names that the lab gives.
pub const TENANT: &str = "demo";
pub const HOST: &str = "demo-host";
pub const INSTANCE: &str = "demo-host";

/// A folder with a gateway's data, a collector's state and the logs of both.
pub struct Lab {
    dir: PathBuf,
    /// Removes the folder at the end, unless it is kept.
    _guard: Option<tempfile::TempDir>,
    ports: (u16, u16),
    pub gateway: Option<Daemon>,
    pub collector: Option<Daemon>,
    /// Extra lines of the collector's configuration.
    pub collector_config: String,
    /// Extra flags of the gateway.
    pub gateway_flags: Vec<String>,
    /// What the collector's token is bound to, as flags of `activity-gateway token`.
    pub token_bound_to: [&'static str; 2],
}

impl Lab {
    /// In a temporary folder, or in `keep`, which must not hold a lab yet.
    pub fn new(keep: Option<&Path>) -> anyhow::Result<Self> {
        let (dir, guard) = match keep {
            Some(dir) => {
                ensure!(!dir.join("gateway").exists(), "{} holds an earlier run", dir.display());
                std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
                (dir.canonicalize()?, None)
            }
            None => {
                let guard = tempfile::Builder::new().prefix("activity-lab-").tempdir()?;
                (guard.path().to_owned(), Some(guard))
            }
        };
        pins::remove_abandoned();
        Ok(Lab {
            dir,
            _guard: guard,
            ports: (free_port()?, free_port()?),
            gateway: None,
            collector: None,
            collector_config: String::new(),
            gateway_flags: Vec::new(),
            token_bound_to: ["--host", HOST],
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("gateway/store")
    }

    pub fn spool(&self) -> PathBuf {
        self.path("collector/spool")
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.path("agent/agent.sock")
    }

    pub fn operator(&self) -> String {
        format!("unix:{}", self.path("gateway/operator.sock").display())
    }

    pub fn collector_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.0)
    }

    /// Makes the gateway's data and starts it.
    pub fn init_gateway(&mut self) -> anyhow::Result<()> {
        let data = self.path("gateway");
        run(binary("activity-gateway")?.arg("init").arg("--data").arg(&data))?;
        self.start_gateway()
    }

    /// Starts the gateway on the data it has.
    pub fn start_gateway(&mut self) -> anyhow::Result<()> {
        let mut command = binary("activity-gateway")?;
        command.arg("run").arg("--data").arg(self.path("gateway"));
        command.args(["--collector-listen", &format!("127.0.0.1:{}", self.ports.0)]);
        command.args(["--operator-listen", &format!("127.0.0.1:{}", self.ports.1)]);
        command.args(&self.gateway_flags);
        self.gateway = Some(Daemon::start(command, &self.path("gateway.log"))?);
        self.wait_for("the gateway", |lab| Ok(lab.activity(&["status"])?.status.code() == Some(0)))
    }

    /// Enrols the collector with a one-time token.
    pub fn enrol(&mut self) -> anyhow::Result<()> {
        let made = run(binary("activity-gateway")?
            .arg("token")
            .arg("--data")
            .arg(self.path("gateway"))
            .args(["--tenant", TENANT])
            .args(self.token_bound_to))?;
        let token = json(&made)?["token"].as_str().context("the gateway printed no token")?.to_owned();
        std::fs::write(self.path("token"), token)?;
        self.write_collector_config()?;
        run(binary("activity-collector")?
            .arg("enroll")
            .arg("--config")
            .arg(self.path("collector.toml"))
            .args(["--gateway", &self.collector_url()])
            .arg("--ca")
            .arg(self.path("gateway/pki/ca.pem"))
            .arg("--token-file")
            .arg(self.path("token")))?;
        std::fs::remove_file(self.path("token"))?;
        Ok(())
    }

    /// Has the collector run as another user: the owner of its state folder.
    pub fn give_collector_to(&self, uid: u32) -> anyhow::Result<()> {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let state = self.path("collector");
        std::fs::create_dir_all(&state)?;
        std::fs::set_permissions(&self.dir, std::fs::Permissions::from_mode(0o711))?;
        chown(&state, Some(uid), Some(uid)).with_context(|| format!("cannot give {} away", state.display()))
    }

    fn write_collector_config(&self) -> anyhow::Result<()> {
        let text = format!(
            "state_dir = {:?}\nagent_socket = {:?}\ntenant = {TENANT:?}\nhost_id = {HOST:?}\n\
             instance_id = {INSTANCE:?}\ncollector_id = {:?}\nheartbeat_interval_ms = 1000\n\
             sample_interval_ms = 1000\n{}",
            self.path("collector"),
            self.agent_socket(),
            self.collector_id(),
            self.collector_config,
        );
        Ok(std::fs::write(self.path("collector.toml"), text)?)
    }

    pub fn collector_id(&self) -> String {
        pins::collector_id(self.ports.0)
    }

    /// Starts the collector and waits until its first events are answered for.
    pub fn start_collector(&mut self) -> anyhow::Result<()> {
        self.write_collector_config()?;
        let mut command = binary("activity-collector")?;
        command.arg("run").arg("--config").arg(self.path("collector.toml"));
        self.collector = Some(Daemon::start(command, &self.path("collector.log"))?);
        self.wait_for("the collector's socket", |lab| Ok(lab.agent_socket().exists()))
    }

    /// Runs `activity` against the gateway.
    pub fn activity(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = binary("activity")?;
        command.args(["--gateway", &self.operator(), "--tenant", TENANT]).args(arguments);
        Ok(command.stdin(Stdio::null()).output()?)
    }

    /// Runs `activity` on the store's files.
    pub fn activity_on_store(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = binary("activity")?;
        command.arg("--store").arg(self.store()).args(["--tenant", TENANT]).args(arguments);
        Ok(command.stdin(Stdio::null()).output()?)
    }

    /// Events as the gateway has them, oldest first.
    pub fn events(&self, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
        let all = [&["query", "--format", "ndjson", "--limit", "1000000"], arguments].concat();
        let output = self.activity(&all)?;
        let text = String::from_utf8(output.stdout)?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(lines.filter(|v| v.get("event_name").is_some()).collect())
    }

    /// Waits, at most half a minute, for something to become true.
    pub fn wait_for(
        &self,
        what: &str,
        mut done: impl FnMut(&Lab) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let start = Instant::now();
        let mut last = None;
        while start.elapsed() < PATIENCE {
            interrupt::check()?;
            match done(self) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => last = Some(error),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = |name: &str| {
            let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(12).collect();
            tail.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        bail!(
            "{what}: not within {PATIENCE:?} ({})\n-- gateway\n{}\n-- collector\n{}",
            last.map_or_else(String::new, |e| format!("{e:#}")),
            log("gateway.log"),
            log("collector.log")
        )
    }
}

/// Both daemons end, and nothing that the collector pinned stays attached.
impl Drop for Lab {
    fn drop(&mut self) {
        drop((self.collector.take(), self.gateway.take()));
        let _ = pins::remove(&self.collector_id());
    }
}

/// The binary beside the running one: all are built into one folder.
pub fn binary(name: &str) -> anyhow::Result<Command> {
    let own = std::env::current_exe()?;
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|dir| dir.join(name)).find(|path| path.is_file());
    let path = found.with_context(|| format!("{name} is not built: run `cargo build --workspace --bins`"))?;
    Ok(Command::new(path))
}

/// Runs a command to its end; its standard output.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

pub fn json(text: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text).with_context(|| format!("not JSON: {text}"))
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
