//! What keeps commands from doing more than they may.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The sandbox that a session asked for, and what of it this machine enforces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum SandboxState {
    /// Commands may do what this process may.
    Off,
    /// Commands may write to the workspace and little besides, and have no network unless it is allowed.
    Workspace { parts: Vec<SandboxPart> },
}

/// One wall of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxPart {
    pub wall: Wall,
    /// Why it is not there; nothing when it is enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// Files outside of what may be written cannot be changed.
    Files,
    /// System calls that reach beyond a process are refused; without network, those of sockets too.
    SystemCalls,
    /// Devices outside of what may be written take no commands (ioctl(2)).
    Devices,
    /// Processes outside cannot be signalled.
    Signals,
    /// Abstract Unix sockets outside cannot be reached.
    AbstractSockets,
    /// A user namespace: no capability holds outside.
    UserNamespace,
    /// A network namespace, where the network is not allowed: no interface is there.
    NetworkNamespace,
    /// An IPC namespace: no shared memory, semaphores and queues of others.
    IpcNamespace,
}

impl Wall {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::SystemCalls => "system_calls",
            Self::Devices => "devices",
            Self::Signals => "signals",
            Self::AbstractSockets => "abstract_sockets",
            Self::UserNamespace => "user_namespace",
            Self::NetworkNamespace => "network_namespace",
            Self::IpcNamespace => "ipc_namespace",
        }
    }
}

impl SandboxState {
    /// Walls that are not there, each with its reason.
    pub fn unsupported(&self) -> impl Iterator<Item = (Wall, &str)> {
        let parts = match self {
            Self::Off => &[][..],
            Self::Workspace { parts } => parts,
        };
        parts.iter().filter_map(|part| Some((part.wall, part.unsupported.as_deref()?)))
    }
}
