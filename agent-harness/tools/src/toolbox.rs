//! All tools together: what the model is offered, and what its calls ask for.

use iteron_protocol::ToolClass;
use serde::Deserialize;
use serde_json::Value;

use crate::files::{self, FileRequest, FileTools};
use crate::job_tool::JobRequest;
use crate::plan::{PlanError, PlanRequest};
use crate::shell::{InputError, ShellCommand, ShellTool};

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDescription {
    pub name: &'static str,
    pub description: String,
    /// JSON Schema of the input, an object.
    pub input_schema: Value,
    /// As that of its calls; nothing when they have no effect.
    pub class: Option<ToolClass>,
}

/// What a call asks for, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Command(ShellCommand),
    Job(JobRequest),
    File(FileRequest),
    Plan(PlanRequest),
}

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("there is no tool of this name; there are {0}")]
    UnknownTool(String),
    #[error(transparent)]
    Command(#[from] InputError),
    #[error("the input does not fit the tool's schema: {0}")]
    Schema(serde_json::Error),
    #[error(transparent)]
    Plan(#[from] PlanError),
}

#[derive(Debug, Clone)]
pub struct Toolbox {
    pub shell: ShellTool,
    pub files: FileTools,
}

impl Toolbox {
    /// All tools, in an order that never changes: prompts are cached by it.
    #[must_use]
    pub fn descriptions(&self) -> Vec<ToolDescription> {
        let mut all = vec![
            ToolDescription {
                name: ShellTool::NAME,
                description: self.shell.description(),
                input_schema: self.shell.input_schema(),
                class: Some(ToolClass::Execute),
            },
            ToolDescription {
                name: JobRequest::NAME,
                description: JobRequest::DESCRIPTION.to_owned(),
                input_schema: JobRequest::input_schema(),
                class: Some(ToolClass::Execute),
            },
        ];
        all.extend(files::specs().map(|(name, class, description, input_schema)| ToolDescription {
            name,
            description: description.to_owned(),
            input_schema,
            class: Some(class),
        }));
        all.push(ToolDescription {
            name: PlanRequest::NAME,
            description: PlanRequest::DESCRIPTION.to_owned(),
            input_schema: PlanRequest::input_schema(),
            class: None,
        });
        all
    }

    /// What a call asks for, or why it cannot be done.
    pub fn parse(&self, tool: &str, input: &Value) -> Result<Request, RequestError> {
        if let Some(request) = FileRequest::parse(tool, input) {
            return request.map(Request::File).map_err(RequestError::Schema);
        }
        match tool {
            ShellTool::NAME => Ok(Request::Command(self.shell.parse(input)?)),
            JobRequest::NAME => {
                JobRequest::deserialize(input).map(Request::Job).map_err(RequestError::Schema)
            }
            PlanRequest::NAME => {
                let plan = PlanRequest::deserialize(input).map_err(RequestError::Schema)?;
                plan.check()?;
                Ok(Request::Plan(plan))
            }
            _ => {
                let names: Vec<_> = self.descriptions().into_iter().map(|tool| tool.name).collect();
                Err(RequestError::UnknownTool(names.join(", ")))
            }
        }
    }
}

impl Request {
    /// What kind of effect it may have. Nothing for a plan, which has none.
    #[must_use]
    pub const fn class(&self) -> Option<ToolClass> {
        match self {
            Self::Command(command) if command.network => Some(ToolClass::Network),
            Self::Command(_) | Self::Job(_) => Some(ToolClass::Execute),
            Self::File(request) => Some(request.class()),
            Self::Plan(_) => None,
        }
    }
}
