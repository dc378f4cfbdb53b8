//! Fuzz targets: one for every parser of bytes that come from a peer, from the kernel or from a disk.
//!
//! A target is a function on any bytes that panics when something is wrong: the parser panicked, what it took does
//! not come back the same, or it took what must not be taken. [`TARGETS`] has them all. `tests/short.rs` runs each
//! over its seeds and over mutations of them; `cargo xtask soak fuzz` runs the same functions under libFuzzer.

mod edit;
mod fixture;
pub mod mutate;
mod stored;
mod targets;

/// A parser under test.
pub struct Target {
    pub name: &'static str,
    /// Panics on a finding.
    pub run: fn(&[u8]),
    /// Valid inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Mutations in the short form; targets that touch a disk have fewer.
    pub mutations: u32,
}

macro_rules! targets {
    ($($name:ident: $mutations:literal,)*) => {
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: targets::$name::run,
            seeds: targets::$name::seeds,
            mutations: $mutations,
        }),*];
    };
}

targets! {
    event: 20_000,
    batch: 10_000,
    checkpoint: 10_000,
    ring: 3_000,
    agent: 3_000,
    spool: 3_000,
    ingest: 300,
    store: 300,
    bundle: 5_000,
    bodies: 10_000,
    query: 2_000,
    certificate_request: 1_000,
}

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
