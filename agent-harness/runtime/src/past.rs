//! What a record says of a session's earlier life: its conversation, and what a crash left open.
//!
//! Nothing of it is done again. A call that was intended and has no end may have had an effect: the
//! model is told so, and the record says so.

use std::collections::BTreeMap;
use std::path::Path;

use iteron_context::{Block, Conversation, ConversationError, ToolResult};
use iteron_protocol::{
    ClientSubmissionId, Ledger, Outcome, RequeueReason, SessionId, SubmissionState, ToolCallId, ToolStatus,
};
use iteron_record::{Entry, HeadKey, Line, OpenError, Record, Syncer};

/// A session's record, open for appending, and what it says of the time before.
pub struct SessionRecord {
    pub(crate) record: Record,
    pub(crate) syncer: Syncer,
    /// Signs heads.
    pub(crate) key: HeadKey,
    pub torn_bytes: u64,
    pub past: Past,
}

impl SessionRecord {
    /// Opens or creates the record of `session` in `dir`, and verifies it. Its heads are signed with
    /// `key` from now on.
    pub fn open(dir: &Path, session: &SessionId, key: HeadKey) -> Result<Self, OpenError> {
        let mut past = Past::default();
        let (record, opened) = Record::open(dir, session, |line| past.take(line))?;
        let syncer =
            record.syncer().map_err(|source| OpenError::Io { path: record.path().to_owned(), source })?;
        Ok(Self { record, syncer, key, torn_bytes: opened.torn_bytes, past })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.record.path()
    }
}

/// The state at the end of a record.
#[derive(Debug, Default)]
pub struct Past {
    conversation: Conversation,
    ledger: Ledger,
    /// Prompts that have no end, and their text, in their order.
    waiting: Vec<(ClientSubmissionId, String)>,
    active: Option<ClientSubmissionId>,
    intents: BTreeMap<ToolCallId, String>,
    results: Vec<ToolResult>,
    partial: String,
    fault: Option<ConversationError>,
    entries: u64,
}

impl Past {
    /// Whether there was anything before.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Why the conversation cannot go on, if it cannot.
    #[must_use]
    pub const fn fault(&self) -> Option<&ConversationError> {
        self.fault.as_ref()
    }

    fn take(&mut self, line: Line) {
        self.entries += 1;
        if let Err(error) = self.apply(line) {
            self.fault.get_or_insert(error);
        }
    }

    fn apply(&mut self, line: Line) -> Result<(), ConversationError> {
        let applied = SubmissionState::Applied { record_seq: Some(line.seq) };
        match line.entry {
            Entry::SessionStarted { resumed: false, .. } => self.conversation = Conversation::default(),
            Entry::Submitted { submission_id: Some(id), prompt } => {
                self.waiting.push((id, prompt));
            }
            Entry::Submitted { submission_id: None, prompt } => self.conversation.push_user(prompt)?,
            Entry::Admitted { submission_id } => {
                let prompt = self.take_waiting(&submission_id);
                self.ledger.restore(&submission_id, applied);
                self.active = Some(submission_id);
                self.conversation.push_user(prompt)?;
            }
            Entry::Returned { submission_id, state } => {
                self.take_waiting(&submission_id);
                self.ledger.restore(&submission_id, state);
            }
            Entry::Controlled { submission_id, .. } => self.ledger.restore(&submission_id, applied),
            Entry::ModelRequested { .. } => {
                if !self.conversation.open_calls().is_empty() {
                    self.conversation.push_tool_results(std::mem::take(&mut self.results))?;
                }
            }
            Entry::ModelCompleted { content, .. } => {
                let blocks: Vec<Block> = serde_json::from_value(content).unwrap_or_default();
                self.conversation.push_assistant(blocks)?;
            }
            Entry::ModelFailed { partial, .. } => self.partial = partial,
            Entry::ToolIntended { tool_call_id, provider_call_id, .. } => {
                self.intents.insert(tool_call_id, provider_call_id);
            }
            Entry::ToolEnded { tool_call_id, provider_call_id, status, output, .. } => {
                self.intents.remove(&tool_call_id);
                let is_error = status != ToolStatus::Completed;
                self.results.push(ToolResult { tool_use_id: provider_call_id, content: output, is_error });
            }
            Entry::EffectUnknown { tool_call_id } => {
                self.intents.remove(&tool_call_id);
            }
            Entry::RunEnded { .. } => {
                self.active = None;
                self.close()?;
            }
            Entry::SessionStarted { resumed: true, .. }
            | Entry::Recovered { .. }
            | Entry::JobEnded { .. }
            | Entry::ToolDecided { .. }
            | Entry::HeadSigned { .. }
            | Entry::SessionEnded { .. } => {}
        }
        Ok(())
    }

    fn take_waiting(&mut self, id: &ClientSubmissionId) -> String {
        let at = self.waiting.iter().position(|(waiting, _)| waiting == id);
        at.map(|at| self.waiting.remove(at).1).unwrap_or_default()
    }

    fn close(&mut self) -> Result<(), ConversationError> {
        let (results, partial) = (std::mem::take(&mut self.results), std::mem::take(&mut self.partial));
        self.conversation.interrupt(results, &partial)
    }

    /// Closes what the end of the process left open, and gives what to record about that.
    pub(crate) fn settle(mut self) -> Settled {
        let mut entries = Vec::new();
        for tool_call_id in std::mem::take(&mut self.intents).into_keys() {
            entries.push(Entry::EffectUnknown { tool_call_id });
        }
        if let Some(submission_id) = self.active.take() {
            let outcome = Outcome::Interrupted;
            entries.push(Entry::RunEnded { submission_id, outcome, abandoned: true });
        }
        for (submission_id, _) in std::mem::take(&mut self.waiting) {
            let state = SubmissionState::Requeued { reason: RequeueReason::Crashed };
            self.ledger.restore(&submission_id, state);
            entries.push(Entry::Returned { submission_id, state });
        }
        if let Err(error) = self.close() {
            self.fault.get_or_insert(error);
        }
        let Self { conversation, ledger, fault, .. } = self;
        Settled {
            conversation: if fault.is_none() { conversation } else { Conversation::default() },
            ledger,
            entries,
        }
    }
}

pub(crate) struct Settled {
    pub conversation: Conversation,
    pub ledger: Ledger,
    pub entries: Vec<Entry>,
}
