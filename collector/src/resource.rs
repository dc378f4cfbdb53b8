//! Resource use and pressure of a sandbox: cgroup v2, with v1 controllers on hybrid hosts.

use std::fs;
use std::path::{Path, PathBuf};

use activity_schema::event::Payload;

use crate::sandbox::Instance;

/// Where a sandbox's numbers come from.
#[derive(Debug, Clone)]
pub struct ResourceSource {
    v2: PathBuf,
    /// v1 controller folders of the same name, where they exist.
    v1: Option<PathBuf>,
    whole_host: bool,
    last_events: [u64; 3],
}

impl ResourceSource {
    /// `root` is the cgroup v2 mount point; on a hybrid host the v1 controllers stand beside it (cgroups(7)).
    pub fn new(root: &Path, instance: &Instance) -> Self {
        let below = instance.cgroup.trim_start_matches('/');
        let v1 = root.parent().filter(|p| p.join("memory").is_dir()).map(Path::to_owned);
        ResourceSource { v2: root.join(below), v1, whole_host: below.is_empty(), last_events: [0; 3] }
    }

    fn v1_file(&self, controller: &str, file: &str, root: &Path) -> Option<String> {
        let below = self.v2.strip_prefix(root).ok()?;
        fs::read_to_string(self.v1.as_ref()?.join(controller).join(below).join(file)).ok()
    }

    /// Takes a sample; `None` when nothing at all can be read.
    pub fn sample(&mut self, root: &Path) -> Option<Payload<'static>> {
        let mut p = Payload::new();
        let v2 = |file: &str| fs::read_to_string(self.v2.join(file)).ok();
        if let Some(stat) = v2("cpu.stat") {
            p.set_some("cpu_usage_us", keyed(&stat, "usage_usec"));
            p.set_some("cpu_throttled_us", keyed(&stat, "throttled_usec"));
        } else if let Some(ns) = self.v1_file("cpuacct", "cpuacct.usage", root).and_then(|t| number(&t)) {
            p.set("cpu_usage_us", ns / 1_000);
        }
        let memory = v2("memory.current").and_then(|t| number(&t));
        let memory =
            memory.or_else(|| self.v1_file("memory", "memory.usage_in_bytes", root).and_then(|t| number(&t)));
        p.set_some("memory_bytes", memory.or_else(|| self.whole_host.then(host_memory).flatten()));
        let peak = v2("memory.peak").and_then(|t| number(&t));
        let peak = peak
            .or_else(|| self.v1_file("memory", "memory.max_usage_in_bytes", root).and_then(|t| number(&t)));
        p.set_some("memory_peak_bytes", peak);
        if let Some(stat) = v2("io.stat") {
            p.set("io_read_bytes", sum(&stat, "rbytes=")).set("io_write_bytes", sum(&stat, "wbytes="));
        }
        let pids = v2("pids.current").and_then(|t| number(&t));
        p.set_some(
            "pids",
            pids.or_else(|| self.v1_file("pids", "pids.current", root).and_then(|t| number(&t))),
        );
        let events = v2("memory.events");
        for (resource, keys) in PRESSURE {
            let file = v2(&format!("{resource}.pressure"));
            let host = || fs::read_to_string(format!("/proc/pressure/{resource}")).ok();
            if let Some(text) = file.or_else(|| self.whole_host.then(host).flatten()) {
                pressure(&mut p, &text, keys);
            }
        }
        if let Some(events) = events {
            self.memory_events(&mut p, &events);
        }
        if p.is_empty() {
            return None;
        }
        p.set("cgroup_version", if self.v1.is_some() { 1 } else { 2 });
        Some(p)
    }

    /// `memory.events` counts for ever; a sample carries what came since the last one.
    fn memory_events(&mut self, p: &mut Payload<'static>, text: &str) {
        let now = ["oom_kill", "high", "max"].map(|key| keyed(text, key).unwrap_or(0));
        let names = ["memory_oom_kills", "memory_high_events", "memory_max_events"];
        for ((name, now), last) in names.into_iter().zip(now).zip(&mut self.last_events) {
            p.set(name, now.saturating_sub(*last));
            *last = now;
        }
    }
}

/// Payload keys of a pressure file: some avg10, some total, full avg10, full total.
type PressureKeys = [&'static str; 4];

const PRESSURE: [(&str, PressureKeys); 3] = [
    ("cpu", ["psi_cpu_some_avg10", "psi_cpu_some_total_us", "psi_cpu_full_avg10", "psi_cpu_full_total_us"]),
    (
        "memory",
        [
            "psi_memory_some_avg10",
            "psi_memory_some_total_us",
            "psi_memory_full_avg10",
            "psi_memory_full_total_us",
        ],
    ),
    ("io", ["psi_io_some_avg10", "psi_io_some_total_us", "psi_io_full_avg10", "psi_io_full_total_us"]),
];

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` (Documentation/accounting/psi.rst)
fn pressure(p: &mut Payload<'static>, text: &str, keys: PressureKeys) {
    for line in text.lines() {
        let (avg_key, total_key) = match line.split(' ').next() {
            Some("some") => (keys[0], keys[1]),
            Some("full") => (keys[2], keys[3]),
            _ => continue,
        };
        let field = |name: &str| line.split(' ').find_map(|f| f.strip_prefix(name));
        p.set_some(avg_key, field("avg10=").and_then(|t| t.parse::<f64>().ok()));
        p.set_some(total_key, field("total=").and_then(number));
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Value of a `key value` line.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).and_then(number)
}

/// Sum of `name=value` fields over all lines.
fn sum(text: &str, name: &str) -> u64 {
    text.split_ascii_whitespace().filter_map(|f| f.strip_prefix(name)).filter_map(number).sum()
}

fn host_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |key| keyed_kib(&text, key);
    kib("MemTotal:")?.checked_sub(kib("MemAvailable:")?)?.checked_mul(1024)
}

fn keyed_kib(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(key)).and_then(|l| number(l.trim().trim_end_matches("kB")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts_become_numbers() {
        let mut p = Payload::new();
        pressure(
            &mut p,
            "some avg10=1.50 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
            PRESSURE[0].1,
        );
        assert_eq!(p.integer("psi_cpu_some_total_us"), Some(123));
        assert_eq!(p.integer("psi_cpu_full_total_us"), Some(7));
        assert_eq!(keyed("usage_usec 12\nuser_usec 7\n", "usage_usec"), Some(12));
        assert_eq!(sum("8:0 rbytes=5 wbytes=1\n8:1 rbytes=6 wbytes=2\n", "rbytes="), 11);
    }
}
