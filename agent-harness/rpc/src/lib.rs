//! The JSON-RPC front end: a session that other processes steer, over standard input and output or over
//! a Unix socket. The messages are in [`iteron_protocol::rpc`].
//!
//! ```text
//! front end ──▶ connection ── submissions ──▶ session
//!           ◀── its queue ◀── hub ◀── events, acknowledgements ──┘
//! ```
//! A connection reads, answers, and hands submissions over; it waits for nothing else. The hub copies
//! what a session tells to all that subscribed, at the pace of the slowest. One that does not read at all is
//! disconnected, so that it holds up neither the session nor the others for long; acknowledgements it never
//! holds up.

mod connection;
mod hub;
mod message;
mod socket;

pub use connection::{AtEnd, Session, serve};
pub use hub::{Hub, QUEUE_MAX};
pub use socket::{ListenError, Listener};
