//! One module a target: `run`, and the `seeds` it starts from.

pub mod agent;
pub mod batch;
pub mod bodies;
pub mod bundle;
pub mod certificate_request;
pub mod checkpoint;
pub mod event;
pub mod ingest;
pub mod query;
pub mod ring;
pub mod spool;
pub mod store;
