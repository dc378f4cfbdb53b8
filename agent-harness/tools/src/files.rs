//! The file tools: read, write, edit, patch, list, search. They work in the workspace and nowhere else.
//!
//! Paths are resolved below the workspace by the kernel (`workspace.rs`); a file is replaced at once or
//! not at all (`place.rs`); what is shown is bounded, and says what it leaves out.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iteron_protocol::ToolClass;
use serde::Deserialize;
use serde_json::Value;

mod edit;
mod list;
mod patch;
mod place;
mod read;
mod search;
mod text;
mod walk;
mod workspace;
mod write;

pub use edit::{EditError, EditRequest};
pub use list::ListRequest;
pub use patch::{PatchError, PatchRequest};
pub use place::{FILE_BYTES_MAX, FileError};
pub use read::{ReadError, ReadRequest};
pub use search::{SearchError, SearchRequest};
pub use walk::Halt;
pub use workspace::{PathError, Workspace};
pub use write::WriteRequest;

/// Longest walk or search; then what was found so far is shown.
const WALK_WAIT: Duration = Duration::from_secs(30);

/// What a file tool is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRequest {
    Read(ReadRequest),
    Write(WriteRequest),
    Edit(EditRequest),
    Patch(PatchRequest),
    List(ListRequest),
    Search(SearchRequest),
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum FileToolError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] FileError),
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    Patch(#[from] PatchError),
    #[error(transparent)]
    List(#[from] PathError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error("it was interrupted")]
    Stopped,
    #[error("the thread that does it failed")]
    Thread(#[source] tokio::task::JoinError),
}

impl FileToolError {
    /// The closed word for events and records.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Read(error) => error.word(),
            Self::Write(error) => error.word(),
            Self::Edit(error) => error.word(),
            Self::Patch(error) => error.word(),
            Self::List(error) => error.word(),
            Self::Search(error) => error.word(),
            Self::Stopped => "interrupted",
            Self::Thread(_) => "harness",
        }
    }

    /// What the model is told: the error with its causes.
    #[must_use]
    pub fn told(&self) -> String {
        let mut told = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            told = format!("{told}: {error}");
            cause = error.source();
        }
        told
    }
}

/// The file tools as the model sees them: name, class, description, and JSON Schema of the input.
pub(crate) fn specs() -> [(&'static str, ToolClass, &'static str, Value); 6] {
    use ToolClass::{Read, Write};

    [
        ("read", Read, read::DESCRIPTION, read::input_schema()),
        ("write", Write, write::DESCRIPTION, write::input_schema()),
        ("edit", Write, edit::DESCRIPTION, edit::input_schema()),
        ("patch", Write, patch::DESCRIPTION, patch::input_schema()),
        ("list", Read, list::DESCRIPTION, list::input_schema()),
        ("search", Read, search::DESCRIPTION, search::input_schema()),
    ]
}

impl FileRequest {
    /// The request to the tool of this name; nothing when there is none.
    pub(crate) fn parse(tool: &str, input: &Value) -> Option<Result<Self, serde_json::Error>> {
        Some(match tool {
            "read" => Deserialize::deserialize(input).map(Self::Read),
            "write" => Deserialize::deserialize(input).map(Self::Write),
            "edit" => Deserialize::deserialize(input).map(Self::Edit),
            "patch" => Deserialize::deserialize(input).map(Self::Patch),
            "list" => Deserialize::deserialize(input).map(Self::List),
            "search" => Deserialize::deserialize(input).map(Self::Search),
            _ => return None,
        })
    }

    #[must_use]
    pub const fn class(&self) -> ToolClass {
        match self {
            Self::Write(_) | Self::Edit(_) | Self::Patch(_) => ToolClass::Write,
            Self::Read(_) | Self::List(_) | Self::Search(_) => ToolClass::Read,
        }
    }
}

/// The file tools of one workspace.
#[derive(Debug, Clone)]
pub struct FileTools {
    workspace: Arc<Workspace>,
}

impl FileTools {
    pub fn open(workspace: &Path) -> io::Result<Self> {
        Ok(Self { workspace: Arc::new(Workspace::open(workspace)?) })
    }

    /// Does what was asked, and gives what the model is told. `stop` ends a walk or a search; what
    /// changes files is done or not done by then. Do not drop the future: resolve `stop`, and wait.
    pub async fn carry_out(
        &self,
        request: &FileRequest,
        stop: impl Future<Output = ()>,
    ) -> Result<String, FileToolError> {
        let halt = Arc::new(Halt::at(Instant::now() + WALK_WAIT));
        let (workspace, request) = (Arc::clone(&self.workspace), request.clone());
        let of_thread = Arc::clone(&halt);
        let mut working = tokio::task::spawn_blocking(move || carry_out(&workspace, &request, &of_thread));
        let done = tokio::select! {
            biased;
            done = &mut working => done,
            () = stop => {
                halt.stop();
                working.await
            }
        };
        done.map_err(FileToolError::Thread)?
    }
}

fn carry_out(workspace: &Workspace, request: &FileRequest, halt: &Halt) -> Result<String, FileToolError> {
    if halt.is_stopped() {
        return Err(FileToolError::Stopped);
    }
    let done = match request {
        FileRequest::Read(request) => read::read(workspace, request)?,
        FileRequest::Write(request) => write::write(workspace, request)?,
        FileRequest::Edit(request) => edit::edit(workspace, request)?,
        FileRequest::Patch(request) => patch::patch(workspace, request)?,
        FileRequest::List(request) => list::list(workspace, request, halt)?,
        FileRequest::Search(request) => search::search(workspace, request, halt)?,
    };
    if halt.is_stopped() && request.class() == ToolClass::Read {
        Err(FileToolError::Stopped)
    } else {
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
