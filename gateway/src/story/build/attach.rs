//! Which place an event belongs to, and which place that hangs below.

use std::collections::{BTreeMap, VecDeque};

use activity_schema::Event;
use activity_schema::coverage::CoverageReport;

use super::arena::{Arena, Index, Subject};
use crate::story::flow::FlowKey;
use crate::story::order::{Instant, error_ns};
use crate::story::{Node, gaps};

/// The call and the session that a process belongs to, by any of its events.
#[derive(Debug, Clone, Copy, Default)]
struct Claim {
    tool: Option<Index>,
    session: Option<Index>,
}

/// Agents named in the heading of an instance.
const AGENTS_NAMED_MAX: usize = 4;

/// A tool call's session, where it is known, and its place.
type Call<'e> = (Option<&'e str>, Index);

/// Builds the arena, one event after another in order of time.
pub(super) struct Attacher<'e> {
    arena: Arena<'e>,
    instances: BTreeMap<&'e str, Index>,
    sessions: BTreeMap<(&'e str, &'e str), Index>,
    /// By instance and call; a call id may be used again by another session.
    tools: BTreeMap<(&'e str, &'e str), Vec<Call<'e>>>,
    processes: BTreeMap<(&'e str, &'e str), Index>,
    /// Open flows, oldest first.
    flows: BTreeMap<FlowKey<'e>, VecDeque<Index>>,
    models: BTreeMap<(Index, &'e str), Index>,
    resources: BTreeMap<Index, Index>,
    collectors: BTreeMap<(Index, &'e str), Index>,
    losses: Vec<(Index, &'e Event<'e>)>,
    /// Clock bound of an instance where its events carry none.
    clock_errors: BTreeMap<String, i64>,
}

impl<'e> Attacher<'e> {
    pub(super) fn new(coverage: &CoverageReport) -> Self {
        let bounds = coverage.instances.iter();
        Attacher {
            arena: Arena::default(),
            instances: BTreeMap::new(),
            sessions: BTreeMap::new(),
            tools: BTreeMap::new(),
            processes: BTreeMap::new(),
            flows: BTreeMap::new(),
            models: BTreeMap::new(),
            resources: BTreeMap::new(),
            collectors: BTreeMap::new(),
            losses: Vec::new(),
            clock_errors: bounds
                .filter_map(|i| Some((i.instance_id.clone(), i.clock_error_ns_max?)))
                .collect(),
        }
    }

    /// Makes a place for everything that can have something below it, before any event is hung.
    pub(super) fn register(&mut self, events: &[&'e Event<'e>]) {
        for event in events {
            let instance = event.correlation.instance_id.as_str();
            let heading = self.instance(instance);
            self.speak_of_agent(heading, event);
            if let Some(session) = id(&event.correlation.session_id) {
                self.session(instance, session);
            }
        }
        let (with, without): (Vec<&&Event<'e>>, Vec<&&Event<'e>>) =
            events.iter().partition(|e| id(&e.correlation.session_id).is_some());
        for event in with.into_iter().chain(without) {
            self.tool(event);
        }
        for event in events.iter().filter(|e| is_effect(&e.event_name)) {
            if let Some(process) = id(&event.correlation.process_id) {
                let key = (event.correlation.instance_id.as_str(), process);
                let arena = &mut self.arena;
                let index =
                    *self.processes.entry(key).or_insert_with(|| arena.push(Subject::Process(process), None));
                if let Some(actor) = event.actor.as_ref().filter(|a| a.id == *process) {
                    arena.places[index].pid = arena.places[index].pid.or(actor.pid);
                }
            }
        }
        self.hang_processes(events);
    }

    /// Keeps one event of each agent for the instance's heading.
    fn speak_of_agent(&mut self, heading: Index, event: &'e Event<'e>) {
        let own = &mut self.arena.places[heading].own;
        let agent = &event.correlation.agent_id;
        if own.len() < AGENTS_NAMED_MAX && own.iter().all(|e| e.correlation.agent_id != *agent) {
            own.push(event);
        }
    }

    /// Hangs every process below its parent, its tool call, its session or its instance.
    fn hang_processes(&mut self, events: &[&'e Event<'e>]) {
        let mut claims: BTreeMap<Index, Claim> = BTreeMap::new();
        let mut parents: BTreeMap<Index, Index> = BTreeMap::new();
        for event in events.iter().filter(|e| is_effect(&e.event_name)) {
            let Some(child) = self.process(event) else { continue };
            let instance = event.correlation.instance_id.as_str();
            let (tool, session) = (self.tool(event), id(&event.correlation.session_id));
            let session = session.map(|s| self.session(instance, s));
            let claim = claims.entry(child).or_default();
            claim.tool = claim.tool.or(tool);
            claim.session = claim.session.or(session);
            let parent = event.payload.text("parent_process_id").filter(|p| !p.is_empty());
            if event.event_name.starts_with("process.")
                && let Some(parent) = parent.and_then(|p| self.processes.get(&(instance, p)))
                && *parent != child
            {
                parents.entry(child).or_insert(*parent);
            }
        }
        let mut fallback: Vec<Option<Index>> = self.arena.places.iter().map(|p| p.parent).collect();
        for ((instance, _), index) in &self.processes {
            let claim_of = |i: &Index| claims.get(i).copied().unwrap_or_default();
            let claim = claim_of(index);
            fallback[*index] = claim.tool.or(claim.session).or_else(|| self.instances.get(instance).copied());
            // The root process of a call or session hangs below it, not below whatever started it.
            let parent = parents.get(index).filter(|parent| match claim {
                Claim { tool: Some(_), .. } => claim.tool == claim_of(parent).tool,
                Claim { session: Some(_), .. } => claim.session == claim_of(parent).session,
                Claim { .. } => true,
            });
            self.arena.places[*index].parent = parent.copied().or(fallback[*index]);
        }
        self.arena.break_cycles(&fallback);
    }

    /// Gives an event to its place.
    pub(super) fn add(&mut self, event: &'e Event<'e>) {
        let instant = self.instant(event);
        let index = match event.event_name.as_str() {
            "session.started" | "session.ended" => {
                id(&event.correlation.session_id).map(|s| self.session(&event.correlation.instance_id, s))
            }
            "agent.scope.opened" | "agent.scope.bound" | "agent.scope.closed" => {
                let session = id(&event.correlation.session_id);
                self.tool(event).or_else(|| session.map(|s| self.session(&event.correlation.instance_id, s)))
            }
            "process.started" | "process.exec" | "process.exited" => self.process(event),
            "network.flow.started" | "network.flow" | "network.flow.closed" => Some(self.flow(event)),
            "agent.model.requested" | "agent.model.completed" | "agent.model.failed" => {
                Some(self.model(event))
            }
            "runtime.resource.sample" => Some(self.resources(event)),
            "telemetry.heartbeat" | "telemetry.config" | "telemetry.probe" | "telemetry.unsupported" => {
                Some(self.collector(event))
            }
            "telemetry.loss" => {
                let instance = self.instance(&event.correlation.instance_id);
                self.losses.push((instance, event));
                return;
            }
            name if name.starts_with("agent.tool.") => self.tool(event),
            _ => None,
        };
        let index = index.unwrap_or_else(|| {
            let above = self.above(event);
            self.arena.push(Subject::Leaf, Some(above))
        });
        // A scope says how a call is joined; it is not a moment of the call.
        if event.event_name.starts_with("agent.scope.") {
            self.arena.places[index].own.push(event);
        } else {
            self.arena.own(index, event, instant);
        }
    }

    /// Draws the gaps and makes the nodes.
    pub(super) fn finish(mut self, coverage: &CoverageReport) -> Vec<Node> {
        let order = self.arena.link();
        for instance in self.instances.values() {
            let first = self.arena.places[*instance].instant.clone();
            self.arena.places[*instance].instant = first.or(Some(Instant::default()));
        }
        let mut made: Vec<(Index, Node)> = Vec::new();
        for report in &coverage.instances {
            let Some(instance) = self.instances.get(report.instance_id.as_str()) else { continue };
            for gap in gaps::of_coverage(report) {
                let above = self.surrounding(*instance, &gap);
                made.push((above, gap));
            }
        }
        for (instance, event) in &self.losses {
            if !gaps::is_told_by(event, coverage) {
                let gap = gaps::of_loss(event);
                let above = self.surrounding(*instance, &gap);
                made.push((above, gap));
            }
        }
        let mut order = order;
        for (above, gap) in made {
            let at = gap.at;
            let index = self.arena.push(Subject::Made(gap), Some(above));
            self.arena.places[index].instant = at.map(|at| Instant { at, ..Instant::default() });
            self.arena.places[above].children.push(index);
            order.push(index);
        }
        let mut nodes = self.arena.into_nodes(&order);
        nodes.sort_by(|a, b| a.title.cmp(&b.title));
        nodes
    }

    /// The innermost call or session that was under way, alone, when the gap began.
    fn surrounding(&self, instance: Index, gap: &Node) -> Index {
        let Some(at) = gap.at else { return instance };
        let mut above = instance;
        loop {
            let places = &self.arena.places;
            let mut around = places[above].children.iter().filter(|c| {
                let place = &places[**c];
                matches!(place.subject, Subject::Session(_) | Subject::Tool(_))
                    && place.instant.as_ref().is_some_and(|t| t.at <= at)
                    && place.end.is_some_and(|end| at < end)
            });
            match (around.next(), around.next()) {
                (Some(only), None) => above = *only,
                _ => return above,
            }
        }
    }

    fn instance(&mut self, id: &'e str) -> Index {
        let arena = &mut self.arena;
        *self.instances.entry(id).or_insert_with(|| arena.push(Subject::Instance(id), None))
    }

    fn session(&mut self, instance: &'e str, session: &'e str) -> Index {
        let above = self.instance(instance);
        let arena = &mut self.arena;
        *self
            .sessions
            .entry((instance, session))
            .or_insert_with(|| arena.push(Subject::Session(session), Some(above)))
    }

    fn session_or_instance(&mut self, event: &'e Event<'e>) -> Index {
        match id(&event.correlation.session_id) {
            Some(session) => self.session(&event.correlation.instance_id, session),
            None => self.instance(&event.correlation.instance_id),
        }
    }

    fn tool(&mut self, event: &'e Event<'e>) -> Option<Index> {
        let call = id(&event.correlation.tool_call_id)?;
        let session = id(&event.correlation.session_id);
        let key = (event.correlation.instance_id.as_str(), call);
        let known = self.tools.get(&key).and_then(|calls| {
            calls.iter().find(|(s, _)| session.is_none() || *s == session).map(|(_, index)| *index)
        });
        Some(known.unwrap_or_else(|| {
            let above = self.session_or_instance(event);
            let index = self.arena.push(Subject::Tool(call), Some(above));
            self.tools.entry(key).or_default().push((session, index));
            index
        }))
    }

    fn process(&self, event: &'e Event<'e>) -> Option<Index> {
        let process = id(&event.correlation.process_id)?;
        self.processes.get(&(event.correlation.instance_id.as_str(), process)).copied()
    }

    /// What an event hangs below: its process, call, session or instance, whichever is nearest.
    fn above(&mut self, event: &'e Event<'e>) -> Index {
        let process = if is_effect(&event.event_name) { self.process(event) } else { None };
        process.or_else(|| self.tool(event)).unwrap_or_else(|| self.session_or_instance(event))
    }

    /// The flow that an event speaks of: a new one when it starts, the oldest open one of its key otherwise.
    fn flow(&mut self, event: &'e Event<'e>) -> Index {
        let key = FlowKey::of(event);
        let above = self.above(event);
        let closed = event.event_name == "network.flow.closed";
        if event.event_name != "network.flow.started" {
            for key in [&key, &key.unbound()] {
                let Some(open) = self.flows.get_mut(key) else { continue };
                let found = if closed { open.pop_front() } else { open.front().copied() };
                if let Some(index) = found {
                    return index;
                }
            }
        }
        let index = self.arena.push(Subject::Flow, Some(above));
        if !closed {
            self.flows.entry(key).or_default().push_back(index);
        }
        index
    }

    /// A request and its answer are one line: joined by span, else by model, in order.
    fn model(&mut self, event: &'e Event<'e>) -> Index {
        let above = self.tool(event).unwrap_or_else(|| self.session_or_instance(event));
        let span = id(&event.correlation.span_id).or_else(|| event.payload.text("model")).unwrap_or("");
        if event.event_name == "agent.model.requested" {
            let index = self.arena.push(Subject::Model, Some(above));
            self.models.insert((above, span), index);
            return index;
        }
        let open = self.models.remove(&(above, span));
        open.unwrap_or_else(|| self.arena.push(Subject::Model, Some(above)))
    }

    fn resources(&mut self, event: &'e Event<'e>) -> Index {
        let above = self.instance(&event.correlation.instance_id);
        let arena = &mut self.arena;
        *self.resources.entry(above).or_insert_with(|| arena.push(Subject::Resources, Some(above)))
    }

    fn collector(&mut self, event: &'e Event<'e>) -> Index {
        let above = self.instance(&event.correlation.instance_id);
        let arena = &mut self.arena;
        let key = (above, collector_of(event));
        *self.collectors.entry(key).or_insert_with(|| arena.push(Subject::Collector, Some(above)))
    }

    fn instant(&self, event: &Event<'_>) -> Instant {
        let declared = event.source.clock_error_ms.map(|ms| error_ns(ms.get()));
        let instance = event.correlation.instance_id.as_str();
        Instant {
            at: event.occurred_at,
            clock: event.source.clock_id.as_deref().unwrap_or_else(|| collector_of(event)).to_owned(),
            error_ns: declared.or_else(|| self.clock_errors.get(instance).copied()),
        }
    }
}

/// The collector's name: `source.collector` is `<collector>/<epoch>/<class>`.
fn collector_of<'a>(event: &'a Event<'_>) -> &'a str {
    event.source.collector.split('/').next().unwrap_or_default()
}

fn id<'a>(text: &'a Option<activity_schema::Text<'_>>) -> Option<&'a str> {
    text.as_deref().filter(|t| !t.is_empty())
}

/// Whether the event is something that a process did, and not what an agent says.
fn is_effect(name: &str) -> bool {
    ["process.", "network.", "file.", "system."].iter().any(|family| name.starts_with(family))
}
