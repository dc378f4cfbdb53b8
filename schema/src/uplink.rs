//! The uplink protocol as two machines without IO: the collector's [`Sender`] and the gateway's [`judge`].
//!
//! At-least-once and idempotent: (stream, batch number) names a batch for ever. The sender keeps a batch until it
//! is acknowledged; the receiver acknowledges only what is durable and only in order.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use receiver::{StreamHead, Verdict, judge};
pub use sender::{Action, Input, Outcome, Sender, SenderConfig};
