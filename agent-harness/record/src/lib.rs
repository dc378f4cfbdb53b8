//! The session's durable record: what the harness decided and saw, one JSON line an entry, each
//! bound to the one before it by SHA-256.
//!
//! Used by the runtime; depends on `iteron-protocol` alone. It holds content (prompts, tool
//! output) and therefore lives in files that only the owner may read.
//!
//! # Format
//! A line is `{"seq":N,"at_ms":T,"prev":"<64 hex>","entry":{…},"hash":"<64 hex>"}` and a newline.
//! `hash` is the SHA-256 of the line's bytes before `,"hash":`; `prev` is the hash of the line
//! before, or 64 zeros. Nothing is ever re-serialised: the bytes are the evidence.
//!
//! A line of the kind `head_signed` has the signature of the head before it ([`HeadKey`]).
//!
//! # Faults
//! A last line without its newline is a torn write: it is cut off and reported, and an entry says
//! so. Anything else that does not verify stops: the record is then evidence of tampering or of a
//! broken disk, and no new entry may hide it. One writer at a time, by `flock`.

mod entry;
mod signing;
mod writer;

pub use entry::{Entry, Line};
pub use signing::{HeadKey, KeyError};
pub use writer::{AppendError, OpenError, Opened, Record, Syncer, Verified, VerifyError, replay, verify};

#[cfg(test)]
mod tests;
