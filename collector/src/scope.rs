//! Scopes: who claims which process tree. The kernel carries the number; this table says what it means. A session is
//! of the process that registered it, and of its sandbox.

use std::collections::BTreeMap;

use activity_schema::submission::ScopeKind;
use serde::{Deserialize, Serialize};

/// Scopes known at once, of all sandboxes. One may have as many as are still free, so that others always find some.
pub const SCOPES_MAX: usize = 8192;
/// Scopes that are looked at for processes that are gone, at an opening that finds no room.
const LOOKED_AT_MAX: usize = 64;

/// A process that may be gone: pid, and start since boot in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Life {
    pub pid: u32,
    pub start_ns: u64,
}

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
    /// Sandbox of the opener.
    #[serde(default)]
    pub instance: String,
    #[serde(default)]
    pub opener_life: Life,
    #[serde(default)]
    pub root_life: Life,
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
    #[error("session_id is registered by another process")]
    Taken,
    #[error("too many scopes of this sandbox are open")]
    Full,
    #[error("{field} must be 1 to 256 printable characters")]
    Text { field: &'static str },
    #[error("{field} looks like a secret")]
    Secret { field: &'static str },
    #[error("the root process does not exist")]
    Gone,
}

/// A caller as the kernel knows it.
#[derive(Debug, Clone)]
pub struct Caller {
    pub process_id: String,
    pub life: Life,
    /// Its sandbox.
    pub instance: String,
    /// Scope that the kernel says the caller is in; 0 for none.
    pub scope: u64,
}

/// The root process of a scope to be opened, as the kernel knows it.
#[derive(Debug, Clone)]
pub struct Root {
    pub process_id: String,
    pub life: Life,
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

    /// Puts back a scope of an earlier run of this boot; called in the order of opening. The log also holds what that run
    /// had forgotten: each sandbox keeps its share, the newest.
    pub fn restore(&mut self, scope: Scope) {
        if self.make_room(&scope.instance, &|_| false).is_ok() {
            self.order.push(scope.number);
            self.scopes.insert(scope.number, scope);
        }
    }

    /// Processes that registered a session.
    pub fn session_openers<'a>(&'a self, session_id: &'a str) -> impl Iterator<Item = &'a str> {
        self.sessions(session_id).map(|s| s.opener.as_str())
    }

    fn sessions<'a>(&'a self, session_id: &'a str) -> impl Iterator<Item = &'a Scope> {
        let sessions = self.scopes.values().filter(|s| s.kind == ScopeKind::Session);
        sessions.filter(move |s| s.session_id == session_id)
    }

    pub fn len(&self) -> usize {
        self.scopes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    /// Decides whether the caller may open this scope; `number` is fresh randomness, not 0. `lives` says whether a process
    /// is still there.
    pub fn open(
        &mut self,
        number: u64,
        caller: &Caller,
        root: &Root,
        request: OpenRequest,
        lives: &dyn Fn(Life) -> bool,
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
        if self.is_taken(caller, &request, parent, lives) {
            return Err(ScopeRefusal::Taken);
        }
        self.make_room(&caller.instance, lives)?;
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
            instance: caller.instance.clone(),
            opener_life: caller.life,
            root_life: root.life,
            closed: false,
        };
        self.scopes.insert(number, scope.clone());
        self.order.push(number);
        Ok(scope)
    }

    /// Whether the session is another process's: one that lives, or of another sandbox. A harness that resumes a session
    /// whose process is gone may register it again, from outside of any scope.
    fn is_taken(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        parent: Option<u64>,
        lives: &dyn Fn(Life) -> bool,
    ) -> bool {
        let is_own = |s: &Scope| s.opener == caller.process_id;
        // What is opened below a scope was allowed with the scope.
        let is_below = request.kind != ScopeKind::Session && parent.is_some();
        if is_below || self.sessions(&request.session_id).any(is_own) {
            return false;
        }
        let mut others = self.sessions(&request.session_id);
        others.any(|s| s.instance != caller.instance || caller.scope != 0 || lives(s.opener_life))
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

    /// Forgets a scope of the instance where it has its share: a closed one, sessions last, else one whose processes are
    /// gone.
    fn make_room(&mut self, instance: &str, lives: &dyn Fn(Life) -> bool) -> Result<(), ScopeRefusal> {
        let own = self.scopes.values().filter(|s| s.instance == instance).count();
        if own < SCOPES_MAX.saturating_sub(self.scopes.len()) {
            return Ok(());
        }
        let own = || {
            let all = self.order.iter().filter_map(|n| self.scopes.get(n));
            all.filter(|s| s.instance == instance)
        };
        let is_over = |s: &&Scope| !lives(s.opener_life) && !lives(s.root_life);
        let forgotten = own()
            .find(|s| s.closed && s.kind != ScopeKind::Session)
            .or_else(|| own().find(|s| s.closed))
            .or_else(|| own().take(LOOKED_AT_MAX).find(is_over));
        let number = forgotten.ok_or(ScopeRefusal::Full)?.number;
        self.withdraw(number);
        Ok(())
    }
}

fn check_texts(request: &OpenRequest) -> Result<(), ScopeRefusal> {
    let ok = |text: &str| (1..=256).contains(&text.len()) && !text.chars().any(char::is_control);
    let check = |text: Option<&str>, field| match text {
        Some(text) if !ok(text) => Err(ScopeRefusal::Text { field }),
        Some(text) if crate::redact::is_secret(text) => Err(ScopeRefusal::Secret { field }),
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

    const ALL_LIVE: &dyn Fn(Life) -> bool = &|_| true;
    const NONE_LIVES: &dyn Fn(Life) -> bool = &|_| false;

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
        Caller { process_id: process.into(), life: Life::default(), instance: "i".into(), scope }
    }

    fn root(process: &str, scope: u64, is_callers: bool) -> Root {
        Root { process_id: process.into(), life: Life::default(), scope, is_callers }
    }

    /// A harness with an open session (1) and a tool call (2) below it.
    fn harness() -> ScopeTable {
        let mut table = ScopeTable::default();
        let harness = caller("iteron", 0);
        table
            .open(1, &harness, &root("iteron", 0, true), request(ScopeKind::Session, "s", None), ALL_LIVE)
            .unwrap();
        let harness = caller("iteron", 1);
        let tool = request(ScopeKind::ToolCall, "s", Some(1));
        assert_eq!(table.open(2, &harness, &root("bash", 1, true), tool, ALL_LIVE).unwrap().parent, Some(1));
        table
    }

    #[test]
    fn a_tool_may_open_below_itself_and_nothing_else() {
        let mut table = harness();
        let tool = caller("bash", 2);
        let below = request(ScopeKind::Command, "s", None);
        assert_eq!(table.open(3, &tool, &root("make", 2, true), below, ALL_LIVE).unwrap().parent, Some(2));
        let session = |parent| request(ScopeKind::Session, "other", parent);
        assert_eq!(
            table.open(4, &tool, &root("x", 2, true), session(None), ALL_LIVE),
            Err(ScopeRefusal::Widening)
        );
        let up = request(ScopeKind::ToolCall, "s", Some(1));
        assert_eq!(table.open(5, &tool, &root("x", 2, true), up, ALL_LIVE), Err(ScopeRefusal::Widening));
        assert_eq!(table.close(2, &tool), Err(ScopeRefusal::NotOpener));
        assert_eq!(table.close(1, &tool), Err(ScopeRefusal::NotOpener));
        let strange = request(ScopeKind::Command, "s", None);
        assert_eq!(
            table.open(6, &tool, &root("init", 0, false), strange, ALL_LIVE),
            Err(ScopeRefusal::NotYours)
        );
    }

    #[test]
    fn a_process_in_another_scope_is_not_taken_over() {
        let mut table = harness();
        let other = caller("other", 0);
        let session = request(ScopeKind::Session, "o", None);
        assert_eq!(
            table.open(7, &other, &root("bash", 2, true), session, ALL_LIVE),
            Err(ScopeRefusal::Replacing)
        );
        let below = request(ScopeKind::ToolCall, "s", Some(1));
        assert_eq!(table.open(8, &other, &root("x", 0, true), below, ALL_LIVE), Err(ScopeRefusal::Parent));
    }

    #[test]
    fn only_the_opener_closes_and_closed_scopes_make_room() {
        let mut table = harness();
        let harness = caller("iteron", 1);
        assert!(table.close(2, &harness).unwrap().closed);
        assert_eq!(table.close(2, &harness), Err(ScopeRefusal::NotOpener), "once");
        // Half of all, of one sandbox; two are there.
        for n in 10..10 + 4_096 - 2 {
            more(&mut table, n, "i").unwrap();
        }
        assert_eq!(more(&mut table, 100_000, "i"), Ok(()));
        assert!(table.get(2).is_none(), "the closed one went");
        assert_eq!(more(&mut table, 100_001, "i"), Err(ScopeRefusal::Full));
        for n in 0..2_048 {
            more(&mut table, 200_000 + n, "j").unwrap();
        }
        assert_eq!(more(&mut table, 300_000, "j"), Err(ScopeRefusal::Full));
        assert_eq!(more(&mut table, 300_001, "k"), Ok(()), "others find room");
    }

    /// A scope of a session of its own, of a process that is there.
    fn more(table: &mut ScopeTable, number: u64, instance: &str) -> Result<(), ScopeRefusal> {
        let opener = Caller { instance: instance.into(), ..caller(&format!("p-{instance}"), 0) };
        let session = request(ScopeKind::Session, instance, None);
        table.open(number, &opener, &root("q", 0, true), session, ALL_LIVE).map(drop)
    }

    #[test]
    fn what_is_put_back_leaves_room_for_others() {
        let (mut before, mut table) = (ScopeTable::default(), ScopeTable::default());
        more(&mut before, 1, "i").unwrap();
        let scope = before.get(1).unwrap();
        for number in 1..=10_000 {
            table.restore(Scope { number, ..scope.clone() });
        }
        assert!(table.get(1).is_none() && table.get(10_000).is_some(), "the newest");
        assert_eq!(more(&mut table, 20_000, "j"), Ok(()));
    }

    #[test]
    fn scopes_of_processes_that_are_gone_make_room() {
        let mut table = ScopeTable::default();
        for n in 1..=4_096 {
            more(&mut table, n, "i").unwrap();
        }
        let opener = Caller { life: Life { pid: 7, start_ns: 7 }, ..caller("next", 0) };
        let mut open = |lives| {
            let session = request(ScopeKind::Session, "next", None);
            table.open(5_000, &opener, &root("q", 0, true), session, lives).map(drop)
        };
        assert_eq!(open(ALL_LIVE), Err(ScopeRefusal::Full));
        assert_eq!(open(NONE_LIVES), Ok(()));
    }

    #[test]
    fn a_session_is_of_the_process_that_registered_it() {
        let session = |parent| request(ScopeKind::Session, "s", parent);
        let tool = || request(ScopeKind::ToolCall, "s", None);
        let root = root("x", 0, true);
        let intruder = caller("intruder", 0);
        let abroad = Caller { instance: "j".into(), ..caller("abroad", 0) };
        for asked in [session(None), tool()] {
            let taken = Err(ScopeRefusal::Taken);
            assert_eq!(harness().open(9, &intruder, &root, asked.clone(), ALL_LIVE), taken);
            assert_eq!(
                harness().open(9, &abroad, &root, asked.clone(), NONE_LIVES),
                taken,
                "another sandbox"
            );
            // The harness is gone and is resumed.
            assert!(harness().open(9, &intruder, &root, asked, NONE_LIVES).is_ok());
        }
        let inside = caller("bash", 2);
        assert_eq!(harness().open(9, &inside, &root, session(Some(2)), NONE_LIVES), Err(ScopeRefusal::Taken));
        assert!(
            harness().open(9, &caller("iteron", 1), &root, session(Some(1)), ALL_LIVE).is_ok(),
            "its own"
        );
    }

    #[test]
    fn what_looks_like_a_secret_names_no_scope() {
        let mut asked = request(ScopeKind::Session, "s", None);
        asked.agent_id = "Bearer ghp_0123456789abcdefghijABCDEFGHIJ456789".into();
        let opened = ScopeTable::default().open(1, &caller("p", 0), &root("q", 0, true), asked, ALL_LIVE);
        assert_eq!(opened, Err(ScopeRefusal::Secret { field: "agent_id" }));
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
                let opened =
                    ScopeTable::default().open(1, &caller("p", 0), &root("q", 0, true), asked, ALL_LIVE);
                assert_eq!(matches!(opened, Err(ScopeRefusal::Text { .. })), !ok, "{text:?}");
            }
        }
    }
}
