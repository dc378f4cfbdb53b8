//! The states of all submissions of a session: exactly one end for each, and a submission that
//! comes twice is one.

use std::collections::{BTreeMap, VecDeque};

use crate::{ClientSubmissionId, SubmissionState};

/// Ended submissions that are remembered. A repeat of an older one counts as new; a front end
/// repeats what it has no answer for, and has not left a thousand others unanswered.
pub const ENDED_MAX: usize = 1024;

#[derive(Debug, Clone, Default)]
pub struct Ledger {
    states: BTreeMap<ClientSubmissionId, SubmissionState>,
    /// Ended ones, oldest first.
    ended: VecDeque<ClientSubmissionId>,
}

/// A submission would have skipped a state, gone back, or ended twice.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("submission {id} cannot go from {from:?} to {to:?}")]
pub struct TransitionError {
    pub id: ClientSubmissionId,
    pub from: Option<SubmissionState>,
    pub to: SubmissionState,
}

impl Ledger {
    /// Takes a submission in as received, unless it is known: then gives its state.
    pub fn receive(&mut self, id: &ClientSubmissionId) -> Option<SubmissionState> {
        let known = self.states.get(id).copied();
        if known.is_none() {
            self.states.insert(id.clone(), SubmissionState::Received);
        }
        known
    }

    /// Moves a submission on.
    pub fn advance(&mut self, id: &ClientSubmissionId, to: SubmissionState) -> Result<(), TransitionError> {
        let from = self.states.get(id).copied();
        if !from.is_some_and(|from| from.may_become(to)) {
            return Err(TransitionError { id: id.clone(), from, to });
        }
        self.set(id, to);
        Ok(())
    }

    /// Takes over the end of a submission from an earlier life of the session.
    pub fn restore(&mut self, id: &ClientSubmissionId, ended: SubmissionState) {
        debug_assert!(ended.is_terminal());
        if !self.states.contains_key(id) {
            self.set(id, ended);
        }
    }

    #[must_use]
    pub fn state(&self, id: &ClientSubmissionId) -> Option<SubmissionState> {
        self.states.get(id).copied()
    }

    /// Submissions that have no end yet.
    #[must_use]
    pub fn open(&self) -> usize {
        self.states.len() - self.ended.len()
    }

    fn set(&mut self, id: &ClientSubmissionId, to: SubmissionState) {
        self.states.insert(id.clone(), to);
        if to.is_terminal() {
            self.ended.push_back(id.clone());
            if self.ended.len() > ENDED_MAX
                && let Some(oldest) = self.ended.pop_front()
            {
                self.states.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{RejectionReason, RequeueReason};

    fn id(number: usize) -> ClientSubmissionId {
        format!("s-{number}").parse().unwrap()
    }

    const APPLIED: SubmissionState = SubmissionState::Applied { record_seq: Some(3) };

    #[test]
    fn a_repeat_is_told_where_the_first_one_is() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.receive(&id(1)), None);
        assert_eq!(ledger.receive(&id(1)), Some(SubmissionState::Received));
        ledger.advance(&id(1), SubmissionState::Admitted).unwrap();
        ledger.advance(&id(1), APPLIED).unwrap();
        assert_eq!(ledger.receive(&id(1)), Some(APPLIED));
        assert_eq!(ledger.open(), 0);
    }

    #[test]
    fn of_ended_submissions_1024_are_remembered_and_open_ones_are_never_forgotten() {
        let mut ledger = Ledger::default();
        ledger.receive(&id(0));
        for number in 1..=1025 {
            ledger.receive(&id(number));
            ledger.advance(&id(number), APPLIED).unwrap();
        }
        assert_eq!(ledger.state(&id(0)), Some(SubmissionState::Received));
        assert_eq!(ledger.state(&id(1)), None);
        assert_eq!(ledger.state(&id(2)), Some(APPLIED));
        assert_eq!(ledger.open(), 1);
    }

    fn state() -> impl Strategy<Value = SubmissionState> {
        prop_oneof![
            Just(SubmissionState::Received),
            Just(SubmissionState::Admitted),
            Just(APPLIED),
            Just(SubmissionState::Requeued { reason: RequeueReason::Cancelled }),
            Just(SubmissionState::Rejected { reason: RejectionReason::QueueFull }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Field case 39: whatever is tried, a submission ends once.
        #[test]
        fn whatever_is_tried_a_submission_is_admitted_and_ends_at_most_once(
            tries in prop::collection::vec((0_usize..3, state()), 0..40),
        ) {
            let mut ledger = Ledger::default();
            let mut told: BTreeMap<usize, Vec<SubmissionState>> = BTreeMap::new();
            for number in 0..3 {
                ledger.receive(&id(number));
            }
            for (number, to) in tries {
                if ledger.advance(&id(number), to).is_ok() {
                    told.entry(number).or_default().push(to);
                }
            }
            for (number, told) in told {
                let ends = told.iter().filter(|state| state.is_terminal()).count();
                prop_assert!(ends <= 1);
                prop_assert!(ends == 0 || told.last().unwrap().is_terminal());
                prop_assert!(!told.contains(&SubmissionState::Received));
                prop_assert!(told.iter().filter(|state| **state == SubmissionState::Admitted).count() <= 1);
                prop_assert_eq!(ledger.state(&id(number)).unwrap(), *told.last().unwrap());
            }
        }
    }
}
