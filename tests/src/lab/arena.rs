//! A cgroup of its own for a load or an agent, and the sandbox that stands for it.
#![allow(unsafe_code, reason = "a child enters its cgroup between fork and exec")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
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

    /// A cgroup in this one.
    pub fn below(&self, name: &str) -> anyhow::Result<Self> {
        let path = self.path.join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Arena { path, name: format!("{}/{name}", self.name) })
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

    /// Starts a command that is in the cgroup before its exec.
    pub fn spawn(&self, command: &mut Command) -> anyhow::Result<Child> {
        let path = self.path.join("cgroup.procs");
        let procs = OpenOptions::new().write(true).open(&path);
        let procs = procs.with_context(|| format!("cannot open {}", path.display()))?;
        // SAFETY: between fork and exec the child makes one write(2); nothing is allocated.
        unsafe { command.pre_exec(move || (&procs).write_all(b"0")) };
        command.spawn().with_context(|| format!("cannot start {command:?}"))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
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
