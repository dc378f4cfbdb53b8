//! Scopes: who claims which process tree. The kernel carries the number; this table says what it means.

use std::collections::BTreeMap;

use activity_schema::submission::ScopeKind;
use serde::{Deserialize, Serialize};

/// Scopes known at once; the oldest closed ones go first, then opening is refused.
pub const SCOPES_MAX: usize = 8192;

/// What a scope number stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    pub number: u64,
    pub kind: ScopeKind,
    pub session_id: String,
    pub agent_id: String,
    pub tool_call_id: Option<String>,
    pub command_id: Option<String>,
    /// Process id of the claimed root.
    pub root: String,
    pub parent: Option<u64>,
    /// Process id of the process that opened it: the only one that may close it.
    pub opener: String,
    pub closed: bool,
}

/// Why a scope is not opened or closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeRefusal {
    #[error("the root process is not the caller or a descendant of it")]
    NotYours,
    #[error("the caller runs inside a scope and may only open scopes below it")]
    Widening,
    #[error("the root process is already in another scope")]
    Replacing,
    #[error("parent_scope_id is not an open scope of the caller")]
    Parent,
    #[error("tool_call_id is required for this kind of scope")]
    ToolCall,
    #[error("scope_id is not an open scope of the caller")]
    NotOpener,
    #[error("too many scopes are open")]
    Full,
    #[error("{field} must be 1 to 256 printable characters")]
    Text { field: &'static str },
    #[error("the root process does not exist")]
    Gone,
}

/// A caller as the kernel knows it.
#[derive(Debug, Clone)]
pub struct Caller {
    pub process_id: String,
    /// Scope that the kernel says the caller is in; 0 for none.
    pub scope: u64,
}

/// The root process of a scope to be opened, as the kernel knows it.
#[derive(Debug, Clone)]
pub struct Root {
    pub process_id: String,
    pub scope: u64,
    /// It is the caller itself or descends from it.
    pub is_callers: bool,
}

/// A request whose processes are resolved.
#[derive(Debug, Clone)]
pub struct OpenRequest {
    pub kind: ScopeKind,
    pub session_id: String,
    pub agent_id: String,
    pub tool_call_id: Option<String>,
    pub command_id: Option<String>,
    pub parent: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ScopeTable {
    scopes: BTreeMap<u64, Scope>,
    /// Numbers in the order of opening.
    order: Vec<u64>,
}

impl ScopeTable {
    pub fn get(&self, number: u64) -> Option<&Scope> {
        self.scopes.get(&number)
    }

    /// Puts back a scope of an earlier run of this boot.
    pub fn restore(&mut self, scope: Scope) {
        self.order.push(scope.number);
        self.scopes.insert(scope.number, scope);
    }

    /// Processes that registered a session.
    pub fn session_openers<'a>(&'a self, session_id: &'a str) -> impl Iterator<Item = &'a str> {
        let sessions = self.scopes.values().filter(|s| s.kind == ScopeKind::Session);
        sessions.filter(move |s| s.session_id == session_id).map(|s| s.opener.as_str())
    }

    pub fn len(&self) -> usize {
        self.scopes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    /// Decides whether the caller may open this scope; `number` is fresh randomness, not 0.
    pub fn open(
        &mut self,
        number: u64,
        caller: &Caller,
        root: &Root,
        request: OpenRequest,
    ) -> Result<Scope, ScopeRefusal> {
        check_texts(&request)?;
        if request.kind != ScopeKind::Session && request.tool_call_id.is_none() {
            return Err(ScopeRefusal::ToolCall);
        }
        if !root.is_callers {
            return Err(ScopeRefusal::NotYours);
        }
        let parent = self.parent_of(caller, &request)?;
        if root.scope != 0 && Some(root.scope) != parent && root.scope != caller.scope {
            return Err(ScopeRefusal::Replacing);
        }
        let session_differs =
            parent.and_then(|p| self.get(p)).is_some_and(|p| p.session_id != request.session_id);
        if caller.scope != 0 && (parent.is_none() || session_differs) {
            return Err(ScopeRefusal::Widening);
        }
        self.make_room()?;
        let scope = Scope {
            number,
            kind: request.kind,
            session_id: request.session_id,
            agent_id: request.agent_id,
            tool_call_id: request.tool_call_id,
            command_id: request.command_id,
            root: root.process_id.clone(),
            parent,
            opener: caller.process_id.clone(),
            closed: false,
        };
        self.scopes.insert(number, scope.clone());
        self.order.push(number);
        Ok(scope)
    }

    /// The enclosing scope: named by the caller, else the one that the caller is in.
    fn parent_of(&self, caller: &Caller, request: &OpenRequest) -> Result<Option<u64>, ScopeRefusal> {
        let Some(named) = request.parent else {
            return Ok((caller.scope != 0).then_some(caller.scope));
        };
        let open = self.get(named).filter(|s| !s.closed);
        let within = |s: &Scope| s.opener == caller.process_id || self.encloses(named, caller.scope);
        match open {
            Some(scope) if within(scope) => {
                // From inside a scope only what lies at or below it may be the parent.
                if caller.scope != 0 && !self.encloses(caller.scope, named) {
                    return Err(ScopeRefusal::Widening);
                }
                Ok(Some(named))
            }
            _ => Err(ScopeRefusal::Parent),
        }
    }

    /// Whether `inner` is `outer` or lies below it.
    fn encloses(&self, outer: u64, inner: u64) -> bool {
        let mut at = Some(inner);
        for _ in 0..SCOPES_MAX {
            match at {
                Some(number) if number == outer => return true,
                Some(number) => at = self.get(number).and_then(|s| s.parent),
                None => return false,
            }
        }
        false
    }

    /// Takes back a scope that could not be bound.
    pub fn withdraw(&mut self, number: u64) {
        self.scopes.remove(&number);
        self.order.retain(|n| *n != number);
    }

    /// Closes a scope for its opener. Its processes keep the number: what they do later is still attributed.
    pub fn close(&mut self, number: u64, caller: &Caller) -> Result<Scope, ScopeRefusal> {
        let scope = self.scopes.get_mut(&number).filter(|s| !s.closed && s.opener == caller.process_id);
        let scope = scope.ok_or(ScopeRefusal::NotOpener)?;
        scope.closed = true;
        Ok(scope.clone())
    }

    fn make_room(&mut self) -> Result<(), ScopeRefusal> {
        if self.scopes.len() < SCOPES_MAX {
            return Ok(());
        }
        let at = self.order.iter().position(|n| self.scopes.get(n).is_none_or(|s| s.closed));
        let at = at.ok_or(ScopeRefusal::Full)?;
        let number = self.order.remove(at);
        self.scopes.remove(&number);
        Ok(())
    }
}

fn check_texts(request: &OpenRequest) -> Result<(), ScopeRefusal> {
    let ok = |text: &str| (1..=256).contains(&text.len()) && !text.chars().any(char::is_control);
    let check = |text: Option<&str>, field| match text {
        Some(text) if !ok(text) => Err(ScopeRefusal::Text { field }),
        _ => Ok(()),
    };
    check(Some(&request.session_id), "session_id")?;
    check(Some(&request.agent_id), "agent_id")?;
    check(request.tool_call_id.as_deref(), "tool_call_id")?;
    check(request.command_id.as_deref(), "command_id")
}

/// Text form of a scope number.
pub fn scope_text(number: u64) -> String {
    format!("s-{number:016x}")
}

/// The inverse of [`scope_text`].
pub fn parse_scope(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("s-").filter(|d| d.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: ScopeKind, session: &str, parent: Option<u64>) -> OpenRequest {
        OpenRequest {
            kind,
            session_id: session.into(),
            agent_id: "a".into(),
            tool_call_id: (kind != ScopeKind::Session).then(|| "t".into()),
            command_id: None,
            parent,
        }
    }

    fn caller(process: &str, scope: u64) -> Caller {
        Caller { process_id: process.into(), scope }
    }

    fn root(process: &str, scope: u64, is_callers: bool) -> Root {
        Root { process_id: process.into(), scope, is_callers }
    }

    /// A harness with an open session (1) and a tool call (2) below it.
    fn harness() -> ScopeTable {
        let mut table = ScopeTable::default();
        let harness = caller("iteron", 0);
        table.open(1, &harness, &root("iteron", 0, true), request(ScopeKind::Session, "s", None)).unwrap();
        let harness = caller("iteron", 1);
        let tool = request(ScopeKind::ToolCall, "s", Some(1));
        assert_eq!(table.open(2, &harness, &root("bash", 1, true), tool).unwrap().parent, Some(1));
        table
    }

    #[test]
    fn a_tool_may_open_below_itself_and_nothing_else() {
        let mut table = harness();
        let tool = caller("bash", 2);
        let below = request(ScopeKind::Command, "s", None);
        assert_eq!(table.open(3, &tool, &root("make", 2, true), below).unwrap().parent, Some(2));
        let session = |parent| request(ScopeKind::Session, "other", parent);
        assert_eq!(table.open(4, &tool, &root("x", 2, true), session(None)), Err(ScopeRefusal::Widening));
        let up = request(ScopeKind::ToolCall, "s", Some(1));
        assert_eq!(table.open(5, &tool, &root("x", 2, true), up), Err(ScopeRefusal::Widening));
        assert_eq!(table.close(2, &tool), Err(ScopeRefusal::NotOpener));
        assert_eq!(table.close(1, &tool), Err(ScopeRefusal::NotOpener));
        let strange = request(ScopeKind::Command, "s", None);
        assert_eq!(table.open(6, &tool, &root("init", 0, false), strange), Err(ScopeRefusal::NotYours));
    }

    #[test]
    fn a_process_in_another_scope_is_not_taken_over() {
        let mut table = harness();
        let other = caller("other", 0);
        let session = request(ScopeKind::Session, "o", None);
        assert_eq!(table.open(7, &other, &root("bash", 2, true), session), Err(ScopeRefusal::Replacing));
        let below = request(ScopeKind::ToolCall, "s", Some(1));
        assert_eq!(table.open(8, &other, &root("x", 0, true), below), Err(ScopeRefusal::Parent));
    }

    #[test]
    fn only_the_opener_closes_and_closed_scopes_make_room() {
        let mut table = harness();
        let harness = caller("iteron", 1);
        assert!(table.close(2, &harness).unwrap().closed);
        assert_eq!(table.close(2, &harness), Err(ScopeRefusal::NotOpener), "once");
        for n in 10..10 + 8_192 - 2 {
            table
                .open(n, &caller("p", 0), &root("q", 0, true), request(ScopeKind::Session, "x", None))
                .unwrap();
        }
        let more = |t: &mut ScopeTable, n| {
            t.open(n, &caller("p", 0), &root("q", 0, true), request(ScopeKind::Session, "x", None)).map(drop)
        };
        assert_eq!(more(&mut table, 100_000), Ok(()));
        assert!(table.get(2).is_none(), "the closed one went");
        assert_eq!(more(&mut table, 100_001), Err(ScopeRefusal::Full));
    }

    #[test]
    fn scope_numbers_round_trip() {
        assert_eq!(parse_scope(&scope_text(u64::MAX - 3)), Some(u64::MAX - 3));
        assert_eq!(parse_scope("s-1"), None);
    }

    #[test]
    fn scope_texts_are_1_to_256_bytes_without_controls() {
        let set: [fn(&mut OpenRequest, String); 4] = [
            |r, text| r.session_id = text,
            |r, text| r.agent_id = text,
            |r, text| r.tool_call_id = Some(text),
            |r, text| r.command_id = Some(text),
        ];
        for (text, ok) in [(256, true), (257, false), (1, true), (0, false)]
            .map(|(n, ok)| ("x".repeat(n), ok))
            .into_iter()
            .chain([
                ("a\nb".to_owned(), false),
                ("\u{7f}".to_owned(), false),
                ("a b \u{e9}".to_owned(), true),
            ])
        {
            for set in set {
                let mut asked = request(ScopeKind::ToolCall, "s", None);
                set(&mut asked, text.clone());
                let opened = ScopeTable::default().open(1, &caller("p", 0), &root("q", 0, true), asked);
                assert_eq!(matches!(opened, Err(ScopeRefusal::Text { .. })), !ok, "{text:?}");
            }
        }
    }
}
