//! Changes of an exported bundle.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::verify;
use crate::lab::{Arena, Lab, TENANT, binary, run};

/// A bundle as lines, each with the batch that it belongs to.
struct Bundle {
    lines: Vec<Vec<u8>>,
    owners: Vec<Option<String>>,
}

/// Exports the sandbox's events from the store on disk, and requires every change of the bundle to be found, and the
/// batch that it hits to be named.
pub(super) fn changes(
    lab: &Lab,
    arena: &Arena,
    key: &str,
    changes: u32,
    rng: &mut StdRng,
) -> anyhow::Result<Value> {
    let file = lab.path("tamper.bundle");
    let target = file.display().to_string();
    let output =
        lab.activity_on_store(&["export", "--instance", arena.name(), "--class", "process", "-o", &target])?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(matches!(output.status.code(), Some(0 | 3)), "no bundle ({}): {text}", output.status);
    let (status, text) = verify(&file, &["--trust", key])?;
    ensure!(status == 0, "the untouched bundle does not verify ({status}):\n{text}");
    let bundle = Bundle::read(&file)?;
    let mut missed = Vec::new();
    for n in 0..changes {
        let (what, bytes, batch) = bundle.change(rng);
        fs::write(&file, bytes)?;
        let (status, text) = verify(&file, &["--trust", key])?;
        let named = batch.as_ref().is_none_or(|batch| text.contains(batch));
        if status != 5 || !named {
            missed.push(format!("change {n}: {what} in {batch:?}: exit {status}\n{text}"));
        }
    }
    ensure!(missed.is_empty(), "{} of {changes} changes were missed:\n{}", missed.len(), missed.join("\n"));
    let batches = bundle.owners.iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
    Ok(json!({"changes": changes, "found": changes, "batches": batches, "lines": bundle.lines.len()}))
}

impl Bundle {
    fn read(file: &Path) -> anyhow::Result<Self> {
        let names = run(binary("activity")?.arg("verify").arg(file).arg("--list"))?;
        let mut names = names.lines().filter_map(|line| Some(line[line.find("batch ")?..].to_owned()));
        let bytes = fs::read(file)?;
        let (mut lines, mut owners, mut owner) = (Vec::new(), Vec::new(), None);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if line.starts_with(b"{\"batch\":") {
                owner = Some(names.next().context("verify --list names too few batches")?);
            } else if !line.starts_with(b"{\"schema_version\":") {
                owner = None;
            }
            lines.push(line.to_vec());
            owners.push(owner.clone());
        }
        ensure!(names.next().is_none(), "verify --list names too many batches");
        ensure!(owners.iter().flatten().count() > 0, "the bundle has no batch");
        Ok(Bundle { lines, owners })
    }

    /// A random change: what it is, the bytes after it, and the batch that it hits.
    fn change(&self, rng: &mut StdRng) -> (String, Vec<u8>, Option<String>) {
        let at = rng.random_range(0..self.lines.len());
        let owner = self.owners[at].clone();
        let mut lines = self.lines.clone();
        match rng.random_range(0..10) {
            0 => {
                let mut bytes = lines.concat();
                let len = rng.random_range(0..bytes.len());
                bytes.truncate(len);
                (format!("truncation to {len}"), bytes, None)
            }
            1 => {
                lines.remove(at);
                (format!("removal of line {at}"), lines.concat(), owner)
            }
            2 => {
                let Some(owner) = owner else { return self.change(rng) };
                let kept = lines.into_iter().zip(&self.owners).filter(|(_, of)| of.as_ref() != Some(&owner));
                let bytes = kept.flat_map(|(line, _)| line).collect();
                (format!("removal of {owner}"), bytes, Some(owner))
            }
            3 => match strip(&lines[at]) {
                Some(stripped) => {
                    lines[at] = stripped;
                    (format!("a signature stripped in line {at}"), lines.concat(), owner)
                }
                None => self.change(rng),
            },
            4 => {
                let text = String::from_utf8_lossy(&lines[at]);
                let swapped = text.replace(TENANT, "another");
                if swapped == text {
                    return self.change(rng);
                }
                lines[at] = swapped.into_bytes();
                (format!("the tenant swapped in line {at}"), lines.concat(), owner)
            }
            _ => {
                let (byte, bit) = (rng.random_range(0..lines[at].len()), rng.random_range(0..8));
                lines[at][byte] ^= 1 << bit;
                (format!("flip of bit {bit} of byte {byte} of line {at}"), lines.concat(), owner)
            }
        }
    }
}

/// The line with the last of its signatures emptied.
fn strip(line: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(line).ok()?;
    let start = text.rfind("\"signature\":\"")? + "\"signature\":\"".len();
    let end = start + text[start..].find('"')?;
    Some([&text[..start], &text[end..]].concat().into_bytes())
}
