//! Builds the fuzzer: libFuzzer around the targets of `tests/fuzz`, on the stable toolchain.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use crate::cargo;

/// What cargo-fuzz passes, but for sanitizers, which need a nightly: coverage by edges and compared values.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "--cfg=fuzzing",
];

/// Builds it into a target folder of its own; the fuzzer.
pub fn build() -> anyhow::Result<PathBuf> {
    let host = host()?;
    let target = crate::root().canonicalize()?.join("target/fuzz");
    // With a target named, build scripts and procedural macros are not instrumented.
    cargo::check(
        cargo::cargo()
            .args([
                "build",
                "--quiet",
                "--package",
                "activity-fuzz",
                "--bin",
                "activity-fuzz",
                "--target",
                &host,
            ])
            .arg("--target-dir")
            .arg(&target)
            .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}")),
    )?;
    Ok(target.join(host).join("debug/activity-fuzz"))
}

fn host() -> anyhow::Result<String> {
    let output =
        Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}
