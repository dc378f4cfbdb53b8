//! Sweeps one class of one instance over an interval: the worst state of the collectors that claim it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use activity_schema::coverage::{CoverageState, EventClass};

use crate::collector::Collector;
use crate::declared::{Declared, DeclaredState};
use crate::marks::{Cause, Mark, Sequences};

/// The request, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) now: i64,
}

/// Whether the collector ran and vouches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alive {
    Proven,
    /// Not yet acknowledged since.
    Pending(i64),
    Silent(i64),
    Down,
    Stopped(i64),
    /// The gateway takes nothing from it any more.
    Revoked(i64),
    /// Older than the index keeps.
    Forgotten,
}

/// A collector that declared the instance, with all that does not depend on the class.
pub(crate) struct Witness<'i> {
    pub(crate) name: &'i str,
    pub(crate) collector: &'i Collector,
    /// Ascending starts; the first is at or before the window.
    alive: Vec<(i64, Alive)>,
    marks: Vec<Mark>,
}

/// Causes at work, one bit each in the order of [`Cause::ALL`].
pub(crate) type CauseBits = u32;

/// Why a stretch is in its state. Equal keys merge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Why<'i> {
    NoConfig,
    NoClass,
    Declared { by: usize, declared: &'i Declared, alive: Alive, causes: CauseBits },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stretch<'i> {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) state: CoverageState,
    pub(crate) why: Why<'i>,
    pub(crate) lost: u64,
    pub(crate) exact: Option<bool>,
    /// Another collector that vouches for the stretch. It adds evidence, and does not make up for what is missing.
    pub(crate) beside: Option<usize>,
}

impl<'i> Witness<'i> {
    pub(crate) fn new(name: &'i str, collector: &'i Collector, instance: &str, window: Window) -> Self {
        let mine = |mark: &&Mark| mark.overlaps(window.from, window.to) && collector.touches(mark, instance);
        let (holes, gaps) = (collector.holes(), collector.canary_gaps());
        let all = collector.losses.iter().chain(collector.aged.iter()).chain(&holes).chain(&gaps);
        let mut marks: Vec<Mark> = all.filter(mine).cloned().collect();
        marks.sort_by_key(|mark| (mark.from, mark.to));
        Witness { name, collector, alive: alive(collector, instance, window), marks }
    }
}

/// Piecewise state of the collector over the window.
fn alive(collector: &Collector, instance: &str, window: Window) -> Vec<(i64, Alive)> {
    let life = collector.life();
    let forgotten =
        collector.forgotten_before.max(collector.declarations.forgotten_before(instance)).unwrap_or(i64::MIN);
    let stops = collector.stopped(instance);
    let revoked = collector.revoked.unwrap_or(i64::MAX);
    let mut cuts = vec![window.from, forgotten, revoked, life.tail.unwrap_or(i64::MIN)];
    cuts.extend(life.covered.iter().chain(&stops).flat_map(|(from, to)| [*from, *to]));
    cuts.retain(|cut| (window.from..window.to).contains(cut));
    cuts.sort_unstable();
    cuts.dedup();
    let within = |spans: &[(i64, i64)], at: i64| {
        let next = spans.partition_point(|(from, _)| *from <= at);
        next.checked_sub(1).map(|i| spans[i]).filter(|(_, to)| at < *to)
    };
    let unproven = |at: i64| match life.tail {
        Some(tail) if at >= tail => {
            let interval = collector.declarations.interval_ns(instance, tail);
            let patience = interval.saturating_mul(crate::MISSED_MAX);
            let waited = window.now.saturating_sub(tail);
            if waited <= patience { Alive::Pending(tail) } else { Alive::Silent(tail) }
        }
        _ => Alive::Down,
    };
    let state = |at: i64| {
        if at < forgotten {
            Alive::Forgotten
        } else if at >= revoked {
            Alive::Revoked(revoked)
        } else if let Some((since, _)) = within(&stops, at) {
            Alive::Stopped(since)
        } else if within(&life.covered, at).is_some() {
            Alive::Proven
        } else {
            unproven(at)
        }
    };
    cuts.into_iter().map(|at| (at, state(at))).collect()
}

/// A list of piecewise values and the place reached in it.
struct Cursor<T> {
    pieces: Vec<(i64, T)>,
    next: usize,
}

impl<T: Copy> Cursor<T> {
    fn new(pieces: Vec<(i64, T)>) -> Self {
        Cursor { pieces, next: 0 }
    }

    fn at(&mut self, at: i64) -> Option<T> {
        while self.pieces.get(self.next).is_some_and(|(from, _)| *from <= at) {
            self.next += 1;
        }
        self.next.checked_sub(1).map(|i| self.pieces[i].1)
    }
}

/// One witness on its way over the window.
struct Walk<'i> {
    declared: Cursor<Option<&'i Declared>>,
    alive: Cursor<Alive>,
    /// (from, to, cause, count, exact), ascending.
    marks: Vec<(i64, i64, Cause, u64, bool)>,
    next_mark: usize,
    /// Ends of the marks at work.
    ends: BinaryHeap<Reverse<(i64, usize)>>,
    at_work: [u32; Cause::ALL.len()],
    inexact: u32,
    /// Records of the marks at work that no stretch has counted.
    uncounted: u64,
    /// Marks before this one are counted.
    counted_to: usize,
}

/// What one collector says of a moment.
struct Opinion<'i> {
    state: CoverageState,
    declared: &'i Declared,
    alive: Alive,
    causes: CauseBits,
}

impl Opinion<'_> {
    /// Whether the collector speaks for the class: not where it said that it cannot see it, nor once it said that it
    /// stopped, or was revoked. One that only fell silent goes on claiming.
    fn claims(&self) -> bool {
        self.declared.state != DeclaredState::Unsupported
            && !matches!(self.alive, Alive::Stopped(_) | Alive::Revoked(_))
    }
}

/// The parts of a canary's mark in which probes may have been what watched. From a config on that says otherwise, a
/// missing canary says nothing any more.
fn probed<'d>(
    mark: &'d Mark,
    declared: &'d [(i64, Option<&Declared>)],
) -> impl Iterator<Item = (i64, i64)> + use<'d> {
    let ends = declared.iter().skip(1).map(|(at, _)| *at).chain([i64::MAX]);
    let pieces = declared.iter().zip(ends).filter(|((_, declared), _)| declared.is_some_and(|d| d.probed));
    let parts = pieces.map(|((from, _), to)| ((*from).max(mark.from), to.min(mark.to)));
    parts.filter(|(from, to)| from < to)
}

impl<'i> Walk<'i> {
    fn new(witness: &Witness<'i>, instance: &str, class: EventClass) -> Self {
        let mine: Vec<&Mark> = witness.marks.iter().filter(|mark| mark.classes.has(class)).collect();
        let named = Named::of(&mine);
        let declared = witness.collector.declarations.timeline(instance, class);
        let mut marks = Vec::with_capacity(mine.len());
        for mark in mine {
            let count = named.count(mark);
            let put = |(from, to)| marks.push((from, to, mark.cause, count, mark.exact));
            if mark.cause == Cause::CanaryMissing {
                probed(mark, &declared).for_each(put);
            } else {
                std::iter::once((mark.from, mark.to)).for_each(put);
            }
        }
        marks.sort_by_key(|(from, to, ..)| (*from, *to));
        Walk {
            declared: Cursor::new(declared),
            alive: Cursor::new(witness.alive.clone()),
            marks,
            next_mark: 0,
            ends: BinaryHeap::new(),
            at_work: [0; Cause::ALL.len()],
            inexact: 0,
            uncounted: 0,
            counted_to: 0,
        }
    }

    fn cuts(&self) -> impl Iterator<Item = i64> {
        let declared = self.declared.pieces.iter().map(|(at, _)| *at);
        let alive = self.alive.pieces.iter().map(|(at, _)| *at);
        declared.chain(alive).chain(self.marks.iter().flat_map(|(from, to, ..)| [*from, *to]))
    }

    fn advance(&mut self, at: i64) {
        while let Some((from, to, cause, count, exact)) = self.marks.get(self.next_mark).copied()
            && from <= at
        {
            self.ends.push(Reverse((to, self.next_mark)));
            self.at_work[cause as usize] += 1;
            self.inexact += u32::from(!exact);
            self.uncounted = self.uncounted.saturating_add(count);
            self.next_mark += 1;
        }
        while let Some(Reverse((to, i))) = self.ends.peek().copied()
            && to <= at
        {
            self.ends.pop();
            let (_, _, cause, count, exact) = self.marks[i];
            if i >= self.counted_to {
                // It mattered nowhere: the collector claimed nothing at the time.
                self.uncounted = self.uncounted.saturating_sub(count);
            }
            self.at_work[cause as usize] -= 1;
            self.inexact -= u32::from(!exact);
        }
    }

    /// `Err` when nothing is declared: whether a config is in force at all.
    fn opinion(&mut self, at: i64) -> Result<Opinion<'i>, bool> {
        self.advance(at);
        let declared = self.declared.at(at).ok_or(false)?.ok_or(true)?;
        let alive = self.alive.at(at).unwrap_or(Alive::Forgotten);
        let mut causes: CauseBits = 0;
        let mut state = match declared.state {
            DeclaredState::Supported => CoverageState::Covered,
            DeclaredState::Degraded => CoverageState::Lossy,
            DeclaredState::Unclear | DeclaredState::Forgotten => CoverageState::Unobserved,
            DeclaredState::Unsupported => {
                return Ok(Opinion { state: CoverageState::Unsupported, declared, alive, causes });
            }
        };
        state = state.max(match alive {
            Alive::Proven => CoverageState::Covered,
            Alive::Pending(_) => CoverageState::Pending,
            _ => CoverageState::Unobserved,
        });
        for (i, cause) in Cause::ALL.iter().enumerate().filter(|(i, _)| self.at_work[*i] > 0) {
            causes |= 1 << i;
            let by_cause =
                if cause.is_unobserved() { CoverageState::Unobserved } else { CoverageState::Lossy };
            state = state.max(by_cause);
        }
        Ok(Opinion { state, declared, alive, causes })
    }

    /// Records of the marks at work that were not counted before.
    fn count(&mut self) -> u64 {
        self.counted_to = self.next_mark;
        std::mem::take(&mut self.uncounted)
    }

    fn exact(&self, opinion: &Opinion<'_>) -> Option<bool> {
        match opinion.state {
            CoverageState::Lossy | CoverageState::Unobserved if opinion.causes != 0 => {
                let all_told =
                    opinion.alive == Alive::Proven && opinion.declared.state == DeclaredState::Supported;
                Some(all_told && self.inexact == 0)
            }
            CoverageState::Lossy => Some(false),
            _ => None,
        }
    }
}

/// Sequences that loss records name, by stream: what a header or a hole counts again is not counted twice.
struct Named<'m>(Vec<&'m Sequences>);

impl<'m> Named<'m> {
    fn of(marks: &[&'m Mark]) -> Self {
        let told = marks.iter().filter(|m| !matches!(m.cause, Cause::Shed | Cause::Hole));
        let mut named: Vec<&Sequences> = told.filter_map(|m| m.sequences.as_ref()).collect();
        named.sort_unstable();
        Named(named)
    }

    /// The mark's count without the sequences that are named elsewhere.
    fn count(&self, mark: &Mark) -> u64 {
        let Some(own) = &mark.sequences else { return mark.count };
        if !matches!(mark.cause, Cause::Shed | Cause::Hole) {
            return mark.count;
        }
        let key = |s: &Sequences| (s.epoch.clone(), s.priority);
        let from = self.0.partition_point(|s| key(s) < key(own));
        let mut next = own.first;
        let mut named = 0_u64;
        for told in self.0[from..].iter().take_while(|s| key(s) == key(own) && s.first <= own.last) {
            let (first, last) = (told.first.max(next), told.last.min(own.last));
            if first <= last {
                named = named.saturating_add(last - first + 1);
                next = last.saturating_add(1);
            }
        }
        mark.count.saturating_sub(named)
    }
}

/// The class over the window: adjacent stretches, those with equal reasons merged.
pub(crate) fn stretches<'i>(
    witnesses: &[Witness<'i>],
    instance: &str,
    class: EventClass,
    window: Window,
) -> Vec<Stretch<'i>> {
    let mut walks: Vec<Walk<'i>> = witnesses.iter().map(|w| Walk::new(w, instance, class)).collect();
    let mut cuts: Vec<i64> = walks.iter().flat_map(Walk::cuts).collect();
    cuts.retain(|cut| window.from < *cut && *cut < window.to);
    cuts.push(window.from);
    cuts.sort_unstable();
    cuts.dedup();
    let ends = cuts.iter().skip(1).copied().chain([window.to]);
    let mut out: Vec<Stretch<'i>> = Vec::new();
    for (from, to) in cuts.iter().copied().zip(ends) {
        let stretch = moment(&mut walks, from, to);
        match out.last_mut() {
            Some(last)
                if (last.state, last.why, last.beside) == (stretch.state, stretch.why, stretch.beside) =>
            {
                last.to = stretch.to;
                last.lost = last.lost.saturating_add(stretch.lost);
                last.exact = [last.exact, stretch.exact].into_iter().flatten().reduce(|a, b| a && b);
            }
            _ => out.push(stretch),
        }
    }
    out
}

/// The opinion of `[from, to)`, in which nothing changes: the worst of those who claim the class, so that nobody hides what
/// another lost; where nobody claims it, the best of the others.
fn moment<'i>(walks: &mut [Walk<'i>], from: i64, to: i64) -> Stretch<'i> {
    let mut opinions: Vec<(usize, Opinion<'i>)> = Vec::with_capacity(walks.len());
    let mut any_config = false;
    for (by, walk) in walks.iter_mut().enumerate() {
        match walk.opinion(from) {
            Ok(opinion) => opinions.push((by, opinion)),
            Err(config) => any_config |= config,
        }
    }
    let deciding = if opinions.iter().any(|(_, opinion)| opinion.claims()) {
        opinions.retain(|(_, opinion)| opinion.claims());
        opinions.iter().max_by_key(|(by, opinion)| (opinion.state, Reverse(*by)))
    } else {
        let best = opinions.iter().map(|(by, opinion)| (opinion.state, *by)).min();
        opinions.retain(|(by, opinion)| Some((opinion.state, *by)) == best);
        opinions.first()
    };
    let Some((by, Opinion { state, declared, alive, causes })) = deciding else {
        let why = if any_config { Why::NoClass } else { Why::NoConfig };
        let state = CoverageState::Unobserved;
        return Stretch { from, to, state, why, lost: 0, exact: None, beside: None };
    };
    let why = Why::Declared { by: *by, declared, alive: *alive, causes: *causes };
    let covered = |(_, opinion): &&(usize, Opinion<'_>)| opinion.state == CoverageState::Covered;
    let beside = opinions.iter().find(covered).map(|(other, _)| *other).filter(|other| other != by);
    let mut stretch = Stretch { from, to, state: *state, why, lost: 0, exact: None, beside };
    // Whether every number is exact, of those who lost something; silence is no number.
    let missing = opinions.iter().filter(|(_, opinion)| opinion.state >= CoverageState::Lossy);
    let exacts: Vec<Option<bool>> = missing.map(|(by, opinion)| walks[*by].exact(opinion)).collect();
    if exacts.iter().any(Option::is_some) {
        stretch.exact = Some(exacts.iter().all(|exact| *exact == Some(true)));
    }
    for (by, _) in opinions.iter().filter(|(_, opinion)| opinion.causes != 0) {
        stretch.lost = stretch.lost.saturating_add(walks[*by].count());
    }
    stretch
}
