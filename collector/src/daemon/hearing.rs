//! Whether agents could be heard: their socket is where they look for it, and this process runs.

use std::sync::Arc;

use activity_schema::Timestamp;

use crate::agent_socket::Listening;

/// Looks are a second apart; after a longer pause the process was stopped, or its machine was.
const PAUSE_NS: u64 = 3_000_000_000;

pub struct Hearing {
    listening: Arc<Listening>,
    /// The last look that found everything well: boot clock and wall clock.
    well: (u64, Timestamp),
}

impl Hearing {
    pub fn new(listening: Arc<Listening>, now_ns: u64, wall: Timestamp) -> Self {
        Hearing { listening, well: (now_ns, wall) }
    }

    /// Since when nobody could be heard, if so; asked every second, and before anything is vouched for.
    pub fn deaf_since(&mut self, now_ns: u64, wall: Timestamp) -> Option<Deaf> {
        let (before_ns, since) = std::mem::replace(&mut self.well, (now_ns, wall));
        if now_ns.saturating_sub(before_ns) > PAUSE_NS {
            return Some(Deaf { since, paused: true });
        }
        if self.listening.is_reachable() {
            return None;
        }
        tracing::warn!("the agent socket was removed or replaced");
        self.listening.bind_again();
        Some(Deaf { since, paused: false })
    }
}

pub struct Deaf {
    pub since: Timestamp,
    /// This process did not run: nothing was sampled either.
    pub paused: bool,
}
