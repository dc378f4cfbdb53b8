//! Calling cargo, and the binaries that it builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Packages whose binaries make a whole system.
const SYSTEM: &[&str] = &["activity-collector", "activity-gateway", "iteron", "activity-tests"];

/// Builds the whole system and runs one of its binaries in place of this process's task.
pub fn run_binary(name: &str, arguments: &[String], release: bool) -> anyhow::Result<()> {
    eprintln!("building");
    let dir = build_system(release)?;
    let status = Command::new(dir.join(name)).args(arguments).status();
    let status = status.with_context(|| format!("cannot run {name}"))?;
    std::process::exit(status.code().unwrap_or(1));
}

/// Builds every binary; the folder they are in.
pub fn build_system(release: bool) -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--bins"]);
    for package in SYSTEM {
        command.args(["--package", package]);
    }
    if release {
        command.arg("--release");
    }
    check(&mut command)?;
    // This program was built by the same cargo into `<target>/debug`.
    let own = std::env::current_exe()?;
    let target = own.parent().and_then(Path::parent).context("no target folder")?;
    Ok(target.join(if release { "release" } else { "debug" }))
}

pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(super::root());
    command
}

/// Runs a command; an error when it fails.
pub fn check(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
