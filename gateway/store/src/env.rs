//! The edge: disk, clock and randomness. Everything behind it gets them as arguments.

use std::sync::Arc;

use activity_schema::Timestamp;

use crate::storage::{Disk, Storage};

/// Reads the wall clock.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

/// Gives unpredictable bytes.
pub trait Entropy: Send + Sync + 'static {
    fn fill(&self, bytes: &mut [u8]);
}

#[derive(Clone)]
pub struct Env {
    pub storage: Arc<dyn Storage>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

impl Env {
    /// The machine's own disk, clock and random generator.
    pub fn system() -> Self {
        Env {
            storage: Arc::new(Disk::default()),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }

    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.entropy.fill(&mut bytes);
        bytes
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the edge that reads the clock")]
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_nanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }
}

struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        rand::RngCore::fill_bytes(&mut rand::rng(), bytes);
    }
}

/// Days since 1970-01-01 (UTC) of an instant.
pub(crate) fn day_of(at: Timestamp) -> u32 {
    const DAY_NANOS: i64 = 86_400_000_000_000;
    u32::try_from(at.as_nanos().div_euclid(DAY_NANOS)).unwrap_or(0)
}
