//! What every front end needs: a session put together, run by a program that owns its processes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use iteron_lifecycle::{Correlation, Lifecycle, LifecycleConfig};
use iteron_protocol::{Outcome, Rule, SessionId, ToolClass};
use iteron_provider::Provider;
use iteron_record::HeadKey;
use iteron_runtime::{Session, SessionConfig, SessionParts, SessionRecord};
use iteron_tools::{FileTools, Ownership, Sandbox, SandboxConfig, ShellConfig, ShellTool, Toolbox};

use crate::arguments::SessionArguments;
use crate::model::KEY_VARIABLES;
use crate::policy::{self, Mode, Policy};
use crate::print::note;

/// One that waits for a disk or a tool does not hold up the one that hears.
const WORKERS: usize = 2;

pub type Owner = Arc<Ownership>;

/// Runs a front end: `prepare` finds out everything that can be wrong, then `front` runs the session.
pub fn run<P, F>(prepare: impl FnOnce() -> anyhow::Result<P>, front: impl FnOnce(P, Owner) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<Outcome>>,
{
    protect_key();
    match prepare().and_then(|prepared| own_and_run(prepared, front)) {
        Ok(outcome) => ExitCode::from(exit_code(outcome)),
        Err(error) => {
            note(&format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Nothing here may start a thread before the ownership is made.
fn own_and_run<P, F>(prepared: P, front: impl FnOnce(P, Owner) -> F) -> anyhow::Result<Outcome>
where
    F: Future<Output = anyhow::Result<Outcome>>,
{
    let ownership = Arc::new(Ownership::of_program().context("cannot own the processes of tools")?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let outcome = front(prepared, Arc::clone(&ownership)).await?;
        if outcome == Outcome::Interrupted && !ownership.end_everything().await {
            note("some processes of the session could not be killed");
        }
        Ok(outcome)
    });
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

/// A session that is ready to be started.
pub struct Setup {
    arguments: SessionArguments,
    session: SessionId,
    cwd: PathBuf,
    files: FileTools,
    policy: Policy,
    sandbox: Option<Arc<Sandbox>>,
    model: String,
    provider: Provider,
}

impl Setup {
    /// Everything that can be wrong before anything is asked. Starts no thread.
    pub fn prepare(arguments: SessionArguments) -> anyhow::Result<Self> {
        let policy = policy::policy(&arguments.policy)?;
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
        Ok(Self { arguments, session, cwd, files, policy, sandbox, model, provider })
    }

    /// The session's and the agent's id.
    pub fn ids(&self) -> (SessionId, iteron_protocol::AgentId) {
        (self.session.clone(), self.arguments.agent.clone())
    }

    /// Opens the record, connects to the collector, and starts the session.
    pub async fn start(self, ownership: Owner) -> anyhow::Result<Session> {
        let Self { arguments, session, cwd, files, policy, sandbox, model, provider } = self;
        let record = open_record(&arguments, &session)?;
        let lifecycle = connect(&arguments, &session).await;
        let mut shell = ShellConfig::new(cwd.clone(), ownership);
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
        Ok(Session::start(config, parts))
    }
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

fn open_record(arguments: &SessionArguments, session: &SessionId) -> anyhow::Result<Option<SessionRecord>> {
    let Some(dir) = &arguments.record else { return Ok(None) };
    let key = match &arguments.signing_key {
        Some(path) => HeadKey::read(path)?,
        // The key is in this memory and nowhere else; commands cannot look there.
        None => HeadKey::from_seed(rand::random()),
    };
    note(&format!("the heads of the record are signed by {}", key.public()));
    let record = SessionRecord::open(dir, session, key)?;
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
async fn connect(arguments: &SessionArguments, session: &SessionId) -> Option<Lifecycle> {
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
