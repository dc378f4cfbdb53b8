//! `iteron exec`: puts a session together and runs it.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use iteron_lifecycle::{Correlation, Lifecycle, LifecycleConfig};
use iteron_protocol::{
    Acknowledgement, ClientSubmissionId, ControlOp, Operation, Outcome, PROMPT_BYTES_MAX, Rule, SessionId,
    SubmissionEnvelope, SubmissionState, ToolClass,
};
use iteron_provider::Provider;
use iteron_runtime::{Session, SessionConfig, SessionParts, SessionRecord, Submitter};
use iteron_tools::{FileTools, Ownership, Sandbox, SandboxConfig, ShellConfig, ShellTool, Toolbox};
use tokio::sync::mpsc;

use crate::arguments::ExecArguments;
use crate::model::KEY_VARIABLES;
use crate::policy::{self, Mode, Policy};
use crate::print::{Printer, note};
use crate::signals::Signals;

/// At the end, for output that is not read yet.
const PRINT_WAIT: Duration = Duration::from_secs(1);
/// One that waits for a disk or a tool does not hold up the one that hears.
const WORKERS: usize = 2;

pub fn run(arguments: ExecArguments) -> ExitCode {
    protect_key();
    match prepare(arguments).and_then(start) {
        Ok(outcome) => ExitCode::from(exit_code(outcome)),
        Err(error) => {
            note(&format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Nothing here may start a thread before the ownership is made.
fn start(prepared: Prepared) -> anyhow::Result<Outcome> {
    let ownership = Arc::new(Ownership::of_program().context("cannot own the processes of tools")?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let outcome = runtime.block_on(exec(prepared, Arc::clone(&ownership)));
    // A thread that waits in a system call must not hold the exit.
    runtime.shutdown_background();
    ownership.release();
    outcome
}

/// As documented in the help.
const fn exit_code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Completed => 0,
        Outcome::TaskFailed { .. } | Outcome::HarnessFailed => 1,
        Outcome::ProviderFailed { .. } => 3,
        Outcome::Interrupted => 130,
    }
}

/// Keeps the commands that the agent runs, which have our user id, from reading our memory and
/// environment through `/proc` (proc(5), `PR_SET_DUMPABLE`).
fn protect_key() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "cannot hide this process from the commands it runs");
    }
}

struct Prepared {
    arguments: ExecArguments,
    session: SessionId,
    prompt: String,
    cwd: PathBuf,
    files: FileTools,
    policy: Policy,
    sandbox: Option<Arc<Sandbox>>,
    model: String,
    provider: Provider,
}

/// Everything that can be wrong before anything is asked.
fn prepare(arguments: ExecArguments) -> anyhow::Result<Prepared> {
    let policy = policy::policy(&arguments.policy)?;
    let prompt = read_prompt(&arguments.prompt)?;
    let (model, provider) = arguments.model.provider()?;
    let cwd = match &arguments.cwd {
        Some(cwd) => cwd.canonicalize().with_context(|| format!("cannot work in {}", cwd.display()))?,
        None => std::env::current_dir().context("the current directory is gone; use --cwd")?,
    };
    if !cwd.is_dir() {
        bail!("{} is no directory", cwd.display());
    }
    let files = FileTools::open(&cwd).with_context(|| format!("cannot work in {}", cwd.display()))?;
    let sandbox = prepare_sandbox(&policy, &cwd)?;
    let session = arguments.session.clone().unwrap_or_else(SessionId::fresh);
    Ok(Prepared { arguments, session, prompt, cwd, files, policy, sandbox, model, provider })
}

/// The walls around commands, where they are asked for. A machine that cannot have them runs nothing.
fn prepare_sandbox(policy: &Policy, cwd: &Path) -> anyhow::Result<Option<Arc<Sandbox>>> {
    if policy.sandbox == Mode::Off {
        return Ok(None);
    }
    let sandbox = Sandbox::prepare(&SandboxConfig {
        workspace: cwd.to_owned(),
        write_workspace: policy.permissions.decide(ToolClass::Write).allows(),
        writable: policy.writable.clone(),
    });
    let sandbox = sandbox.context("the sandbox is unsupported here")?;
    for (wall, why) in sandbox.state().unsupported() {
        note(&format!("the sandbox lacks {}: {why}", wall.as_str()));
    }
    Ok(Some(Arc::new(sandbox)))
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

async fn exec(prepared: Prepared, ownership: Arc<Ownership>) -> anyhow::Result<Outcome> {
    let Prepared { arguments, session, prompt, cwd, files, policy, sandbox, model, provider } = prepared;
    let signals = Signals::listen().context("cannot listen for signals")?;
    let record = open_record(&arguments, &session)?;
    let lifecycle = connect(&arguments, &session).await;

    let mut shell = ShellConfig::new(cwd.clone(), Arc::clone(&ownership));
    shell.hidden_variables = KEY_VARIABLES.map(str::to_owned).to_vec();
    shell.offers_network = policy.permissions.network != Rule::Deny;
    shell.sandbox = sandbox;
    let config = SessionConfig {
        session_id: session,
        agent_id: arguments.agent,
        model,
        max_tokens: arguments.model.max_tokens,
        turns_max: arguments.max_turns,
        cwd,
        permissions: policy.permissions,
        resume: arguments.resume,
    };
    let parts = SessionParts {
        provider,
        tools: Toolbox { shell: ShellTool::new(shell), files },
        record,
        lifecycle,
        clock: || jiff::Timestamp::now().as_millisecond(),
    };
    let Session { submitter, output, acknowledgements, ended } = Session::start(config, parts);
    let printer = Printer::new(arguments.json, submitter.clone());
    let printing = tokio::task::spawn_blocking(move || printer.print_all(output));
    tokio::spawn(signals.submit_to(submitter.clone()));
    tokio::spawn(submit_once(submitter, acknowledgements, prompt));
    let outcome = ended.await.context("the session failed inside the harness")?;
    // Somebody who does not read the output must not hold the exit.
    let _ = tokio::time::timeout(PRINT_WAIT, printing).await;
    if outcome == Outcome::Interrupted && !ownership.end_everything().await {
        note("some processes of the session could not be killed");
    }
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

fn open_record(arguments: &ExecArguments, session: &SessionId) -> anyhow::Result<Option<SessionRecord>> {
    let Some(dir) = &arguments.record else { return Ok(None) };
    let record = SessionRecord::open(dir, session)?;
    let path = record.path().display();
    if record.torn_bytes > 0 {
        note(&format!("{path}: {} bytes of a torn entry were cut off", record.torn_bytes));
    }
    if arguments.resume {
        if record.past.is_empty() {
            bail!("{path} holds nothing that could be resumed");
        }
        if let Some(fault) = record.past.fault() {
            bail!("the conversation in {path} cannot be resumed: {fault}");
        }
    }
    Ok(Some(record))
}

/// Connects to the collector, or says in one line that effects are unobserved.
async fn connect(arguments: &ExecArguments, session: &SessionId) -> Option<Lifecycle> {
    let Some(socket) = arguments.collector_socket.clone().filter(|path| !path.as_os_str().is_empty()) else {
        note("effects are unobserved: no collector socket was given");
        return None;
    };
    let correlation = Correlation {
        agent_id: arguments.agent.clone(),
        session_id: session.clone(),
        mission_id: arguments.mission.clone(),
        task_id: arguments.task.clone(),
        tool_call_id: None,
    };
    match Lifecycle::connect(LifecycleConfig { socket, correlation }).await {
        Ok(lifecycle) => Some(lifecycle),
        Err(error) => {
            note(&format!("effects are unobserved: {error}"));
            None
        }
    }
}
