//! Changes of a store that leave every file well formed: something removed, moved or put back as a whole.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{copy_tree, verify};
use crate::lab::{Lab, TENANT, binary};

const OTHER: &str = "another";
/// Bytes before a frame's payload (`gateway/store/src/frame.rs`).
const FRAME_HEADER_BYTES: usize = 9;
/// Frames of a file that are taken out, one at a time.
const FRAMES_MAX: usize = 12;

/// Gives the store a second tenant, and seals what is open. Returns a copy of the store from between two imports.
pub(super) fn second_tenant(lab: &Lab) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/events.jsonl"))?;
    let lines: Vec<&str> = text.lines().collect();
    let earlier = lab.path("earlier");
    for n in 0..2 {
        let part: Vec<&str> = lines.iter().skip(n).step_by(2).copied().collect();
        let file = lab.path("import.jsonl");
        fs::write(&file, part.join("\n"))?;
        let output = binary("activity")?
            .arg("--store")
            .arg(lab.store())
            .args(["--tenant", OTHER, "--format", "json", "import"])
            .arg(&file)
            .output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        ensure!(answer["stored"].as_u64() > Some(0), "nothing was imported: {answer}");
        if n == 0 {
            copy_tree(&lab.store(), &earlier)?;
        }
    }
    Ok(earlier)
}

/// Makes each change on a fresh copy, and requires it to be found.
pub(super) fn changes(lab: &Lab, earlier: &Path, key: &str) -> anyhow::Result<Value> {
    let (store, copy) = (lab.store(), lab.path("structure"));
    let mut missed = Vec::new();
    let mut made = 0;
    for (what, change) in all(&store)? {
        copy_tree(&store, &copy)?;
        change(&copy).with_context(|| what.clone())?;
        let (status, text) = verify(&copy, &["--trust", key])?;
        if status != 5 {
            missed.push(format!("{what}: exit {status}\n{text}"));
        }
        made += 1;
        fs::remove_dir_all(&copy)?;
    }
    ensure!(missed.is_empty(), "{} of {made} changes were not found:\n{}", missed.len(), missed.join("\n"));
    ensure!(made > 20, "only {made} changes could be made");
    put_back(lab, earlier, key)?;
    Ok(json!({"changes": made + 1, "found": made + 1}))
}

/// An earlier state of the whole store: well formed in itself, and found by a checkpoint that was kept.
fn put_back(lab: &Lab, earlier: &Path, key: &str) -> anyhow::Result<()> {
    let notes = fs::read_to_string(lab.store().join(format!("tenants/{OTHER}/log/checkpoints")))?;
    let lines: Vec<&str> = notes.lines().collect();
    let kept = lab.path("kept.checkpoint");
    fs::write(&kept, lines[lines.len().saturating_sub(5)..].join("\n") + "\n")?;
    let kept = kept.display().to_string();
    let (status, text) = verify(&lab.store(), &["--trust", key, "--checkpoint", &kept])?;
    ensure!(status == 0, "the untouched store does not hold the kept checkpoint ({status}):\n{text}");
    let (status, text) = verify(earlier, &["--trust", key])?;
    ensure!(status == 0 && text.contains("not provable"), "without a checkpoint ({status}):\n{text}");
    let (status, text) = verify(earlier, &["--trust", key, "--checkpoint", &kept])?;
    ensure!(status == 5, "the end of a log was taken away and not found ({status}):\n{text}");
    Ok(())
}

type Change = Box<dyn Fn(&Path) -> anyhow::Result<()>>;

fn all(store: &Path) -> anyhow::Result<Vec<(String, Change)>> {
    let mut all: Vec<(String, Change)> = Vec::new();
    let mut add = |what: String, change: Change| all.push((what, change));
    for part in ["", "/log", "/segments", "/log/leaves", "/log/checkpoints", "/log/origin"] {
        let (a, b) = (format!("tenants/{TENANT}{part}"), format!("tenants/{OTHER}{part}"));
        if store.join(&a).exists() && store.join(&b).exists() {
            add(format!("{a} and {b} swapped"), Box::new(move |copy| swap(&copy.join(&a), &copy.join(&b))));
        }
    }
    for segment in names(&store.join(format!("tenants/{TENANT}/segments")))? {
        let file = format!("tenants/{TENANT}/segments/{segment}");
        let target = format!("tenants/{OTHER}/segments/{segment}");
        add(
            format!("{file} given to {OTHER}"),
            Box::new(move |copy| Ok(fs::rename(copy.join(&file), copy.join(&target))?)),
        );
    }
    for (folder, start) in
        [("commit".to_owned(), 128), ("control".to_owned(), 0), (format!("tenants/{TENANT}/segments"), 96)]
    {
        for name in names(&store.join(&folder))? {
            let file = format!("{folder}/{name}");
            let frames = frames(&fs::read(store.join(&file))?, start);
            for (n, frame) in frames.into_iter().take(FRAMES_MAX).enumerate() {
                let (file, range) = (file.clone(), frame.clone());
                add(
                    format!("frame {n} taken out of {file}"),
                    Box::new(move |copy| edit(&copy.join(&file), |bytes| drop(bytes.drain(range.clone())))),
                );
            }
        }
    }
    for name in names(&store.join("control"))? {
        let file = format!("control/{name}");
        for (n, frame) in frames(&fs::read(store.join(&file))?, 0).into_iter().take(FRAMES_MAX).enumerate() {
            let file = file.clone();
            add(
                format!("signature of record {n} of {file} blanked"),
                Box::new(move |copy| {
                    edit(&copy.join(&file), |bytes| blank_signature(&mut bytes[frame.clone()]))
                }),
            );
        }
    }
    let notes = format!("tenants/{TENANT}/log/checkpoints");
    add(
        "signatures of checkpoints stripped".to_owned(),
        Box::new(move |copy| strip_lines(&copy.join(&notes))),
    );
    add("signature of meta.json stripped".to_owned(), Box::new(|copy| strip_json(&copy.join("meta.json"))));
    let closed = |bytes: &mut Vec<u8>| {
        let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        *bytes = [&lines[..1], &lines[2..]].concat().concat();
    };
    add("signature of closed stripped".to_owned(), Box::new(move |copy| edit(&copy.join("closed"), closed)));
    Ok(all)
}

fn names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names: Vec<String> = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<anyhow::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn swap(a: &Path, b: &Path) -> anyhow::Result<()> {
    let aside = a.with_extension("aside");
    fs::rename(a, &aside)?;
    fs::rename(b, a)?;
    Ok(fs::rename(aside, b)?)
}

fn edit(file: &Path, change: impl Fn(&mut Vec<u8>)) -> anyhow::Result<()> {
    let mut bytes = fs::read(file)?;
    change(&mut bytes);
    Ok(fs::write(file, bytes)?)
}

/// Where the frames of a file are.
fn frames(bytes: &[u8], start: usize) -> Vec<std::ops::Range<usize>> {
    let (mut at, mut frames) = (start, Vec::new());
    while let Some(len) = bytes.get(at..at + 4).and_then(|len| len.try_into().ok()).map(u32::from_le_bytes) {
        let end = at + FRAME_HEADER_BYTES + len as usize;
        if end > bytes.len() {
            break;
        }
        frames.push(at..end);
        at = end;
    }
    frames
}

/// Zeros in place of a control record's signature, with the frame's checksum made good.
fn blank_signature(frame: &mut [u8]) {
    frame[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + 64].fill(0);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&frame[..4]), &frame[8..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Takes the signature lines out of signed notes.
fn strip_lines(notes: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(notes)?;
    let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with('\u{2014}')).collect();
    Ok(fs::write(notes, kept.join("\n") + "\n")?)
}

fn strip_json(file: &Path) -> anyhow::Result<()> {
    let mut document: Value = serde_json::from_slice(&fs::read(file)?)?;
    document.as_object_mut().context("no object")?.remove("signature").context("no signature")?;
    Ok(fs::write(file, document.to_string())?)
}
