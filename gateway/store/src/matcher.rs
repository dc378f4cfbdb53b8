//! A query made ready: terms that filters are asked for, and the test of one event.

use std::net::IpAddr;

use activity_schema::event::{CorrelationKey, Event};
use activity_schema::{Timestamp, ids};
use memchr::memmem::Finder;

use crate::summary::{Summary, outcome_bit, plane_bit, trust_bit};
use crate::terms::{
    Filter, PEER_KEYS, TermKey, TermKind, V4_PREFIXES, V6_PREFIXES, address, cut_v4, cut_v6, is_of_segments,
};
use crate::types::Query;

/// Why a query cannot be answered as it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error("{0:?} is not an address or a network such as 10.0.0.0/8")]
    Peer(String),
    #[error("{0:?} is not an event name or a prefix such as process.*")]
    EventName(String),
    #[error("the cursor is not one of this store's")]
    Cursor,
    #[error("the store changed while it was read, again and again; try again")]
    Busy,
}

#[derive(Debug, Clone)]
enum Name {
    Exact(String),
    /// With its final dot.
    Prefix(String),
}

#[derive(Debug, Clone, Copy)]
struct Network {
    address: IpAddr,
    prefix: u8,
}

pub(crate) struct Matcher {
    from: Timestamp,
    /// Exclusive; `None` is no bound.
    to: Option<Timestamp>,
    /// Every group must hold one of its terms.
    terms: Vec<Vec<u64>>,
    ids: Vec<(CorrelationKey, String)>,
    names: Vec<Name>,
    planes: u8,
    outcomes: u8,
    trusts: u8,
    peer: Option<Network>,
    executable: Option<String>,
    /// Texts of which a matching line contains one of every group, unless it writes them with escapes.
    needles: Vec<Vec<Finder<'static>>>,
}

impl Matcher {
    pub(crate) fn new(query: &Query, key: &TermKey) -> Result<Self, QueryError> {
        let mut matcher = Matcher {
            from: query.from.unwrap_or(Timestamp::MIN),
            to: query.to,
            terms: Vec::new(),
            ids: Vec::new(),
            names: query.events.iter().map(|text| name(text)).collect::<Result<_, _>>()?,
            planes: query.planes.iter().fold(0, |mask, p| mask | plane_bit(*p)),
            outcomes: query.outcomes.iter().fold(0, |mask, o| mask | outcome_bit(*o)),
            trusts: query.trusts.iter().fold(0, |mask, t| mask | trust_bit(*t)),
            peer: query.peer.as_deref().map(network).transpose()?,
            executable: query.executable.clone(),
            needles: Vec::new(),
        };
        for (kind, correlation, value) in [
            (TermKind::Instance, CorrelationKey::InstanceId, &query.instance),
            (TermKind::Session, CorrelationKey::SessionId, &query.session),
            (TermKind::Mission, CorrelationKey::MissionId, &query.mission),
            (TermKind::Task, CorrelationKey::TaskId, &query.task),
            (TermKind::ToolCall, CorrelationKey::ToolCallId, &query.tool_call),
            (TermKind::Command, CorrelationKey::CommandId, &query.command),
            (TermKind::Process, CorrelationKey::ProcessId, &query.process),
        ] {
            if let Some(value) = value {
                matcher.terms.push(vec![key.term(kind, value.as_bytes())]);
                matcher.needle(value);
                matcher.ids.push((correlation, value.clone()));
            }
        }
        if let Some(executable) = &query.executable {
            matcher.terms.push(vec![key.term(TermKind::Executable, executable.as_bytes())]);
            matcher.needle(executable);
        }
        if !matcher.names.is_empty() {
            let of = |n: &Name| match n {
                Name::Exact(text) => key.term(TermKind::EventName, text.as_bytes()),
                Name::Prefix(text) => key.term(TermKind::EventPrefix, text.as_bytes()),
            };
            matcher.terms.push(matcher.names.iter().map(of).collect());
            let texts: Vec<String> = matcher.names.iter().map(Name::in_line).collect();
            matcher.needles.push(texts.iter().map(|text| Finder::new(text).into_owned()).collect());
        }
        if let Some(network) = matcher.peer
            && let Some(prefix) = network.stored_prefix()
        {
            matcher.terms.push(vec![key.network(network.address, prefix)]);
        }
        Ok(matcher)
    }

    fn needle(&mut self, text: &str) {
        // Only text that JSON has no reason to escape; a line that escapes it none the less is caught by its `\`.
        if ids::is_id(text) || text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\') {
            self.needles.push(vec![Finder::new(text).into_owned()]);
        }
    }

    /// Whether a run of events may hold a match.
    pub(crate) fn may_match(&self, summary: &Summary, holds: impl Fn(u64) -> bool) -> bool {
        self.overlaps(summary)
            && (self.planes == 0 || summary.planes & self.planes != 0)
            && (self.outcomes == 0 || summary.outcomes & self.outcomes != 0)
            && (self.trusts == 0 || summary.trusts & self.trusts != 0)
            && self.terms.iter().all(|group| group.iter().any(|term| holds(*term)))
    }

    /// Whether a segment may hold a match, by the terms that its filter knows.
    pub(crate) fn may_match_segment(&self, summary: &Summary, filter: &Filter<'_>) -> bool {
        self.may_match(summary, |term| !is_of_segments(term) || filter.holds(term))
    }

    fn overlaps(&self, summary: &Summary) -> bool {
        summary.occurred_max >= self.from && self.to.is_none_or(|to| summary.occurred_min < to)
    }

    /// A cheap test before a line is parsed; never false for a match.
    pub(crate) fn may_match_line(&self, line: &[u8]) -> bool {
        self.needles.iter().all(|group| group.iter().any(|needle| needle.find(line).is_some()))
            || memchr::memchr(b'\\', line).is_some()
    }

    pub(crate) fn matches(&self, event: &Event<'_>) -> bool {
        let at = event.occurred_at;
        at >= self.from
            && self.to.is_none_or(|to| at < to)
            && (self.planes == 0 || plane_bit(event.plane) & self.planes != 0)
            && (self.trusts == 0 || trust_bit(event.source.trust) & self.trusts != 0)
            && (self.outcomes == 0
                || event.outcome.as_ref().is_some_and(|o| outcome_bit(o.status) & self.outcomes != 0))
            && self
                .ids
                .iter()
                .all(|(key, value)| event.correlation.get(*key).is_some_and(|v| v == value.as_str()))
            && (self.names.is_empty() || self.names.iter().any(|n| n.is(&event.event_name)))
            && self.executable.as_ref().is_none_or(|e| event.payload.text("executable") == Some(e))
            && self.peer.is_none_or(|network| {
                PEER_KEYS
                    .iter()
                    .filter_map(|key| event.payload.text(key).and_then(address))
                    .any(|address| network.contains(address))
            })
    }
}

impl Name {
    /// How a line of this name writes it.
    fn in_line(&self) -> String {
        match self {
            Name::Exact(text) => format!("\"{text}\""),
            Name::Prefix(text) => format!("\"{text}"),
        }
    }

    fn is(&self, name: &str) -> bool {
        match self {
            Name::Exact(text) => text == name,
            Name::Prefix(text) => name.starts_with(text.as_str()),
        }
    }
}

fn name(text: &str) -> Result<Name, QueryError> {
    let bad = || QueryError::EventName(text.to_owned());
    match text.strip_suffix('*') {
        None if activity_schema::event::is_event_name(text) => Ok(Name::Exact(text.to_owned())),
        // `process.*` and also `network.flow.*`; a whole number of words.
        Some(prefix)
            if prefix.ends_with('.') && activity_schema::event::is_event_name(&format!("{prefix}x")) =>
        {
            Ok(Name::Prefix(prefix.to_owned()))
        }
        _ => Err(bad()),
    }
}

impl Network {
    /// The longest prefix that is kept as a term and is no longer than this one.
    fn stored_prefix(&self) -> Option<u8> {
        let stored = if self.address.is_ipv4() { V4_PREFIXES } else { V6_PREFIXES };
        stored.into_iter().rev().find(|p| *p <= self.prefix)
    }

    fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                cut_v4(a.to_bits(), self.prefix) == cut_v4(b.to_bits(), self.prefix)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                cut_v6(a.to_bits(), self.prefix) == cut_v6(b.to_bits(), self.prefix)
            }
            _ => false,
        }
    }
}

fn network(text: &str) -> Result<Network, QueryError> {
    let bad = || QueryError::Peer(text.to_owned());
    let (host, prefix) = match text.split_once('/') {
        Some((host, prefix)) => (host, Some(prefix.parse::<u8>().map_err(|_| bad())?)),
        None => (text, None),
    };
    let address = address(host).ok_or_else(bad)?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.unwrap_or(longest);
    if prefix > longest { Err(bad()) } else { Ok(Network { address, prefix }) }
}
