//! `iteron exec`: one prompt, and the end of its session.

use std::io::Read as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use iteron_protocol::{
    Acknowledgement, ClientSubmissionId, ControlOp, Operation, Outcome, PROMPT_BYTES_MAX, SubmissionEnvelope,
    SubmissionState,
};
use iteron_runtime::{Session, Submitter};
use tokio::sync::mpsc;

use crate::arguments::ExecArguments;
use crate::print::Printer;
use crate::setup::{self, Setup};
use crate::signals::Signals;

/// At the end, for output that is not read yet.
const PRINT_WAIT: Duration = Duration::from_secs(1);

pub fn run(arguments: ExecArguments) -> ExitCode {
    setup::run(|| prepare(arguments), exec)
}

struct Prepared {
    setup: Setup,
    prompt: String,
    json: bool,
}

/// Everything that can be wrong before anything is asked.
fn prepare(arguments: ExecArguments) -> anyhow::Result<Prepared> {
    let ExecArguments { prompt, json, session } = arguments;
    let prompt = read_prompt(&prompt)?;
    Ok(Prepared { setup: Setup::prepare(session)?, prompt, json })
}

async fn exec(prepared: Prepared, ownership: setup::Owner) -> anyhow::Result<Outcome> {
    let Prepared { setup, prompt, json } = prepared;
    let signals = Signals::listen().context("cannot listen for signals")?;
    let Session { submitter, output, acknowledgements, ended } = setup.start(ownership).await?;
    let printer = Printer::new(json, submitter.clone());
    let printing = tokio::task::spawn_blocking(move || printer.print_all(output));
    tokio::spawn(signals.submit_to(submitter.clone()));
    tokio::spawn(submit_once(submitter, acknowledgements, prompt));
    let outcome = ended.await.context("the session failed inside the harness")?;
    // Somebody who does not read the output must not hold the exit.
    let _ = tokio::time::timeout(PRINT_WAIT, printing).await;
    Ok(outcome)
}

/// Submits the one prompt, and once the session has it, that there will be no other.
async fn submit_once(
    submitter: Submitter,
    mut acknowledgements: mpsc::Receiver<Acknowledgement>,
    prompt: String,
) {
    let id = ClientSubmissionId::fresh();
    let envelope = SubmissionEnvelope::new(id.clone(), Operation::Prompt(prompt));
    // Fails only when the session has ended already, which its outcome says.
    let _ = submitter.submit(envelope);
    while let Some(Acknowledgement { submission_id, state, .. }) = acknowledgements.recv().await {
        if submission_id == id && state == SubmissionState::Received {
            let _ = submitter.control(ControlOp::QuitFrontend);
        }
    }
}

fn read_prompt(argument: &str) -> anyhow::Result<String> {
    let mut prompt = argument.to_owned();
    if argument == "-" {
        prompt.clear();
        let limit = u64::try_from(PROMPT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
        let mut stdin = std::io::stdin().lock().take(limit);
        stdin.read_to_string(&mut prompt).context("cannot read the task from standard input")?;
    }
    if prompt.len() > PROMPT_BYTES_MAX {
        bail!("the task has more than {PROMPT_BYTES_MAX} bytes");
    }
    if prompt.trim().is_empty() {
        bail!("the task is empty");
    }
    Ok(prompt)
}
