//! Builds the kernel programs and keeps the committed object honest.
//!
//! `collector-ebpf/object/` holds the object, its SHA-256, and the SHA-256 of every source that it was built from.
//! Building the workspace needs none of what is here: the collector embeds the committed object.
//!
//! The toolchain is pinned as a whole, since bpf-linker uses rustc's own LLVM: Rust 1.95.0 with its library's
//! sources, and bpf-linker 0.10.3. Where `rustup` cannot fetch the sources, Debian's package of the same version or a
//! tarball named by `ACTIVITY_RUST_SRC_TARBALL` will do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

const RUST_VERSION: &str = "1.95.0";
const LINKER_VERSION: &str = "0.10.3";
const TARGET: &str = "bpfel-unknown-none";
/// Names a `.tar` archive of the library's sources, whose top is `library/` or `rust/library/`.
const SOURCES_VARIABLE: &str = "ACTIVITY_RUST_SRC_TARBALL";
const OBJECT: &str = "object/activity.bpf.o";
const OBJECT_DIGEST: &str = "object/activity.bpf.o.sha256";
const SOURCES_DIGEST: &str = "object/sources.sha256";

/// Builds the object, or (`check`) fails when the committed one is not what the sources give.
pub fn run(check: bool) -> anyhow::Result<()> {
    if check { self::check() } else { build() }
}

pub fn build() -> anyhow::Result<()> {
    let directory = directory()?;
    ensure_toolchain()?;
    let built = compile(&directory)?;
    fs::create_dir_all(directory.join("object"))?;
    fs::copy(&built, directory.join(OBJECT)).context("cannot write the object")?;
    let digest = sha256(&directory, &[OBJECT.into()])?.replace("object/", "");
    fs::write(directory.join(OBJECT_DIGEST), digest)?;
    fs::write(directory.join(SOURCES_DIGEST), sources_digest(&directory)?)?;
    println!("built {}", directory.join(OBJECT).display());
    Ok(())
}

pub fn check() -> anyhow::Result<()> {
    let directory = directory()?;
    let recorded = fs::read_to_string(directory.join(SOURCES_DIGEST))
        .context("the object's sources are not recorded")?;
    ensure!(
        recorded == sources_digest(&directory)?,
        "collector-ebpf/object is stale: the sources changed after it was built; run `cargo xtask ebpf`"
    );
    let digest =
        fs::read_to_string(directory.join(OBJECT_DIGEST)).context("the object's digest is not recorded")?;
    ensure!(
        digest == sha256(&directory, &[OBJECT.into()])?.replace("object/", ""),
        "collector-ebpf/object/activity.bpf.o is not the file that its digest names"
    );
    if let Err(reason) = ensure_toolchain() {
        println!("the object's digest and sources match; not rebuilt: {reason:#}");
        return Ok(());
    }
    let built = compile(&directory)?;
    ensure!(
        fs::read(&built)? == fs::read(directory.join(OBJECT))?,
        "the committed object differs from a build of the same sources; run `cargo xtask ebpf`"
    );
    println!("the committed object is what its sources give");
    Ok(())
}

fn directory() -> anyhow::Result<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../collector-ebpf");
    directory.canonicalize().context("collector-ebpf is missing")
}

fn compile(directory: &Path) -> anyhow::Result<PathBuf> {
    let programs = directory.join("programs");
    let status = Command::new("cargo")
        .current_dir(&programs)
        .args(["build", "--locked", "--release", "-Z", "build-std=core", "--target", TARGET])
        // build-std is unstable; the pinned compiler makes it reproducible all the same.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-C linker=bpf-linker")
        .env("RUSTUP_TOOLCHAIN", RUST_VERSION)
        .env("CARGO_TARGET_DIR", programs.join("target"))
        // Set by the cargo that runs this; they would name the host's flags and toolchain.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the kernel programs do not build");
    Ok(programs.join("target").join(TARGET).join("release/activity"))
}

/// Digest of everything that the object is made from, one line for each file.
fn sources_digest(directory: &Path) -> anyhow::Result<String> {
    let mut files: Vec<PathBuf> =
        ["programs/Cargo.toml", "programs/Cargo.lock", "programs/rust-toolchain.toml"]
            .into_iter()
            .map(PathBuf::from)
            .collect();
    for sources in ["abi/src", "programs/src"] {
        collect(directory, Path::new(sources), &mut files)?;
    }
    files.sort();
    sha256(directory, &files)
}

fn collect(directory: &Path, below: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(directory, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// As `sha256sum` prints it, so that `sha256sum -c` can check it without this tool.
fn sha256(directory: &Path, files: &[PathBuf]) -> anyhow::Result<String> {
    let output = Command::new("sha256sum")
        .current_dir(directory)
        .args(files)
        .output()
        .context("cannot run sha256sum")?;
    ensure!(output.status.success(), "sha256sum: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Gets what is missing of the pinned toolchain.
fn ensure_toolchain() -> anyhow::Result<()> {
    let version = output("rustc", &["--version"])?;
    ensure!(version.contains(RUST_VERSION), "rustc {RUST_VERSION} is needed, found {}", version.trim());
    ensure_library_sources()?;
    ensure_linker()
}

fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .env("RUSTUP_TOOLCHAIN", RUST_VERSION)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

fn ensure_linker() -> anyhow::Result<()> {
    let wanted = format!("bpf-linker {LINKER_VERSION}");
    if output("bpf-linker", &["--version"]).is_ok_and(|version| version.trim() == wanted) {
        return Ok(());
    }
    println!("installing {wanted}");
    let package = format!("bpf-linker@{LINKER_VERSION}");
    let status = Command::new("cargo")
        .args(["install", "--locked", &package])
        .env("RUSTUP_TOOLCHAIN", RUST_VERSION)
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "cannot install {wanted}");
    Ok(())
}

fn ensure_library_sources() -> anyhow::Result<()> {
    let sysroot = PathBuf::from(output("rustc", &["--print", "sysroot"])?.trim());
    let destination = sysroot.join("lib/rustlib/src/rust");
    if destination.join("library/core/src/lib.rs").exists() {
        return Ok(());
    }
    if let Ok(tarball) = std::env::var(SOURCES_VARIABLE) {
        return unpack_tarball(Path::new(&tarball), &destination);
    }
    println!("fetching the sources of Rust's library");
    let component = ["component", "add", "rust-src", "--toolchain", RUST_VERSION];
    if Command::new("rustup").args(component).status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    unpack_debian(&destination).with_context(|| {
        format!(
            "no sources of Rust's library: neither rustup nor apt (package rust-src {RUST_VERSION}, in trixie-backports) \
             has them; name a tarball in {SOURCES_VARIABLE}"
        )
    })
}

fn unpack_tarball(tarball: &Path, destination: &Path) -> anyhow::Result<()> {
    let work = scratch()?;
    run_in(&work, "tar", &["-xf", &tarball.to_string_lossy()])?;
    let found = ["library", "rust/library"].into_iter().map(|top| work.join(top)).find(|path| path.is_dir());
    let Some(library) = found else { bail!("{} holds no library/", tarball.display()) };
    install_library(&library, destination)?;
    fs::remove_dir_all(work)?;
    Ok(())
}

fn unpack_debian(destination: &Path) -> anyhow::Result<()> {
    let work = scratch()?;
    run_in(&work, "apt-get", &["download", "rust-src"])?;
    let package =
        fs::read_dir(&work)?.flatten().map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "deb"));
    let package = package.context("apt-get downloaded no package")?;
    run_in(&work, "dpkg", &["-x", &package.to_string_lossy(), "unpacked"])?;
    install_library(&work.join(format!("unpacked/usr/src/rustc-{RUST_VERSION}/library")), destination)?;
    fs::remove_dir_all(work)?;
    Ok(())
}

/// The library with the lock file that build-std wants inside it.
fn install_library(library: &Path, destination: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(destination)?;
    run_in(destination, "cp", &["-r", &library.to_string_lossy(), "."])?;
    let (inside, beside) = (destination.join("library/Cargo.lock"), library.with_file_name("Cargo.lock"));
    if !inside.exists() && beside.exists() {
        fs::copy(beside, inside)?;
    }
    ensure!(destination.join("library/core/src/lib.rs").exists(), "the sources hold no library/core");
    Ok(())
}

fn scratch() -> anyhow::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("activity-rust-src-{}", std::process::id()));
    fs::create_dir_all(&path)?;
    Ok(path)
}

fn run_in(directory: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(program)
        .current_dir(directory)
        .args(arguments)
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} failed");
    Ok(())
}
