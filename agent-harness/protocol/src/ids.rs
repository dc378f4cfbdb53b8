//! Ids as newtypes, so that a turn cannot be passed where a tool call is meant.

use std::fmt;
use std::str::FromStr;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Longest id accepted from outside, in bytes. Ids travel in every event's correlation.
pub const ID_BYTES_MAX: usize = 128;

/// What [`check_token`] takes, as a regular expression of JSON Schema.
const TOKEN_PATTERN: &str = "^[A-Za-z0-9_:][A-Za-z0-9._:-]*$";

/// Why a string is no id.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IdError {
    #[error("an id must not be empty")]
    Empty,
    #[error("an id has at most {ID_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    #[error("an id has only letters, digits, '.', '_', ':' and '-', and does not start with '.' or '-'")]
    Character,
}

/// Ids made here: UUIDv7, so they sort by creation.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A fresh id. Reads the clock and the random source: call it at the edge.
            #[must_use]
            pub fn fresh() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id with this number, for tests and replay.
            #[must_use]
            pub const fn from_u128(value: u128) -> Self {
                Self(Uuid::from_u128(value))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "format": "uuid"})
            }
        }
    };
}

/// Ids that an operator or a peer may choose: a checked token, safe as a file name.
macro_rules! token_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                check_token(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                check_token(&text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": TOKEN_PATTERN, "maxLength": ID_BYTES_MAX})
            }
        }
    };
}

uuid_id!(
    /// One model request, with the tool calls that answer it.
    TurnId
);
uuid_id!(
    /// One tool call. Ours, not the provider's: a provider's id is only unique within its stream.
    ToolCallId
);
token_id!(
    /// One run of an agent over one conversation.
    SessionId
);
token_id!(
    /// The agent, which outlives its sessions.
    AgentId
);
token_id!(
    /// A scope, named by the collector.
    ScopeId
);
token_id!(
    /// An id handed down by whoever started the agent: a mission, a task.
    TokenId
);

token_id!(
    /// What a front end calls one of its submissions. Unique among all front ends of a session;
    /// the same id again is the same submission.
    ClientSubmissionId
);

/// Tokens that are made here as well.
macro_rules! fresh_token {
    ($name:ident) => {
        impl $name {
            /// A fresh UUIDv7 as a token. Reads the clock and the random source: call it at the edge.
            #[must_use]
            pub fn fresh() -> Self {
                Self(Uuid::now_v7().to_string())
            }
        }
    };
}

fresh_token!(SessionId);
fresh_token!(ClientSubmissionId);

/// A background job, numbered within its session from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct JobId(pub u32);

impl fmt::Display for JobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

fn check_token(text: &str) -> Result<(), IdError> {
    let first = text.bytes().next().ok_or(IdError::Empty)?;
    if text.len() > ID_BYTES_MAX {
        return Err(IdError::TooLong(text.len()));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
    if matches!(first, b'.' | b'-') || !text.bytes().all(allowed) {
        return Err(IdError::Character);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_is_safe_as_a_file_name() {
        for bad in ["", "..", "a/b", "-rf", "a b", "a\0", "é", ".hidden"] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?} was accepted");
        }
        assert_eq!("x".repeat(129).parse::<SessionId>(), Err(IdError::TooLong(129)));
        assert!("run-7:attempt.2_b".parse::<SessionId>().is_ok());
        assert!(serde_json::from_str::<SessionId>("\"../etc\"").is_err());
    }

    #[test]
    fn fresh_ids_are_version_7_and_differ() {
        let (first, second) = (ToolCallId::fresh(), ToolCallId::fresh());
        assert_ne!(first, second);
        assert_eq!(first.to_string().as_bytes()[14], b'7');
    }
}
