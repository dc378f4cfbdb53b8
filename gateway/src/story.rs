//! The story of an answer: events and their coverage, told as a tree that a person can read.
//!
//! Pure functions. [`tell`] builds the tree from parsed events: instance, session, tool call, process tree, flows.
//! [`render`] draws it. Nothing here reads a clock, a terminal or a store.
//!
//! Invariants: a child of a process is drawn below it and a process of a tool call below the call, whatever the
//! clocks say; everything else is ordered by time; neighbours whose clocks cannot order them carry `~`.

mod build;
mod coverage_line;
mod escape;
mod flat;
mod flow;
mod gaps;
mod leaf;
mod order;
mod process;
mod render;
mod resources;
mod tool;
mod units;

#[cfg(test)]
mod tests;

pub use build::tell;
pub use coverage_line::{Judgement, coverage_lines, coverage_summary, judge};
pub use escape::escape;
pub use flat::flat_line;
pub use render::{Style, paint, render};
pub use units::{bytes, clock_time, date_time, duration_ns};

use activity_schema::Timestamp;
use activity_schema::coverage::CoverageReport;

/// A told answer.
#[derive(Debug)]
pub struct Story {
    pub coverage: CoverageReport,
    /// One an instance, in the order of their names.
    pub instances: Vec<Node>,
}

/// A line of the story, with what it caused below it.
#[derive(Debug, Clone)]
pub struct Node {
    /// `None` for headings.
    pub at: Option<Timestamp>,
    /// Its order against a neighbour is not known: their clock bounds overlap.
    pub concurrent: bool,
    /// What it is, e.g. `tool shell` or an executable's name. Not escaped yet.
    pub title: String,
    /// What is known of it, most telling first. Not escaped yet.
    pub details: Vec<String>,
    /// Trust, then join where there is one.
    pub marks: Vec<&'static str>,
    pub tone: Tone,
    pub children: Vec<Node>,
}

/// How a line is stressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    #[default]
    Plain,
    /// Names a part of the story: instance, session, tool call.
    Heading,
    /// A failure or a denial.
    Bad,
    /// Evidence is missing here.
    Gap,
}
