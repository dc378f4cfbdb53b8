//! Names of things that batches and certificates carry. Text with a closed alphabet and a bound.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::batch::Class;

/// Longest id, bytes.
pub const ID_BYTES_MAX: usize = 128;

/// The text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an id: 1 to {ID_BYTES_MAX} of A-Z a-z 0-9 . _ : @ -, starting with a letter or digit"
)]
pub struct IdError {
    text: String,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn new(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                if is_id(&text) { Ok($name(text)) } else { Err(IdError { text: text.chars().take(ID_BYTES_MAX).collect() }) }
            }
            pub fn as_str(&self) -> &str { &self.0 }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> { $name::new(text) }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String { id.0 }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> { $name::new(text) }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
    };
}

id!(/// Owner of evidence; nothing is shared between tenants.
    TenantId);
id!(/// The machine whose kernel is observed.
    HostId);
id!(/// One sandbox: runtime, boot identity and nonce.
    InstanceId);
id!(/// The daemon that owns a spool.
    CollectorId);
id!(/// UUIDv7 made when a spool is created; scopes sequences.
    Epoch);

/// Whether `text` fits the alphabet and the bound of ids. `/` is not in it: it separates the parts of a stream.
pub fn is_id(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'@' | b'-'))
}

/// The unit of sequence: `collector_sequence` is contiguous within it. The tenant is implied by the epoch,
/// since every tenant has a spool of its own.
///
/// Text form, in `source.collector`: `<collector>/<epoch>/<class>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    pub collector: CollectorId,
    pub epoch: Epoch,
    pub class: Class,
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.collector, self.epoch, self.class)
    }
}

impl FromStr for StreamId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let bad = || IdError { text: text.chars().take(ID_BYTES_MAX * 3).collect() };
        let mut parts = text.splitn(3, '/');
        let mut next = || parts.next().ok_or_else(bad);
        let (collector, epoch, class) = (next()?, next()?, next()?);
        Ok(StreamId {
            collector: collector.parse()?,
            epoch: epoch.parse()?,
            class: Class::from_wire(class).ok_or_else(bad)?,
        })
    }
}

impl Serialize for StreamId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StreamId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        crate::text::Text::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_1_to_128_bytes_of_its_alphabet() {
        let of_length = |n: usize| format!("a{}", "-".repeat(n - 1));
        for (text, ok) in [
            (of_length(1), true),
            (of_length(128), true),
            (of_length(129), false),
            (String::new(), false),
            ("aZ09._:@-".to_owned(), true),
            ("-a".to_owned(), false),
            ("a/b".to_owned(), false),
            ("a b".to_owned(), false),
            ("ä".to_owned(), false),
        ] {
            assert_eq!(text.parse::<TenantId>().is_ok(), ok, "{text}");
            assert_eq!(serde_json::from_value::<Epoch>(text.clone().into()).is_ok(), ok, "{text}");
        }
    }
}
