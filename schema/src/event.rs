//! The envelope `activity.event/v1`: strict to read, canonical to write.
//!
//! One line of JSON. Unknown keys, duplicate keys and explicit nulls are refused. Key order binds only what
//! this crate writes (contract, "Envelope").

mod fast;
mod payload;
mod strict;
#[cfg(test)]
mod tests;
mod write;

pub use payload::{Payload, Value};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::hex;
use crate::text::Text;
use crate::time::Timestamp;

/// Longest admitted event line, bytes (contract, "Batch").
pub const EVENT_BYTES_MAX: usize = 64 * 1024;

macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $(#[serde(rename = $text)] $variant),+ }
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
            pub fn from_wire(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
    };
}
pub(crate) use wire_enum;

wire_enum!(/// The only major version of the envelope.
    SchemaVersion { V1 = "activity.event/v1" });
wire_enum!(/// Which aspect of the sandbox a record speaks of.
    Plane { Session = "session", Action = "action", Network = "network", Runtime = "runtime", System = "system", Integrity = "integrity" });
wire_enum!(/// Where the source stands.
    Layer { Guest = "guest", Runtime = "runtime", Host = "host", ControlPlane = "control-plane", Provider = "provider" });
wire_enum!(/// What runs the sandbox.
    Runtime { QemuKvm = "qemu-kvm", CloudHypervisor = "cloud-hypervisor", Docker = "docker", Host = "host", Unknown = "unknown" });
wire_enum!(/// How far the record can be believed.
    Trust { Observed = "observed", Attested = "attested", SelfReported = "self-reported", Derived = "derived" });
wire_enum!(/// What the record may contain. The metadata journal takes `metadata` only.
    Sensitivity { Metadata = "metadata", RestrictedContent = "restricted-content", SecretProhibited = "secret-prohibited" });
wire_enum!(/// How long the record is kept.
    Retention { Standard = "standard", Security = "security", ForensicHold = "forensic-hold", Ephemeral = "ephemeral" });
wire_enum!(/// How the act ended.
    Status { Started = "started", Success = "success", Failure = "failure", Allowed = "allowed", Denied = "denied", Degraded = "degraded", Unknown = "unknown" });

/// One `activity.event/v1` record. Borrowed from the line it was parsed from, or built and owned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event<'a> {
    pub schema_version: SchemaVersion,
    #[serde(with = "strict::id")]
    pub event_id: Uuid,
    #[serde(borrow)]
    pub event_name: Text<'a>,
    pub plane: Plane,
    pub occurred_at: Timestamp,
    pub observed_at: Timestamp,
    #[serde(borrow)]
    pub source: Source<'a>,
    #[serde(borrow)]
    pub correlation: Correlation<'a>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub actor: Option<Entity<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub target: Option<Entity<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome<'a>>,
    pub sensitivity: Sensitivity,
    pub retention_class: Retention,
    #[serde(borrow)]
    pub payload: Payload<'a>,
    #[serde(borrow)]
    pub integrity: Integrity<'a>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source<'a> {
    /// Unique per stream: `<collector>/<epoch>/<class>`.
    #[serde(borrow)]
    pub collector: Text<'a>,
    pub layer: Layer,
    pub runtime: Runtime,
    pub trust: Trust,
    /// Carries the boot id.
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub clock_id: Option<Text<'a>>,
    #[serde(default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub clock_error_ms: Option<strict::Number>,
}

pub use strict::Number;

/// The durable domain ids; trace ids stand beside them and never replace them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correlation<'a> {
    #[serde(borrow)]
    pub tenant_id: Text<'a>,
    #[serde(borrow)]
    pub host_id: Text<'a>,
    #[serde(borrow)]
    pub instance_id: Text<'a>,
    #[serde(borrow)]
    pub agent_id: Text<'a>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub mission_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub task_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub command_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub process_id: Option<Text<'a>>,
    #[serde(default, with = "strict::opt_id", skip_serializing_if = "Option::is_none")]
    pub parent_event_id: Option<Uuid>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub span_id: Option<Text<'a>>,
}

wire_enum!(/// A key of [`Correlation`] that an event name may require or a query may ask for.
    CorrelationKey { TenantId = "tenant_id", HostId = "host_id", InstanceId = "instance_id", AgentId = "agent_id",
        SessionId = "session_id", MissionId = "mission_id", TaskId = "task_id", ToolCallId = "tool_call_id",
        CommandId = "command_id", ProcessId = "process_id", TraceId = "trace_id", SpanId = "span_id" });

impl<'a> Correlation<'a> {
    pub fn get(&self, key: CorrelationKey) -> Option<&Text<'a>> {
        match key {
            CorrelationKey::TenantId => Some(&self.tenant_id),
            CorrelationKey::HostId => Some(&self.host_id),
            CorrelationKey::InstanceId => Some(&self.instance_id),
            CorrelationKey::AgentId => Some(&self.agent_id),
            CorrelationKey::SessionId => self.session_id.as_ref(),
            CorrelationKey::MissionId => self.mission_id.as_ref(),
            CorrelationKey::TaskId => self.task_id.as_ref(),
            CorrelationKey::ToolCallId => self.tool_call_id.as_ref(),
            CorrelationKey::CommandId => self.command_id.as_ref(),
            CorrelationKey::ProcessId => self.process_id.as_ref(),
            CorrelationKey::TraceId => self.trace_id.as_ref(),
            CorrelationKey::SpanId => self.span_id.as_ref(),
        }
    }
}

/// Who acted, or what was acted on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entity<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Text<'a>,
    #[serde(borrow)]
    pub id: Text<'a>,
    #[serde(default, deserialize_with = "strict::opt_u64", skip_serializing_if = "Option::is_none")]
    pub uid: Option<u64>,
    #[serde(default, deserialize_with = "strict::opt_u64", skip_serializing_if = "Option::is_none")]
    pub gid: Option<u64>,
    #[serde(default, deserialize_with = "strict::opt_u64", skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome<'a> {
    pub status: Status,
    #[serde(default, deserialize_with = "strict::opt_i64", skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text<'a>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Integrity<'a> {
    /// Contiguous within the stream, from 1.
    #[serde(deserialize_with = "strict::u64")]
    pub collector_sequence: u64,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub source_hash: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub source_previous_hash: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub timeline_hash: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub timeline_previous_hash: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub signature: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "strict::some", skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Text<'a>>,
}

/// Why a line is not an `activity.event/v1` record.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("the line is {bytes} bytes, the longest admitted is {EVENT_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("{field}: {rule}")]
    Pattern { field: &'static str, rule: &'static str },
}

impl<'a> Event<'a> {
    /// Reads one line (without its newline). Errors name the key or the byte column.
    pub fn parse(line: &'a [u8]) -> Result<Event<'a>, ParseError> {
        match std::str::from_utf8(line) {
            Ok(line) => Event::parse_str(line),
            Err(_) if line.len() > EVENT_BYTES_MAX => Err(ParseError::TooLong { bytes: line.len() }),
            // Its error says where the line is not UTF-8.
            Err(_) => Event::check(serde_json::from_slice(line)?),
        }
    }

    /// Reads one line that is known to be UTF-8.
    pub fn parse_str(line: &'a str) -> Result<Event<'a>, ParseError> {
        if line.len() > EVENT_BYTES_MAX {
            return Err(ParseError::TooLong { bytes: line.len() });
        }
        Event::check(match fast::parse(line) {
            Some(event) => event,
            None => serde_json::from_str(line)?,
        })
    }

    fn check(event: Event<'a>) -> Result<Event<'a>, ParseError> {
        event.check_patterns()?;
        Ok(event)
    }

    /// Writes the canonical line, without a newline. Payload keys are in the order they were added.
    pub fn to_line(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        self.write_line(&mut out);
        out
    }

    /// Appends the canonical line to `out`.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        write::line(self, out);
    }

    /// The rules of the envelope that types do not carry; [`Event::parse`] checks them.
    pub fn check_patterns(&self) -> Result<(), ParseError> {
        let require =
            |ok: bool, field, rule| if ok { Ok(()) } else { Err(ParseError::Pattern { field, rule }) };
        require(is_event_name(&self.event_name), "event_name", "must be lower-case words joined by dots")?;
        require(
            self.integrity.collector_sequence >= 1,
            "integrity.collector_sequence",
            "must be at least 1",
        )?;
        require(!self.source.collector.is_empty(), "source.collector", "must not be empty")?;
        let c = &self.correlation;
        for (text, field) in [
            (&c.tenant_id, "correlation.tenant_id"),
            (&c.host_id, "correlation.host_id"),
            (&c.instance_id, "correlation.instance_id"),
            (&c.agent_id, "correlation.agent_id"),
        ] {
            require(!text.is_empty(), field, "must not be empty")?;
        }
        let hex_of = |text: &Option<Text<'_>>, digits| text.as_ref().is_none_or(|t| hex::is_lower(t, digits));
        require(hex_of(&c.trace_id, 32), "correlation.trace_id", "must be 32 lower-case hex digits")?;
        require(hex_of(&c.span_id, 16), "correlation.span_id", "must be 16 lower-case hex digits")?;
        let i = &self.integrity;
        for (text, field) in [
            (&i.source_hash, "integrity.source_hash"),
            (&i.source_previous_hash, "integrity.source_previous_hash"),
            (&i.timeline_hash, "integrity.timeline_hash"),
            (&i.timeline_previous_hash, "integrity.timeline_previous_hash"),
        ] {
            require(hex_of(text, 64), field, "must be 64 lower-case hex digits")?;
        }
        Ok(())
    }
}

/// `^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$`
pub fn is_event_name(name: &str) -> bool {
    let mut words = 0;
    for word in name.split('.') {
        let mut bytes = word.bytes();
        if !bytes.next().is_some_and(|b| b.is_ascii_lowercase())
            || !bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        {
            return false;
        }
        words += 1;
    }
    words >= 2
}
