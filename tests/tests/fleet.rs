//! The short form of `cargo xtask soak fleet`, which takes fresh seeds. `ACTIVITY_FLEET_SEED` repeats a run.

#![allow(clippy::print_stdout, reason = "tells the seed and what happened")]

use activity_tests::sim::fleet;

#[test]
fn whatever_fails_acknowledged_is_stored_once_and_gaps_are_known() {
    let given = std::env::var("ACTIVITY_FLEET_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = given.unwrap_or(11);
    let result = fleet::run(200, 30, seed).unwrap_or_else(|error| panic!("{error:#}"));
    println!("seed {seed}: {result}");
}
