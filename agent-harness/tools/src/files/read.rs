//! Reading a file: numbered lines, as far as they fit.

use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::place::{FileError, read_whole};
use super::text::{Ends, Text, cut};
use super::workspace::{Workspace, relative};

/// Lines shown unless fewer are asked for.
const LINES_MAX: usize = 2000;
/// Bytes of lines shown, numbers not counted.
const SHOWN_BYTES_MAX: usize = 64 * 1024;
/// Bytes shown of one line.
const LINE_BYTES_MAX: usize = 2000;

/// The input of `read`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadRequest {
    pub path: String,
    /// The first line to show, from 1.
    #[serde(default)]
    pub line: Option<usize>,
    #[serde(default)]
    pub lines: Option<usize>,
}

pub(crate) const DESCRIPTION: &str = "Reads a text file of the workspace. Lines come numbered, with a tab \
    between number and text. Line ends \\r\\n are shown as \\n, and said. Of long files only a part comes; \
    go on with line.";

pub(crate) fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "relative to the workspace"},
            "line": {"type": "integer", "minimum": 1, "description": "the first line to show"},
            "lines": {"type": "integer", "minimum": 1, "maximum": LINES_MAX},
        },
        "required": ["path"],
        "additionalProperties": false,
    })
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path} has {lines} lines")]
    Beyond { path: String, lines: usize },
}

impl ReadError {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::File(error) => error.word(),
            Self::Beyond { .. } => "beyond_the_end",
        }
    }
}

pub(crate) fn read(workspace: &Workspace, request: &ReadRequest) -> Result<String, ReadError> {
    let path = relative(&request.path).map_err(FileError::from)?;
    let file = workspace.file(path).map_err(FileError::from)?;
    let bytes = read_whole(file, path)?;
    if bytes.contains(&0) {
        return Err(FileError::Binary(request.path.clone()).into());
    }
    let (content, is_utf8) = match String::from_utf8(bytes) {
        Ok(content) => (content, true),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), false),
    };
    render(path, &Text::of(content), is_utf8, request)
}

fn render(path: &Path, text: &Text, is_utf8: bool, request: &ReadRequest) -> Result<String, ReadError> {
    let all = text.content.lines().count();
    let first = request.line.unwrap_or(1).max(1);
    if all == 0 {
        return Ok("[the file is empty]".to_owned());
    }
    if first > all {
        return Err(ReadError::Beyond { path: path.display().to_string(), lines: all });
    }
    let wanted = request.lines.unwrap_or(LINES_MAX).min(LINES_MAX);
    let (mut shown, mut bytes, mut last, mut cut_lines) = (String::new(), 0, first - 1, 0_usize);
    for (number, line) in (1..).zip(text.content.lines()).skip(first - 1).take(wanted) {
        let (line, is_whole) = cut(line, LINE_BYTES_MAX);
        bytes += line.len();
        if bytes > SHOWN_BYTES_MAX {
            break;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(shown, "{number:>6}\t{line}{}", if is_whole { "" } else { " [cut]" });
        cut_lines += usize::from(!is_whole);
        last = number;
    }
    if first > 1 || last < all {
        let _ = writeln!(shown, "[lines {first} to {last} of {all}]");
    }
    if cut_lines > 0 {
        let _ = writeln!(shown, "[{cut_lines} lines are cut after {LINE_BYTES_MAX} bytes]");
    }
    match text.ends {
        Ends::Lf => {}
        Ends::CrLf => shown.push_str("[lines end in \\r\\n]\n"),
        Ends::Mixed => shown.push_str("[some lines end in \\r\\n, some in \\n]\n"),
    }
    if !is_utf8 {
        shown.push_str("[not UTF-8: the bytes that are not are shown as \u{FFFD}]\n");
    }
    Ok(shown)
}
