//! Figures of the whole system, each beside a peer or a limit that was measured in the same run. Where there is
//! neither, the project's budget stands in its place and is called so.
//!
//! A figure that cannot be measured here says why; it never has a value that was not measured.

mod answers;
mod exec;
mod figure;
mod fleet;
mod gateway;
pub mod history;
pub(crate) mod host;
mod latency;
mod limit;
mod mix;
mod operator;
mod rate;
mod recording;
mod stored;
mod watched;

pub use figure::{Figure, Peer};
pub use operator::Operator;

use crate::campaign;

/// Figures that are measured together.
pub struct Group {
    pub names: &'static [&'static str],
    /// Needs root, BTF and cgroup v2.
    kernel: bool,
    run: fn() -> anyhow::Result<Vec<Figure>>,
}

/// In order of importance.
pub const GROUPS: &[Group] = &[
    Group { names: gateway::NAMES, kernel: false, run: gateway::run },
    Group { names: exec::NAMES, kernel: true, run: exec::run },
    Group { names: latency::NAMES, kernel: true, run: latency::run },
    Group { names: rate::NAMES, kernel: true, run: rate::run },
    Group { names: stored::NAMES, kernel: false, run: stored::run },
    Group { names: answers::NAMES, kernel: false, run: answers::run },
];

impl Group {
    /// Whether it has a figure whose name begins so.
    pub fn has(&self, prefix: &str) -> bool {
        self.names.iter().any(|name| name.starts_with(prefix))
    }

    /// Measures; where the kernel cannot be observed, every figure says why.
    pub fn run(&self) -> anyhow::Result<Vec<Figure>> {
        match campaign::unsupported().filter(|_| self.kernel) {
            Some(reason) => Ok(self.names.iter().map(|name| Figure::skipped(name, &reason)).collect()),
            None => (self.run)(),
        }
    }
}
