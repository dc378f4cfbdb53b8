//! A session as its front end holds it: two ways in, two ways out, and an end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use iteron_context::Conversation;
use iteron_lifecycle::{Event, Lifecycle, ScopeKind};
use iteron_protocol::{
    Acknowledgement, ClientSubmissionId, ControlOp, Ledger, Operation, Outcome, OutputEvent,
    SubmissionEnvelope,
};
use iteron_provider::Provider;
use iteron_record::Entry;
use iteron_tools::{Jobs, Toolbox};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::actor::{Lanes, SessionActor};
use crate::agent::{Agent, SessionConfig};
use crate::evidence::{CLIENT_VERSION, Evidence, WallClock, session_outcome, session_payload};
use crate::past::SessionRecord;
use crate::prompt::system_prompt;

/// Longest wait for the session's own scope, as for a tool's.
const SCOPE_WAIT: Duration = Duration::from_millis(20);
/// Longest wait for `session.ended` to be taken before the scope closes.
const LAST_EVENT_WAIT: Duration = Duration::from_millis(50);
/// Longest wait at the end for calls of an abandoned run, whose processes may be unkillable.
const CALLS_WAIT: Duration = Duration::from_secs(3);

/// Prompts on their way to the actor; those that it took wait there.
const DATA_LANE: usize = 64;
/// Control operations on their way: more than people and programs have in mind at one time.
const CONTROL_LANE: usize = 64;
/// Events and acknowledgements that a front end has not read yet.
const OUTPUT_EVENTS: usize = 256;
const ACKNOWLEDGEMENTS: usize = 4096;

/// What a session works with.
pub struct SessionParts {
    pub provider: Provider,
    pub tools: Toolbox,
    pub record: Option<SessionRecord>,
    pub lifecycle: Option<Lifecycle>,
    pub clock: WallClock,
}

/// A way to submit. May be cloned: one for each front end.
#[derive(Debug, Clone)]
pub struct Submitter {
    control: mpsc::Sender<SubmissionEnvelope>,
    data: mpsc::Sender<SubmissionEnvelope>,
}

/// What came of handing over an envelope. Only what was taken is acknowledged.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubmitError {
    #[error("too many submissions are on their way; try again")]
    Full,
    #[error("the session has ended")]
    Ended,
}

impl Submitter {
    /// Hands an envelope over, by the lane of its kind. Waits for nothing.
    pub fn submit(&self, envelope: SubmissionEnvelope) -> Result<(), SubmitError> {
        let lane = match envelope.operation {
            Operation::Control(_) => &self.control,
            Operation::Prompt(_) => &self.data,
        };
        lane.try_send(envelope).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SubmitError::Full,
            mpsc::error::TrySendError::Closed(_) => SubmitError::Ended,
        })
    }

    /// Hands a control operation over under a fresh id.
    pub fn control(&self, op: ControlOp) -> Result<(), SubmitError> {
        self.submit(SubmissionEnvelope::new(ClientSubmissionId::fresh(), Operation::Control(op)))
    }
}

/// A running session.
pub struct Session {
    pub submitter: Submitter,
    /// What happens, ending with `session.ended`. A run goes at the pace at which this is read.
    pub output: mpsc::Receiver<OutputEvent>,
    /// What becomes of submissions.
    pub acknowledgements: mpsc::Receiver<Acknowledgement>,
    /// The session's end, after its last output.
    pub ended: JoinHandle<Outcome>,
}

impl Session {
    /// Starts a session as tasks of the current runtime. When every [`Submitter`] is gone, it drains.
    #[must_use]
    pub fn start(config: SessionConfig, parts: SessionParts) -> Self {
        let (control_in, control) = mpsc::channel(CONTROL_LANE);
        let (data_in, data) = mpsc::channel(DATA_LANE);
        let (output_in, output) = mpsc::channel(OUTPUT_EVENTS);
        let (acknowledge, acknowledgements) = mpsc::channel(ACKNOWLEDGEMENTS);
        let SessionParts { provider, tools, record, lifecycle, clock } = parts;
        let system = system_prompt(&config.cwd);
        let mut conversation = Conversation::new(&system);
        let mut ledger = Ledger::default();
        let (evidence, closing) = match record {
            None => (Evidence::new(None, lifecycle, clock, output_in), Vec::new()),
            Some(SessionRecord { record, syncer, key, torn_bytes, past }) => {
                let settled = past.settle();
                ledger = settled.ledger;
                if config.resume {
                    conversation = settled.conversation.with_system(system);
                }
                let torn = (torn_bytes > 0).then_some(Entry::Recovered { torn_bytes });
                let closing = torn.into_iter().chain(settled.entries).collect();
                (Evidence::new(Some((record, syncer, key)), lifecycle, clock, output_in), closing)
            }
        };
        for entry in closing {
            evidence.record(entry);
        }
        let (jobs, notes) = Jobs::new();
        let agent = Arc::new(Agent::new(config, provider, tools, jobs, evidence, conversation));
        let actor = SessionActor::new(Arc::clone(&agent), ledger, acknowledge);
        let ended = tokio::spawn(async move {
            start(&agent).await;
            let outcome = actor.run(Lanes { control, data, notes }).await;
            finish(&agent, outcome).await;
            outcome
        });
        Self { submitter: Submitter { control: control_in, data: data_in }, output, acknowledgements, ended }
    }
}

async fn start(agent: &Agent) {
    let (config, evidence) = (&agent.config, &agent.evidence);
    let mut join = None;
    if let Some(lifecycle) = &evidence.lifecycle {
        let deadline = Instant::now() + SCOPE_WAIT;
        let pid = std::process::id();
        let scope = lifecycle.open_scope(ScopeKind::Session, None, pid, None, deadline).await;
        join = Some(evidence.session_scope.get_or_init(|| scope).join);
    }
    evidence.record(Entry::SessionStarted {
        session_id: config.session_id.clone(),
        agent_id: config.agent_id.clone(),
        model: config.model.clone(),
        client_version: CLIENT_VERSION.to_owned(),
        permissions: Some(config.permissions),
        sandbox: Some(agent.tools.shell.sandbox()),
        resumed: config.resume,
    });
    evidence.tell(&Event::SessionStarted(session_payload(agent.provider.api().provider(), None)));
    // The channel is empty: there is room.
    evidence.try_show(OutputEvent::SessionStarted {
        session_id: config.session_id.clone(),
        agent_id: config.agent_id.clone(),
        model: config.model.clone(),
        client_version: CLIENT_VERSION.to_owned(),
        permissions: config.permissions,
        sandbox: agent.tools.shell.sandbox(),
        record_key: evidence.record_key(),
        join,
    });
}

async fn finish(agent: &Agent, outcome: Outcome) {
    let (evidence, turns, usage) = (&agent.evidence, agent.turns(), agent.usage());
    if timeout(CALLS_WAIT, agent.calls.wait()).await.is_err() {
        tracing::error!("the session ends before a tool call that cannot be ended");
    }
    evidence.record_end(Entry::SessionEnded { outcome, turns }).await;
    let ended = Event::SessionEnded(
        session_payload(agent.provider.api().provider(), Some(outcome.reason())),
        session_outcome(outcome),
    );
    evidence.tell_and_wait(&ended, LAST_EVENT_WAIT).await;
    let mut telemetry = None;
    if let Some(lifecycle) = &evidence.lifecycle {
        if let Some(scope) = evidence.session_scope.get() {
            lifecycle.close_scope(*scope);
        }
        telemetry = Some(lifecycle.shutdown().await);
    }
    let session_id = agent.config.session_id.clone();
    evidence.show_last(OutputEvent::SessionEnded { session_id, outcome, turns, usage, telemetry }).await;
}
