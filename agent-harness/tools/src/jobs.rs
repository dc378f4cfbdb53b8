//! Background jobs: commands that a session owns beyond the call that started them. They can be
//! listed, read, written to and stopped, and end with the session at the latest.

use std::collections::BTreeMap;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iteron_protocol::{JobId, Join, Reaped, Termination};
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::gate::{ScopeGate, SpawnError};
use crate::output::BoundedOutput;
use crate::running::{Ended, Launch, Running, StopLevel, raised};
use crate::shell::{ShellCommand, ShellTool};

/// Jobs that run at one time.
pub const JOBS_MAX: usize = 16;
/// Ended jobs whose output can still be read; the oldest is forgotten first.
const ENDED_MAX: usize = 64;
/// Longest wait for a job to take its input.
const WRITE_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("{JOBS_MAX} jobs run already; stop one")]
    Full,
    #[error("there is no job {0}")]
    Unknown(JobId),
    #[error("job {0} has ended")]
    HasEnded(JobId),
    #[error("the job does not take its input")]
    Blocked,
    #[error("the job's input is closed")]
    Closed(#[source] io::Error),
    #[error(transparent)]
    NotStarted(#[from] SpawnError),
}

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JobState {
    Running,
    Ended {
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        termination: Termination,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobStatus {
    pub job: JobId,
    pub command: String,
    #[serde(flatten)]
    pub state: JobState,
    pub output_bytes: u64,
}

/// What whoever owns the session must know of its jobs. Every `Started` is followed by one `Ended`.
#[derive(Debug)]
pub enum JobNote {
    Started { job: JobId },
    Ended { job: JobId, exit_code: Option<i32>, termination: Termination, reaped: Vec<Reaped> },
}

/// The jobs of one session.
#[derive(Debug)]
pub struct Jobs {
    table: Mutex<Table>,
    notes: mpsc::UnboundedSender<JobNote>,
}

#[derive(Debug, Default)]
struct Table {
    last: u32,
    jobs: BTreeMap<JobId, Job>,
}

#[derive(Debug)]
struct Job {
    command: String,
    state: JobState,
    stop: watch::Sender<StopLevel>,
    output: Arc<Mutex<BoundedOutput>>,
    input: Arc<tokio::sync::Mutex<pipe::Sender>>,
}

impl Jobs {
    /// No jobs yet, and where their notes come. At most two notes wait for each job that was started.
    #[must_use]
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<JobNote>) {
        let (notes, noted) = mpsc::unbounded_channel();
        (Arc::new(Self { table: Mutex::default(), notes }), noted)
    }

    /// Starts a command as a job.
    pub async fn start(
        self: &Arc<Self>,
        shell: &ShellTool,
        command: &ShellCommand,
        variables: &[(&str, String)],
        gate: &mut impl ScopeGate,
    ) -> Result<(JobId, Join), JobError> {
        if self.running() >= JOBS_MAX {
            return Err(JobError::Full);
        }
        let (reader, writer) = io::pipe().map_err(SpawnError::Gate)?;
        let input = pipe::Sender::from_owned_fd(writer.into()).map_err(SpawnError::Gate)?;
        let launch = Launch { stdin: Stdio::from(reader), ..shell.launch(command, variables) };
        let running = Running::start(launch, shell.ownership(), gate).await?;
        let (stop, stopped) = watch::channel(StopLevel::Run);
        let job = Job {
            command: command.command.clone(),
            state: JobState::Running,
            stop,
            output: running.output(),
            input: Arc::new(tokio::sync::Mutex::new(input)),
        };
        let join = running.join;
        let id = {
            let mut table = self.table();
            table.last += 1;
            let id = JobId(table.last);
            table.jobs.insert(id, job);
            id
        };
        let _ = self.notes.send(JobNote::Started { job: id });
        tokio::spawn(Arc::clone(self).see_to_its_end(id, running, stopped));
        Ok((id, join))
    }

    #[must_use]
    pub fn list(&self) -> Vec<JobStatus> {
        self.table().jobs.iter().map(|(id, job)| job.status(*id)).collect()
    }

    /// A job's output so far, bounded like that of any command, and what it is doing.
    pub fn read(&self, id: JobId) -> Result<(JobStatus, String), JobError> {
        let table = self.table();
        let job = table.jobs.get(&id).ok_or(JobError::Unknown(id))?;
        let text = job.output.lock().unwrap_or_else(PoisonError::into_inner).render();
        Ok((job.status(id), text))
    }

    /// Writes to a job's standard input.
    pub async fn write(&self, id: JobId, text: &str) -> Result<(), JobError> {
        let input = {
            let table = self.table();
            let job = table.jobs.get(&id).ok_or(JobError::Unknown(id))?;
            if job.state != JobState::Running {
                return Err(JobError::HasEnded(id));
            }
            Arc::clone(&job.input)
        };
        let write = async { input.lock().await.write_all(text.as_bytes()).await };
        match timeout(WRITE_WAIT, write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(JobError::Closed(error)),
            Err(_) => Err(JobError::Blocked),
        }
    }

    /// Asks a job to end: TERM, a moment, KILL. Its end comes as a note.
    pub fn stop(&self, id: JobId) -> Result<(), JobError> {
        let table = self.table();
        table.jobs.get(&id).ok_or(JobError::Unknown(id))?.stop.send_replace(StopLevel::Graceful);
        Ok(())
    }

    pub fn stop_all(&self) {
        for job in self.table().jobs.values() {
            job.stop.send_replace(StopLevel::Graceful);
        }
    }

    #[must_use]
    pub fn running(&self) -> usize {
        self.table().jobs.values().filter(|job| job.state == JobState::Running).count()
    }

    async fn see_to_its_end(
        self: Arc<Self>,
        id: JobId,
        mut running: Running,
        mut stopped: watch::Receiver<StopLevel>,
    ) {
        let exited = tokio::select! {
            biased;
            status = running.exited() => Some(status),
            () = raised(&mut stopped, StopLevel::Graceful) => None,
        };
        let (exit_code, Ended { termination, reaped }) = match exited {
            // What it left behind goes with it: a job is its whole tree.
            Some(Ok(status)) => {
                let Ended { reaped, .. } = running.end(&mut stopped).await;
                (status.code(), Ended { termination: Termination::ByItself, reaped })
            }
            Some(Err(_)) => (None, Ended { termination: Termination::Unknown, reaped: Vec::new() }),
            None => (None, running.end(&mut stopped).await),
        };
        running.drained().await;
        let mut table = self.table();
        if let Some(job) = table.jobs.get_mut(&id) {
            job.state = JobState::Ended { exit_code, termination };
        }
        table.forget_oldest();
        // Under the lock: whoever sees that no job runs finds all notes sent.
        let _ = self.notes.send(JobNote::Ended { job: id, exit_code, termination, reaped });
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn forget_oldest(&mut self) {
        let ended = |job: &Job| job.state != JobState::Running;
        if self.jobs.values().filter(|job| ended(job)).count() > ENDED_MAX
            && let Some(oldest) = self.jobs.iter().find(|(_, job)| ended(job)).map(|(id, _)| *id)
        {
            self.jobs.remove(&oldest);
        }
    }
}

impl Job {
    fn status(&self, job: JobId) -> JobStatus {
        let output_bytes = self.output.lock().unwrap_or_else(PoisonError::into_inner).total_bytes();
        JobStatus { job, command: self.command.clone(), state: self.state, output_bytes }
    }
}

#[cfg(test)]
mod tests;
