//! What the kernel says of processes, files and the machine.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use activity_schema::Timestamp;
use anyhow::Context as _;
use nix::sys::time::TimeValLike as _;
use nix::time::ClockId;
use nix::unistd::Pid;

/// User and system time of all threads a process has or had (clock_getcpuclockid(3)): the sum of `/proc/PID/stat`
/// in nanoseconds instead of ticks.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(pid)?))?;
    Ok(Duration::from_nanos(u64::try_from(clock.now()?.num_nanoseconds())?))
}

/// CPU time of this process.
pub fn own_cpu_time() -> anyhow::Result<Duration> {
    cpu_time(std::process::id())
}

/// The wall clock.
pub fn now() -> anyhow::Result<Timestamp> {
    Ok(Timestamp::from_nanos(ClockId::CLOCK_REALTIME.now()?.num_nanoseconds()))
}

/// Resident set, and the most it ever was, bytes (`VmRSS` and `VmHWM` of proc_pid_status(5)).
pub fn resident_bytes(pid: u32) -> anyhow::Result<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| -> anyhow::Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).context("no such line")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
    };
    Ok((kib("VmRSS:")?, kib("VmHWM:")?))
}

/// Kernel memory of the BPF maps that a process holds, bytes, each map once.
pub fn bpf_map_bytes(pid: u32) -> anyhow::Result<u64> {
    let maps = fdinfo(pid, "map_id:", "memlock:")?;
    Ok(maps.values().sum())
}

/// Time that the kernel programs which a process holds have run, where `kernel.bpf_stats_enabled` counts it.
pub fn bpf_program_time(pid: u32) -> anyhow::Result<Duration> {
    let programs = fdinfo(pid, "prog_id:", "run_time_ns:")?;
    Ok(Duration::from_nanos(programs.values().sum()))
}

/// Values of descriptors by their ids, each once.
fn fdinfo(pid: u32, id: &str, value: &str) -> anyhow::Result<BTreeMap<u64, u64>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let field = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.trim().parse::<u64>().ok());
        found.extend(field(id).zip(field(value)));
    }
    Ok(found)
}

/// A process by its command name.
pub fn pid_named(name: &str) -> Option<u32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let found = fs::read_to_string(entry.path().join("comm")).ok()?;
        (found.trim() == name).then_some(pid)
    })
}

/// Blocks that a folder takes, bytes, as du(1) counts them.
pub fn disk_bytes(path: &Path) -> anyhow::Result<u64> {
    let metadata = fs::symlink_metadata(path)?;
    let mut sum = metadata.blocks() * 512;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            sum += disk_bytes(&entry?.path())?;
        }
    }
    Ok(sum)
}

/// Processes and threads that this machine made since it started.
pub fn forks() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().find_map(|l| l.strip_prefix("processes ")).context("no count of processes")?;
    Ok(line.trim().parse()?)
}

/// Load average of the last minute: what else ran while something was measured.
pub fn load_average() -> String {
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split(' ').next().map(str::to_owned))
        .unwrap_or_default()
}

/// Sets of kernel programs that collectors of earlier runs left attached: they take part in every exec.
pub fn pinned_sets() -> usize {
    let sets = |dir: fs::DirEntry| fs::read_dir(dir.path()).map_or(0, |sets| sets.flatten().count());
    fs::read_dir("/sys/fs/bpf/activity").map_or(0, |dirs| dirs.flatten().map(sets).sum())
}

/// The value below which `percent` of all lie; sorts them. Zero for none.
pub fn percentile(values: &mut [Duration], percent: usize) -> Duration {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or_default()
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
