//! Simulation: the real parts of collector and gateway in one process, on disks and links that fail by a seed.

pub mod disk;
