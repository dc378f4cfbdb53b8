//! Kinds of tools.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of effect that a tool call may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolClass {
    /// Looks at files of the workspace.
    Read,
    /// Changes files of the workspace.
    Write,
    /// Runs commands.
    Execute,
    /// Runs commands that may talk to other machines.
    Network,
}

impl ToolClass {
    /// The `tool_class` of events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Execute => "execute",
            Self::Network => "network",
        }
    }
}
