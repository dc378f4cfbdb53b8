//! Where words go: data to standard output, everything else to standard error.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use super::args::{Format, Shown};
use crate::story::Style;

/// Whoever read our standard output reads no more (`| head`).
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
pub(super) struct ReaderGone;

/// Standard output with the chosen format.
pub(super) struct Output {
    pub format: Format,
    pub style: Style,
}

impl Output {
    /// Width and colour only to a terminal, unless a width was asked for.
    pub(super) fn new(shown: &Shown) -> Self {
        let terminal = io::stdout().is_terminal();
        let columns = terminal_size::terminal_size().map(|(w, _)| usize::from(w.0)).filter(|_| terminal);
        let width = match shown.width {
            Some(0) => None,
            Some(width) => Some(width),
            None => columns,
        };
        let colour = terminal && !shown.no_color && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Output { format: shown.format, style: Style { width, colour } }
    }

    pub(super) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => io::Error::new(io::ErrorKind::BrokenPipe, ReaderGone),
            _ => error,
        })
    }

    pub(super) fn text(&self, text: &str) -> io::Result<()> {
        self.bytes(text.as_bytes())
    }

    /// One document: indented as `json`, on one line as `ndjson`.
    pub(super) fn document(&self, value: &impl Serialize) -> Result<(), super::CliError> {
        let mut bytes = match self.format {
            Format::Ndjson => serde_json::to_vec(value)?,
            Format::Text | Format::Json => serde_json::to_vec_pretty(value)?,
        };
        bytes.push(b'\n');
        Ok(self.bytes(&bytes)?)
    }
}

/// A word to the person at the terminal.
pub(super) fn complain(text: &str) {
    // Nothing can be done when standard error is closed.
    let _ = writeln!(io::stderr(), "{text}");
}
