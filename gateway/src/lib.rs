//! The gateway: takes signed evidence from collectors, keeps it, and answers operators with its coverage.
//!
//! Two binaries: `activity-gateway`, the server, and `activity`, the operator's command line.
//!
//! | module | what |
//! |---|---|
//! | [`daemon`] | the server's life; [`config`] its configuration |
//! | [`listen`] | sockets, TLS, HTTP, every bound on a connection |
//! | [`gateway`] | shared state; who may do what ([`access`], [`identity`], [`tokens`], [`pki`]) |
//! | [`collector_api`], [`operator_api`] | the two APIs; [`wire`] their bodies, [`reply`] errors and bounds of bodies |
//! | [`evidence`] | the store as seen from here |
//! | [`story`] | events told as a tree; [`cli`] the commands that show it |

pub mod access;
pub mod audit;
pub mod cli;
pub mod clock;
pub mod collector_api;
pub mod config;
pub mod daemon;
pub mod evidence;
pub mod gateway;
pub mod identity;
pub mod listen;
pub mod metrics;
pub mod operator_api;
pub mod pki;
pub mod reply;
pub mod stall;
pub mod story;
pub mod tokens;
pub mod wire;
