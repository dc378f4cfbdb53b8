//! A small world around a session: what may happen next, and what must never happen. The exhaustive
//! check walks through every reachable state of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::tests::id;
use super::*;

/// How far a submission is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    Open,
    Admitted,
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    session: Session,
    prompts_left: u32,
    controls_left: u32,
    submitted: u32,
    fates: BTreeMap<ClientSubmissionId, Fate>,
    /// Prompts in the order in which they were admitted or came back.
    order: Vec<ClientSubmissionId>,
    running: Option<(Epoch, ClientSubmissionId)>,
    /// Runs that were asked to stop.
    cancelled: BTreeSet<Epoch>,
    job: bool,
    stops: u32,
    drained: bool,
}

impl World {
    pub(super) fn new(waiting_max: usize, prompts: u32, controls: u32) -> Self {
        Self {
            session: Session::new(waiting_max),
            prompts_left: prompts,
            controls_left: controls,
            submitted: 0,
            fates: BTreeMap::new(),
            order: Vec::new(),
            running: None,
            cancelled: BTreeSet::new(),
            job: false,
            stops: 0,
            drained: false,
        }
    }

    /// Everything that the world could do to the session now.
    pub(super) fn possible(&self) -> Vec<Event> {
        let next = id(self.submitted + 1);
        let mut events = Vec::new();
        if self.prompts_left > 0 {
            events.push(Event::Prompt { id: next.clone() });
        }
        if self.controls_left > 0 {
            let first = Some(id(1));
            let ops = [
                ControlOp::CancelTurn { expected: None },
                ControlOp::CancelTurn { expected: first.clone() },
                ControlOp::ForceCancelTurn { expected: None },
                ControlOp::ForceCancelTurn { expected: first },
                ControlOp::DrainSession,
                ControlOp::CleanBackgroundTerminals,
                ControlOp::QuitFrontend,
                ControlOp::StopJob { job: JobId(1) },
            ];
            events.extend(ops.map(|op| Event::Control { id: next.clone(), op }));
        }
        if let Some((epoch, _)) = self.running {
            events.push(Event::Applied { epoch });
            events.push(Event::Ended { epoch });
            events.push(Event::RecordBroken);
            // A word about the run before, come late.
            let before = Epoch(epoch.0 - 1);
            events.extend([Event::Ended { epoch: before }, Event::GraceOver { epoch: before }]);
            if self.cancelled.contains(&epoch) {
                events.push(Event::GraceOver { epoch });
            }
            events.push(match self.job {
                false => Event::JobStarted { job: JobId(1) },
                true => Event::JobEnded { job: JobId(1) },
            });
        }
        events
    }

    pub(super) fn step(&mut self, event: Event) {
        self.before(&event);
        let actions = self.session.reduce(event.clone());
        for action in &actions {
            let refusal = matches!(action, Action::Reject { .. });
            assert!(self.stops == 0 || refusal, "{action:?} after the stop, on {event:?}");
            self.check(action, &event);
        }
        if let Event::Control { id, .. } = &event {
            assert_eq!(self.fates[id], Fate::Ended, "{event:?} was not decided: {actions:?}");
        }
        let cancels = actions.iter().any(|action| matches!(action, Action::Cancel { .. }));
        assert!(
            !cancels || matches!(event, Event::Control { .. } | Event::RecordBroken),
            "{event:?} cancelled a run"
        );
        if let Event::Control { op: ControlOp::CancelTurn { expected: Some(expected) }, .. } = &event {
            let meant = self.running.as_ref().is_some_and(|(_, id)| id == expected);
            assert!(!cancels || meant, "a stale cancel hit a later run");
        }
    }

    fn before(&mut self, event: &Event) {
        match event {
            Event::Prompt { id } => {
                self.prompts_left -= 1;
                self.submitted += 1;
                self.fates.insert(id.clone(), Fate::Open);
            }
            Event::Control { id, op } => {
                self.controls_left -= 1;
                self.submitted += 1;
                self.fates.insert(id.clone(), Fate::Open);
                self.drained |= *op == ControlOp::DrainSession;
            }
            Event::Ended { epoch } if self.running.as_ref().is_some_and(|(now, _)| now == epoch) => {
                // Checked below: a prompt that was not applied must come back with this event.
                self.running = None;
            }
            Event::RecordBroken => self.drained = true,
            Event::JobStarted { .. } => self.job = true,
            Event::JobEnded { .. } => self.job = false,
            _ => {}
        }
    }

    fn check(&mut self, action: &Action, event: &Event) {
        match action {
            Action::Admit { id, epoch } => {
                assert!(self.running.is_none(), "two runs at once");
                assert!(!self.drained, "a run began in a session that drains");
                self.in_order(id);
                assert_eq!(self.fates.insert(id.clone(), Fate::Admitted), Some(Fate::Open));
                self.running = Some((*epoch, id.clone()));
            }
            Action::Apply { id } => {
                assert_eq!(self.running.as_ref().map(|(_, id)| id), Some(id));
                assert_eq!(self.fates.insert(id.clone(), Fate::Ended), Some(Fate::Admitted));
            }
            Action::Requeue { id, .. } => {
                let before = self.fates.insert(id.clone(), Fate::Ended).unwrap();
                assert_ne!(before, Fate::Ended, "{id} ended twice");
                if before == Fate::Admitted {
                    assert!(matches!(event, Event::Ended { .. }), "{event:?} gave back what runs");
                } else {
                    self.in_order(id);
                }
            }
            Action::Reject { id, .. } | Action::Accept { id } => {
                assert_eq!(self.fates.insert(id.clone(), Fate::Ended), Some(Fate::Open), "{action:?}");
            }
            Action::Cancel { epoch } => {
                assert_eq!(self.running.as_ref().map(|(now, _)| now), Some(epoch));
                assert!(self.cancelled.insert(*epoch), "cancelled twice");
            }
            Action::Force { epoch } | Action::Abandon { epoch } => {
                assert_eq!(self.running.as_ref().map(|(now, _)| now), Some(epoch));
                assert!(self.cancelled.contains(epoch), "{action:?} before the cancel");
            }
            Action::StopJob { .. } => assert!(self.job),
            Action::StopAllJobs => {}
            Action::Stop => {
                assert!(self.running.is_none(), "stopped over a run");
                self.stops += 1;
            }
        }
    }

    /// Prompts are admitted or given back in the order in which they came.
    fn in_order(&mut self, id: &ClientSubmissionId) {
        let number = |id: &ClientSubmissionId| id.as_str()[2..].parse::<u32>().unwrap();
        assert!(self.order.last().is_none_or(|last| number(last) < number(id)), "{id} overtook");
        self.order.push(id.clone());
    }

    /// Whatever came before: a drain and the end of what runs stop the session, and all is decided.
    pub(super) fn close(mut self) {
        self.controls_left += 1;
        if self.stops == 0 {
            self.step(Event::Control { id: id(self.submitted + 1), op: ControlOp::DrainSession });
        }
        if let Some((epoch, _)) = self.running.clone() {
            self.step(Event::Ended { epoch });
        }
        assert!(self.session.stopped() && self.stops == 1);
        let open: Vec<_> = self.fates.iter().filter(|(_, fate)| **fate != Fate::Ended).collect();
        assert!(open.is_empty(), "without an end: {open:?}");
    }
}

/// Every interleaving of four prompts and three control operations, with all that runs and jobs may
/// do meanwhile.
#[test]
fn every_reachable_state_of_a_small_session_keeps_the_rules() {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(2, 4, 3)];
    let mut steps = 0_u64;
    while let Some(world) = open.pop() {
        for event in world.possible() {
            let mut next = world.clone();
            next.step(event);
            steps += 1;
            if seen.insert(next.clone()) {
                next.clone().close();
                open.push(next);
            }
        }
    }
    println!("{} states, {steps} steps", seen.len());
    // A world that stopped growing by mistake would prove nothing.
    assert!(seen.len() > 10_000, "{}", seen.len());
}
