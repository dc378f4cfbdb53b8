//! Writing a whole file.

use serde::Deserialize;
use serde_json::{Value, json};

use super::place::{FILE_BYTES_MAX, FileError, Place, check_size};
use super::workspace::{Workspace, relative};

/// The input of `write`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteRequest {
    pub path: String,
    pub content: String,
}

pub(crate) const DESCRIPTION: &str = "Writes a file of the workspace, and makes the directories above it. A file \
    that is there is replaced: at once, or not at all. The content is written as it is given. To change a \
    part of a file, use edit.";

pub(crate) fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "relative to the workspace"},
            "content": {"type": "string", "maxLength": FILE_BYTES_MAX},
        },
        "required": ["path", "content"],
        "additionalProperties": false,
    })
}

pub(crate) fn write(workspace: &Workspace, request: &WriteRequest) -> Result<String, FileError> {
    let path = relative(&request.path)?;
    check_size(request.content.as_bytes(), path)?;
    let place = Place::of(workspace, path, true)?;
    let before = place.look()?;
    place.put(request.content.as_bytes(), before.as_ref())?;
    let done = if before.is_some() { "replaced" } else { "made" };
    Ok(format!("{done} {}, {} bytes", request.path, request.content.len()))
}
