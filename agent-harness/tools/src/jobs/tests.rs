//! Real jobs: read, written to, stopped, and gone with all they started.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;
use crate::ownership::Ownership;
use crate::shell::ShellConfig;

struct Open;

impl ScopeGate for Open {
    async fn before_exec(&mut self, _pid: u32) -> Join {
        Join::Registered
    }
}

fn shell(dir: &Path) -> ShellTool {
    ShellTool::new(ShellConfig::new(dir.to_owned(), Arc::new(Ownership::of_library())))
}

async fn start(jobs: &Arc<Jobs>, shell: &ShellTool, command: &str) -> Result<JobId, JobError> {
    let command = shell.parse(&json!({"command": command})).unwrap();
    Ok(jobs.start(shell, &command, &[], &mut Open).await?.0)
}

fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|fields| !fields.is_empty() && !fields.starts_with(" Z"))
}

async fn ended(notes: &mut mpsc::UnboundedReceiver<JobNote>) -> (JobId, Option<i32>, Termination) {
    loop {
        match timeout(Duration::from_secs(20), notes.recv()).await.unwrap().unwrap() {
            JobNote::Ended { job, exit_code, termination, .. } => return (job, exit_code, termination),
            JobNote::Started { .. } => {}
        }
    }
}

#[tokio::test]
async fn a_job_is_listed_read_and_written_to() {
    let dir = TempDir::new().unwrap();
    let (shell, (jobs, mut notes)) = (shell(dir.path()), Jobs::new());
    let job = start(&jobs, &shell, "read line; echo got $line; read line; exit 7").await.unwrap();
    assert!(matches!(jobs.list()[..], [JobStatus { state: JobState::Running, .. }]));
    jobs.write(job, "hello\n").await.unwrap();
    while jobs.read(job).unwrap().1 != "got hello\n" {
        sleep(Duration::from_millis(5)).await;
    }
    jobs.write(job, "\n").await.unwrap();
    assert_eq!(ended(&mut notes).await, (job, Some(7), Termination::ByItself));
    assert!(matches!(jobs.write(job, "more").await, Err(JobError::HasEnded(_))));
    assert_eq!(jobs.read(job).unwrap().1, "got hello\n");
    assert!(matches!(jobs.read(JobId(9)), Err(JobError::Unknown(JobId(9)))));
}

#[tokio::test]
async fn a_stopped_job_goes_with_its_whole_tree() {
    let dir = TempDir::new().unwrap();
    let (shell, (jobs, mut notes)) = (shell(dir.path()), Jobs::new());
    let tree = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > strayed; while :; do sleep 0.1; done' & \
                while :; do sleep 0.1; done";
    let job = start(&jobs, &shell, tree).await.unwrap();
    let strayed = dir.path().join("strayed");
    while !std::fs::read_to_string(&strayed).is_ok_and(|pid| !pid.is_empty()) {
        sleep(Duration::from_millis(5)).await;
    }
    jobs.stop(job).unwrap();
    assert_eq!(ended(&mut notes).await, (job, None, Termination::Forced));
    assert!(!alive(std::fs::read_to_string(&strayed).unwrap().trim()));
}

#[tokio::test]
async fn sixteen_jobs_run_at_one_time() {
    let dir = TempDir::new().unwrap();
    let (shell, (jobs, mut notes)) = (shell(dir.path()), Jobs::new());
    for _ in 0..16 {
        start(&jobs, &shell, "sleep 600").await.unwrap();
    }
    assert!(matches!(start(&jobs, &shell, "sleep 600").await, Err(JobError::Full)));
    jobs.stop_all();
    for _ in 0..16 {
        // On a busy machine 50 ms may be too short for sixteen to go by themselves.
        let termination = ended(&mut notes).await.2;
        assert!(matches!(termination, Termination::Cooperative | Termination::Forced), "{termination:?}");
    }
    assert_eq!(jobs.running(), 0);
}
