//! What the harness decides, as pure functions of state and event.
//!
//! No IO, no clock, no randomness; only `iteron-protocol` may be used here, and only the runtime
//! drives it. [`session`] decides which prompt runs, what a control operation means, and when the
//! session is over; [`run`] decides what is done for one prompt.

pub mod run;
pub mod session;
