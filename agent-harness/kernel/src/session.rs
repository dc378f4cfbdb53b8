//! The session reducer: prompts wait, one runs, control operations act on what runs.
//!
//! ```text
//!            prompt                cancel                     drain
//!   Idle ──────────────▶ Running ─────────▶ Cancelling    (from any) ──▶ Draining
//!     ▲                     │                    │                          │
//!     └────── run ended ────┴──── run ended ─────┘                      run ended
//!     └────── quit, and nothing waits or runs ──────────▶ Stopped ◀─────────┘
//! ```
//!
//! What always holds, whatever the order of events:
//! - at most one run at a time, and none begins once the session drains;
//! - every prompt ends exactly once: applied, requeued or rejected. Every control operation is
//!   decided exactly once: accepted or rejected;
//! - prompts run in the order in which they came, and come back in it;
//! - a run is known by its epoch. An event or an operation that means an earlier run changes
//!   nothing;
//! - a run that was cancelled ends: by itself, or because it is abandoned;
//! - the session stops exactly once, and only rejections follow.

use std::collections::{BTreeSet, VecDeque};

use iteron_protocol::{ClientSubmissionId, ControlOp, JobId, RejectionReason, RequeueReason};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// Which run of the session, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Prompt {
        id: ClientSubmissionId,
    },
    Control {
        id: ClientSubmissionId,
        op: ControlOp,
    },
    /// The run's prompt is part of the conversation and of the record.
    Applied {
        epoch: Epoch,
    },
    /// The run is over, by itself or abandoned.
    Ended {
        epoch: Epoch,
    },
    /// A cancelled run had its time.
    GraceOver {
        epoch: Epoch,
    },
    JobStarted {
        job: JobId,
    },
    JobEnded {
        job: JobId,
    },
    /// The record cannot be written: nothing may happen any more.
    RecordBroken,
}

/// What to do, in order. Everything is recorded before it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Admit {
        id: ClientSubmissionId,
        epoch: Epoch,
    },
    Apply {
        id: ClientSubmissionId,
    },
    Requeue {
        id: ClientSubmissionId,
        reason: RequeueReason,
    },
    Reject {
        id: ClientSubmissionId,
        reason: RejectionReason,
    },
    /// The control operation is carried out by the actions after this one.
    Accept {
        id: ClientSubmissionId,
    },
    /// Ask the run to stop, and come back with [`Event::GraceOver`].
    Cancel {
        epoch: Epoch,
    },
    /// Kill what the run has running.
    Force {
        epoch: Epoch,
    },
    /// Wait no longer for the run: end it from outside, then tell [`Event::Ended`].
    Abandon {
        epoch: Epoch,
    },
    StopJob {
        job: JobId,
    },
    StopAllJobs,
    Stop,
}

/// A session's control state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Session {
    phase: Phase,
    waiting: VecDeque<ClientSubmissionId>,
    waiting_max: usize,
    epochs: u64,
    /// The front end submits no more.
    leaving: bool,
    jobs: BTreeSet<JobId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Running(Active),
    Cancelling { active: Active, forced: bool },
    Draining { active: Active, forced: bool },
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Active {
    id: ClientSubmissionId,
    epoch: Epoch,
    applied: bool,
}

impl Session {
    /// A session in which at most `waiting_max` prompts wait.
    #[must_use]
    pub const fn new(waiting_max: usize) -> Self {
        Self {
            phase: Phase::Idle,
            waiting: VecDeque::new(),
            waiting_max,
            epochs: 0,
            leaving: false,
            jobs: BTreeSet::new(),
        }
    }

    #[must_use]
    pub const fn stopped(&self) -> bool {
        matches!(self.phase, Phase::Stopped)
    }

    /// Takes one event and says what to do.
    pub fn reduce(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Prompt { id } => self.prompt(id),
            Event::Control { id, op } => self.control(id, op),
            Event::Applied { epoch } => self.applied(epoch),
            Event::Ended { epoch } => self.ended(epoch),
            Event::GraceOver { epoch } => self.grace_over(epoch),
            Event::JobStarted { job } => self.job_started(job),
            Event::JobEnded { job } => {
                self.jobs.remove(&job);
                Vec::new()
            }
            Event::RecordBroken => self.end_everything(RequeueReason::NotApplied),
        }
    }

    fn prompt(&mut self, id: ClientSubmissionId) -> Vec<Action> {
        if self.leaving || matches!(self.phase, Phase::Draining { .. } | Phase::Stopped) {
            return vec![Action::Reject { id, reason: RejectionReason::Ending }];
        }
        if matches!(self.phase, Phase::Idle) {
            return vec![self.admit(id)];
        }
        if self.waiting.len() >= self.waiting_max {
            return vec![Action::Reject { id, reason: RejectionReason::QueueFull }];
        }
        self.waiting.push_back(id);
        Vec::new()
    }

    fn control(&mut self, id: ClientSubmissionId, op: ControlOp) -> Vec<Action> {
        if self.stopped() {
            return vec![Action::Reject { id, reason: RejectionReason::Ending }];
        }
        let decided = match op {
            ControlOp::CancelTurn { expected } => self.cancel_turn(expected.as_ref()),
            ControlOp::ForceCancelTurn { expected } => self.force_cancel_turn(expected.as_ref()),
            ControlOp::DrainSession => self.drain_session(),
            ControlOp::CleanBackgroundTerminals => Ok(vec![Action::StopAllJobs]),
            ControlOp::QuitFrontend => self.quit_frontend(),
            ControlOp::StopJob { job } => self.stop_job(job),
        };
        match decided {
            Ok(actions) => std::iter::once(Action::Accept { id }).chain(actions).collect(),
            Err(reason) => vec![Action::Reject { id, reason }],
        }
    }

    fn cancel_turn(&mut self, expected: Option<&ClientSubmissionId>) -> Decided {
        let active = self.active(expected)?;
        if !matches!(self.phase, Phase::Running(_)) {
            return Err(RejectionReason::AlreadyDone);
        }
        let cancel = Action::Cancel { epoch: active.epoch };
        self.phase = Phase::Cancelling { active, forced: false };
        Ok(std::iter::once(cancel).chain(self.give_back(RequeueReason::Cancelled)).collect())
    }

    fn force_cancel_turn(&mut self, expected: Option<&ClientSubmissionId>) -> Decided {
        let active = self.active(expected)?;
        let epoch = active.epoch;
        match &mut self.phase {
            Phase::Cancelling { forced, .. } | Phase::Draining { forced, .. } if !*forced => {
                *forced = true;
                Ok(vec![Action::Force { epoch }])
            }
            Phase::Running(_) => {
                self.phase = Phase::Cancelling { active, forced: true };
                let stop = [Action::Cancel { epoch }, Action::Force { epoch }];
                Ok(stop.into_iter().chain(self.give_back(RequeueReason::Cancelled)).collect())
            }
            _ => Err(RejectionReason::AlreadyDone),
        }
    }

    fn drain_session(&mut self) -> Decided {
        if matches!(self.phase, Phase::Draining { .. }) {
            return Err(RejectionReason::AlreadyDone);
        }
        Ok(self.end_everything(RequeueReason::Drained))
    }

    fn quit_frontend(&mut self) -> Decided {
        if std::mem::replace(&mut self.leaving, true) || matches!(self.phase, Phase::Draining { .. }) {
            return Err(RejectionReason::AlreadyDone);
        }
        Ok(if matches!(self.phase, Phase::Idle) { self.stop() } else { Vec::new() })
    }

    fn stop_job(&self, job: JobId) -> Decided {
        if self.jobs.contains(&job) {
            Ok(vec![Action::StopJob { job }])
        } else {
            Err(RejectionReason::UnknownJob)
        }
    }

    fn applied(&mut self, epoch: Epoch) -> Vec<Action> {
        match self.active_mut() {
            Some(active) if active.epoch == epoch && !active.applied => {
                active.applied = true;
                vec![Action::Apply { id: active.id.clone() }]
            }
            _ => Vec::new(),
        }
    }

    fn ended(&mut self, epoch: Epoch) -> Vec<Action> {
        let Some(active) = self.active_mut().filter(|active| active.epoch == epoch) else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        if !active.applied {
            let id = active.id.clone();
            actions.push(Action::Requeue { id, reason: RequeueReason::NotApplied });
        }
        let draining = matches!(self.phase, Phase::Draining { .. });
        self.phase = Phase::Idle;
        if draining {
            actions.extend(self.stop());
        } else if let Some(next) = self.waiting.pop_front() {
            actions.push(self.admit(next));
        } else if self.leaving {
            actions.extend(self.stop());
        }
        actions
    }

    fn grace_over(&self, epoch: Epoch) -> Vec<Action> {
        match &self.phase {
            Phase::Cancelling { active, .. } | Phase::Draining { active, .. } if active.epoch == epoch => {
                vec![Action::Abandon { epoch }]
            }
            _ => Vec::new(),
        }
    }

    /// A job that began while the session was being drained goes like the others.
    fn job_started(&mut self, job: JobId) -> Vec<Action> {
        self.jobs.insert(job);
        match self.phase {
            Phase::Draining { .. } | Phase::Stopped => vec![Action::StopJob { job }],
            _ => Vec::new(),
        }
    }

    fn end_everything(&mut self, reason: RequeueReason) -> Vec<Action> {
        let mut actions = Vec::new();
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => actions.extend(self.stop()),
            Phase::Running(active) => {
                actions.push(Action::Cancel { epoch: active.epoch });
                self.phase = Phase::Draining { active, forced: false };
            }
            Phase::Cancelling { active, forced } => self.phase = Phase::Draining { active, forced },
            phase @ (Phase::Draining { .. } | Phase::Stopped) => {
                self.phase = phase;
                return actions;
            }
        }
        actions.extend(self.give_back(reason));
        if !self.stopped() {
            actions.push(Action::StopAllJobs);
        }
        actions
    }

    fn stop(&mut self) -> Vec<Action> {
        self.phase = Phase::Stopped;
        vec![Action::StopAllJobs, Action::Stop]
    }

    fn admit(&mut self, id: ClientSubmissionId) -> Action {
        self.epochs += 1;
        let epoch = Epoch(self.epochs);
        self.phase = Phase::Running(Active { id: id.clone(), epoch, applied: false });
        Action::Admit { id, epoch }
    }

    fn give_back(&mut self, reason: RequeueReason) -> Vec<Action> {
        self.waiting.drain(..).map(|id| Action::Requeue { id, reason }).collect()
    }

    /// What runs, if it is what was expected.
    fn active(&self, expected: Option<&ClientSubmissionId>) -> Result<Active, RejectionReason> {
        let active = match &self.phase {
            Phase::Running(active) | Phase::Cancelling { active, .. } | Phase::Draining { active, .. } => {
                active
            }
            // Whoever names a run that is over is late.
            Phase::Idle | Phase::Stopped if expected.is_some() => return Err(RejectionReason::Stale),
            Phase::Idle | Phase::Stopped => return Err(RejectionReason::NothingRunning),
        };
        if expected.is_some_and(|expected| *expected != active.id) {
            return Err(RejectionReason::Stale);
        }
        Ok(active.clone())
    }

    const fn active_mut(&mut self) -> Option<&mut Active> {
        match &mut self.phase {
            Phase::Running(active) | Phase::Cancelling { active, .. } | Phase::Draining { active, .. } => {
                Some(active)
            }
            Phase::Idle | Phase::Stopped => None,
        }
    }
}

type Decided = Result<Vec<Action>, RejectionReason>;
