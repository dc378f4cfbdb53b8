//! Applying a unified diff to files of the workspace.
//!
//! All of it is worked out before anything is written. Each file is then replaced at once; if one
//! cannot be, the error says which were.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use diffy::patch_set::{FileOperation, ParseOptions, PatchKind, PatchSet, PatchSetParseError};
use diffy::{ApplyError, Patch, apply};
use nix::sys::stat::FileStat;
use serde::Deserialize;
use serde_json::{Value, json};

use super::place::{FileError, Place};
use super::text::Text;
use super::workspace::{PathError, Workspace, relative};

/// Files of one patch.
const FILES_MAX: usize = 256;

/// The input of `patch`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchRequest {
    pub patch: String,
}

pub(crate) const DESCRIPTION: &str = "Applies a unified diff to text files of the workspace: --- a/path, +++ b/path, \
    hunks with @@ -line,count +line,count @@. Paths are relative to the workspace; /dev/null makes or removes \
    a file. A hunk may stand at other lines than it says, but its context must be exact. Nothing is written \
    unless all of it fits.";

pub(crate) fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"patch": {"type": "string"}},
        "required": ["patch"],
        "additionalProperties": false,
    })
}

#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("this is no unified diff")]
    Parse(#[from] PatchSetParseError),
    #[error("the patch changes nothing")]
    Empty,
    #[error("the patch has more than {FILES_MAX} files")]
    TooMany,
    #[error("{0} is in the patch twice")]
    Twice(String),
    #[error("{from} becomes {to}: moving files is not done here, use the shell")]
    Renamed { from: String, to: String },
    #[error("{path} is not what the patch expects")]
    NoMatch {
        path: String,
        #[source]
        source: ApplyError,
    },
    #[error("{0} is removed, but the patch leaves something of it")]
    NotAllRemoved(String),
    #[error("the patch broke off; what was done before: {done}")]
    Partly {
        done: String,
        #[source]
        source: FileError,
    },
}

impl PatchError {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::File(error) => error.word(),
            Self::Parse(_) | Self::Empty | Self::TooMany | Self::Twice(_) | Self::Renamed { .. } => {
                "bad_patch"
            }
            Self::NoMatch { .. } | Self::NotAllRemoved(_) => "no_match",
            Self::Partly { .. } => "partly_done",
        }
    }
}

/// What becomes of one file.
struct Change {
    path: String,
    kind: Kind,
}

enum Kind {
    Make(Vec<u8>),
    Replace(Place, FileStat, Vec<u8>),
    Remove(Place, FileStat),
}

pub(crate) fn patch(workspace: &Workspace, request: &PatchRequest) -> Result<String, PatchError> {
    let changes = work_out(workspace, &request.patch)?;
    let mut done = String::new();
    for change in &changes {
        if let Err(source) = change.carry_out(workspace) {
            return Err(if done.is_empty() {
                source.into()
            } else {
                PatchError::Partly {
                    done: done.replace('\n', ", ").trim_end_matches(", ").to_owned(),
                    source,
                }
            });
        }
        // Writing to a String cannot fail.
        let _ = writeln!(done, "{} {}", change.verb(), change.path);
    }
    Ok(done)
}

fn work_out(workspace: &Workspace, text: &str) -> Result<Vec<Change>, PatchError> {
    let (mut changes, mut paths) = (Vec::new(), BTreeSet::new());
    for file in PatchSet::parse(text, ParseOptions::unidiff()) {
        let file = file?;
        if changes.len() == FILES_MAX {
            return Err(PatchError::TooMany);
        }
        let PatchKind::Text(hunks) = file.patch() else { return Err(PatchError::Empty) };
        let change = Change::work_out(workspace, &target(file.operation())?, file.operation(), hunks)?;
        if !paths.insert(change.path.clone()) {
            return Err(PatchError::Twice(change.path));
        }
        changes.push(change);
    }
    if changes.is_empty() { Err(PatchError::Empty) } else { Ok(changes) }
}

/// The file that is meant, without the `a/` and `b/` of git.
fn target(operation: &FileOperation<'_, str>) -> Result<String, PatchError> {
    let bare = |path: &str, prefix| path.strip_prefix(prefix).unwrap_or(path).to_owned();
    match operation {
        FileOperation::Create(path) => Ok(bare(path, "b/")),
        FileOperation::Delete(path) => Ok(bare(path, "a/")),
        FileOperation::Modify { original, modified } => {
            let both = original.strip_prefix("a/").zip(modified.strip_prefix("b/"));
            let (from, to) = both.unwrap_or((original, modified));
            if from == to { Ok(to.to_owned()) } else { Err(renamed(from, to)) }
        }
        FileOperation::Rename { from, to } | FileOperation::Copy { from, to } => Err(renamed(from, to)),
    }
}

fn renamed(from: &str, to: &str) -> PatchError {
    PatchError::Renamed { from: from.to_owned(), to: to.to_owned() }
}

impl Change {
    fn work_out(
        workspace: &Workspace,
        target: &str,
        operation: &FileOperation<'_, str>,
        hunks: &Patch<'_, str>,
    ) -> Result<Self, PatchError> {
        let path = relative(target).map_err(FileError::from)?;
        let apply = |content: &str| {
            apply(content, hunks).map_err(|source| PatchError::NoMatch { path: target.to_owned(), source })
        };
        let kind = if operation.is_create() {
            match Place::of(workspace, path, false).and_then(|place| place.look()) {
                Ok(Some(_)) => return Err(FileError::Exists(target.to_owned()).into()),
                Ok(None) | Err(PathError::NotFound(_)) => Kind::Make(apply("")?.into_bytes()),
                Err(error) => return Err(FileError::from(error).into()),
            }
        } else {
            let place = Place::of(workspace, path, false).map_err(FileError::from)?;
            let (bytes, before) = place.read()?;
            let text = Text::exactly(bytes, path)?;
            let content = apply(&text.content)?;
            match operation {
                FileOperation::Delete(_) if content.is_empty() => Kind::Remove(place, before),
                FileOperation::Delete(_) => return Err(PatchError::NotAllRemoved(target.to_owned())),
                _ => Kind::Replace(place, before, Text { content, ends: text.ends }.into_bytes()),
            }
        };
        Ok(Self { path: target.to_owned(), kind })
    }

    fn carry_out(&self, workspace: &Workspace) -> Result<(), FileError> {
        match &self.kind {
            Kind::Make(content) => Place::of(workspace, relative(&self.path)?, true)?.put(content, None),
            Kind::Replace(place, before, content) => place.put(content, Some(before)),
            Kind::Remove(place, before) => place.remove(before),
        }
    }

    const fn verb(&self) -> &'static str {
        match &self.kind {
            Kind::Make(_) => "made",
            Kind::Replace(..) => "changed",
            Kind::Remove(..) => "removed",
        }
    }
}
