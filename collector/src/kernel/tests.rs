//! Tests with an independent ground truth: a load program in a cgroup of its own says what it did, and the
//! records are held against that. They need root and eBPF; without, they print why they were skipped.
#![allow(unsafe_code, reason = "the load program forks, execs and maps as no library would")]

mod decoding;
mod harness;
mod lifecycle;
mod load;
mod loss;
mod network;
mod restart;
mod verifier;
