//! The session loop: asks the model, runs what it calls, and asks again.
//!
//! The kernel decides; this crate carries out its actions with the provider, the tools, the record
//! and the collector's client, and is the only crate that knows them all. Only the CLI uses it.
//!
//! ```text
//! Submitter ── control lane ──▶ SessionActor ── starts, cancels ──▶ RunTask ── awaits ──▶ call task
//!           ── data lane ─────▶      │                                │                     │
//!  acknowledgements ◀────────────────┘        output ◀────────────────┴─────────────────────┘
//! ```
//! The actor waits for nothing, so that it always hears. A run is a task that may be abandoned; a
//! call is a task that never is, since it owns processes.
//!
//! Order of evidence for a tool call: its intent is in the record, its scope is asked for, its
//! `agent.tool.invoked` is on its way — then its process executes.

mod actor;
mod agent;
mod call;
mod evidence;
mod model_turn;
mod past;
mod prompt;
mod run;
mod session;
mod tool_turn;

pub use actor::WAITING_MAX;
pub use agent::SessionConfig;
pub use evidence::WallClock;
pub use past::{Past, SessionRecord};
pub use session::{Session, SessionParts, SubmitError, Submitter};
