//! What it costs to record execs at full speed: the collector, and auditd writing the same execs to its log.
//!
//! Counted is the CPU time of the daemons (and of kauditd). What both do inside the system calls of the load is in
//! `exec_latency`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::figure::{Figure, Peer};
use super::{host, watched};
use crate::lab::{Daemon, Lab, run as run_command};

pub const NAMES: &[&str] = &["exec_cpu", "exec_cpu_auditd", "exec_lost"];
const EXECS: u32 = 20_000;
const UNIT: &str = "CPU-s/10,000 execs";
const BUDGET_S: f64 = 0.25;

struct Cost {
    cpu: Duration,
    /// Time of the load.
    wall: Duration,
    recorded: u64,
    /// Processes and threads that others made meanwhile; they were recorded too.
    foreign: u64,
}

pub fn run() -> anyhow::Result<Vec<Figure>> {
    let audited = with_auditd();
    let own = with_collector()?;
    let (own_value, lost) = (own.per_ten_thousand(), u64::from(EXECS).saturating_sub(own.recorded));
    let (auditd, peer) = match audited {
        Ok(cost) => {
            let value = cost.per_ten_thousand();
            let note = cost.note();
            let peer = Peer { name: "auditd", value };
            (Figure::new(NAMES[1], value, UNIT, None).with_note(note), Some(peer))
        }
        Err(error) => (Figure::skipped(NAMES[1], &format!("{error:#}")), Peer::budget(BUDGET_S)),
    };
    let lost = f64::from(u32::try_from(lost)?);
    Ok(vec![
        Figure::new(NAMES[0], own_value, UNIT, peer).with_note(own.note()),
        auditd,
        Figure::new(NAMES[2], lost, "execs", None),
    ])
}

impl Cost {
    fn per_ten_thousand(&self) -> f64 {
        self.cpu.as_secs_f64() * 10_000.0 / f64::from(EXECS)
    }

    fn note(&self) -> String {
        format!(
            "{EXECS} execs in {:.1} s, {} of them recorded; {} other processes or threads meanwhile; load average {}",
            self.wall.as_secs_f64(),
            self.recorded,
            self.foreign,
            host::load_average()
        )
    }
}

fn with_collector() -> anyhow::Result<Cost> {
    let mut lab = watched::enrolled()?;
    let pid = watched::start_collector(&mut lab)?;
    let (stored, forks) = (watched::counter(&lab, "events_stored")?, host::forks()?);
    let cpu = host::cpu_time(pid)?;
    let wall = watched::storm(EXECS)?;
    // An exec and an exit each; the fork before an exec is kept in the process table and told with it. Events of
    // others are counted too, so that the execs themselves decide.
    let least = stored + 2 * u64::from(EXECS);
    let arrived = |lab: &Lab| {
        let counted = watched::counter(lab, "events_stored")? >= least;
        Ok(counted && watched::recorded_execs(lab)? as u64 >= u64::from(EXECS))
    };
    let arrived = lab.wait_for("all execs at the gateway", arrived);
    let cpu = host::cpu_time(pid)?.saturating_sub(cpu);
    let foreign = (host::forks()? - forks).saturating_sub(u64::from(EXECS));
    let recorded = match arrived {
        Ok(()) => u64::from(EXECS),
        Err(_) => watched::recorded_execs(&lab)? as u64,
    };
    Ok(Cost { cpu, wall, recorded, foreign })
}

fn with_auditd() -> anyhow::Result<Cost> {
    let lab = Lab::new(None)?;
    let audit = Audit::start(&lab)?;
    let kernel = host::pid_named("kauditd").context("no kauditd: the kernel was built without audit")?;
    let used = || Ok::<_, anyhow::Error>(host::cpu_time(audit.pid)? + host::cpu_time(kernel)?);
    let (cpu, forks) = (used()?, host::forks()?);
    let wall = watched::storm(EXECS)?;
    let recorded = || -> anyhow::Result<u64> {
        let log = std::fs::read(lab.path("audit/audit.log"))?;
        let lines = log.split(|b| *b == b'\n');
        let wanted = lines.filter(|l| l.starts_with(b"type=SYSCALL") && find(l, b"exe=\"/usr/bin/true\""));
        Ok(wanted.filter(|l| find(l, b"syscall=59 ")).count() as u64)
    };
    let arrived = lab.wait_for("all execs in the audit log", |_| Ok(recorded()? >= u64::from(EXECS)));
    let cpu = used()?.saturating_sub(cpu);
    let foreign = (host::forks()? - forks).saturating_sub(u64::from(EXECS));
    let recorded = recorded()?;
    ensure!(
        recorded > 0,
        "auditd wrote nothing: {:#}",
        arrived.err().unwrap_or_else(|| anyhow::anyhow!("?"))
    );
    Ok(Cost { cpu, wall, recorded, foreign })
}

fn find(line: &[u8], text: &[u8]) -> bool {
    line.windows(text.len()).any(|w| w == text)
}

/// An audit daemon of its own, with rules for execve and exit; both end with this.
struct Audit {
    pid: u32,
    daemon: Option<Daemon>,
}

/// The audit daemon that lives and that the kernel knows: it remembers one that was killed.
fn registered(status: &str) -> Option<u32> {
    let pid = status.lines().find_map(|line| line.strip_prefix("pid ")?.parse().ok())?;
    Path::new(&format!("/proc/{pid}/stat")).exists().then_some(pid)
}

impl Audit {
    fn start(lab: &Lab) -> anyhow::Result<Self> {
        let status = run_command(Command::new("auditctl").arg("-s"))
            .context("auditd is not installed here (apt-get install auditd)")?;
        ensure!(registered(&status).is_none(), "an audit daemon runs already; it is left alone");
        let rules = run_command(Command::new("auditctl").arg("-l"))?;
        ensure!(rules.starts_with("No rules"), "audit rules are set already; they are left alone");
        let dir = lab.path("audit");
        std::fs::create_dir(&dir)?;
        // Debian's own configuration but for the place, and room for one log.
        let config = format!(
            "log_file = {}\nlog_format = ENRICHED\nflush = INCREMENTAL_ASYNC\nfreq = 50\nmax_log_file = 1000\n\
             max_log_file_action = IGNORE\nwrite_logs = yes\nlocal_events = yes\npriority_boost = 4\n\
             space_left = 75\nspace_left_action = IGNORE\nadmin_space_left = 50\nadmin_space_left_action = IGNORE\n\
             disk_full_action = IGNORE\ndisk_error_action = IGNORE\nq_depth = 2000\noverflow_action = IGNORE\n",
            dir.join("audit.log").display()
        );
        std::fs::write(dir.join("auditd.conf"), config)?;
        let mut command = Command::new("auditd");
        command.arg("-n").arg("-c").arg(&dir);
        let daemon = Daemon::start(command, &lab.path("auditd.log"))?;
        let audit = Audit { pid: daemon.pid(), daemon: Some(daemon) };
        lab.wait_for("auditd", |_| {
            let status = run_command(Command::new("auditctl").arg("-s"))?;
            Ok(registered(&status) == Some(audit.pid))
        })?;
        run_command(Command::new("auditctl").args(["-b", "65536"]))?;
        let calls = ["-a", "always,exit", "-F", "arch=b64", "-S", "execve,execveat,exit_group"];
        run_command(Command::new("auditctl").args(calls))?;
        Ok(audit)
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        for arguments in [["-D"].as_slice(), &["-e", "0"], &["-b", "64"]] {
            let _ = Command::new("auditctl").args(arguments).output();
        }
        let _ = self.daemon.take().map(Daemon::stop);
    }
}
