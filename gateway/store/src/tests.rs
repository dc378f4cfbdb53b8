//! Tests of the whole store, by what they protect.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "test data is small")]

mod basic;
mod bundle;
mod faults;
mod field;
mod journal;
mod kit;
mod life;
mod limits;
mod measure;
mod sim;
mod tamper;
mod telemetry;
mod turns;
