//! Goes through segments and commit files, frame by frame, and hands each batch to its tenant's check.

use std::collections::BTreeMap;
use std::path::Path;

use activity_schema::ids::TenantId;

use crate::block::read_block;
use crate::commit::{self, CommitFile};
use crate::env::Env;
use crate::frame::{Found, Kind, Scan};
use crate::record::{Clear, read_batch};
use crate::recover::TAIL;
use crate::segment::{self, ScannedBlocks, scan_blocks};
use crate::verify::{Findings, Steps};
use crate::verify_tenant::TenantCheck;
use crate::wire::Reader;

type Tenants<'a> = BTreeMap<TenantId, TenantCheck<'a>>;

/// `<20 digits>` of a file's name.
fn number_of(name: &str) -> Option<u64> {
    name.rsplit('/').next()?.split('.').next()?.parse().ok()
}

pub(crate) fn check_segments(
    env: &Env,
    dir: &Path,
    files: &[String],
    tenants: &mut Tenants<'_>,
    steps: &mut Steps<'_>,
    findings: &mut Findings,
) {
    for name in files.iter().filter(|name| name.ends_with(".seg")) {
        steps.file(name);
        let tenant = name.split('/').nth(1).and_then(|id| TenantId::new(id).ok());
        let Some(check) = tenant.and_then(|id| tenants.get_mut(&id)) else { continue };
        match env.storage.read(&dir.join(name)) {
            Ok(bytes) => check_segment(name, &bytes, check, findings),
            Err(error) => findings.damage(name, Some(check.id()), None, format!("does not read: {error}")),
        }
    }
}

fn check_segment(name: &str, bytes: &[u8], check: &mut TenantCheck<'_>, findings: &mut Findings) {
    let id = check.id().clone();
    if !segment::Header::is_intact(bytes) {
        findings.damage(name, Some(&id), None, "a copy of the header is damaged");
    }
    let header = match segment::Header::read(bytes) {
        Ok(header) if Some(header.number) == number_of(name) => header,
        Ok(_) => {
            findings.damage(name, Some(&id), None, "the file is under another's name");
            return;
        }
        Err(_) => {
            findings.damage(
                name,
                Some(&id),
                None,
                "both copies of the header are damaged; nothing in it opens",
            );
            return;
        }
    };
    let entries = match segment::footer_of(bytes, &id, &header, &check.keys().head_of(&header.id)) {
        Ok(entries) => Some(entries),
        Err(error) => {
            findings.damage(name, Some(&id), None, error.to_string());
            None
        }
    };
    let ScannedBlocks { blocks, damaged } = scan_blocks(bytes);
    for (offset, len) in damaged {
        let hit = entries.iter().flatten().find(|e| e.offset >= offset && e.offset < offset + len);
        let what = match hit {
            Some(e) => format!("{len} damaged bytes at {offset}: leaves {} to {}", e.first_leaf, e.last_leaf),
            None => format!("{len} damaged bytes at {offset}"),
        };
        findings.damage(name, Some(&id), hit.map(|e| e.first_leaf), what);
    }
    if let Some(entries) = &entries
        && entries.len() != blocks.len()
    {
        let what = format!("the footer lists {} blocks, the file holds {}", entries.len(), blocks.len());
        findings.damage(name, Some(&id), None, what);
    }
    check.enter_segment(header.number);
    let files = check.recording_keys(&header.id);
    for (offset, payload) in blocks {
        match read_block(payload, &files, &id) {
            Ok(batches) => batches.iter().for_each(|batch| check.batch(name, batch, findings)),
            Err(error) => {
                findings.damage(
                    name,
                    Some(&id),
                    None,
                    format!("the block at {offset} does not open: {error}"),
                );
            }
        }
    }
    check.report_keys(name, &files.into_trouble(), findings);
}

pub(crate) fn check_commit_files(
    env: &Env,
    dir: &Path,
    files: &[String],
    tenants: &mut Tenants<'_>,
    steps: &mut Steps<'_>,
    findings: &mut Findings,
) {
    // Newest first, as each says how far the one before it counts.
    let mut counted = BTreeMap::new();
    let mut scanned = Vec::new();
    // A file between a good one and the one that it follows was abandoned before anything in it counted; what it
    // holds stands again in a later one. Were it not so, the log's leaves would lack their batches.
    let mut follows: Option<(u64, u64)> = None;
    for name in files.iter().filter(|name| name.starts_with("commit/")).rev() {
        steps.file(name);
        if name.ends_with(TAIL) {
            findings.damage(
                name,
                None,
                None,
                "the damaged end of a commit file, which held acknowledged batches",
            );
            continue;
        }
        let bytes = match env.storage.read(&dir.join(name)) {
            Ok(bytes) => bytes,
            Err(error) => {
                findings.damage(name, None, None, format!("does not read: {error}"));
                continue;
            }
        };
        let passed_over = name.ends_with(".log")
            && follows.is_some_and(|(before, good)| {
                number_of(name).is_some_and(|number| before < number && number < good)
            });
        if passed_over {
            findings.unfinished(name, "abandoned before anything in it was acknowledged");
            continue;
        }
        if !commit::Header::is_intact(&bytes) {
            // As recovery judges it: with no good file after it and no batch in a log, nobody was told of it.
            let unborn =
                scanned.is_empty() && commit::Header::read(&bytes).is_err() && !holds_logged(&bytes, tenants);
            if unborn {
                findings.unfinished(name, "the file of a group that was never acknowledged");
                continue;
            }
            findings.damage(name, None, None, "a copy of the header is damaged");
        }
        let Some(number) = number_of(name) else { continue };
        match CommitFile::scan(bytes, counted.get(&number).copied()) {
            Ok(file) if file.header.number == number => {
                counted.insert(file.header.previous, file.header.previous_len);
                follows = Some((file.header.previous, number));
                scanned.push((name, file));
            }
            Ok(_) => findings.damage(name, None, None, "the file is under another's name"),
            Err(_) => findings.damage(name, None, None, "nothing in it opens"),
        }
    }
    for (name, file) in scanned.iter().rev() {
        check_commit_file(name, file, tenants, findings);
    }
}

/// Whether a log has a batch of this file; the clear part of frames reads without the header.
fn holds_logged(bytes: &[u8], tenants: &Tenants<'_>) -> bool {
    Scan::new(bytes, commit::HEADER_BYTES).any(|found| {
        let Found::Frame { kind: Kind::Batch, payload, .. } = found else { return false };
        Clear::read(&mut Reader::new(payload)).is_ok_and(|clear| {
            tenants
                .get(&clear.tenant)
                .is_some_and(|check| check.is_logged(clear.leaf_index, clear.batch_hash))
        })
    })
}

fn check_commit_file(name: &str, file: &CommitFile, tenants: &mut Tenants<'_>, findings: &mut Findings) {
    let number = file.header.number;
    let mut unfinished = 0u64;
    let mut acknowledged_end = file.grouped_len;
    for found in &file.batches {
        let payload = file.payload(found);
        let Ok(clear) = Clear::read(&mut Reader::new(payload)) else {
            findings.damage(name, None, None, format!("the frame at {} is no batch", found.offset));
            continue;
        };
        let Some(check) = tenants.get_mut(&clear.tenant) else {
            let what = format!("leaf {}: the tenant has no directory", clear.leaf_index);
            findings.damage(name, Some(&clear.tenant), Some(clear.leaf_index), what);
            continue;
        };
        if found.unfinished && !check.is_logged(clear.leaf_index, clear.batch_hash) {
            unfinished += 1;
            continue;
        }
        acknowledged_end = acknowledged_end.max(found.end as u64);
        let keys = check.recording_keys(&file.header.id);
        match read_batch(payload, &keys) {
            Ok(batch) if batch.leaf_index == clear.leaf_index => {
                check.commit_batch(name, number, &batch, findings)
            }
            Ok(_) => {
                findings.damage(name, Some(&clear.tenant), Some(clear.leaf_index), "it is another's place")
            }
            Err(error) => {
                let what = format!("leaf {} does not open: {error}", clear.leaf_index);
                findings.damage(name, Some(&clear.tenant), Some(clear.leaf_index), what);
            }
        }
        check.report_keys(name, &keys.into_trouble(), findings);
    }
    for (offset, len) in &file.damaged {
        let what = format!("{len} damaged bytes at {offset}");
        if *offset < acknowledged_end {
            findings.damage(name, None, None, what);
        } else {
            findings.unfinished(name, format!("{what}, after the last whole group"));
        }
    }
    if unfinished > 0 {
        findings.unfinished(name, format!("{unfinished} batches of a group that was never acknowledged"));
    }
}
