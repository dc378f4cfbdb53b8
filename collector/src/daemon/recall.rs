//! The first words of a run: what the run before left behind, what was missed between the two, and what ran already.

use std::sync::Arc;

use activity_schema::Timestamp;
use activity_schema::coverage::LossReason;
use activity_schema::ids::Epoch;

use super::vouch::{UNHEARD, UNSEEN};
use super::{Daemon, telemetry};
use crate::agent_socket::Listening;
use crate::spool::{Damage, Loss, SpoolState};

impl Daemon {
    /// Start or restart, what recovery found, what is watched.
    pub(super) fn announce(&mut self, listening: Option<Arc<Listening>>) {
        let own = self.observer.sandboxes.own().clone();
        let restarted = self.recovery.state == SpoolState::Intact;
        let wall = self.recorder.clock().wall;
        let gap_ms =
            self.recovery.newest.map(|t| u64::try_from(wall.nanos_since(t).max(0) / 1_000_000).unwrap_or(0));
        telemetry::started(&mut self.recorder, &own, restarted, self.recovery.state.as_str(), gap_ms);
        self.account_recovery();
        if let Some(since) = self.recovery.newest {
            self.lose_down_time(since, wall);
        }
        self.hearing.listening = listening;
        self.declare_all();
        self.seed(restarted);
        self.recorder.flush(None);
    }

    /// Processes that ran before this run did. After a restart on pinned programs the rings tell of what was forked
    /// meanwhile, and the memory of what was forked before.
    fn seed(&mut self, restarted: bool) {
        if self.kernel.is_none() {
            return;
        }
        let offset = self.recorder.clock().offset_ns();
        let newest = self.recovery.newest.filter(|_| restarted);
        let newest = newest.map(|t| u64::try_from(t.as_nanos().saturating_sub(offset)).unwrap_or(0));
        if self.watched {
            self.udp_told_until_ns = newest.unwrap_or(0);
        }
        let told_until = newest.map_or(0, |newest| if self.watched { u64::MAX } else { newest });
        self.drain();
        self.observer.seed(&mut self.recorder, told_until);
    }

    /// Nobody could declare anything while the collector was down, and nothing was sampled. Without pinned programs
    /// nothing was watched either.
    fn lose_down_time(&mut self, since: Timestamp, until: Timestamp) {
        let unseen = if self.watched { &[][..] } else { UNSEEN };
        for names in UNHEARD.iter().chain(unseen) {
            self.recorder.lose(Loss::of(LossReason::CollectorDown, "collector", names, (since, until)));
        }
    }

    fn account_recovery(&mut self) {
        let wall = self.recorder.clock().wall;
        let newest = self.recovery.newest.unwrap_or(wall);
        for (epoch, class, damage) in self.recovery.damage.clone() {
            let Damage { torn_bytes, corrupt_batches, broken, headless, missing } = damage;
            // What is left of a headless stream is not sent either, however old it is.
            let since = if headless { began(&epoch).unwrap_or(newest) } else { newest };
            let stream = format!("{}/{epoch}/{class}", self.recorder.spool().identity().collector_id);
            let loss = |until| Loss::of(LossReason::SpoolCorrupt, "spool", &[], (since.min(until), until));
            for (first, last) in corrupt_batches {
                let loss = loss(newest).counted(last - first + 1, true);
                self.recorder.lose(loss.of_stream(class, stream.clone(), Some((first, last))));
            }
            if let Some((count, newest)) = missing {
                let since = newest.or_else(|| began(&epoch)).unwrap_or(since).min(wall);
                let loss = Loss::of(LossReason::SpoolCorrupt, "spool", &[], (since, wall));
                self.recorder.lose(loss.counted(count, true).of_stream(class, stream.clone(), None));
            }
            if (torn_bytes > 0 || broken) && (missing.is_none() || headless) {
                self.recorder.lose(loss(wall).counted(1, false).of_stream(class, stream, None));
            }
        }
    }
}

/// When an epoch was made, which is in its UUIDv7.
fn began(epoch: &Epoch) -> Option<Timestamp> {
    let (seconds, nanos) = uuid::Uuid::parse_str(epoch.as_str()).ok()?.get_timestamp()?.to_unix();
    let seconds = i64::try_from(seconds).ok()?;
    Some(Timestamp::from_nanos(seconds.checked_mul(1_000_000_000)?.checked_add(i64::from(nanos))?))
}
