//! Why an answer is not complete, in words, worst first.

use std::collections::BTreeMap;

use activity_schema::Timestamp;
use activity_schema::coverage::{ClassCoverage, CoverageState, EventClass};

use crate::report::rank;

/// Sentences in an answer; the rest is counted.
const SENTENCES_MAX: usize = 64;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    instance: String,
    state: CoverageState,
    reason: String,
}

#[derive(Debug)]
struct Facts {
    from: Timestamp,
    to: Timestamp,
    classes: BTreeMap<EventClass, u64>,
    exact: bool,
    spans: u64,
}

/// Collects what stands against completeness.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    whole: Vec<String>,
    grouped: BTreeMap<Key, Facts>,
}

impl Reasons {
    /// A reason that speaks of the whole answer.
    pub(crate) fn note(&mut self, sentence: String) {
        self.whole.push(sentence);
    }

    pub(crate) fn note_class(&mut self, instance: &str, coverage: &ClassCoverage, by_name: bool) {
        for span in &coverage.spans {
            let counts = match span.state {
                CoverageState::Covered => false,
                CoverageState::Unsupported => by_name,
                _ => true,
            };
            if !counts {
                continue;
            }
            let key = Key {
                instance: instance.to_owned(),
                state: span.state,
                reason: span.reason.clone().unwrap_or_default(),
            };
            let facts = self.grouped.entry(key).or_insert_with(|| Facts {
                from: span.from,
                to: span.to,
                classes: BTreeMap::new(),
                exact: true,
                spans: 0,
            });
            facts.from = facts.from.min(span.from);
            facts.to = facts.to.max(span.to);
            facts.exact &= span.exact.unwrap_or(false);
            facts.spans += 1;
            let lost = facts.classes.entry(coverage.class).or_default();
            *lost = lost.saturating_add(span.lost);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.grouped.is_empty()
    }

    pub(crate) fn into_sentences(self) -> Vec<String> {
        let mut grouped: Vec<(Key, Facts)> = self.grouped.into_iter().collect();
        grouped.sort_by_key(|(key, facts)| {
            let length = facts.to.nanos_since(facts.from);
            std::cmp::Reverse((rank(key.state), facts.lost(), length))
        });
        let mut out = self.whole;
        let left = grouped.len().saturating_sub(SENTENCES_MAX);
        out.extend(grouped.iter().take(SENTENCES_MAX).map(|(key, facts)| sentence(key, facts)));
        if left > 0 {
            out.push(format!("and {left} more reasons"));
        }
        out
    }
}

impl Facts {
    /// The same record may be missing in several classes.
    fn lost(&self) -> u64 {
        self.classes.values().copied().max().unwrap_or(0)
    }
}

fn sentence(key: &Key, facts: &Facts) -> String {
    let classes: Vec<&str> = facts.classes.keys().map(|class| class.as_str()).collect();
    let lost = match (key.state, facts.lost(), facts.exact) {
        (_, 1, true) => " 1 record lost,".to_owned(),
        (_, 0, _) => String::new(),
        (_, n, true) => format!(" {n} records lost,"),
        (_, n, false) => format!(" at least {n} records lost,"),
    };
    format!(
        "{}: {} {} between {} and {}:{lost} {}",
        key.instance,
        classes.join(", "),
        key.state,
        facts.from,
        facts.to,
        key.reason
    )
}
