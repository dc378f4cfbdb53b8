//! A gateway and an enrolled collector with the collector's own intervals, and execs for it to see.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::wait::waitpid;

use super::operator::Operator;
use crate::lab::{Daemon, HOST, INSTANCE, Lab, TENANT, binary};

/// A gateway, and a collector's enrolment with it.
pub fn enrolled() -> anyhow::Result<Lab> {
    let mut lab = Lab::new(None)?;
    lab.init_gateway()?;
    lab.enrol()?;
    Ok(lab)
}

/// Starts the collector; it observes when this returns. Its kernel programs end when it is stopped, or with the lab.
pub fn start_collector(lab: &mut Lab) -> anyhow::Result<u32> {
    const SETTLE: Duration = Duration::from_secs(2);
    let path = lab.path("bench.toml");
    let text = format!(
        "state_dir = {:?}\nagent_socket = {:?}\ntenant = {TENANT:?}\nhost_id = {HOST:?}\n\
         instance_id = {INSTANCE:?}\ncollector_id = {:?}\n",
        lab.path("collector"),
        lab.agent_socket(),
        lab.collector_id(),
    );
    std::fs::write(&path, text)?;
    let mut command = binary("activity-collector")?;
    command.arg("run").arg("--config").arg(path);
    lab.collector = Some(Daemon::start(command, &lab.path("collector.log"))?);
    lab.wait_for("the collector's socket", |lab| Ok(lab.agent_socket().exists()))?;
    // What it does once, at its start, is not measured.
    std::thread::sleep(SETTLE);
    Ok(lab.collector.as_ref().context("no collector")?.pid())
}

/// Makes processes that execute `/bin/true`.
pub struct Execs {
    actions: PosixSpawnFileActions,
    attributes: PosixSpawnAttr,
}

impl Execs {
    pub fn new() -> anyhow::Result<Self> {
        Ok(Execs { actions: PosixSpawnFileActions::init()?, attributes: PosixSpawnAttr::init()? })
    }

    /// vfork, exec and wait, as glibc's posix_spawn(3) does it; the time it took.
    pub fn once(&self) -> anyhow::Result<Duration> {
        const NO_ENVIRONMENT: &[&CStr] = &[];
        let start = Instant::now();
        let pid = posix_spawn(c"/bin/true", &self.actions, &self.attributes, &[c"true"], NO_ENVIRONMENT)?;
        waitpid(pid, None)?;
        Ok(start.elapsed())
    }
}

/// Execs at full speed on all cores; the time they took.
pub fn storm(execs: u32) -> anyhow::Result<Duration> {
    let cores = u32::try_from(std::thread::available_parallelism()?.get())?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            let maker = Execs::new()?;
            (0..execs / cores).try_for_each(|_| maker.once().map(drop))
        };
        let makers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        makers.into_iter().try_for_each(|m| m.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
    })?;
    Ok(start.elapsed())
}

/// Execs at an even pace; those that were due and not made in time are made at once.
pub fn paced(per_second: u32, time: Duration) -> anyhow::Result<u32> {
    let maker = Execs::new()?;
    let start = Instant::now();
    let mut made = 0;
    while start.elapsed() < time {
        maker.once()?;
        made += 1;
        let due = Duration::from_secs(1) * made / per_second;
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    Ok(made)
}

/// A counter of the gateway's store, from outside of a runtime.
pub fn counter(lab: &Lab, name: &str) -> anyhow::Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(Operator::of(lab).counter(name))
}

/// `process.exec` of [`Execs`] that the gateway has.
pub fn recorded_execs(lab: &Lab) -> anyhow::Result<usize> {
    Ok(lab.events(&["--event", "process.exec", "--executable", "true"])?.len())
}
