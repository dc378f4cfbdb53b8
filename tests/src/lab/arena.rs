//! A cgroup of its own for a load or an agent, and the sandbox that stands for it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::Context as _;

/// Removed when dropped, if nothing runs in it.
pub struct Arena {
    path: PathBuf,
    name: String,
}

impl Arena {
    /// Fails where there is no cgroup v2 or no right to make one.
    pub fn new(label: &str) -> anyhow::Result<Self> {
        let name = format!("activity-{label}-{}-{}", std::process::id(), rand::random::<u16>());
        let path = cgroup2_root().context("no cgroup v2 is mounted")?.join(&name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Arena { path, name })
    }

    /// Id of the sandbox.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The collector's configuration of the sandbox.
    pub fn sandbox(&self) -> String {
        format!("[[sandbox]]\ninstance_id = \"{0}\"\ncgroup = \"/{0}\"\n", self.name)
    }

    /// Starts a command that is in the cgroup from its first instruction: this process enters, starts it, and goes
    /// back.
    pub fn spawn(&self, command: &mut Command) -> anyhow::Result<Child> {
        let own = own_cgroup().context("this process has no cgroup v2")?;
        enter(&self.path)?;
        let child = command.spawn();
        enter(&own)?;
        child.with_context(|| format!("cannot start {command:?}"))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn enter(cgroup: &Path) -> anyhow::Result<()> {
    std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string())
        .with_context(|| format!("cannot join {}", cgroup.display()))
}

fn own_cgroup() -> Option<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|l| l.strip_prefix("0::"))?;
    Some(cgroup2_root()?.join(path.trim_start_matches('/')))
}

/// Mount point of cgroup v2.
pub fn cgroup2_root() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })
}
