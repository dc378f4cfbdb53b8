//! Tests of the whole store, by what they protect.

mod basic;
mod faults;
mod kit;
mod life;
mod sim;
mod tamper;
