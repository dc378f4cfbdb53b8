//! What a collector declared to watch, by instance and time.

use std::collections::{BTreeMap, BTreeSet};

use activity_schema::Hash;
use activity_schema::coverage::EventClass;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Configs kept an instance; what lies before a forgotten one is no longer vouched for.
const CONFIGS_MAX: usize = 2048;
/// `telemetry.unsupported` kept a collector; likewise.
const UNSUPPORTED_MAX: usize = 1024;
/// Bodies compared when a config is told: collectors repeat the one that they have.
const COMPARED_MAX: usize = 64;
/// Forgotten instances kept a collector, by digest; beyond it, it may have declared any that it does not know.
const FORGOTTEN_MAX: usize = 65_536;
/// Bodies from which on unused ones are swept.
const SWEEP_MIN: usize = 512;

/// Better first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum DeclaredState {
    Supported,
    Degraded,
    Unsupported,
    /// A state that this version does not know.
    Unclear,
    /// It was declared, and the index has forgotten how.
    Forgotten,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Declared {
    pub(crate) class: EventClass,
    pub(crate) state: DeclaredState,
    pub(crate) source: Option<String>,
    pub(crate) reason: Option<String>,
    /// Kernel probes may be what watches it: its config does not say that there are none.
    pub(crate) probed: bool,
}

/// In place of what is forgotten.
static FORGOTTEN: Declared = Declared {
    class: EventClass::System,
    state: DeclaredState::Forgotten,
    source: None,
    reason: None,
    probed: true,
};

/// The body of a `telemetry.config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Declaration {
    pub(crate) interval_ns: i64,
    /// One entry a class.
    pub(crate) classes: Vec<Declared>,
}

impl Declaration {
    pub(crate) fn class(&self, class: EventClass) -> Option<&Declared> {
        self.classes.iter().find(|declared| declared.class == class)
    }
}

/// By time, and by event id where times are equal.
type Key = (i64, Uuid);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Unsupported {
    instance: Option<String>,
    declared: Declared,
}

/// Declarations of one collector. Equal when they mean the same, whatever the order of arrival.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Declarations {
    /// Index into `bodies` by instance and time.
    by_instance: BTreeMap<String, Configs>,
    bodies: Vec<Declaration>,
    sweep_at: usize,
    #[serde(with = "crate::pairs")]
    unsupported: BTreeMap<Key, Unsupported>,
    forgotten: Forgotten,
}

/// Instances that were declared and are forgotten, with the time of their last config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Forgotten {
    /// By digest of the name.
    #[serde(with = "crate::pairs")]
    last: BTreeMap<u64, i64>,
    /// The newest of those that were too many.
    more: Option<i64>,
}

impl Forgotten {
    fn put(&mut self, instance: &str, last: i64) {
        let entry = self.last.entry(digest(instance)).or_insert(last);
        *entry = (*entry).max(last);
        if self.last.len() > FORGOTTEN_MAX {
            let dropped = self.last.pop_first().map(|(_, last)| last);
            self.more = self.more.max(dropped);
        }
    }

    /// The last config of an instance that is, or may be, forgotten.
    fn get(&self, instance: &str) -> Option<i64> {
        if *self == Forgotten::default() {
            return None;
        }
        self.more.max(self.last.get(&digest(instance)).copied())
    }

    fn is_certain(&self, instance: &str) -> bool {
        self.last.contains_key(&digest(instance))
    }
}

/// Enough to tell names apart; where it does not, answers say less.
fn digest(instance: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = Hash::of(&[instance.as_bytes()]).0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Configs {
    #[serde(with = "crate::pairs")]
    at: BTreeMap<Key, u32>,
    /// Before this, configs are forgotten.
    forgotten_before: Option<i64>,
}

impl PartialEq for Declarations {
    fn eq(&self, other: &Self) -> bool {
        self.unsupported == other.unsupported
            && self.forgotten == other.forgotten
            && self.by_instance.keys().eq(other.by_instance.keys())
            && self.by_instance.iter().zip(&other.by_instance).all(|((name, a), (_, b))| {
                a.forgotten_before == b.forgotten_before
                    && a.at.keys().eq(b.at.keys())
                    && self.configs(name).eq(other.configs(name))
            })
    }
}

impl Eq for Declarations {}

impl Declarations {
    pub(crate) fn declare(&mut self, instance: &str, key: Key, body: Declaration) {
        let body = self.intern(body);
        let configs = self.by_instance.entry(instance.to_owned()).or_default();
        configs.at.insert(key, body);
        if configs.at.len() > CONFIGS_MAX {
            configs.at.pop_first();
            configs.forgotten_before = configs.at.first_key_value().map(|((at, _), _)| *at);
        }
        if self.bodies.len() > self.sweep_at.max(SWEEP_MIN) {
            self.sweep();
        }
    }

    /// Returns the time before which nothing is vouched for any longer, when a bound was reached.
    #[must_use]
    pub(crate) fn withdraw(
        &mut self,
        instance: Option<String>,
        key: Key,
        class: EventClass,
        reason: Option<String>,
    ) -> Option<i64> {
        let declared =
            Declared { class, state: DeclaredState::Unsupported, source: None, reason, probed: false };
        self.unsupported.insert(key, Unsupported { instance, declared });
        if self.unsupported.len() > UNSUPPORTED_MAX {
            self.unsupported.pop_first().map(|((at, _), _)| at.saturating_add(1))
        } else {
            None
        }
    }

    pub(crate) fn knows(&self, instance: &str) -> bool {
        self.by_instance.contains_key(instance)
    }

    /// Whether the collector declared the instance, or may have and the index has forgotten it.
    pub(crate) fn may_know(&self, instance: &str) -> bool {
        self.knows(instance) || self.forgotten.get(instance).is_some()
    }

    /// Forgets what was declared of instances, but not that it was.
    pub(crate) fn forget(&mut self, instances: &BTreeSet<String>) {
        let gone = self.by_instance.extract_if(.., |name, _| instances.contains(name));
        for (name, configs) in gone {
            if let Some(((last, _), _)) = configs.at.last_key_value() {
                self.forgotten.put(&name, *last);
            }
        }
    }

    /// From here on all configs of the instance are known; `None` when none were ever forgotten.
    pub(crate) fn known_from(&self, instance: &str) -> Option<i64> {
        let configs = self.by_instance.get(instance);
        self.forgotten.get(instance).or(configs.and_then(|configs| configs.forgotten_before))?;
        Some(configs.and_then(|c| c.at.first_key_value()).map_or(i64::MAX, |((at, _), _)| *at))
    }

    pub(crate) fn instances(&self) -> impl Iterator<Item = &str> {
        self.by_instance.keys().map(String::as_str)
    }

    /// Configs of the instance in order of time.
    pub(crate) fn configs(&self, instance: &str) -> impl Iterator<Item = (i64, &Declaration)> {
        let configs = self.by_instance.get(instance);
        let entries = configs.into_iter().flat_map(|c| &c.at);
        entries.filter_map(|((at, _), body)| Some((*at, self.bodies.get(usize::try_from(*body).ok()?)?)))
    }

    /// Before this, configs that are forgotten may have ended a stop.
    pub(crate) fn forgotten_before(&self, instance: &str) -> Option<i64> {
        let configs = self.by_instance.get(instance).and_then(|configs| configs.forgotten_before);
        configs.max(self.forgotten.get(instance).map(|last| last.saturating_add(1)))
    }

    /// The interval of the config in force at `at`, else of the first.
    pub(crate) fn interval_ns(&self, instance: &str, at: i64) -> i64 {
        let mut configs = self.configs(instance).peekable();
        let first = configs.peek().map(|(_, body)| body.interval_ns);
        let in_force = configs.take_while(|(from, _)| *from <= at).last().map(|(_, body)| body.interval_ns);
        in_force.or(first).unwrap_or(crate::INTERVAL_NS_DEFAULT)
    }

    /// What was declared of the class: from each time on, `None` where the config does not name it.
    pub(crate) fn timeline(&self, instance: &str, class: EventClass) -> Vec<(i64, Option<&Declared>)> {
        let mut out: Vec<(i64, u8, Uuid, Option<&Declared>)> = Vec::new();
        if let Some(configs) = self.by_instance.get(instance) {
            for ((at, id), body) in &configs.at {
                let body = usize::try_from(*body).ok().and_then(|body| self.bodies.get(body));
                out.push((*at, 0, *id, body.and_then(|body| body.class(class))));
            }
        }
        let first = out.first().map_or(i64::MAX, |(at, ..)| *at);
        for ((at, id), entry) in self.unsupported.range((first, Uuid::nil())..) {
            if entry.declared.class != class {
                continue;
            }
            match entry.instance.as_deref() {
                Some(other) if other != instance && self.knows(other) => {}
                Some(other) if other != instance && self.forgotten.is_certain(other) => {}
                // It may have been of an instance that is forgotten, or of every one.
                Some(other) if other != instance && self.forgotten.more.is_some() => {
                    out.push((*at, 1, *id, Some(&FORGOTTEN)));
                }
                _ => out.push((*at, 1, *id, Some(&entry.declared))),
            }
        }
        if self.known_from(instance).is_some() {
            out.push((i64::MIN, 0, Uuid::nil(), Some(&FORGOTTEN)));
        }
        out.sort_by_key(|(at, order, id, _)| (*at, *order, *id));
        out.into_iter().map(|(at, _, _, declared)| (at, declared)).collect()
    }

    fn intern(&mut self, body: Declaration) -> u32 {
        let from = self.bodies.len().saturating_sub(COMPARED_MAX);
        let known = self.bodies[from..].iter().rposition(|b| *b == body).map(|i| from + i);
        let at = known.unwrap_or_else(|| {
            self.bodies.push(body);
            self.bodies.len() - 1
        });
        // Bounded by configs kept, far below.
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn sweep(&mut self) {
        let mut renamed: BTreeMap<u32, u32> = BTreeMap::new();
        let mut kept = Vec::new();
        for body in self.by_instance.values_mut().flat_map(|configs| configs.at.values_mut()) {
            let next = u32::try_from(renamed.len()).unwrap_or(u32::MAX);
            let old = *body;
            *body = *renamed.entry(old).or_insert_with(|| {
                kept.extend(usize::try_from(old).ok().and_then(|old| self.bodies.get(old)).cloned());
                next
            });
        }
        self.bodies = kept;
        self.sweep_at = self.bodies.len().saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(i: i64) -> Declaration {
        Declaration { interval_ns: i, classes: Vec::new() }
    }

    #[test]
    fn repeated_bodies_are_kept_once_and_sweeping_keeps_meaning() {
        let mut all = Declarations::default();
        for i in 0..20_000_i64 {
            let instance = format!("i{}", i % 7);
            all.declare(&instance, (i, Uuid::nil()), body(i / 3));
        }
        assert_eq!(all.bodies.windows(2).filter(|p| p[0] == p[1]).count(), 0);
        for instance in 0..7 {
            let name = format!("i{instance}");
            let configs: Vec<_> = all.configs(&name).collect();
            assert_eq!(configs.len(), CONFIGS_MAX);
            assert!(configs.iter().all(|(at, body)| body.interval_ns == at / 3));
            assert_eq!(all.forgotten_before(&name), Some(configs[0].0));
        }
        assert!(all.bodies.len() <= 7 * CONFIGS_MAX * 2 + SWEEP_MIN);
    }
}
