//! The session actor: owns the agent, starts runs, and carries out what the session reducer decides.
//!
//! It never waits for a run, a model, a tool, a disk or a reader. So it answers control operations
//! within the time that a scheduler needs, whatever hangs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use iteron_kernel::session::{Action, Epoch, Event, Session};
use iteron_protocol::{
    Acknowledgement, ClientSubmissionId, ControlOp, Ledger, Operation, Outcome, RejectionReason,
    SubmissionEnvelope, SubmissionState,
};
use iteron_record::Entry;
use iteron_tools::JobNote;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::run::{Open, RunTask, SharedOpen, Stop};

/// Prompts that wait.
pub const WAITING_MAX: usize = 64;
/// Acknowledgements for which there must be room before a prompt is taken: a full control lane, and
/// all prompts that wait coming back.
const ROOM_FOR_CONTROL: usize = 512;
/// Longest wait at the end for background jobs: TERM, 50 ms, KILL, and what KILL may take.
const JOBS_WAIT: Duration = Duration::from_secs(3);
/// How long a cancelled run may take to end by itself: its tools get TERM and 50 ms, then KILL.
const CANCEL_GRACE: Duration = Duration::from_millis(100);

pub(crate) struct SessionActor {
    pub agent: Arc<Agent>,
    session: Session,
    ledger: Ledger,
    prompts: BTreeMap<ClientSubmissionId, String>,
    controls: BTreeMap<ClientSubmissionId, ControlOp>,
    active: Option<Active>,
    acknowledgements: mpsc::Sender<Acknowledgement>,
    /// How the last run ended.
    outcome: Option<Outcome>,
    /// What a session is that ran nothing.
    idle_outcome: Outcome,
}

struct Active {
    epoch: Epoch,
    id: ClientSubmissionId,
    task: JoinHandle<Outcome>,
    /// Cancelled once the run's task is over, however that came.
    run_over: CancellationToken,
    stop: Stop,
    open: SharedOpen,
    /// When a cancelled run has had its time.
    deadline: Option<Instant>,
}

/// The ways into the actor. Control has its own, so that no number of prompts delays it.
pub(crate) struct Lanes {
    pub control: mpsc::Receiver<SubmissionEnvelope>,
    pub data: mpsc::Receiver<SubmissionEnvelope>,
    /// What background jobs do.
    pub notes: mpsc::UnboundedReceiver<JobNote>,
}

impl SessionActor {
    pub(crate) fn new(
        agent: Arc<Agent>,
        ledger: Ledger,
        acknowledgements: mpsc::Sender<Acknowledgement>,
    ) -> Self {
        Self {
            agent,
            session: Session::new(WAITING_MAX),
            ledger,
            prompts: BTreeMap::new(),
            controls: BTreeMap::new(),
            active: None,
            acknowledgements,
            outcome: None,
            idle_outcome: Outcome::Completed,
        }
    }

    /// Runs until the session stops. Then no submission is left without an end.
    pub(crate) async fn run(mut self, mut lanes: Lanes) -> Outcome {
        let mut breaks = self.agent.evidence.breaks();
        let (mut is_broken, mut is_deserted) = (false, false);
        let acknowledgements = self.acknowledgements.clone();
        while !self.session.stopped() {
            let deadline = self.active.as_ref().and_then(|active| Some((active.epoch, active.deadline?)));
            tokio::select! {
                biased;
                ended = ended(&mut self.active) => self.run_ended(ended),
                _ = breaks.wait_for(|broken| *broken), if !is_broken => {
                    is_broken = true;
                    self.idle_outcome = Outcome::HarnessFailed;
                    self.feed(Event::RecordBroken);
                }
                Some(note) = lanes.notes.recv() => self.noted(note),
                epoch = grace_over(deadline) => self.feed(Event::GraceOver { epoch }),
                control = lanes.control.recv(), if !is_deserted => match control {
                    Some(envelope) => self.submitted(envelope),
                    // Nobody is left who could say anything.
                    None => {
                        is_deserted = true;
                        let drain = Operation::Control(ControlOp::DrainSession);
                        self.submitted(SubmissionEnvelope::new(ClientSubmissionId::fresh(), drain));
                    }
                },
                Some(envelope) = next_prompt(&acknowledgements, &mut lanes.data) => self.submitted(envelope),
            }
        }
        lanes.control.close();
        lanes.data.close();
        while let Some(envelope) = lanes.control.recv().await {
            self.submitted(envelope);
        }
        while let Some(envelope) = lanes.data.recv().await {
            self.submitted(envelope);
        }
        debug_assert_eq!(self.ledger.open(), 0, "a submission has no end");
        let jobs = Arc::clone(&self.agent.jobs);
        let last_notes = async {
            while jobs.running() > 0 || !lanes.notes.is_empty() {
                if let Some(note) = lanes.notes.recv().await {
                    self.noted(note);
                }
            }
        };
        if timeout(JOBS_WAIT, last_notes).await.is_err() {
            tracing::error!("the session ends before a job that cannot be ended");
        }
        self.outcome.unwrap_or(self.idle_outcome)
    }

    fn noted(&mut self, note: JobNote) {
        match note {
            JobNote::Started { job } => self.feed(Event::JobStarted { job }),
            JobNote::Ended { job, exit_code, termination, reaped } => {
                self.agent.evidence.record(Entry::JobEnded { job, exit_code, termination, reaped });
                self.feed(Event::JobEnded { job });
            }
        }
    }

    fn submitted(&mut self, envelope: SubmissionEnvelope) {
        let valid = envelope.check();
        let SubmissionEnvelope { submission_id: id, operation, .. } = envelope;
        if let Some(state) = self.ledger.receive(&id) {
            // The same submission again: it is told where it is, and nothing is done twice.
            return self.acknowledge(id, state);
        }
        self.acknowledge(id.clone(), SubmissionState::Received);
        if let Err(error) = valid {
            tracing::warn!(%error, submission_id = %id, "a submission is refused");
            return self.finish(&id, SubmissionState::Rejected { reason: RejectionReason::InvalidEnvelope });
        }
        match operation {
            Operation::Prompt(prompt) => {
                let submission_id = Some(id.clone());
                self.agent.evidence.record(Entry::Submitted { submission_id, prompt: prompt.clone() });
                self.prompts.insert(id.clone(), prompt);
                self.feed(Event::Prompt { id });
            }
            Operation::Control(op) => {
                if op == ControlOp::DrainSession {
                    self.idle_outcome = Outcome::Interrupted;
                }
                self.controls.insert(id.clone(), op.clone());
                self.feed(Event::Control { id, op });
            }
        }
    }

    /// Lets the reducer decide, and carries out what it says, with what follows from that.
    fn feed(&mut self, event: Event) {
        let mut actions: VecDeque<Action> = self.session.reduce(event).into();
        while let Some(action) = actions.pop_front() {
            if let Some(event) = self.carry_out(action) {
                actions.extend(self.session.reduce(event));
            }
        }
    }

    /// Carries out an action; gives what became of it where that is known at once.
    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Admit { id, epoch } => return self.admit(id, epoch),
            Action::Apply { .. } => {} // acknowledged by `admit`, which knows the entry's number
            Action::Accept { id } => self.accept(&id),
            Action::Requeue { id, reason } => self.finish(&id, SubmissionState::Requeued { reason }),
            Action::Reject { id, reason } => self.finish(&id, SubmissionState::Rejected { reason }),
            Action::Cancel { .. } => {
                if let Some(active) = &mut self.active {
                    active.stop.cancel.cancel();
                    active.deadline = Some(Instant::now() + CANCEL_GRACE);
                }
            }
            Action::Force { .. } => {
                if let Some(active) = &self.active {
                    active.stop.force.cancel();
                }
            }
            Action::Abandon { .. } => self.abandon(),
            Action::StopJob { job } => {
                if let Err(error) = self.agent.jobs.stop(job) {
                    tracing::debug!(%error, "a job is stopped that is not there any more");
                }
            }
            Action::StopAllJobs => self.agent.jobs.stop_all(),
            Action::Stop => {} // seen by `run`, which asks the reducer
        }
        None
    }

    /// Makes the prompt part of the conversation, and starts its run.
    fn admit(&mut self, id: ClientSubmissionId, epoch: Epoch) -> Option<Event> {
        let record_seq = self.agent.evidence.record(Entry::Admitted { submission_id: id.clone() });
        self.advance(&id, SubmissionState::Admitted);
        if self.agent.evidence.is_broken() {
            return Some(Event::Ended { epoch });
        }
        let prompt = self.prompts.remove(&id).unwrap_or_default();
        let pushed = self.agent.conversation().push_user(prompt);
        if let Err(error) = pushed {
            debug_assert!(false, "{error}");
            tracing::error!(%error, "the conversation is broken");
            return Some(Event::Ended { epoch });
        }
        self.advance(&id, SubmissionState::Applied { record_seq });
        let (stop, open) = (Stop::default(), Arc::new(std::sync::Mutex::new(Open::default())));
        let run = RunTask::new(Arc::clone(&self.agent), stop.clone(), Arc::clone(&open));
        let (agent, id_of_run, left_open) = (Arc::clone(&self.agent), id.clone(), Arc::clone(&open));
        let run_over = CancellationToken::new();
        let over = run_over.clone().drop_guard();
        let task = tokio::spawn(async move {
            let _over = over;
            let outcome = run.drive().await;
            agent.settle(&left_open, id_of_run, outcome, false).await
        });
        self.active = Some(Active { epoch, id, task, run_over, stop, open, deadline: None });
        Some(Event::Applied { epoch })
    }

    fn accept(&mut self, id: &ClientSubmissionId) {
        let Some(operation) = self.controls.remove(id) else { return };
        let submission_id = id.clone();
        let record_seq = self.agent.evidence.record(Entry::Controlled { submission_id, operation });
        self.advance(id, SubmissionState::Applied { record_seq });
    }

    /// Ends a submission that had no effect.
    fn finish(&mut self, id: &ClientSubmissionId, state: SubmissionState) {
        self.prompts.remove(id);
        self.controls.remove(id);
        self.agent.evidence.record(Entry::Returned { submission_id: id.clone(), state });
        self.advance(id, state);
    }

    fn advance(&mut self, id: &ClientSubmissionId, state: SubmissionState) {
        match self.ledger.advance(id, state) {
            Ok(()) => self.acknowledge(id.clone(), state),
            Err(error) => {
                debug_assert!(false, "{error}");
                tracing::error!(%error, "an acknowledgement is out of order");
            }
        }
    }

    fn acknowledge(&self, id: ClientSubmissionId, state: SubmissionState) {
        if self.acknowledgements.try_send(Acknowledgement::new(id, state)).is_err() {
            // Whoever wants to know sends the submission again.
            tracing::warn!("an acknowledgement was dropped: nobody reads");
        }
    }

    fn run_ended(&mut self, ended: Result<Outcome, JoinError>) {
        let Some(active) = &mut self.active else { return };
        match ended {
            Ok(outcome) => {
                let epoch = active.epoch;
                self.active = None;
                self.outcome = Some(outcome);
                self.feed(Event::Ended { epoch });
            }
            Err(error) => {
                tracing::error!(%error, "a run failed inside the harness");
                active.settle_from_outside(&self.agent, Outcome::HarnessFailed);
            }
        }
    }

    /// Ends a run from outside. Its tool call, if it has one, goes on ending as a task of its own.
    fn abandon(&mut self) {
        if let Some(active) = &mut self.active {
            tracing::warn!(submission_id = %active.id, "a cancelled run did not end in time and is abandoned");
            active.settle_from_outside(&self.agent, Outcome::Interrupted);
        }
    }
}

impl Active {
    /// Puts in the place of the run's task one that closes what it left open.
    fn settle_from_outside(&mut self, agent: &Arc<Agent>, outcome: Outcome) {
        self.task.abort();
        self.stop.cancel.cancel();
        self.deadline = None;
        let (agent, id, open) = (Arc::clone(agent), self.id.clone(), Arc::clone(&self.open));
        let run_over = self.run_over.clone();
        self.task = tokio::spawn(async move {
            // Nothing of the run can write any more once it was dropped.
            run_over.cancelled().await;
            agent.settle(&open, id, outcome, true).await
        });
    }
}

/// The next prompt, once there is room for what is said about it and about control besides: a front
/// end that does not read fills its own lane, and hears of its control operations all the same.
async fn next_prompt(
    acknowledgements: &mpsc::Sender<Acknowledgement>,
    data: &mut mpsc::Receiver<SubmissionEnvelope>,
) -> Option<SubmissionEnvelope> {
    // Only looked for, and given back at once. It fails when nobody listens any more.
    drop(acknowledgements.reserve_many(ROOM_FOR_CONTROL).await);
    data.recv().await
}

async fn ended(active: &mut Option<Active>) -> Result<Outcome, JoinError> {
    match active {
        Some(active) => (&mut active.task).await,
        None => std::future::pending().await,
    }
}

async fn grace_over(deadline: Option<(Epoch, Instant)>) -> Epoch {
    match deadline {
        Some((epoch, deadline)) => {
            sleep_until(deadline).await;
            epoch
        }
        None => std::future::pending().await,
    }
}
