//! A daemon under test.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Killed when dropped.
pub struct Daemon(Child);

impl Daemon {
    /// Starts it with both outputs appended to a log.
    pub fn start(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Daemon(command.spawn().with_context(|| format!("cannot start {command:?}"))?))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// SIGTERM and wait; SIGKILL after twenty seconds.
    pub fn stop(mut self) -> anyhow::Result<ExitStatus> {
        kill(Pid::from_raw(i32::try_from(self.0.id())?), Signal::SIGTERM)?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill()?;
        Ok(self.0.wait()?)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
