//! Offline verification of a store (a bundle: see `bundle`): what holds, what does not, what cannot be told from the store alone.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use activity_schema::checkpoint::Checkpoint;
use activity_store::{Severity, TenantVerified, VerifyOptions, VerifyReport, evidence_files, verify_store};

use super::args::{Format, VerifyArgs};
use super::output::Output;
use super::proof::read_key;
use super::{CliError, Ending, bundle};
use crate::story::{bytes, escape};

/// How often progress is drawn.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Problems shown as text; the document has them all.
const PROBLEMS_SHOWN_MAX: usize = 20;

pub(super) fn verify(args: VerifyArgs, out: &Output) -> Result<Ending, CliError> {
    if args.evidence.is_file() {
        return bundle::verify(&args, out);
    }
    let files = evidence_files(&args.evidence);
    if files.is_empty() {
        return Err(CliError::Usage(format!("{} is neither a store nor a bundle", args.evidence.display())));
    }
    if args.list {
        for file in &files {
            out.text(&format!("{}\n", escape(&file.display().to_string())))?;
        }
        return Ok(Ending::Complete);
    }
    let options = options(&args)?;
    let mut drawing = Drawing::new("verifying");
    let report = verify_store(&args.evidence, &options, &mut |progress| {
        drawing.draw(progress.bytes_done, progress.bytes_total, &progress.file);
    });
    drawing.clear();
    match out.format {
        Format::Text => out.text(&text(&report))?,
        Format::Json | Format::Ndjson => out.document(&report)?,
    }
    if report.ok {
        return Ok(Ending::Complete);
    }
    Err(CliError::Integrity(why(&report)))
}

pub(super) fn options(args: &VerifyArgs) -> Result<VerifyOptions, CliError> {
    Ok(VerifyOptions {
        trust: args.trust.as_deref().map(read_key).transpose()?,
        checkpoint: args.checkpoint.as_deref().map(read_checkpoint).transpose()?.map(|(note, _)| note),
        strict: args.strict,
    })
}

/// A checkpoint that was kept in a file: the note, and what it says.
pub(super) fn read_checkpoint(path: &Path) -> Result<(String, Checkpoint), CliError> {
    let note = std::fs::read_to_string(path)
        .map_err(|e| CliError::Usage(format!("--checkpoint {}: {e}", path.display())))?;
    let checkpoint = Checkpoint::parse(&note).map_err(|e| {
        CliError::Usage(format!(
            "--checkpoint {} is no checkpoint: {e}; get one with GET /v1/checkpoint",
            path.display()
        ))
    })?;
    Ok((note, checkpoint))
}

/// The report in words: tenants, then what is amiss, then what is not established.
fn text(report: &VerifyReport) -> String {
    let mut lines = vec![format!("verify    {}", if report.ok { "ok" } else { "FAILED" })];
    if let (Some(store), Some(key)) = (&report.store_id, &report.gateway_key) {
        lines.push(format!("store     {store} · signed by {key}"));
    }
    lines.push(format!("read      {} files, {} control records", report.files, report.control_records));
    lines.extend(report.tenants.iter().map(tenant));
    for problem in report.problems.iter().take(PROBLEMS_SHOWN_MAX) {
        let severity = match problem.severity {
            Severity::Damage => "DAMAGE    ",
            Severity::Unfinished => "unfinished",
        };
        let at = problem.leaf_index.map(|leaf| format!(" batch {leaf}")).unwrap_or_default();
        let of = problem.tenant.as_ref().map(|t| format!(" of {t}")).unwrap_or_default();
        lines.push(format!("{severity}{at}{of} in {}: {}", problem.file, problem.what));
    }
    let more = report.problems.len().saturating_sub(PROBLEMS_SHOWN_MAX);
    if more > 0 {
        lines.push(format!("           and {more} more; --format json has them all"));
    }
    lines.extend(report.not_established.iter().map(|what| format!("unproven  {what}")));
    let mut out = String::new();
    for line in lines {
        out.push_str(&escape(&line));
        out.push('\n');
    }
    out
}

fn tenant(t: &TenantVerified) -> String {
    let mut parts = vec![format!("{} batches, {} events, {} streams", t.batches, t.events, t.streams)];
    for (count, what) in [
        (t.elided, "lines kept as hashes"),
        (t.erased, "lines erased"),
        (t.forks, "forks"),
        (t.headers_alone, "headers alone"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let signed =
        t.checkpoint_size.map_or_else(|| "no checkpoint".to_owned(), |n| format!("checkpoint at {n}"));
    format!("tenant    {} · {} · log of {} ({signed})", t.tenant, parts.join(", "), t.log_size)
}

/// Names the first damaged batch; the report has them all.
fn why(report: &VerifyReport) -> String {
    let damage = || report.problems.iter().filter(|p| p.severity == Severity::Damage);
    match damage().next() {
        Some(first) => {
            let batch = first.leaf_index.map(|leaf| format!("batch {leaf} ")).unwrap_or_default();
            let more = damage().count() - 1;
            let more = if more > 0 { format!("; {more} more problems") } else { String::new() };
            format!("the evidence fails verification: {batch}in {}: {}{more}", first.file, first.what)
        }
        None => "not everything is established, as --strict asks; see the report".to_owned(),
    }
}

/// A line of progress on standard error, when that is a terminal.
pub(super) struct Drawing {
    doing: &'static str,
    shown: bool,
    last: Option<Instant>,
}

impl Drawing {
    pub(super) fn new(doing: &'static str) -> Self {
        Drawing { doing, shown: std::io::stderr().is_terminal(), last: None }
    }

    /// `total` is 0 when it is not known.
    pub(super) fn draw(&mut self, done: u64, total: u64, what: &str) {
        if !self.shown || self.last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return;
        }
        self.last = Some(Instant::now());
        let show = |n: u64| bytes(i64::try_from(n).unwrap_or(i64::MAX));
        let of = if total > 0 { format!(" of {}", show(total)) } else { String::new() };
        let _ = write!(std::io::stderr(), "\r\x1b[K{} {}{of} · {}", self.doing, show(done), escape(what));
    }

    pub(super) fn clear(&mut self) {
        if self.last.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
