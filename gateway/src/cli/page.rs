//! An answer with events, wherever it came from.

use activity_schema::coverage::CoverageReport;
use activity_store::Answer;
use anyhow::Context as _;
use bytes::Bytes;

use super::CliError;
use crate::wire::{Head, Summary, Tail};

/// One page of an answer.
#[derive(Debug)]
pub(super) struct Page {
    pub coverage: CoverageReport,
    /// Signed lines, without newline.
    pub lines: Vec<Bytes>,
    pub tail: Tail,
}

impl From<Answer> for Page {
    fn from(answer: Answer) -> Self {
        let summary =
            Summary { complete: answer.coverage.complete, reasons: answer.coverage.reasons.clone() };
        Page {
            tail: Tail {
                next_cursor: answer.next_cursor,
                log_size: answer.log_size,
                events: answer.events.len() as u64,
                erased_lines: answer.erased_lines,
                damaged: answer.damaged,
                unreadable: answer.unreadable,
                coverage: summary,
            },
            coverage: answer.coverage,
            lines: answer.events.into_iter().map(|e| e.line).collect(),
        }
    }
}

impl Page {
    /// Reads the NDJSON of a gateway: coverage, events, tail.
    pub(super) fn parse(body: &Bytes) -> Result<Self, CliError> {
        let mut lines: Vec<Bytes> =
            body.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(|l| body.slice_ref(l)).collect();
        let tail = lines.pop().context("the gateway's answer is empty")?;
        let tail: Tail = serde_json::from_slice(&tail).context("the gateway's answer was cut off")?;
        let mut lines = lines.into_iter();
        let head = lines.next().context("the gateway's answer has no coverage")?;
        let head: Head = serde_json::from_slice(&head).context("the gateway's answer has no coverage")?;
        Ok(Page { coverage: head.coverage, lines: lines.collect(), tail })
    }
}
