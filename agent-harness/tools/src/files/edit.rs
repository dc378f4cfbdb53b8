//! Replacing a piece of a file by its exact text.

use serde::Deserialize;
use serde_json::{Value, json};

use super::place::{FileError, Place};
use super::text::Text;
use super::workspace::{Workspace, relative};

/// Lines that are named when a text occurs more than once.
const NAMED_LINES_MAX: usize = 10;

/// The input of `edit`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    pub path: String,
    pub old: String,
    pub new: String,
    /// Replace every occurrence.
    #[serde(default)]
    pub all: bool,
}

pub(crate) const DESCRIPTION: &str = "Replaces a piece of a text file of the workspace: old, exactly as it stands \
    there, by new. It must occur once, unless all is set. Give enough of its surroundings. In a file whose \
    lines end in \\r\\n, write \\n; the file keeps its ends.";

pub(crate) fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "relative to the workspace"},
            "old": {"type": "string", "description": "the text that stands there, without line numbers"},
            "new": {"type": "string"},
            "all": {"type": "boolean", "description": "replace every occurrence"},
        },
        "required": ["path", "old", "new"],
        "additionalProperties": false,
    })
}

#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("old is empty; use write to make a file")]
    Empty,
    #[error("old and new are the same")]
    Same,
    #[error("the text does not stand in {path}")]
    NoMatch { path: String },
    #[error("the text does not stand in {path}; line {line} begins alike but for white space")]
    Alike { path: String, line: usize },
    #[error("the text stands {count} times in {path}, at lines {lines}; give more of it, or set all")]
    Ambiguous { path: String, count: usize, lines: String },
}

impl EditError {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::File(error) => error.word(),
            Self::Empty | Self::Same => "no_change",
            Self::NoMatch { .. } | Self::Alike { .. } => "no_match",
            Self::Ambiguous { .. } => "ambiguous_match",
        }
    }
}

pub(crate) fn edit(workspace: &Workspace, request: &EditRequest) -> Result<String, EditError> {
    if request.old.is_empty() {
        return Err(EditError::Empty);
    }
    let path = relative(&request.path).map_err(FileError::from)?;
    let place = Place::of(workspace, path, false).map_err(FileError::from)?;
    let (bytes, before) = place.read()?;
    let text = Text::exactly(bytes, path)?;
    let (text, replaced) = replace(text, request)?;
    place.put(&text.into_bytes(), Some(&before))?;
    Ok(replaced)
}

fn replace(text: Text, request: &EditRequest) -> Result<(Text, String), EditError> {
    let (old, new) = (text.in_form_of_this(&request.old), text.in_form_of_this(&request.new));
    if old == new {
        return Err(EditError::Same);
    }
    let at: Vec<usize> = text.content.match_indices(&old).map(|(at, _)| at).collect();
    let lines: Vec<String> =
        at.iter().take(NAMED_LINES_MAX).map(|at| line_of(&text.content, *at).to_string()).collect();
    let lines = lines.join(", ") + if at.len() > NAMED_LINES_MAX { ", …" } else { "" };
    match at.len() {
        0 => return Err(no_match(&text.content, &old, &request.path)),
        count if count > 1 && !request.all => {
            return Err(EditError::Ambiguous { path: request.path.clone(), count, lines });
        }
        _ => {}
    }
    let content = text.content.replace(&old, &new);
    let told = format!("replaced {} at {}", at.len(), if at.len() == 1 { "line " } else { "lines " });
    Ok((Text { content, ends: text.ends }, told + &lines))
}

fn line_of(content: &str, at: usize) -> usize {
    content[..at].matches('\n').count() + 1
}

fn no_match(content: &str, old: &str, path: &str) -> EditError {
    let path = path.to_owned();
    let first = old.lines().map(str::trim).find(|line| !line.is_empty());
    let alike = first.and_then(|first| content.lines().position(|line| line.trim() == first));
    match alike {
        Some(at) => EditError::Alike { path, line: at + 1 },
        None => EditError::NoMatch { path },
    }
}
