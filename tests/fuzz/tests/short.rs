//! The short form of `cargo xtask soak fuzz`: every target over its seeds and some thousand mutations of them, the same
//! in every run.
//!
//! `ACTIVITY_FUZZ_SEED` repeats a run. An input that fails is kept; `activity-fuzz run TARGET FILE` runs it again.
#![allow(clippy::print_stdout, reason = "tells seed and input, so that a failure can be repeated")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use activity_fuzz::mutate::mutate;
use activity_fuzz::{TARGETS, Target};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

fn check(target: &Target) {
    let given = std::env::var("ACTIVITY_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or(1);
    println!("{}: ACTIVITY_FUZZ_SEED={seed}", target.name);
    let mut rng = StdRng::seed_from_u64(seed);
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    for input in &seeds {
        run(target, input);
    }
    for _ in 0..target.mutations {
        run(target, &mutate(&seeds, &mut rng));
    }
}

fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let kept = std::env::temp_dir().join(format!("activity-fuzz-{}-{}", target.name, std::process::id()));
        let written = std::fs::write(&kept, input);
        println!("{}: the input is in {} ({written:?})", target.name, kept.display());
        resume_unwind(panic);
    }
}

macro_rules! short {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(activity_fuzz::target(stringify!($name)).expect("a known target"));
        })*
        #[test]
        fn every_target_is_run() {
            let run = [$(stringify!($name)),*];
            assert_eq!(TARGETS.iter().map(|t| t.name).collect::<Vec<_>>(), run);
        }
    };
}

short! { event batch checkpoint ring agent spool ingest store bundle bodies query certificate_request }
