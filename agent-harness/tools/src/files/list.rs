//! Listing directories.

use std::fmt::Write as _;
use std::path::Path;

use nix::fcntl::readlinkat;
use nix::sys::stat::SFlag;
use serde::Deserialize;
use serde_json::{Value, json};

use super::text::shown_name;
use super::walk::{Entry, Halt, Next, Walk};
use super::workspace::{PathError, Workspace, kind, relative};

/// Entries shown.
const SHOWN_MAX: usize = 1000;
const DEPTH_MAX: usize = 64;

/// The input of `list`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    #[serde(default = "here")]
    pub path: String,
    /// How many directories deep.
    #[serde(default)]
    pub depth: Option<usize>,
    /// Also what ignore files leave out.
    #[serde(default)]
    pub all: bool,
}

pub(crate) fn here() -> String {
    ".".to_owned()
}

pub(crate) const DESCRIPTION: &str = "Lists a directory of the workspace: one path a line, with / behind directories, \
    @ and its target behind symbolic links, and the size of files. With depth, also what is below. What \
    .gitignore and .ignore leave out comes only with all.";

pub(crate) fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "relative to the workspace [default: its root]"},
            "depth": {"type": "integer", "minimum": 1, "maximum": DEPTH_MAX, "description": "[default: 1]"},
            "all": {"type": "boolean"},
        },
        "additionalProperties": false,
    })
}

pub(crate) fn list(workspace: &Workspace, request: &ListRequest, halt: &Halt) -> Result<String, PathError> {
    let depth = request.depth.unwrap_or(1).clamp(1, DEPTH_MAX);
    let (mut shown, mut count, mut odd_names) = (String::new(), 0_usize, false);
    let walk = Walk { halt, all: request.all };
    let walked = walk.run(workspace, relative(&request.path)?, |entry| {
        if count == SHOWN_MAX {
            return Next::End;
        }
        count += 1;
        odd_names |= entry.path.to_str().is_none();
        line(&mut shown, entry);
        if entry.depth + 1 < depth { Next::On } else { Next::Past }
    })?;
    if count == 0 {
        shown.push_str("[nothing]\n");
    }
    if count == SHOWN_MAX || walked.cut {
        let _ = writeln!(shown, "[cut after {count} entries: list a part of it]");
    }
    if walked.unreadable > 0 {
        let _ = writeln!(shown, "[{} directories could not be read]", walked.unreadable);
    }
    if odd_names {
        shown.push_str("[names with \\x are not UTF-8, and can only be used in the shell]\n");
    }
    Ok(shown)
}

/// Writing to a String cannot fail.
fn line(shown: &mut String, entry: &Entry<'_>) {
    let path = shown_name(entry.path.as_os_str());
    let _ = match kind(entry.stat) {
        SFlag::S_IFDIR => writeln!(shown, "{path}/"),
        SFlag::S_IFREG => writeln!(shown, "{path} ({} bytes)", entry.stat.st_size),
        SFlag::S_IFLNK => {
            let target = readlinkat(entry.dir, Path::new(entry.name)).unwrap_or_default();
            writeln!(shown, "{path} @ {}", shown_name(&target))
        }
        _ => writeln!(shown, "{path} (neither file nor directory)"),
    };
}
