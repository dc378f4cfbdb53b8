//! The client of the collector's agent socket: semantic events, and scopes that claim processes.
//!
//! Depends on `iteron-protocol` alone; the runtime uses it. It never delays the agent beyond small
//! bounds, whatever the collector does: events wait in a bounded queue and are counted when they do
//! not get through, and a scope is waited for only as long as the caller says.
//!
//! Two connections, so that a scope never waits behind events. The collector knows this process by
//! `SO_PEERCRED`: requests come from here and nowhere else.

mod client;
mod connection;
mod event;
mod events_lane;
mod scopes_lane;

pub use client::{ConnectError, Lifecycle, LifecycleConfig, ScopeHandle};
pub use event::{Correlation, Event, EventOutcome, ModelPayload, SessionPayload, ToolPayload};
pub use scopes_lane::ScopeKind;

#[cfg(test)]
mod tests;
