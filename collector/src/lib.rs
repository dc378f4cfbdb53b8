//! The daemon beside the sandbox: sources → normalise → admit → spool → uplink.
//!
//! One writer owns the spool; sources never see it, and the spool never sees the network.

pub mod agent_socket;
pub mod bounded;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod identity;
pub mod kernel;
pub mod observe;
pub mod privilege;
pub mod process;
pub mod recorder;
pub mod redact;
pub mod resource;
pub mod sandbox;
pub mod scope;
pub mod spool;
pub mod uplink;
