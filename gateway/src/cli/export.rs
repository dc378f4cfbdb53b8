//! Writes a bundle: into a temporary file beside the target, checked, made durable, and then put in its place.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use activity_store::{BundleReport, VerifyOptions};
use anyhow::Context as _;
use serde_json::json;
use tempfile::NamedTempFile;

use super::args::{ExportArgs, Format, Place};
use super::output::{Output, complain};
use super::show::{ending, filter};
use super::source::Source;
use super::verify::{Drawing, read_checkpoint};
use super::{CliError, Ending, bundle};
use crate::story::{coverage_summary, escape};
use crate::wire::Params;

pub(super) async fn export(place: &Place, args: ExportArgs, out: &Output) -> Result<Ending, CliError> {
    let kept = args.checkpoint.as_deref().map(read_checkpoint).transpose()?;
    let target = &args.output;
    let exists = || CliError::Usage(format!("{} is there already; --force replaces it", target.display()));
    match target.symlink_metadata() {
        Ok(found) if !found.is_file() => {
            return Err(CliError::Usage(format!(
                "{} is no regular file; nothing is written",
                target.display()
            )));
        }
        Ok(_) if !args.force => return Err(exists()),
        _ => {}
    }
    let params =
        Params { kept_size: kept.map(|(_, checkpoint)| checkpoint.size), ..filter(place, args.filter)? };
    let source = Source::open(place).await?;
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let writing = || format!("cannot write into {}", dir.display());
    let mut file = NamedTempFile::new_in(dir).with_context(writing)?;
    let (mut buffered, mut drawing) = (BufWriter::new(file.as_file_mut()), Drawing::new("exporting"));
    let name = target.display().to_string();
    let exported = source.export(&params, &mut buffered, |bytes| drawing.draw(bytes, 0, &name)).await;
    drawing.clear();
    exported?;
    buffered.flush().with_context(writing)?;
    drop(buffered);
    file.as_file().sync_all().with_context(writing)?;
    // Whoever gets the bundle will check it: what would not hold there is not given out.
    let report = bundle::check(file.path(), &VerifyOptions::default(), |_| {})?;
    if !report.ok {
        return Err(CliError::Integrity(format!("{}; no bundle is written", bundle::why(&report))));
    }
    let put = if args.force { file.persist(target) } else { file.persist_noclobber(target) };
    put.map_err(|e| match e.error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(),
        _ => anyhow::Error::new(e.error).context(writing()).into(),
    })?;
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(writing)?;
    show(&report, target, out)
}

/// Says what is in the bundle, and how far it answers the question.
fn show(report: &BundleReport, target: &Path, out: &Output) -> Result<Ending, CliError> {
    let manifest = report.manifest.as_ref().context("a bundle that verifies has a manifest")?;
    let ends = ending(&manifest.coverage);
    match out.format {
        Format::Text => out.text(&escape(&format!(
            "{} · {} batches with {} events, {} · coverage {}",
            target.display(),
            report.batches,
            report.events,
            if report.signed { "signed" } else { "NOT SIGNED" },
            coverage_summary(&manifest.coverage)
        )))?,
        Format::Json | Format::Ndjson => out.document(&json!({
            "file": target,
            "batches": report.batches,
            "events": report.events,
            "signed": report.signed,
            "complete": ends == Ending::Complete,
            "damaged": report.damaged,
        }))?,
    }
    if out.format == Format::Text {
        out.text("\n")?;
    }
    if !report.signed {
        complain(
            "activity: the gateway's key is not there: the bundle is not signed, and proves its batches only",
        );
    }
    if report.damaged == 0 {
        return Ok(ends);
    }
    for place in &report.unreadable {
        complain(&format!("activity: does not read: {}", escape(place)));
    }
    complain(&format!(
        "activity: {} batches or blocks that may hold matches do not read; `activity verify` names every damage",
        report.damaged
    ));
    Ok(Ending::Damaged)
}
