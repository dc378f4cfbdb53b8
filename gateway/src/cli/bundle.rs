//! Offline verification of an exported bundle.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use activity_store::{BundleReport, BundleStep, VerifyOptions, verify_bundle};
use anyhow::Context as _;

use super::args::{Format, VerifyArgs};
use super::output::Output;
use super::verify::{Drawing, options};
use super::{CliError, Ending};
use crate::story::{coverage_summary, escape};

pub(super) fn verify(args: &VerifyArgs, out: &Output) -> Result<Ending, CliError> {
    let mut listed = Ok(());
    let report = check(&args.evidence, &options(args)?, |step| {
        if let BundleStep::Batch { name, hash, events, of } = step
            && args.list
            && listed.is_ok()
        {
            listed = out.text(&format!("{hash}  {events} of {of} lines  {}\n", escape(name)));
        }
    })?;
    listed?;
    match out.format {
        _ if args.list => {}
        Format::Text => out.text(&text(&report))?,
        Format::Json | Format::Ndjson => out.document(&report)?,
    }
    if report.ok { Ok(Ending::Complete) } else { Err(CliError::Integrity(why(&report))) }
}

/// Reads a bundle from a file, with progress on a terminal.
pub(super) fn check(
    path: &Path,
    options: &VerifyOptions,
    mut step: impl FnMut(&BundleStep),
) -> Result<BundleReport, CliError> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let total = file.metadata().map_or(0, |metadata| metadata.len());
    let (mut drawing, name) = (Drawing::new("verifying"), path.display().to_string());
    let report = verify_bundle(BufReader::new(file), options, &mut |seen| {
        if let BundleStep::Read(bytes) = seen {
            drawing.draw(bytes, total, &name);
        }
        step(&seen);
    });
    drawing.clear();
    Ok(report)
}

fn text(report: &BundleReport) -> String {
    let mut lines = vec![format!("verify    {}", if report.ok { "ok" } else { "FAILED" })];
    if let Some(manifest) = &report.manifest {
        let key = manifest.gateway_key.to_base64();
        lines.push(format!(
            "bundle    of tenant {} · made {} for {}",
            manifest.tenant, manifest.made_at, manifest.actor
        ));
        lines.push(format!("question  {}", serde_json::to_string(&manifest.query).unwrap_or_default()));
        lines.push(format!("coverage  {}", coverage_summary(&manifest.coverage)));
        lines.push(match (report.signed, manifest.signed) {
            (true, _) => format!("signed    by {key}"),
            (false, true) => format!("signed    NOT as by {key}"),
            (false, false) => format!("signed    by nobody; receipts and checkpoint by {key}"),
        });
    }
    lines.push(format!(
        "read      {} batches with {} events, {} other lines as hashes, {} erased",
        report.batches, report.events, report.hashes, report.erased
    ));
    lines.extend(report.keys.iter().map(|key| {
        let revoked = key.revoked_at.map_or_else(String::new, |at| format!(", revoked {at}"));
        format!(
            "key       {} of collector {}, epoch {}: enrolled {}{revoked} (control record {})",
            key.key_id, key.collector_id, key.epoch, key.enrolled_at, key.control_sequence
        )
    }));
    lines.extend(report.problems.iter().map(|problem| {
        let batch = problem.batch.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        format!("DAMAGE    line {}: {batch}{}", problem.line, problem.what)
    }));
    let more = report.problems_count - report.problems.len() as u64;
    if more > 0 {
        lines.push(format!("          and {more} more"));
    }
    lines.extend(report.not_established.iter().map(|what| format!("unproven  {what}")));
    lines.iter().map(|line| format!("{}\n", escape(line))).collect()
}

/// Names the first damaged batch.
pub(super) fn why(report: &BundleReport) -> String {
    // What names a batch is of more use than what only says that bytes differ.
    let named = report.problems.iter().find(|problem| problem.batch.is_some());
    match named.or(report.problems.first()) {
        Some(first) => {
            let batch = first.batch.as_ref().map(|name| format!("{name}, ")).unwrap_or_default();
            let more = report.problems_count - 1;
            let more = if more > 0 { format!("; {more} more problems") } else { String::new() };
            format!("the bundle fails verification: {batch}line {}: {}{more}", first.line, first.what)
        }
        None => "not everything is established, as --strict asks; see the report".to_owned(),
    }
}
