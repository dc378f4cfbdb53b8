//! The `job` tool: what the model may do with background jobs.

use std::time::Duration;

use iteron_protocol::JobId;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::jobs::{JobError, Jobs};

/// Longest wait before a job is read.
const WAIT_MS_MAX: u64 = 60_000;

/// The tool's input as the model gives it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum JobRequest {
    List,
    Read {
        job: JobId,
        #[serde(default)]
        wait_ms: u64,
    },
    Write {
        job: JobId,
        text: String,
    },
    Stop {
        job: JobId,
    },
}

impl JobRequest {
    pub const NAME: &'static str = "job";
    pub const DESCRIPTION: &'static str = "Lists background jobs, reads the output of one (after \
        waiting wait_ms, if given), writes text to its standard input, or stops it with all its \
        processes.";

    #[must_use]
    pub fn input_schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["list", "read", "write", "stop"]},
                "job": {"type": "integer", "minimum": 1},
                "wait_ms": {"type": "integer", "minimum": 0, "maximum": WAIT_MS_MAX},
                "text": {"type": "string"},
            },
            "required": ["action"],
            "additionalProperties": false,
        })
    }

    /// Does what was asked, and gives what the model is told. Dropped, it has done it or not.
    pub async fn carry_out(&self, jobs: &Jobs) -> Result<String, JobError> {
        match self {
            Self::List => Ok(json!(jobs.list()).to_string()),
            Self::Read { job, wait_ms } => {
                sleep(Duration::from_millis((*wait_ms).min(WAIT_MS_MAX))).await;
                let (status, output) = jobs.read(*job)?;
                Ok(format!("{}\n{output}", json!(status)))
            }
            Self::Write { job, text } => jobs.write(*job, text).await.map(|()| "written".to_owned()),
            Self::Stop { job } => jobs.stop(*job).map(|()| "told to stop".to_owned()),
        }
    }
}
