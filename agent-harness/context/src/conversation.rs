//! The conversation and the order that it must keep.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Stands in where a tool said nothing: the API refuses an empty text block.
const EMPTY_OUTPUT: &str = "(no output)";

/// What the model is told of a call whose end nobody saw.
const INTERRUPTED_CALL: &str =
    "[interrupted: its end was not seen, and it may have had an effect; look before repeating it]";
const INTERRUPTED_ANSWER: &str = "[interrupted]";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
}

/// A content block, in the API's form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Text {
        text: String,
    },
    /// Sent back unchanged: the API verifies the signature.
    Thinking {
        thinking: String,
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        content: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

impl Block {
    fn is_empty_text(&self) -> bool {
        matches!(self, Self::Text { text } if text.trim().is_empty())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: Vec<Block>,
}

/// The answer to one `tool_use`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    pub tool_use_id: String,
    pub content: String,
    pub is_error: bool,
}

/// Why a block cannot be added. Each is a fault of the caller or of the provider's answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConversationError {
    #[error("a {0:?} message cannot follow another one")]
    RoleRepeated(Role),
    #[error("a user message is empty")]
    EmptyUser,
    #[error("tool call {0} has no result")]
    Unanswered(String),
    #[error("result for tool call {0}, which the assistant did not make or which is answered already")]
    Unasked(String),
    #[error("tool call id {0} is used twice")]
    IdReused(String),
}

/// What was said so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    system: String,
    messages: Vec<Message>,
}

impl Conversation {
    #[must_use]
    pub fn new(system: impl Into<String>) -> Self {
        Self { system: system.into(), messages: Vec::new() }
    }

    /// The same conversation under another system prompt.
    #[must_use]
    pub fn with_system(self, system: impl Into<String>) -> Self {
        Self { system: system.into(), ..self }
    }

    #[must_use]
    pub fn system(&self) -> &str {
        &self.system
    }

    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The tool calls that the next user message must answer, in order.
    #[must_use]
    pub fn open_calls(&self) -> Vec<&str> {
        match self.messages.last() {
            Some(message) if message.role == Role::Assistant => tool_use_ids(&message.content),
            _ => Vec::new(),
        }
    }

    pub fn push_user(&mut self, text: impl Into<String>) -> Result<(), ConversationError> {
        let block = Block::Text { text: text.into() };
        if block.is_empty_text() {
            return Err(ConversationError::EmptyUser);
        }
        self.expect_turn_of(Role::User)?;
        if let Some(id) = self.open_calls().first() {
            return Err(ConversationError::Unanswered((*id).to_owned()));
        }
        self.messages.push(Message { role: Role::User, content: vec![block] });
        Ok(())
    }

    /// Adds the model's answer. Empty text is left out; an answer with nothing in it adds nothing,
    /// so a paused turn that said nothing is simply asked again.
    pub fn push_assistant(&mut self, blocks: Vec<Block>) -> Result<(), ConversationError> {
        let content: Vec<Block> = blocks.into_iter().filter(|block| !block.is_empty_text()).collect();
        let mut ids = tool_use_ids(&content);
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ConversationError::IdReused(pair[0].to_owned()));
        }
        if let Some(used) = ids.iter().find(|id| self.was_used(id)) {
            return Err(ConversationError::IdReused((*used).to_owned()));
        }
        match self.messages.last_mut() {
            // A continued `pause_turn` extends the message that it paused in.
            Some(last) if last.role == Role::Assistant && tool_use_ids(&last.content).is_empty() => {
                last.content.extend(content);
            }
            _ if content.is_empty() => {}
            _ => {
                self.expect_turn_of(Role::Assistant)?;
                self.messages.push(Message { role: Role::Assistant, content });
            }
        }
        Ok(())
    }

    /// Answers all open calls at once, as the API demands. Results are put in the calls' order.
    pub fn push_tool_results(&mut self, results: Vec<ToolResult>) -> Result<(), ConversationError> {
        let open: Vec<String> = self.open_calls().into_iter().map(str::to_owned).collect();
        let mut left = results;
        let mut content = Vec::with_capacity(open.len());
        for id in open {
            let Some(at) = left.iter().position(|result| result.tool_use_id == id) else {
                return Err(ConversationError::Unanswered(id));
            };
            content.push(result_block(left.swap_remove(at)));
        }
        if let Some(extra) = left.into_iter().next() {
            return Err(ConversationError::Unasked(extra.tool_use_id));
        }
        if content.is_empty() {
            return Err(ConversationError::EmptyUser);
        }
        self.messages.push(Message { role: Role::User, content });
        Ok(())
    }

    /// Closes what an interrupted run left open, so that the user may speak again: calls without a
    /// result get one of `results` or are said to be interrupted; an answer that never came, or only
    /// in part, is said to be.
    pub fn interrupt(
        &mut self,
        mut results: Vec<ToolResult>,
        partial: &str,
    ) -> Result<(), ConversationError> {
        let open: Vec<String> = self.open_calls().into_iter().map(str::to_owned).collect();
        if !open.is_empty() {
            results.retain(|result| open.contains(&result.tool_use_id));
            for tool_use_id in open {
                if !results.iter().any(|result| result.tool_use_id == tool_use_id) {
                    let content = INTERRUPTED_CALL.to_owned();
                    results.push(ToolResult { tool_use_id, content, is_error: true });
                }
            }
            self.push_tool_results(results)?;
        }
        if self.messages.last().is_some_and(|message| message.role == Role::User) {
            let text =
                format!("{partial}{}{INTERRUPTED_ANSWER}", if partial.is_empty() { "" } else { "\n\n" });
            self.push_assistant(vec![Block::Text { text }])?;
        }
        Ok(())
    }

    fn expect_turn_of(&self, role: Role) -> Result<(), ConversationError> {
        let expected = match self.messages.last() {
            Some(message) if message.role == Role::User => Role::Assistant,
            _ => Role::User,
        };
        if role == expected { Ok(()) } else { Err(ConversationError::RoleRepeated(role)) }
    }

    fn was_used(&self, id: &str) -> bool {
        self.messages.iter().any(|message| tool_use_ids(&message.content).contains(&id))
    }
}

fn result_block(result: ToolResult) -> Block {
    let ToolResult { tool_use_id, content, is_error } = result;
    let content = if content.is_empty() { EMPTY_OUTPUT.to_owned() } else { content };
    Block::ToolResult { tool_use_id, content, is_error }
}

fn tool_use_ids(content: &[Block]) -> Vec<&str> {
    let ids = content.iter().filter_map(|block| match block {
        Block::ToolUse { id, .. } => Some(id.as_str()),
        _ => None,
    });
    ids.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str) -> Block {
        Block::ToolUse { id: id.into(), name: "shell".into(), input: json!({}) }
    }

    fn result(id: &str) -> ToolResult {
        ToolResult { tool_use_id: id.into(), content: String::new(), is_error: false }
    }

    fn begun() -> Conversation {
        let mut conversation = Conversation::new("be brief");
        conversation.push_user("hello").unwrap();
        conversation
    }

    #[test]
    fn results_are_put_in_the_order_of_the_calls() {
        let mut conversation = begun();
        conversation.push_assistant(vec![call("a"), call("b")]).unwrap();
        conversation.push_tool_results(vec![result("b"), result("a")]).unwrap();
        let ids: Vec<_> = conversation.messages()[2]
            .content
            .iter()
            .map(|block| match block {
                Block::ToolResult { tool_use_id, content, .. } => (tool_use_id.as_str(), content.as_str()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, [("a", EMPTY_OUTPUT), ("b", EMPTY_OUTPUT)]);
    }

    #[test]
    fn a_call_without_a_result_and_a_result_without_a_call_are_refused() {
        let mut conversation = begun();
        conversation.push_assistant(vec![call("a")]).unwrap();
        assert_eq!(conversation.push_user("next"), Err(ConversationError::Unanswered("a".into())));
        assert_eq!(conversation.push_tool_results(vec![]), Err(ConversationError::Unanswered("a".into())));
        assert_eq!(
            conversation.clone().push_tool_results(vec![result("a"), result("z")]),
            Err(ConversationError::Unasked("z".into()))
        );
    }

    #[test]
    fn empty_text_is_left_out_and_roles_alternate() {
        let mut conversation = begun();
        assert_eq!(conversation.push_user("again"), Err(ConversationError::RoleRepeated(Role::User)));
        conversation.push_assistant(vec![Block::Text { text: String::new() }, call("a")]).unwrap();
        assert_eq!(conversation.messages()[1].content.len(), 1);
        assert_eq!(conversation.open_calls(), ["a"]);
    }

    #[test]
    fn after_an_interrupt_every_call_has_a_result_and_the_user_may_speak() {
        let mut in_calls = begun();
        in_calls.push_assistant(vec![call("a"), call("b")]).unwrap();
        in_calls.interrupt(vec![result("b"), result("stranger")], "").unwrap();
        let results: Vec<_> = in_calls.messages()[2].content.clone();
        assert!(
            matches!(&results[0], Block::ToolResult { content, is_error: true, .. } if content == INTERRUPTED_CALL)
        );
        assert!(matches!(&results[1], Block::ToolResult { is_error: false, .. }));
        in_calls.push_user("next").unwrap();

        let mut in_answer = begun();
        in_answer.interrupt(vec![], "half an ans").unwrap();
        let text = Block::Text { text: "half an ans\n\n[interrupted]".into() };
        assert_eq!(in_answer.messages()[1].content, [text]);
        in_answer.push_user("next").unwrap();

        let mut complete = begun();
        complete.push_assistant(vec![Block::Text { text: "done".into() }]).unwrap();
        complete.interrupt(vec![], "").unwrap();
        assert_eq!(complete.messages().len(), 2);
    }

    #[test]
    fn a_call_id_is_used_once_in_a_conversation() {
        let mut conversation = begun();
        conversation.push_assistant(vec![call("a")]).unwrap();
        conversation.push_tool_results(vec![result("a")]).unwrap();
        assert_eq!(
            conversation.push_assistant(vec![call("a")]),
            Err(ConversationError::IdReused("a".into()))
        );
    }
}
