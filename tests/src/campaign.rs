//! Campaigns against the whole system: short in `cargo xtask test`, long in `cargo xtask soak`.

mod durability;
mod exec;
mod fuzz;
mod restart;
mod tamper;

pub use durability::durability;
pub use exec::exec_truth;
pub use fuzz::fuzz;
pub use restart::restart_truth;
pub use tamper::tamper;

use std::process::{Child, Stdio};

use serde_json::Value;

use crate::lab::{Arena, Lab, binary, cgroup2_root};
use crate::truth::Made;

/// Why a campaign cannot run here.
pub fn unsupported() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root: no eBPF, no cgroup of its own".to_owned());
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some("the kernel has no BTF".to_owned());
    }
    cgroup2_root().is_none().then(|| "no cgroup v2 is mounted".to_owned())
}

fn load(arena: &Arena, count: u32, rate: u32) -> anyhow::Result<Child> {
    let mut command = binary("activity-load")?;
    command.args(["--count", &count.to_string(), "--rate", &rate.to_string()]);
    arena.spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))
}

/// Events of the sandbox.
fn events(arena: &Arena, lab: &Lab) -> anyhow::Result<Vec<Value>> {
    lab.events(&["--instance", arena.name()])
}

fn parse_made(output: &[u8]) -> anyhow::Result<Vec<Made>> {
    let text = std::str::from_utf8(output)?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// A lab with an enrolled collector that watches the arenas.
fn lab_with(arenas: &[&Arena]) -> anyhow::Result<Lab> {
    let mut lab = Lab::new(None)?;
    lab.collector_config = arenas.iter().map(|a| a.sandbox()).collect();
    lab.init_gateway()?;
    lab.enrol()?;
    lab.start_collector()?;
    settle(&lab)?;
    Ok(lab)
}

/// Waits for two heartbeats made from now on: everything before the first is then stored.
fn settle(lab: &Lab) -> anyhow::Result<()> {
    let heartbeats = |lab: &Lab| lab.events(&["--event", "telemetry.heartbeat"]).map(|e| e.len());
    let before = heartbeats(lab)?;
    lab.wait_for("heartbeats", |lab| Ok(heartbeats(lab)? >= before + 3))
}
