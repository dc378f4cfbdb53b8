//! Commands that show events and coverage.

use std::time::Duration;

use activity_schema::coverage::CoverageReport;
use activity_schema::{Event, Timestamp};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::args::{CoverageArgs, Filter, Format, Interval, Place, QueryArgs, TimelineArgs};
use super::output::{Output, complain};
use super::source::Source;
use super::{CliError, Ending, times};
use crate::clock;
use crate::story::{self, Judgement};
use crate::wire::{Head, PAGE_EVENTS_MAX, Params, Summary, Tail};

/// How often `--follow` looks for more.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn timeline(place: &Place, args: TimelineArgs, out: &Output) -> Result<Ending, CliError> {
    let source = Source::open(place).await?;
    let (from, to) = interval(&args.interval)?;
    let params = Params {
        from,
        to,
        instance: args.instance,
        session: args.session,
        class: args.class,
        ..tenant(place)
    };
    if args.follow {
        return follow(&source, params, out).await;
    }
    let all = gather(&source, "/v1/timeline", params, args.limit).await?;
    match out.format {
        Format::Text => {
            let events = parse(&all.lines);
            out.text(&story::render(&story::tell(&events, all.coverage.clone()), out.style))?;
        }
        Format::Json | Format::Ndjson => documents(&all, out)?,
    }
    Ok(all.end())
}

pub(super) async fn query(place: &Place, args: QueryArgs, out: &Output) -> Result<Ending, CliError> {
    let source = Source::open(place).await?;
    let params = Params { cursor: args.cursor, ..filter(place, args.filter)? };
    let all = gather(&source, "/v1/query", params, args.limit).await?;
    match out.format {
        Format::Text => {
            let coverage = story::escape(&story::coverage_summary(&all.coverage)).into_owned();
            let mut text = format!("coverage  {coverage}\n\n");
            for event in parse(&all.lines) {
                text.push_str(&story::flat_line(&event, out.style));
            }
            if all.lines.is_empty() {
                text.push_str("no events\n");
            }
            out.text(&format!("{text}\ncoverage  {coverage}\n"))?;
        }
        Format::Json | Format::Ndjson => documents(&all, out)?,
    }
    Ok(all.end())
}

pub(super) async fn coverage(place: &Place, args: CoverageArgs, out: &Output) -> Result<Ending, CliError> {
    let source = Source::open(place).await?;
    let (from, to) = interval(&args.interval)?;
    let params = Params { from, to, instance: args.instance, class: args.class, ..tenant(place) };
    let report = source.coverage(&params).await?;
    match out.format {
        Format::Text => {
            for line in story::coverage_lines(&report) {
                out.text(&format!("{}\n", story::escape(&line)))?;
            }
        }
        Format::Json | Format::Ndjson => out.document(&report)?,
    }
    let ending = ending(&report);
    if args.require_complete && ending == Ending::Incomplete {
        complain(&format!("activity: coverage is incomplete: {}", story::escape(&report.reasons.join("; "))));
    }
    Ok(ending)
}

/// Every page of an answer, up to a limit.
struct Gathered {
    coverage: CoverageReport,
    lines: Vec<Bytes>,
    tail: Tail,
}

impl Gathered {
    /// Says on standard error what the answer leaves out, and how it ended.
    fn end(&self) -> Ending {
        if let Some(cursor) = &self.tail.next_cursor {
            complain(&format!(
                "activity: there are more events than the {} shown; raise --limit, or go on with --cursor {cursor}",
                self.lines.len()
            ));
        }
        if self.tail.damaged > 0 {
            return damaged(&self.tail);
        }
        ending(&self.coverage)
    }
}

/// Says on standard error what could not be read.
fn damaged(tail: &Tail) -> Ending {
    for place in &tail.unreadable {
        complain(&format!("activity: does not read: {}", story::escape(place)));
    }
    complain(&format!(
        "activity: {} batches or blocks that may hold matches do not read; `activity verify` names every damage",
        tail.damaged
    ));
    Ending::Damaged
}

pub(super) fn ending(report: &CoverageReport) -> Ending {
    match story::judge(report) {
        Judgement::Complete => Ending::Complete,
        Judgement::Incomplete => Ending::Incomplete,
    }
}

async fn gather(source: &Source, path: &str, params: Params, limit: usize) -> Result<Gathered, CliError> {
    let page_of = |left: usize| Some(left.clamp(1, PAGE_EVENTS_MAX));
    let first = source.query(path, &Params { limit: page_of(limit), ..params.clone() }).await?;
    let mut all = Gathered { coverage: first.coverage, lines: first.lines, tail: first.tail };
    while let Some(cursor) = all.tail.next_cursor.clone().filter(|_| all.lines.len() < limit) {
        let left = page_of(limit - all.lines.len());
        let next =
            source.query(path, &Params { limit: left, cursor: Some(cursor), ..params.clone() }).await?;
        all.lines.extend(next.lines);
        all.tail = Tail {
            erased_lines: all.tail.erased_lines.max(next.tail.erased_lines),
            damaged: all.tail.damaged.max(next.tail.damaged),
            unreadable: if next.tail.damaged > all.tail.damaged {
                next.tail.unreadable
            } else {
                all.tail.unreadable
            },
            ..next.tail
        };
    }
    all.tail.events = all.lines.len() as u64;
    Ok(all)
}

/// The answer as `json` or `ndjson`: events as they were signed.
fn documents(all: &Gathered, out: &Output) -> Result<(), CliError> {
    if out.format == Format::Json {
        let events: Result<Vec<&RawValue>, _> = all.lines.iter().map(|l| serde_json::from_slice(l)).collect();
        return out.document(&serde_json::json!({
            "coverage": all.coverage,
            "events": events?,
            "next_cursor": all.tail.next_cursor,
            "log_size": all.tail.log_size,
            "erased_lines": all.tail.erased_lines,
            "damaged": all.tail.damaged,
            "unreadable": all.tail.unreadable,
        }));
    }
    let mut bytes = serde_json::to_vec(&Head { coverage: all.coverage.clone() })?;
    bytes.push(b'\n');
    for line in &all.lines {
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
    }
    let summary = Summary { complete: all.coverage.complete, reasons: all.coverage.reasons.clone() };
    serde_json::to_writer(&mut bytes, &Tail { coverage: summary, ..all.tail.clone() })?;
    bytes.push(b'\n');
    Ok(out.bytes(&bytes)?)
}

/// Shows what is there and then what arrives, until interrupted. An event is shown once, in order of arrival.
async fn follow(source: &Source, params: Params, out: &Output) -> Result<Ending, CliError> {
    if matches!(source, Source::Store(_)) {
        return Err(CliError::Usage("--follow needs a running gateway: name it with --gateway".into()));
    }
    let mut since = params.clone();
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let mut round = Params { limit: Some(PAGE_EVENTS_MAX), ..since.clone() };
        // The pages of a round are of the log as it was at the first; what came later is for the next round.
        let mut log_size = None;
        let end = loop {
            let page = source.query("/v1/timeline", &round).await?;
            let first = *log_size.get_or_insert(page.tail.log_size);
            for line in &page.lines {
                show_followed(line, out)?;
            }
            match page.tail.next_cursor {
                Some(cursor) => round.cursor = Some(cursor),
                None => {
                    since.since_leaf = Some(first);
                    break if page.tail.damaged > 0 { damaged(&page.tail) } else { ending(&page.coverage) };
                }
            }
        };
        tokio::select! {
            _ = &mut interrupt => return Ok(end),
            () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
        }
    }
}

fn show_followed(line: &Bytes, out: &Output) -> Result<(), CliError> {
    match (out.format, Event::parse(line)) {
        (Format::Text, Ok(event)) => out.text(&story::flat_line(&event, out.style))?,
        _ => {
            out.bytes(line)?;
            out.bytes(b"\n")?;
        }
    }
    Ok(())
}

/// Events that parse; the gateway admits no others.
fn parse(lines: &[Bytes]) -> Vec<Event<'_>> {
    let (events, failed): (Vec<_>, Vec<_>) = lines.iter().map(|l| Event::parse(l)).partition(Result::is_ok);
    if !failed.is_empty() {
        complain(&format!(
            "activity: {} lines do not parse and are left out; --format ndjson has them",
            failed.len()
        ));
    }
    events.into_iter().flatten().collect()
}

/// The parameters of a question.
pub(super) fn filter(place: &Place, filter: Filter) -> Result<Params, CliError> {
    let (from, to) = interval(&filter.interval)?;
    Ok(Params {
        from,
        to,
        instance: filter.instance,
        session: filter.session,
        mission: filter.mission,
        task: filter.task,
        tool_call: filter.tool_call,
        command: filter.command,
        process: filter.process,
        event: filter.event,
        plane: filter.plane,
        outcome: filter.outcome,
        trust: filter.trust,
        peer: filter.peer,
        executable: filter.executable,
        class: filter.class,
        ..tenant(place)
    })
}

fn tenant(place: &Place) -> Params {
    Params { tenant: place.tenant.as_ref().map(ToString::to_string), ..Params::default() }
}

fn interval(interval: &Interval) -> Result<(Option<String>, Option<String>), CliError> {
    let now = clock::now();
    let parse = |text: &Option<String>| -> Result<Option<Timestamp>, CliError> {
        text.as_deref().map(|t| times::parse(t, now)).transpose()
    };
    let (from, to) = (parse(&interval.from)?, parse(&interval.to)?);
    if let (Some(from), Some(to)) = (from, to)
        && from >= to
    {
        return Err(CliError::Usage(format!("--from {from} is not before --to {to}")));
    }
    Ok((from.map(|t| t.to_string()), to.map(|t| t.to_string())))
}
