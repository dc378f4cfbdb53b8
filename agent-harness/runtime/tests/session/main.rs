//! A session with a real record, real processes and a scripted model, held by a front end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, helpers included")]
#![allow(clippy::print_stdout, reason = "tells what was skipped, and what campaigns measured")]

mod campaign;
mod control;
mod files;
mod hangs;
mod jobs;
mod lab;
mod permissions;
