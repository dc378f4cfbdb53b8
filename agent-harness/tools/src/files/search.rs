//! Searching files for a pattern, with ripgrep's libraries.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkFinish, SinkMatch};
use ignore::overrides::{Override, OverrideBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::here;
use super::text::{cut, shown_name};
use super::walk::{Halt, Next, Walk, Walked};
use super::workspace::{PathError, Workspace, file_in, relative};

/// Matching lines shown.
const LINES_MAX: usize = 500;
/// Bytes of matching lines shown.
const SHOWN_BYTES_MAX: usize = 48 * 1024;
/// Bytes shown of one line.
const LINE_BYTES_MAX: usize = 400;
/// Memory for a line that is looked at; files with longer ones are left and counted.
const LINE_HEAP_MAX: usize = 16 * 1024 * 1024;
/// Memory of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The input of `search`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    pub pattern: String,
    #[serde(default = "here")]
    pub path: String,
    /// Only files whose path fits; with a `!` before it, all others.
    #[serde(default)]
    pub glob: Option<String>,
    #[serde(default)]
    pub literal: bool,
    #[serde(default)]
    pub ignore_case: bool,
    /// Also what ignore files leave out.
    #[serde(default)]
    pub all: bool,
}

pub(crate) const DESCRIPTION: &str = "Searches text files of the workspace line by line for a regular expression \
    (Rust's syntax) and shows path:line:text. Binary files, and what .gitignore and .ignore leave out unless \
    all is set, are not searched.";

pub(crate) fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": "file or directory [default: the whole workspace]"},
            "glob": {"type": "string", "description": "only files that fit, such as *.rs or src/**/*.ts"},
            "literal": {"type": "boolean", "description": "the pattern is plain text"},
            "ignore_case": {"type": "boolean"},
            "all": {"type": "boolean"},
        },
        "required": ["pattern"],
        "additionalProperties": false,
    })
}

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("the pattern is not usable")]
    Pattern(#[source] Box<grep_regex::Error>),
    #[error("the glob is not usable")]
    Glob(#[source] Box<ignore::Error>),
}

impl SearchError {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Path(error) => error.word(),
            Self::Pattern(_) | Self::Glob(_) => "bad_pattern",
        }
    }
}

pub(crate) fn search(
    workspace: &Workspace,
    request: &SearchRequest,
    halt: &Halt,
) -> Result<String, SearchError> {
    let path = relative(&request.path)?;
    let mut search = Search::new(request, halt)?;
    let walked = match workspace.dir(path) {
        Ok(_) => search.below(workspace, path, request.all)?,
        Err(PathError::NotDirectory(_)) => {
            search.file(workspace.file(path)?, path);
            Walked { cut: halt.is_due(), ..Walked::default() }
        }
        Err(error) => return Err(error.into()),
    };
    Ok(search.told(walked))
}

pub(super) struct Search<'a> {
    matcher: RegexMatcher,
    searcher: Searcher,
    globs: Override,
    halt: &'a Halt,
    shown: String,
    lines: usize,
    files: usize,
    binary: usize,
    unreadable: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(request: &SearchRequest, halt: &'a Halt) -> Result<Self, SearchError> {
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(request.ignore_case)
            .fixed_strings(request.literal)
            .line_terminator(Some(b'\n'))
            .size_limit(PATTERN_BYTES_MAX)
            .dfa_size_limit(PATTERN_BYTES_MAX)
            .build(&request.pattern)
            .map_err(|error| SearchError::Pattern(Box::new(error)))?;
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(LINE_HEAP_MAX))
            .line_number(true)
            .bom_sniffing(false)
            .build();
        let mut globs = OverrideBuilder::new("");
        let unusable = |error| SearchError::Glob(Box::new(error));
        if let Some(glob) = &request.glob {
            globs.add(glob).map_err(unusable)?;
        }
        let globs = globs.build().map_err(unusable)?;
        let (shown, lines, files, binary, unreadable) = (String::new(), 0, 0, 0, 0);
        Ok(Self { matcher, searcher, globs, halt, shown, lines, files, binary, unreadable })
    }

    fn below(&mut self, workspace: &Workspace, path: &Path, all: bool) -> Result<Walked, PathError> {
        Walk { halt: self.halt, all }.run(workspace, path, |entry| {
            if entry.is_file() && !self.globs.matched(entry.path, false).is_ignore() {
                match file_in(entry.dir, Path::new(entry.name), entry.path) {
                    Ok(file) => self.file(file, entry.path),
                    Err(_) => self.unreadable += 1,
                }
            }
            if self.is_full() { Next::End } else { Next::On }
        })
    }

    pub(super) fn file(&mut self, file: File, path: &Path) {
        self.files += 1;
        let name = shown_name(path.as_os_str());
        let room = (LINES_MAX - self.lines, SHOWN_BYTES_MAX.saturating_sub(self.shown.len()));
        let mut found = Found { name, shown: String::new(), lines: 0, room, is_binary: false };
        let reader = Halting { file, halt: self.halt };
        match self.searcher.search_reader(&self.matcher, reader, &mut found) {
            Ok(()) if found.is_binary => self.binary += 1,
            Ok(()) => {
                self.shown.push_str(&found.shown);
                self.lines += found.lines;
            }
            Err(_) if self.halt.is_due() => {}
            Err(_) => self.unreadable += 1,
        }
    }

    fn is_full(&self) -> bool {
        self.lines >= LINES_MAX || self.shown.len() >= SHOWN_BYTES_MAX
    }

    fn told(self, walked: Walked) -> String {
        let is_full = self.is_full();
        let Self { mut shown, lines, files, binary, unreadable, .. } = self;
        // Writing to a String cannot fail.
        if lines == 0 {
            let _ = writeln!(shown, "[no match in {files} files]");
        }
        if is_full {
            let _ = writeln!(shown, "[cut after {lines} lines: search for less]");
        } else if walked.cut {
            let _ = writeln!(shown, "[ended early, after {files} files: search a part]");
        }
        let unreadable = unreadable + walked.unreadable;
        if unreadable > 0 {
            let _ = writeln!(shown, "[{unreadable} files or directories could not be searched]");
        }
        if binary > 0 {
            let _ = writeln!(shown, "[{binary} binary files were not searched]");
        }
        shown
    }
}

/// The matches of one file.
struct Found {
    name: String,
    shown: String,
    lines: usize,
    /// Lines, and bytes at which no further line begins.
    room: (usize, usize),
    is_binary: bool,
}

impl Sink for &mut Found {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, matched: &SinkMatch<'_>) -> io::Result<bool> {
        let text = String::from_utf8_lossy(matched.bytes());
        let (text, is_whole) = cut(text.trim_end_matches(['\n', '\r']), LINE_BYTES_MAX);
        let (name, line) = (&self.name, matched.line_number().unwrap_or_default());
        // Writing to a String cannot fail.
        let _ = writeln!(self.shown, "{name}:{line}:{text}{}", if is_whole { "" } else { " [cut]" });
        self.lines += 1;
        Ok(self.lines < self.room.0 && self.shown.len() < self.room.1)
    }

    fn finish(&mut self, _searcher: &Searcher, finished: &SinkFinish) -> io::Result<()> {
        self.is_binary = finished.binary_byte_offset().is_some();
        Ok(())
    }
}

/// A file that ends when it is told to.
struct Halting<'a> {
    file: File,
    halt: &'a Halt,
}

impl Read for Halting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.halt.is_due() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.file.read(buffer)
    }
}
