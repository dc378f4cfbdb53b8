//! Writes a bundle: beside the target, checked, made durable, and then put in its place.

use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::Path;

use activity_store::{BundleReport, VerifyOptions};
use anyhow::Context as _;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{ExportArgs, Format, Place};
use super::output::{Output, complain};
use super::partial::Partial;
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
    let mut partial = match Partial::beside(target) {
        Err(e) if e.kind() == ErrorKind::WouldBlock => {
            return Err(CliError::Usage(format!("another export writes {}", target.display())));
        }
        other => other.with_context(|| format!("cannot write {}", target.display()))?,
    };
    let report = tokio::select! {
        written = write(&source, &params, &mut partial, target) => written?,
        name = interrupted() => {
            return Err(anyhow::anyhow!("{}; no bundle is written", name?).into());
        }
    };
    if !report.ok {
        return Err(CliError::Integrity(format!("{}; no bundle is written", bundle::why(&report))));
    }
    partial.put(args.force).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => exists(),
        _ => anyhow::Error::new(e).context(format!("cannot write {}", target.display())).into(),
    })?;
    show(&report, target, out)
}

/// Writes the bundle, and reads it again: whoever gets it will check it, and what would not hold there is not given out.
async fn write(
    source: &Source,
    params: &Params,
    partial: &mut Partial,
    target: &Path,
) -> Result<BundleReport, CliError> {
    let (mut buffered, mut drawing) = (BufWriter::new(partial.file()), Drawing::new("exporting"));
    let name = target.display().to_string();
    let exported = source.export(params, &mut buffered, |bytes| drawing.draw(bytes, 0, &name)).await;
    drawing.clear();
    exported?;
    buffered.flush().with_context(|| format!("cannot write {name}"))?;
    drop(buffered);
    let path = partial.path();
    let check = move || bundle::check(&path, &VerifyOptions::default(), |_| {});
    tokio::task::spawn_blocking(check).await.context("checking the bundle")?
}

/// Waits until somebody wants the command to end.
async fn interrupted() -> std::io::Result<&'static str> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok("interrupted"),
        _ = terminate.recv() => Ok("terminated"),
    }
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
