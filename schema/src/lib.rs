//! The contract of Activity: events, catalogue, batches, proofs and the uplink protocol.
//!
//! Pure data and pure functions. No IO, no clock, no async runtime: collector, gateway and harness all
//! depend on this crate and on nothing of one another.

pub mod admit;
pub mod api;
pub mod batch;
pub mod catalog;
pub mod checkpoint;
pub mod coverage;
pub mod event;
pub mod hex;
pub mod ids;
pub mod keys;
pub mod merkle;
pub mod receipt;
pub mod submission;
pub mod text;
pub mod time;
pub mod uplink;

pub use batch::{BatchHeader, Class, SignedBatch};
pub use event::Event;
pub use ids::{Epoch, StreamId};
pub use merkle::Hash;
pub use text::Text;
pub use time::Timestamp;
