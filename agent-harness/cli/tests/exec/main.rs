//! The real `iteron` binary against a scripted model and a collector that records.

mod collector;
mod control;
mod lab;
mod outcomes;
