//! The tree while it is made: places that gather the events of one thing, linked by index.

use std::collections::VecDeque;

use activity_schema::{Event, Timestamp};

use crate::story::order::{Instant, mark_concurrent};
use crate::story::{Node, flow, leaf, process, resources, tool};

/// Deepest level that is drawn; what lies deeper is drawn at this level. Also bounds recursion over the tree.
const DEPTH_MAX: usize = 48;

pub(super) type Index = usize;

/// What a place stands for.
#[derive(Debug)]
pub(super) enum Subject<'e> {
    Instance(&'e str),
    Session(&'e str),
    Tool(&'e str),
    Process(&'e str),
    Flow,
    Model,
    Resources,
    /// Heartbeats, configurations and probes of a collector.
    Collector,
    Leaf,
    /// Drawn as it is.
    Made(Node),
}

/// A thing and the events that speak of it.
#[derive(Debug)]
pub(super) struct Place<'e> {
    pub subject: Subject<'e>,
    pub parent: Option<Index>,
    pub own: Vec<&'e Event<'e>>,
    /// Time of the first own event, else of the earliest thing below.
    pub instant: Option<Instant>,
    pub end: Option<Timestamp>,
    pub children: Vec<Index>,
    /// Of a process, from whichever event says it.
    pub pid: Option<u64>,
}

/// All places.
#[derive(Debug, Default)]
pub(super) struct Arena<'e> {
    pub places: Vec<Place<'e>>,
}

impl<'e> Arena<'e> {
    pub(super) fn push(&mut self, subject: Subject<'e>, parent: Option<Index>) -> Index {
        self.places.push(Place {
            subject,
            parent,
            own: Vec::new(),
            instant: None,
            end: None,
            children: Vec::new(),
            pid: None,
        });
        self.places.len() - 1
    }

    /// Adds an event to a place; events come in order of time.
    pub(super) fn own(&mut self, index: Index, event: &'e Event<'e>, instant: Instant) {
        let place = &mut self.places[index];
        place.end = place.end.max(Some(instant.at));
        place.instant.get_or_insert(instant);
        place.own.push(event);
    }

    /// Cuts every cycle of parents: the place where it closes is hung where `fallback` says.
    pub(super) fn break_cycles(&mut self, fallback: &[Option<Index>]) {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            OnPath,
            Done,
        }
        let mut states = vec![State::New; self.places.len()];
        for start in 0..self.places.len() {
            let mut path = Vec::new();
            let mut at = start;
            loop {
                match states[at] {
                    State::Done => break,
                    State::OnPath => {
                        self.places[at].parent = fallback.get(at).copied().flatten();
                        break;
                    }
                    State::New => {
                        states[at] = State::OnPath;
                        path.push(at);
                    }
                }
                let Some(parent) = self.places[at].parent else { break };
                at = parent;
            }
            for i in path {
                states[i] = State::Done;
            }
        }
    }

    /// Links children to parents, level by level, not deeper than [`DEPTH_MAX`]; returns parents before children.
    pub(super) fn link(&mut self) -> Vec<Index> {
        let mut below: Vec<Vec<Index>> = vec![Vec::new(); self.places.len()];
        let mut queue: VecDeque<(Index, usize)> = VecDeque::new();
        for (i, place) in self.places.iter().enumerate() {
            match place.parent {
                Some(parent) => below[parent].push(i),
                None => queue.push_back((i, 0)),
            }
        }
        let mut order = Vec::with_capacity(self.places.len());
        while let Some((i, depth)) = queue.pop_front() {
            order.push(i);
            for child in std::mem::take(&mut below[i]) {
                let (parent, child_depth) = match self.places[i].parent {
                    Some(parent) if depth >= DEPTH_MAX => (parent, depth),
                    _ => (i, depth + 1),
                };
                self.places[child].parent = Some(parent);
                self.places[parent].children.push(child);
                queue.push_back((child, child_depth));
            }
        }
        debug_assert_eq!(order.len(), self.places.len(), "a cycle of parents is left");
        self.spread_times(&order);
        order
    }

    /// Gives places without events the time of what lies below them, and every place its end.
    fn spread_times(&mut self, order: &[Index]) {
        for &i in order.iter().rev() {
            let children = std::mem::take(&mut self.places[i].children);
            let end = children.iter().filter_map(|c| self.places[*c].end).max();
            let first = children.iter().filter_map(|c| self.places[*c].instant.clone()).min_by_key(|t| t.at);
            let place = &mut self.places[i];
            place.children = children;
            place.end = place.end.max(end);
            if place.instant.is_none() {
                place.instant = first;
            }
        }
    }

    /// Makes the nodes, children before parents; returns the roots.
    pub(super) fn into_nodes(mut self, order: &[Index]) -> Vec<Node> {
        let mut nodes: Vec<Option<Node>> = Vec::new();
        nodes.resize_with(self.places.len(), || None);
        let mut roots = Vec::new();
        for &i in order.iter().rev() {
            let mut children = std::mem::take(&mut self.places[i].children);
            children.sort_by_key(|c| (self.places[*c].instant.as_ref().map(|t| t.at), *c));
            let instants: Vec<Option<&Instant>> =
                children.iter().map(|c| self.orderable_instant(*c)).collect();
            let marks = mark_concurrent(&instants);
            let mut node = self.describe(i);
            for (child, concurrent) in children.iter().zip(marks) {
                if let Some(mut child) = nodes[*child].take() {
                    child.concurrent = concurrent;
                    node.children.push(child);
                }
            }
            if self.places[i].parent.is_some() {
                nodes[i] = Some(node);
            } else {
                roots.push(node);
            }
        }
        roots.reverse();
        roots
    }

    /// Only what happened at one moment of one clock can be concurrent with a neighbour.
    fn orderable_instant(&self, index: Index) -> Option<&Instant> {
        let place = &self.places[index];
        let is_moment = !matches!(
            place.subject,
            Subject::Instance(_) | Subject::Resources | Subject::Collector | Subject::Made(_)
        );
        place.instant.as_ref().filter(|_| is_moment && !place.own.is_empty())
    }

    fn describe(&mut self, index: Index) -> Node {
        let place = &mut self.places[index];
        let at = place.instant.as_ref().map(|t| t.at);
        let mut node = match &mut place.subject {
            Subject::Instance(id) => leaf::instance(id, &place.own),
            Subject::Session(id) => tool::session(id, &place.own),
            Subject::Tool(id) => tool::tool(id, &place.own),
            Subject::Process(id) => process::process(id, place.pid, &place.own),
            Subject::Flow => flow::flow(&place.own),
            Subject::Model => tool::model(&place.own),
            Subject::Resources => resources::samples(&place.own),
            Subject::Collector => leaf::collector(&place.own),
            Subject::Leaf => leaf::leaf(&place.own),
            Subject::Made(node) => return node.clone(),
        };
        node.at = if matches!(place.subject, Subject::Instance(_)) { None } else { at };
        node
    }
}
