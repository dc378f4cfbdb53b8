//! `cargo xtask dist`: the collector as one file that needs nothing of the system it runs on.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, ensure};
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::cargo;

/// Builds it for this machine's architecture; prints where it is.
pub fn run() -> anyhow::Result<()> {
    let triple = host()?;
    let mut build = cargo::cargo();
    build.args(["build", "--quiet", "--release", "--package", "activity-collector", "--bins"]);
    build.args(["--target", &triple]).env("RUSTFLAGS", "-C target-feature=+crt-static");
    cargo::check(&mut build)?;
    let path = target()?.join(&triple).join("release/activity-collector");
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(!names_a_loader(&bytes)?, "{} needs a dynamic loader", path.display());
    println!("{}", path.display());
    Ok(())
}

/// Whether the program asks for a dynamic loader (PT_INTERP in elf(5)).
fn names_a_loader(bytes: &[u8]) -> anyhow::Result<bool> {
    let header = FileHeader64::<object::Endianness>::parse(bytes).context("not an ELF file")?;
    let endian = header.endian()?;
    Ok(header.program_headers(endian, bytes)?.iter().any(|segment| segment.p_type(endian) == PT_INTERP))
}

fn host() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say its host")?.to_owned())
}

/// This program was built by the same cargo into `<target>/debug`.
fn target() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.ancestors().nth(2).context("no target folder")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_linked_dynamically_names_a_loader() {
        // As test programs are by default.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(names_a_loader(&own).unwrap());
        assert!(names_a_loader(b"#!/bin/sh\n").is_err());
    }
}
