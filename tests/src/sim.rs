//! Simulation: the real parts of collector and gateway in one process, on disks and links that fail by a seed.
//!
//! Real are the recorder, the spool, the sender's machine and the store. Simulated are the kernel ring, the disk of
//! a collector, its clocks, and the link. [`fleet`] puts them together and holds them against an account of its own.

pub mod collector;
pub mod disk;
pub mod fleet;
pub mod gateway;
