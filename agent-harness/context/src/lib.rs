//! What the model is shown: the conversation, and its form in each API. It is kept in blocks as those of
//! the Anthropic Messages API, which is the strictest; the other forms follow from them.
//!
//! Pure data and checks; used by the provider and the runtime, and depends on no other harness
//! crate. Rules of the API that a conversation keeps by construction: roles alternate beginning
//! with the user, every `tool_use` is answered by exactly one `tool_result` in the next user
//! message, and no text block is empty.

mod conversation;
mod request;

pub use conversation::{Block, Conversation, ConversationError, Message, Role, ToolResult};
pub use request::{ChatRequest, MessagesRequest, Question, ResponsesRequest, ToolSpec};
