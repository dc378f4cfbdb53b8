//! The session loop: asks the model, runs what it calls, and asks again.
//!
//! The kernel decides; this crate carries out its actions with the provider, the tools, the record
//! and the collector's client, and is the only crate that knows them all. Only the CLI uses it.
//! Everything it tells the outside goes through one closure of [`OutputEvent`]s.
//!
//! Order of evidence for a tool call: its intent is in the record, its scope is asked for, its
//! `agent.tool.invoked` is on its way — then its process executes.

mod call;
mod evidence;
mod model_turn;
mod prompt;
mod session;
mod tool_turn;

pub use evidence::WallClock;
pub use session::{Session, SessionConfig, SessionParts};

pub use iteron_protocol::OutputEvent;
