//! The two peers of the harness, for its tests: a model that follows a script, and a collector
//! that records what it is told.
//!
//! Only tests and test binaries may depend on this crate; it depends on no harness crate, so that
//! what it accepts and sends is written down independently of the code under test.

pub mod fake_collector;
pub mod scripted_model;
