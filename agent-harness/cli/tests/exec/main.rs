//! The real `iteron` binary against a scripted model and a collector that records.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, helpers included")]
#![allow(clippy::print_stdout, reason = "tells what was skipped")]

mod collector;
mod control;
mod lab;
mod outcomes;
mod ownership;
mod providers;
mod records;
mod sandbox;
mod serve;
mod task;
