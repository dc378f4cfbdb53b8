//! The wall around files: Landlock.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

use super::SandboxError;

/// Files in which nothing stays, and which programs expect to be able to write to.
const HARMLESS: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// The least that keeps files from being changed: before ABI 3, any file could be truncated.
const NEEDED: ABI = ABI::V3;
/// What is handled where the kernel can: also commands to devices.
const WANTED: ABI = ABI::V5;

/// A ruleset that lets `writable` be written to, and nothing else.
pub(super) fn ruleset(writable: &[&Path]) -> Result<OwnedFd, SandboxError> {
    let unsupported = |error| SandboxError::NoLandlock(Box::new(error));
    let wanted = needed()
        .and_then(|ruleset| {
            let ruleset = ruleset.set_compatibility(CompatLevel::BestEffort);
            ruleset.handle_access(AccessFs::from_write(WANTED))?.scope(scopes())
        })
        .map_err(unsupported)?;
    let mut ruleset = wanted.create().map_err(unsupported)?.set_compatibility(CompatLevel::BestEffort);
    for path in writable {
        let refused = |source| SandboxError::Writable { path: (*path).to_owned(), source };
        let dir = PathFd::new(path).map_err(|error| refused(opened(error)))?;
        let rule = PathBeneath::new(dir, AccessFs::from_write(WANTED));
        ruleset = ruleset.add_rule(rule).map_err(|error| refused(io::Error::other(error)))?;
    }
    for path in HARMLESS {
        // One that is not there, as in a container, needs no leave.
        if let Ok(file) = PathFd::new(path) {
            let rule = PathBeneath::new(file, AccessFs::WriteFile | AccessFs::Truncate);
            ruleset = ruleset.add_rule(rule).map_err(unsupported)?;
        }
    }
    let descriptor: Option<OwnedFd> = ruleset.into();
    // Without Landlock there is none, and `needed` has failed.
    descriptor.ok_or(SandboxError::NoRuleset)
}

/// What this kernel lacks to keep devices from being given commands.
pub(super) fn devices_need() -> Option<&'static str> {
    let handled = needed().and_then(|ruleset| ruleset.handle_access(AccessFs::from_write(WANTED))?.create());
    handled.err().map(|_| "needs Landlock with ABI 5 (Linux 6.10)")
}

/// What this kernel lacks to keep signals and abstract sockets inside.
pub(super) fn scopes_need() -> Option<&'static str> {
    let handled = needed().and_then(|ruleset| ruleset.scope(scopes())?.create());
    handled.err().map(|_| "needs Landlock with ABI 6 (Linux 6.12)")
}

/// Fails on a kernel that cannot keep files from being changed.
fn needed() -> Result<Ruleset, RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_write(NEEDED))
}

fn scopes() -> landlock::BitFlags<Scope> {
    Scope::AbstractUnixSocket | Scope::Signal
}

fn opened(error: PathFdError) -> io::Error {
    match error {
        PathFdError::OpenCall { source, .. } => source,
        other => io::Error::other(other),
    }
}
