//! Sets of event classes, and which of them travel under a priority.

use std::sync::OnceLock;

use activity_schema::Class;
use activity_schema::catalog::EVENTS;
use activity_schema::coverage::EventClass;
use serde::{Deserialize, Serialize};

/// A set of event classes, one bit each in the order of [`EventClass::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ClassSet(u16);

impl ClassSet {
    pub(crate) fn all() -> Self {
        EventClass::ALL.iter().copied().collect()
    }

    /// The classes of every catalogued name of this priority.
    pub(crate) fn of_priority(priority: Class) -> Self {
        static SETS: OnceLock<[ClassSet; 3]> = OnceLock::new();
        let sets = SETS.get_or_init(|| {
            Class::ALL.iter().copied().fold([ClassSet::default(); 3], |mut sets, priority| {
                let rows = EVENTS.iter().filter(|row| row.class == priority);
                sets[index(priority)] = rows.filter_map(|row| EventClass::of(row.name)).collect();
                sets
            })
        });
        sets[index(priority)]
    }

    pub(crate) fn one(class: EventClass) -> Self {
        ClassSet(1 << class as u16)
    }

    pub(crate) fn has(self, class: EventClass) -> bool {
        self.0 & Self::one(class).0 != 0
    }

    pub(crate) fn union(self, other: Self) -> Self {
        ClassSet(self.0 | other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = EventClass> {
        EventClass::ALL.iter().copied().filter(move |class| self.has(*class))
    }
}

impl FromIterator<EventClass> for ClassSet {
    fn from_iter<I: IntoIterator<Item = EventClass>>(classes: I) -> Self {
        classes.into_iter().fold(ClassSet::default(), |set, class| set.union(Self::one(class)))
    }
}

/// Position of a priority in arrays of three.
pub(crate) const fn index(priority: Class) -> usize {
    match priority {
        Class::Critical => 0,
        Class::Standard => 1,
        Class::Bulk => 2,
    }
}
