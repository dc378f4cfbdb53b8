//! `cargo xtask test`: every layer of tests, from the generated files to the whole system on this kernel.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::{cargo, codegen, ebpf, skips};

type Step<'a> = (&'a str, Box<dyn Fn() -> anyhow::Result<()> + 'a>);

/// Runs the steps in order; the first failure ends it. What could not be done here is listed at the end: it counts as
/// skipped, never as passed.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let skipped = RefCell::new(Vec::new());
    let cargo_step = |arguments: &'static [&'static str]| {
        Box::new(move || cargo::check(cargo::cargo().args(arguments))) as Box<dyn Fn() -> anyhow::Result<()>>
    };
    let steps: Vec<Step<'_>> = vec![
        ("this host", Box::new(prepare_host)),
        ("generated files", Box::new(|| codegen::run(root, true))),
        ("kernel object", Box::new(|| ebpf::run(true))),
        ("format", cargo_step(&["fmt", "--all", "--check"])),
        (
            "dependencies",
            Box::new(|| {
                skipped.borrow_mut().extend(dependencies()?);
                Ok(())
            }),
        ),
        ("lints", cargo_step(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])),
        // Everything at once, so that the binaries and their tests share what they depend on.
        ("build", cargo_step(&["build", "--workspace", "--all-targets", "--quiet"])),
        (
            "tests",
            Box::new(|| {
                let mut tests = cargo::cargo();
                skipped.borrow_mut().extend(skips::run_tests(tests.args([
                    "test",
                    "--workspace",
                    "--no-fail-fast",
                ]))?);
                Ok(())
            }),
        ),
    ];
    let start = Instant::now();
    for (name, step) in steps {
        let began = Instant::now();
        eprintln!("== {name}");
        step().with_context(|| format!("step {name:?} failed"))?;
        eprintln!("== {name}: {:.0} s", began.elapsed().as_secs_f64());
    }
    eprintln!("== all: {:.0} s", start.elapsed().as_secs_f64());
    skipped.borrow().iter().for_each(|what| println!("skipped: {what}"));
    Ok(())
}

/// Mounts what the kernel tests need, where that is allowed.
fn prepare_host() -> anyhow::Result<()> {
    if !nix_is_root() {
        return Ok(());
    }
    for (kind, path) in [("bpf", "/sys/fs/bpf"), ("tracefs", "/sys/kernel/tracing")] {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        if !mounts.lines().any(|l| l.split(' ').nth(1) == Some(path)) {
            // Where it cannot be mounted, the tests that need it say so.
            let _ = Command::new("mount").args(["-t", kind, kind, path]).status();
        }
    }
    Ok(())
}

fn nix_is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().nth(2) == Some("0"))
}

/// Dependencies point one way, and have licences and sources that are allowed; returns what was skipped.
fn dependencies() -> anyhow::Result<Option<String>> {
    let forbidden = [
        ("activity-schema", "tokio"),
        ("activity-schema", "hyper"),
        ("activity-coverage", "tokio"),
        ("activity-collector", "activity-gateway"),
        ("activity-collector", "activity-store"),
        ("activity-gateway", "activity-collector"),
        ("iteron", "activity-collector"),
        ("iteron", "activity-gateway"),
        ("iteron-kernel", "tokio"),
    ];
    for (package, absent) in forbidden {
        let output = cargo::cargo()
            .args(["tree", "--package", package, "--edges", "normal", "--prefix", "none"])
            .output()?;
        ensure!(output.status.success(), "cargo tree -p {package} failed");
        let text = String::from_utf8(output.stdout)?;
        let found = text.lines().skip(1).any(|l| l.split(' ').next() == Some(absent));
        ensure!(!found, "{package} must not depend on {absent}");
    }
    let deny = cargo::cargo().args(["deny", "--version"]).output()?;
    if !deny.status.success() {
        let how = "cargo-deny is not installed (cargo install --locked cargo-deny)";
        return Ok(Some(format!("licences and sources of dependencies: {how}")));
    }
    cargo::check(cargo::cargo().args(["deny", "--offline", "check", "bans", "licenses", "sources"]))?;
    Ok(None)
}
