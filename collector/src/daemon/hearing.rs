//! Whether agents could be heard: their socket is where they look for it, and this process runs.

use std::sync::Arc;

use activity_schema::Timestamp;

use crate::agent_socket::Listening;

/// Looks are a second apart; after a longer pause the process was stopped, or its machine was.
const PAUSE_NS: u64 = 3_000_000_000;

pub struct Hearing {
    /// `None` where no socket can be served.
    pub listening: Option<Arc<Listening>>,
    /// The last look: boot clock and wall clock.
    looked: (u64, Timestamp),
}

impl Hearing {
    pub fn new(now_ns: u64, wall: Timestamp) -> Self {
        Hearing { listening: None, looked: (now_ns, wall) }
    }

    /// When it was looked last.
    pub fn looked_at(&self) -> Timestamp {
        self.looked.1
    }

    /// Since when nobody could be heard, if so; asked every second, and before anything is vouched for.
    pub fn deaf_since(&mut self, now_ns: u64, wall: Timestamp) -> Option<Deaf> {
        let (before_ns, since) = std::mem::replace(&mut self.looked, (now_ns, wall));
        if now_ns.saturating_sub(before_ns) > PAUSE_NS {
            return Some(Deaf { since, paused: true });
        }
        let listening = self.listening.as_ref().filter(|listening| !listening.is_reachable())?;
        tracing::warn!("the agent socket was removed or replaced");
        listening.bind_again();
        Some(Deaf { since, paused: false })
    }
}

pub struct Deaf {
    pub since: Timestamp,
    /// This process did not run: nothing was sampled either.
    pub paused: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_of_more_than_3_s_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let listening = Listening::at(&dir.path().join("agent.sock"));
        let _listener = listening.bind().unwrap();
        let (before, after) = (Timestamp::from_nanos(1), Timestamp::from_nanos(2));
        for (pause_ns, with_socket, is_told) in
            [(3_000_000_000, true, false), (3_000_000_001, true, true), (3_000_000_001, false, true)]
        {
            let mut hearing = Hearing::new(100, before);
            hearing.listening = with_socket.then(|| listening.clone());
            let deaf = hearing.deaf_since(100 + pause_ns, after);
            assert_eq!(deaf.map(|deaf| (deaf.since, deaf.paused)), is_told.then_some((before, true)));
            assert!(hearing.deaf_since(101 + pause_ns, after).is_none(), "told once");
        }
    }
}
