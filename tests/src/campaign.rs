//! Campaigns against the whole system: short in `cargo xtask test`, long in `cargo xtask soak`.

mod blind;
mod connection;
mod durability;
mod exec;
mod fuzz;
mod isolation;
mod latency;
mod overload;
mod privilege;
mod restart;
mod storm;
mod tamper;

pub use blind::{
    absent_sandbox, lost_programs, nested_cgroups, one_instance, removed_socket, short_certificates,
    stopped_process,
};
pub use connection::{open_datagram_socket, short_connection};
pub use durability::durability;
pub use exec::{exec_truth, reparented_truth};
pub use fuzz::fuzz;
pub use isolation::isolation;
pub use latency::one_event_then_silence;
pub use overload::overload;
pub use privilege::{Privileges, least_privilege};
pub use restart::{restart_truth, stopped_and_started_truth};
pub use storm::start_in_storm;
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
    load_with(arena, &["--count", &count.to_string(), "--rate", &rate.to_string()])
}

fn load_with(arena: &Arena, arguments: &[&str]) -> anyhow::Result<Child> {
    let mut command = binary("activity-load")?;
    arena.spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()))
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
    let mut lab = enrolled_lab(arenas, "")?;
    lab.start_collector()?;
    settle(&lab)?;
    Ok(lab)
}

/// The same before its collector is started; `config` is more of the collector's configuration.
fn enrolled_lab(arenas: &[&Arena], config: &str) -> anyhow::Result<Lab> {
    enrolled_lab_of(arenas, config, None)
}

/// The same with a collector that runs as a user of its own.
fn enrolled_lab_of(arenas: &[&Arena], config: &str, uid: Option<u32>) -> anyhow::Result<Lab> {
    let mut lab = Lab::new(None)?;
    if let Some(uid) = uid {
        lab.give_collector_to(uid)?;
    }
    lab.collector_config = arenas.iter().fold(config.to_owned(), |config, arena| config + &arena.sandbox());
    lab.init_gateway()?;
    lab.enrol()?;
    Ok(lab)
}

/// Waits for heartbeats made from now on, not for older ones that were still on their way: everything before is then
/// stored.
fn settle(lab: &Lab) -> anyhow::Result<()> {
    let from = jiff::Timestamp::now().to_string();
    let made = ["--event", "telemetry.heartbeat", "--from", &from];
    lab.wait_for("heartbeats", |lab| Ok(lab.events(&made)?.len() >= 3))
}
