//! Histories: what a collector would send, as the store would tell it.

use activity_coverage::{BatchFacts, BatchKind, CoverageIndex, CoverageRequest, WithheldLine};
use activity_schema::batch::ClockState;
use activity_schema::catalog;
use activity_schema::coverage::{ClassCoverage, CoverageReport, CoverageState, EventClass, InstanceCoverage};
use activity_schema::event::{
    Correlation, Event, Integrity, Layer, Payload, Runtime, SchemaVersion, Sensitivity, Source, Trust, Value,
};
use activity_schema::{Class, StreamId, Timestamp};
use uuid::Uuid;

pub const SECOND: i64 = 1_000_000_000;

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_nanos(seconds * SECOND)
}

#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "histories in tests are short")]
pub enum Fact {
    Batch(BatchFacts),
    Event(Box<Event<'static>>),
}

/// A collector in one epoch; every record that it makes is pushed to `facts`.
#[derive(Debug, Clone)]
pub struct Collector {
    pub name: String,
    pub epoch: String,
    pub host: String,
    /// The instance under which it speaks of itself.
    pub own: &'static str,
    /// Last sequence, by priority.
    pub last: [u64; 3],
    pub facts: Vec<Fact>,
    ids: u128,
    pub clock_error_ns: i64,
}

pub fn index(class: Class) -> usize {
    Class::ALL.iter().position(|c| *c == class).expect("listed")
}

impl Collector {
    pub fn new(name: &str, epoch: &str) -> Self {
        let salt = name.bytes().chain(epoch.bytes()).fold(7_u128, |h, b| h * 131 + u128::from(b));
        Collector {
            name: name.to_owned(),
            epoch: epoch.to_owned(),
            host: format!("host-of-{name}"),
            own: "unknown",
            last: [0; 3],
            facts: Vec::new(),
            ids: (salt << 40) & (u128::MAX >> 1),
            clock_error_ns: 0,
        }
    }

    /// The same collector with a new spool.
    pub fn reborn(&self, epoch: &str) -> Self {
        Collector { own: self.own, ..Collector::new(&self.name, epoch) }
    }

    pub fn stream(&self, class: Class) -> StreamId {
        format!("{}/{}/{class}", self.name, self.epoch).parse().expect("a stream")
    }

    pub fn facts_of_batch(&mut self, class: Class, count: u64, from: i64, to: i64) -> BatchFacts {
        let first = self.last[index(class)] + 1;
        self.last[index(class)] += count;
        BatchFacts {
            stream: self.stream(class),
            host: self.host.parse().expect("a host"),
            first_sequence: first,
            last_sequence: first + count - 1,
            count,
            occurred_min: at(from),
            occurred_max: at(to),
            received_at: at(to),
            sealed_at: at(to),
            clock: ClockState { error_ns: self.clock_error_ns, offset_ns: 0, synchronised: true },
            kind: BatchKind::Stored,
            withheld: Vec::new(),
            elided: 0,
            instances: Vec::new(),
        }
    }

    /// A stored batch of `count` records.
    pub fn batch(&mut self, class: Class, count: u64, from: i64, to: i64) -> BatchFacts {
        let facts = self.facts_of_batch(class, count, from, to);
        self.facts.push(Fact::Batch(facts.clone()));
        facts
    }

    pub fn shed(&mut self, class: Class, count: u64, from: i64, to: i64) -> BatchFacts {
        let facts = BatchFacts { kind: BatchKind::Shed, ..self.facts_of_batch(class, count, from, to) };
        self.facts.push(Fact::Batch(facts.clone()));
        facts
    }

    pub fn withheld(&mut self, class: Class, from: i64, to: i64, line: WithheldLine) {
        let facts = BatchFacts { withheld: vec![line], ..self.facts_of_batch(class, 3, from, to) };
        self.facts.push(Fact::Batch(facts));
    }

    /// A telemetry record in a critical batch of its own.
    pub fn say(&mut self, name: &str, instance: &str, seconds: i64, payload: Payload<'static>) -> Uuid {
        self.batch(Class::Critical, 1, seconds, seconds);
        self.ids += 1;
        let event_id = Uuid::from_u128(self.ids);
        let event = Event {
            schema_version: SchemaVersion::V1,
            event_id,
            event_name: name.to_owned().into(),
            plane: catalog::row(name).expect("catalogued").plane,
            occurred_at: at(seconds),
            observed_at: at(seconds),
            source: Source {
                collector: self.stream(Class::Critical).to_string().into(),
                layer: Layer::Host,
                runtime: Runtime::QemuKvm,
                trust: Trust::Observed,
                clock_id: None,
                clock_error_ms: None,
            },
            correlation: Correlation {
                tenant_id: "t".into(),
                host_id: self.host.clone().into(),
                instance_id: instance.to_owned().into(),
                agent_id: "none".into(),
                ..Correlation::default()
            },
            actor: None,
            target: None,
            outcome: None,
            sensitivity: Sensitivity::Metadata,
            retention_class: catalog::row(name).expect("catalogued").retention,
            payload,
            integrity: Integrity {
                collector_sequence: self.last[0],
                source_hash: None,
                source_previous_hash: None,
                timeline_hash: None,
                timeline_previous_hash: None,
                signature: None,
                key_id: None,
            },
        };
        for (key, value) in event.payload.iter() {
            let field = catalog::row(name).and_then(|row| row.field(key)).expect("on the allowlist");
            assert!(field.kind.admits(value), "{name} {key}");
        }
        self.facts.push(Fact::Event(Box::new(event)));
        event_id
    }

    pub fn started(&mut self, seconds: i64) {
        self.say("telemetry.started", self.own, seconds, object([("spool_state", "fresh".into())]));
    }

    pub fn restarted(&mut self, seconds: i64, spool_state: &'static str) {
        self.say("telemetry.restarted", self.own, seconds, object([("spool_state", spool_state.into())]));
    }

    pub fn stopped(&mut self, seconds: i64) {
        self.say("telemetry.stopped", self.own, seconds, Payload::new());
    }

    pub fn config(&mut self, instance: &str, seconds: i64, classes: &[(EventClass, &str)]) {
        self.config_every(instance, seconds, classes, None);
    }

    pub fn config_every(
        &mut self,
        instance: &str,
        seconds: i64,
        classes: &[(EventClass, &str)],
        interval_ms: Option<i64>,
    ) {
        let classes: Vec<Value<'static>> = classes
            .iter()
            .map(|(class, state)| {
                let mut entry = object([
                    ("class", class.as_str().into()),
                    ("state", (*state).to_owned().into()),
                    ("source", format!("source of {class}").into()),
                ]);
                if *state != "supported" {
                    entry.set("reason", "no BTF");
                }
                entry.into()
            })
            .collect();
        let mut payload = object([("classes", Value::List(classes))]);
        payload.set_some("interval_ms", interval_ms);
        self.say("telemetry.config", instance, seconds, payload);
    }

    /// A config of supported classes that says by which probes each is watched.
    pub fn config_by(&mut self, instance: &str, seconds: i64, classes: &[(EventClass, &[&'static str])]) {
        let entry = |(class, probes): &(EventClass, &[&'static str])| {
            let probes = probes.iter().map(|probe| (*probe).into()).collect();
            let state = ("state", "supported".into());
            object([("class", class.as_str().into()), state, ("probes", Value::List(probes))]).into()
        };
        let classes = Value::List(classes.iter().map(entry).collect());
        self.say("telemetry.config", instance, seconds, object([("classes", classes)]));
    }

    /// A heartbeat that names all that was sequenced, itself included.
    pub fn heartbeat(&mut self, seconds: i64) {
        let mut upto = self.last;
        upto[0] += 1;
        let streams: Vec<Value<'static>> = Class::ALL
            .iter()
            .map(|class| {
                object([
                    ("stream", self.stream(*class).to_string().into()),
                    ("class", class.as_str().into()),
                    ("last_sequence", upto[index(*class)].into()),
                ])
                .into()
            })
            .collect();
        let payload =
            object([("streams", Value::List(streams)), ("clock_error_ns", self.clock_error_ns.into())]);
        self.say("telemetry.heartbeat", self.own, seconds, payload);
    }

    pub fn loss(&mut self, instance: &str, seconds: i64, loss: Loss) -> Uuid {
        let mut payload = object([
            ("dropped_count", loss.count.into()),
            ("first_time", at(loss.from).to_string().into()),
            ("last_time", at(loss.to).to_string().into()),
            ("reason", loss.reason.to_owned().into()),
            ("precision", if loss.exact { "exact" } else { "lower_bound" }.into()),
        ]);
        payload.set_some("class", loss.class.map(Class::as_str));
        if !loss.names.is_empty() {
            payload.set("event_names", loss.names);
        }
        if let Some((stream, first, last)) = loss.sequences {
            payload.set("stream", stream.to_string());
            payload.set("first_missing_sequence", first);
            payload.set("last_missing_sequence", last);
        }
        self.say("telemetry.loss", instance, seconds, payload)
    }

    /// The last fact told, to be changed or withheld by a test.
    pub fn last_event(&mut self) -> &mut Event<'static> {
        match self.facts.last_mut() {
            Some(Fact::Event(event)) => event,
            _ => panic!("the last fact is no event"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Loss {
    pub from: i64,
    pub to: i64,
    pub count: u64,
    pub exact: bool,
    pub reason: &'static str,
    pub names: Vec<&'static str>,
    pub class: Option<Class>,
    pub sequences: Option<(StreamId, u64, u64)>,
}

impl Loss {
    pub fn of(names: &[&'static str], from: i64, to: i64, count: u64) -> Self {
        let (reason, exact) = ("ring_full", true);
        Loss { from, to, count, exact, reason, names: names.to_vec(), class: None, sequences: None }
    }
}

pub fn object<const N: usize>(entries: [(&'static str, Value<'static>); N]) -> Payload<'static> {
    let mut payload = Payload::new();
    for (key, value) in entries {
        payload.set(key, value);
    }
    payload
}

pub fn apply(index: &mut CoverageIndex, facts: &[Fact]) {
    for fact in facts {
        match fact {
            Fact::Batch(batch) => index.apply_batch(batch),
            Fact::Event(event) => index.apply_event(event),
        }
    }
}

pub fn index_of(collectors: &[&Collector]) -> CoverageIndex {
    let mut index = CoverageIndex::default();
    for collector in collectors {
        apply(&mut index, &collector.facts);
    }
    index
}

pub fn request(instance: &str, from: i64, to: i64, now: i64) -> CoverageRequest {
    CoverageRequest {
        instance: Some(instance.to_owned()),
        from: Some(at(from)),
        to: at(to),
        now: at(now),
        classes: Vec::new(),
    }
}

pub fn only(report: &CoverageReport) -> &InstanceCoverage {
    assert_eq!(report.instances.len(), 1, "{report:?}");
    &report.instances[0]
}

pub fn class(report: &CoverageReport, class: EventClass) -> &ClassCoverage {
    only(report).classes.iter().find(|c| c.class == class).expect("the class is listed")
}

/// `(from, to, state)` in whole seconds, neighbours of one state merged.
pub fn states(report: &CoverageReport, of: EventClass) -> Vec<(i64, i64, CoverageState)> {
    let mut out: Vec<(i64, i64, CoverageState)> = Vec::new();
    for span in &class(report, of).spans {
        let (from, to) = (span.from.as_nanos(), span.to.as_nanos());
        match out.last_mut() {
            Some((_, end, state)) if *state == span.state => *end = to,
            _ => out.push((from, to, span.state)),
        }
    }
    out.into_iter().map(|(from, to, state)| (from / SECOND, to / SECOND, state)).collect()
}
