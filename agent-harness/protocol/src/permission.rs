//! Which tool calls may run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ToolClass;

/// What is done about calls of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    Allow,
    /// Somebody must agree to each.
    Ask,
    Deny,
}

impl Rule {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// What becomes of a call that must be asked about where nobody can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnAsk {
    Allow,
    Deny,
}

/// The rules of a session, a rule a class. Fixed from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Permissions {
    pub read: Rule,
    pub write: Rule,
    pub execute: Rule,
    pub network: Rule,
    pub on_ask: OnAsk,
}

impl Default for Permissions {
    /// Everything is allowed: the machine is the sandbox.
    fn default() -> Self {
        Self {
            read: Rule::Allow,
            write: Rule::Allow,
            execute: Rule::Allow,
            network: Rule::Allow,
            on_ask: OnAsk::Deny,
        }
    }
}

impl Permissions {
    /// The rule for calls of a class. What may talk to other machines is a command as well: it needs the
    /// leave of both classes.
    #[must_use]
    pub fn rule(&self, class: ToolClass) -> Rule {
        match class {
            ToolClass::Read => self.read,
            ToolClass::Write => self.write,
            ToolClass::Execute => self.execute,
            ToolClass::Network => self.network.max(self.execute),
        }
    }

    pub const fn set(&mut self, class: ToolClass, rule: Rule) {
        match class {
            ToolClass::Read => self.read = rule,
            ToolClass::Write => self.write = rule,
            ToolClass::Execute => self.execute = rule,
            ToolClass::Network => self.network = rule,
        }
    }

    /// Whether a call of the class may run, where nobody can be asked.
    #[must_use]
    pub fn decide(&self, class: ToolClass) -> Decision {
        match (self.rule(class), self.on_ask) {
            (Rule::Allow, _) => Decision::Allowed,
            (Rule::Ask, OnAsk::Allow) => Decision::Presumed,
            (Rule::Ask, OnAsk::Deny) => Decision::NobodyToAsk,
            (Rule::Deny, _) => Decision::Denied,
        }
    }
}

/// What the rules say of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Its rule allows it.
    Allowed,
    /// It must be asked about, and the operator said beforehand that this means yes.
    Presumed,
    /// It must be asked about, and nobody can be.
    NobodyToAsk,
    /// Its rule denies it.
    Denied,
}

impl Decision {
    #[must_use]
    pub const fn allows(self) -> bool {
        matches!(self, Self::Allowed | Self::Presumed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: [ToolClass; 4] =
        [ToolClass::Read, ToolClass::Write, ToolClass::Execute, ToolClass::Network];

    #[test]
    fn each_class_has_its_own_rule_and_the_network_that_of_commands_besides() {
        for class in CLASSES {
            for (rule, decision) in [
                (Rule::Allow, Decision::Allowed),
                (Rule::Ask, Decision::NobodyToAsk),
                (Rule::Deny, Decision::Denied),
            ] {
                let mut permissions = Permissions::default();
                permissions.set(class, rule);
                for other in CLASSES {
                    let both = class == ToolClass::Execute && other == ToolClass::Network;
                    let expected = if other == class || both { decision } else { Decision::Allowed };
                    assert_eq!(permissions.decide(other), expected, "{class:?} {rule:?}, {other:?}");
                }
            }
        }
    }

    #[test]
    fn a_call_that_must_be_asked_about_runs_only_when_that_was_said_beforehand() {
        for (rule, on_ask, allows) in [
            (Rule::Ask, OnAsk::Deny, false),
            (Rule::Ask, OnAsk::Allow, true),
            (Rule::Deny, OnAsk::Allow, false),
        ] {
            let permissions = Permissions { write: rule, on_ask, ..Permissions::default() };
            assert_eq!(permissions.decide(ToolClass::Write).allows(), allows);
        }
    }
}
