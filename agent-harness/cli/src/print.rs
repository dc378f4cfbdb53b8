//! A session's events on the terminal: the answer on stdout, everything else on stderr.

use std::io::{self, Write};

use iteron_protocol::{ControlOp, OutputEvent, TelemetryCounts, ToolStatus};
use iteron_runtime::Submitter;
use tokio::sync::mpsc;

/// Output of a tool shown to a person: enough to follow, not to read.
const TOOL_LINES_MAX: usize = 10;

/// Prints events. When stdout cannot be written any more, it drains the session.
pub struct Printer {
    json: bool,
    submitter: Submitter,
    reader_gone: bool,
    line_open: bool,
}

impl Printer {
    pub const fn new(json: bool, submitter: Submitter) -> Self {
        Self { json, submitter, reader_gone: false, line_open: false }
    }

    /// Prints until the session ends. Blocks as long as nobody reads.
    pub fn print_all(mut self, mut output: mpsc::Receiver<OutputEvent>) {
        while let Some(event) = output.blocking_recv() {
            self.print(&event);
        }
    }

    fn print(&mut self, event: &OutputEvent) {
        if let OutputEvent::SessionEnded { telemetry: Some(counts), .. } = event {
            report_losses(counts);
        }
        if self.reader_gone {
            return;
        }
        let written = if self.json { json_line(event) } else { self.text(event) };
        if written.is_err() {
            self.reader_gone = true;
            // Fails only when the session has ended.
            let _ = self.submitter.control(ControlOp::DrainSession);
        }
    }

    fn text(&mut self, event: &OutputEvent) -> io::Result<()> {
        match event {
            OutputEvent::ModelText { text, .. } => {
                self.line_open = !text.ends_with('\n');
                let mut stdout = io::stdout().lock();
                stdout.write_all(text.as_bytes())?;
                stdout.flush()
            }
            OutputEvent::ModelCompleted { .. } | OutputEvent::ModelFailed { .. } => {
                if std::mem::take(&mut self.line_open) {
                    writeln!(io::stdout())?;
                }
                if let OutputEvent::ModelFailed { message, .. } = event {
                    note(&format!("model failed: {message}"));
                }
                Ok(())
            }
            OutputEvent::ModelRetrying { attempt, error_class, delay_ms, .. } => {
                let class = error_class.as_str();
                note(&format!("attempt {attempt} failed ({class}), again in {delay_ms} ms"));
                Ok(())
            }
            OutputEvent::ToolInvoked { tool_name, input, .. } => {
                let what =
                    ["command", "path", "pattern", "action"].iter().find_map(|key| input[key].as_str());
                note(&format!("{tool_name}: {}", what.unwrap_or_default()));
                Ok(())
            }
            OutputEvent::ToolEnded { status, exit_code, reason, output, .. } => {
                tool_ended(*status, *exit_code, reason.as_deref(), output);
                Ok(())
            }
            OutputEvent::SessionEnded { outcome, turns, usage, .. } => {
                let (input, output) = (usage.input_tokens, usage.output_tokens);
                let reason = outcome.reason();
                note(&format!("{reason} after {turns} turns, {input} tokens in, {output} out"));
                Ok(())
            }
            OutputEvent::SessionStarted { .. } | OutputEvent::TurnStarted { .. } => Ok(()),
        }
    }
}

/// One line for a person, on stderr. What a model or a command wrote may hold control characters
/// that would drive the terminal: they are shown escaped.
#[allow(clippy::print_stderr, reason = "the CLI's notes to a person")]
pub fn note(text: &str) {
    let shown: String = text
        .chars()
        .flat_map(|letter| {
            let escape = letter.is_control() && !matches!(letter, '\n' | '\t');
            let escaped = escape.then(|| letter.escape_default());
            escaped.into_iter().flatten().chain((!escape).then_some(letter))
        })
        .collect();
    eprintln!("iteron: {shown}");
}

fn json_line(event: &OutputEvent) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

fn tool_ended(status: ToolStatus, exit_code: Option<i32>, reason: Option<&str>, output: &str) {
    let lines: Vec<&str> = output.lines().collect();
    for line in lines.iter().take(TOOL_LINES_MAX) {
        note(&format!("  {line}"));
    }
    if lines.len() > TOOL_LINES_MAX {
        note(&format!("  ({} more lines)", lines.len() - TOOL_LINES_MAX));
    }
    let reason = reason.unwrap_or_default();
    match (status, exit_code) {
        (ToolStatus::Completed, _) => {}
        (ToolStatus::Failed, Some(code)) => note(&format!("failed: exit code {code}")),
        (ToolStatus::Failed, None) => note(&format!("failed: {reason}")),
        (ToolStatus::Denied, _) => note(&format!("denied: {reason}")),
        (ToolStatus::Cancelled, _) => note(&format!("cancelled: {reason}")),
    }
}

fn report_losses(counts: &TelemetryCounts) {
    let TelemetryCounts { rejected, dropped, unconfirmed, .. } = *counts;
    if rejected + dropped + unconfirmed > 0 {
        note(&format!(
            "the collector may lack events: {dropped} dropped, {unconfirmed} unconfirmed, {rejected} rejected"
        ));
    }
}
