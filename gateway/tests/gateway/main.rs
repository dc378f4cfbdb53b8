//! The server over real TLS on loopback, and the command line as a process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod command_line;
mod enrolment;
mod export;
mod full_disk;
mod isolation;
mod limits;
mod operating;
mod running;
mod support;
