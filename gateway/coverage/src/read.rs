//! Reads what a `telemetry.*` event says. In doubt it reads less assurance, or more loss.

use activity_schema::coverage::{EventClass, LossReason};
use activity_schema::event::{Payload, Trust, Value};
use activity_schema::{Class, Epoch, Event, StreamId, Timestamp};

use crate::classes::{ClassSet, index};
use crate::declared::{Declaration, Declared, DeclaredState};
use crate::life::Needs;
use crate::marks::{Cause, Mark, Sequences};

/// Attribution failed at the source (design, "Sandbox attribution").
pub(crate) const UNKNOWN: &str = "unknown";
/// Clock steps below this are within what `clock_error_ns` speaks of.
const STEP_MS_MIN: u64 = 1_000;
const NANOS_PER_MS: i64 = 1_000_000;

/// Who speaks: the collector, and the epoch unless the record came from elsewhere.
pub(crate) struct Speaker<'e> {
    pub(crate) collector: &'e str,
    pub(crate) epoch: Option<Epoch>,
    /// Only observed and attested records vouch for anything; all may report loss.
    pub(crate) vouches: bool,
}

pub(crate) fn speaker<'e>(event: &'e Event<'_>) -> Speaker<'e> {
    let text = event.source.collector.as_str();
    let collector = text.split('/').next().unwrap_or(text);
    let epoch = text.parse::<StreamId>().ok().map(|stream| stream.epoch);
    let trusted = matches!(event.source.trust, Trust::Observed | Trust::Attested);
    Speaker { collector, vouches: trusted && epoch.is_some(), epoch }
}

fn objects<'p, 'e>(payload: &'p Payload<'e>, key: &str) -> Option<impl Iterator<Item = &'p Payload<'e>>> {
    match payload.get(key) {
        Some(Value::List(items)) => Some(items.iter().filter_map(|item| match item {
            Value::Object(object) => Some(object),
            _ => None,
        })),
        _ => None,
    }
}

fn unsigned(payload: &Payload<'_>, key: &str) -> Option<u64> {
    match payload.get(key) {
        Some(Value::Int(i)) => u64::try_from(*i).ok(),
        Some(Value::UInt(u)) => Some(*u),
        _ => None,
    }
}

/// The stream that a text means: in full, or a priority within `epoch`.
fn stream_of(text: Option<&str>, class: Option<&str>, at: &Speaker<'_>) -> Option<(Epoch, Class)> {
    let own = |priority: &str| Some((at.epoch.clone()?, Class::from_wire(priority)?));
    match text {
        Some(text) => match text.parse::<StreamId>() {
            Ok(id) => (id.collector.as_str() == at.collector).then_some((id.epoch, id.class)),
            Err(_) => own(text),
        },
        None => own(class?),
    }
}

/// What must be stored before the heartbeat vouches; `None` when it does not say so clearly.
pub(crate) fn needs(event: &Event<'_>, at: &Speaker<'_>) -> Option<Needs> {
    let own_epoch = at.epoch.as_ref()?;
    let mut needs = Needs::default();
    let mut need = |epoch: Epoch, class: Class, last: u64| {
        if epoch == *own_epoch {
            let slot = &mut needs.own[index(class)];
            *slot = (*slot).max(last);
        } else {
            needs.others.push((epoch, class, last));
        }
    };
    for stream in objects(&event.payload, "streams")? {
        let (epoch, class) = stream_of(stream.text("stream"), stream.text("class"), at)?;
        need(epoch, class, unsigned(stream, "last_sequence")?);
    }
    // The heartbeat itself was sequenced.
    let own: StreamId = event.source.collector.parse().ok()?;
    need(own.epoch, own.class, event.integrity.collector_sequence);
    Some(needs)
}

pub(crate) fn declaration(payload: &Payload<'_>) -> Declaration {
    let interval_ns = payload
        .integer("interval_ms")
        .filter(|ms| *ms > 0)
        .map_or(crate::INTERVAL_NS_DEFAULT, |ms| ms.saturating_mul(NANOS_PER_MS));
    let mut classes: Vec<Declared> = Vec::new();
    for item in objects(payload, "classes").into_iter().flatten() {
        let Some(class) = item.text("class").and_then(EventClass::from_wire) else { continue };
        let state = match item.text("state") {
            Some("supported") => DeclaredState::Supported,
            Some("degraded") => DeclaredState::Degraded,
            Some("unsupported") => DeclaredState::Unsupported,
            _ => DeclaredState::Unclear,
        };
        let owned = |key| item.text(key).filter(|text| !text.is_empty()).map(str::to_owned);
        let probed = !matches!(item.get("probes"), Some(Value::List(probes)) if probes.is_empty());
        let declared = Declared { class, state, source: owned("source"), reason: owned("reason"), probed };
        // Several sources of one class: the better one counts.
        match classes.iter_mut().find(|known| known.class == class) {
            Some(known) if known.state == state => known.probed |= probed,
            Some(known) if known.state < state => {}
            Some(known) => *known = declared,
            None => classes.push(declared),
        }
    }
    classes.sort_by_key(|declared| declared.class);
    Declaration { interval_ns, classes }
}

/// The mark of a `telemetry.loss`.
pub(crate) fn loss(event: &Event<'_>, at: &Speaker<'_>) -> Mark {
    let payload = &event.payload;
    let time = |key| payload.text(key).and_then(|text| text.parse::<Timestamp>().ok());
    // Without a beginning it may have begun at any time.
    let first = time("first_time").unwrap_or(Timestamp::MIN).as_nanos();
    let last = time("last_time").unwrap_or(event.occurred_at).as_nanos();
    let stream = stream_of(payload.text("stream"), payload.text("class"), at);
    let range = unsigned(payload, "first_missing_sequence").zip(unsigned(payload, "last_missing_sequence"));
    let sequences = stream.as_ref().zip(range).and_then(|((epoch, priority), (first, last))| {
        let valid = 1 <= first && first <= last;
        valid.then(|| Sequences { epoch: epoch.clone(), priority: *priority, first, last })
    });
    let count = unsigned(payload, "dropped_count");
    // A cgroup says where, even if it is no sandbox's.
    let placed = payload.text("cgroup").is_some_and(|cgroup| cgroup != UNKNOWN);
    let cause = Cause::of_loss(payload.text("reason").and_then(LossReason::from_wire));
    Mark {
        from: first.min(last),
        to: first.max(last).saturating_add(1),
        instance: if placed {
            Some(event.correlation.instance_id.as_str().to_owned())
        } else {
            instance_of(event)
        },
        placed,
        classes: loss_classes(payload, stream.map(|(_, priority)| priority)),
        cause,
        count: count.unwrap_or(0),
        exact: count.is_some() && payload.text("precision") == Some("exact"),
        sequences,
        weight: 1,
    }
}

/// `None`: any instance of the collector may be meant.
pub(crate) fn instance_of(event: &Event<'_>) -> Option<String> {
    let correlation = &event.correlation;
    let unknown = correlation.instance_id == UNKNOWN
        || correlation.instance_id == correlation.host_id
        || event.payload.text("cgroup") == Some(UNKNOWN);
    (!unknown).then(|| correlation.instance_id.as_str().to_owned())
}

fn loss_classes(payload: &Payload<'_>, stream: Option<Class>) -> ClassSet {
    if let Some(Value::List(names)) = payload.get("event_names")
        && !names.is_empty()
    {
        // A name of no class is a telemetry record or unknown: what it said is lost too.
        let named: Option<ClassSet> = names.iter().map(|name| EventClass::of(name.as_str()?)).collect();
        return named.unwrap_or_else(ClassSet::all);
    }
    let class = payload.text("class");
    if let Some(priority) = class.and_then(Class::from_wire).or(stream) {
        return ClassSet::of_priority(priority);
    }
    class.and_then(EventClass::from_wire).map_or_else(ClassSet::all, ClassSet::one)
}

/// The time that a step of the wall clock skipped or passes twice: records of it carry other times, or two
/// times share it.
pub(crate) fn clock_step(event: &Event<'_>) -> Option<Mark> {
    let step_ms = event.payload.integer("step_ms").filter(|ms| ms.unsigned_abs() >= STEP_MS_MIN)?;
    let at = event.occurred_at.as_nanos();
    let far = at.saturating_sub(step_ms.saturating_mul(NANOS_PER_MS));
    Some(Mark {
        from: at.min(far),
        to: at.max(far).saturating_add(1),
        instance: None,
        placed: false,
        classes: ClassSet::all(),
        cause: Cause::ClockStep,
        count: 0,
        exact: false,
        sequences: None,
        weight: 1,
    })
}
