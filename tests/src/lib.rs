//! Whole-system tests: the real binaries, put together as an operator would.

pub mod bench;
pub mod campaign;
pub mod lab;
pub mod peer;
pub mod sim;
pub mod truth;
