//! The server over real TLS on loopback, and the command line as a process.

mod command_line;
mod enrolment;
mod isolation;
mod limits;
mod running;
mod support;
