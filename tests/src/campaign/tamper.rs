//! Tampering: any change of the evidence is found, in a store and in a bundle that was exported from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{lab_with, load, settle};
use crate::lab::{Arena, Lab, binary, run};

mod bundle;
mod structure;

/// Makes `changes` random changes, each on a fresh copy of a store, as many of a bundle, and every change of the
/// store's structure; requires each to be found.
pub fn tamper(changes: u32, seed: u64) -> anyhow::Result<Value> {
    let mut rng = StdRng::seed_from_u64(seed);
    let arena = Arena::new("tamper")?;
    let mut lab = lab_with(&[&arena])?;
    let output = load(&arena, 400, 0)?.wait_with_output()?;
    ensure!(output.status.success(), "the load ended with {}", output.status);
    settle(&lab)?;
    lab.collector.take().context("no collector")?.stop()?;
    lab.gateway.take().context("no gateway")?.stop()?;
    let key = gateway_key(&lab)?;
    let store = lab.store();
    let earlier = structure::second_tenant(&lab)?;
    let (status, text) = verify(&store, &["--trust", &key])?;
    ensure!(status == 0, "the untouched store does not verify ({status}):\n{text}");
    let (_, text) = verify(&store, &[])?;
    ensure!(text.contains("not pinned"), "without a key it must say that the signer is not pinned:\n{text}");

    let files = evidence_files(&store)?;
    ensure!(!files.is_empty(), "verify --list names no file");
    let copy = lab.path("copy");
    let mut missed = Vec::new();
    for n in 0..changes {
        copy_tree(&store, &copy)?;
        let file = files.choose(&mut rng).context("no file")?;
        let what = change(&copy.join(file.strip_prefix(&store)?), &mut rng)?;
        let (status, text) = verify(&copy, &["--trust", &key])?;
        if status != 5 {
            missed.push(format!("change {n}: {what} of {}: exit {status}\n{text}", file.display()));
        }
        fs::remove_dir_all(&copy)?;
    }
    ensure!(
        missed.is_empty(),
        "{} of {changes} changes were not found:\n{}",
        missed.len(),
        missed.join("\n")
    );
    let structural = structure::changes(&lab, &earlier, &key)?;
    let bundle = bundle::changes(&lab, &arena, &key, changes, &mut rng)?;
    Ok(json!({
        "changes": changes, "files": files.len(), "found": changes, "structural": structural, "bundle": bundle,
    }))
}

fn gateway_key(lab: &Lab) -> anyhow::Result<String> {
    let meta: Value = serde_json::from_str(&fs::read_to_string(lab.store().join("meta.json"))?)?;
    Ok(meta["gateway_key"].as_str().context("meta.json names no gateway_key")?.to_owned())
}

fn verify(evidence: &Path, arguments: &[&str]) -> anyhow::Result<(i32, String)> {
    let output =
        binary("activity")?.arg("verify").arg(evidence).args(arguments).stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned()))
}

fn evidence_files(store: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let text = run(binary("activity")?.arg("verify").arg(store).arg("--list"))?;
    Ok(text.lines().map(PathBuf::from).filter(|p| fs::metadata(p).is_ok_and(|m| m.len() > 0)).collect())
}

/// One random change; its description.
fn change(file: &Path, rng: &mut StdRng) -> anyhow::Result<String> {
    let mut bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let at = rng.random_range(0..bytes.len());
    let what = match rng.random_range(0..10) {
        0 => {
            fs::remove_file(file)?;
            return Ok("removal".to_owned());
        }
        1 | 2 => {
            bytes.truncate(at);
            format!("truncation to {at}")
        }
        _ => {
            bytes[at] ^= 1 << rng.random_range(0..8);
            format!("flip at {at}")
        }
    };
    fs::write(file, bytes)?;
    Ok(what)
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
