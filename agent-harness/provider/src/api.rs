//! The APIs that are spoken, and what tells them apart on the way out.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue};
use iteron_context::Question;

use crate::config::ApiKey;

const MESSAGES_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Api {
    /// Anthropic Messages.
    Messages,
    /// OpenAI Responses.
    Responses,
    /// Chat completions of OpenAI, and of what is compatible.
    Chat,
}

impl Api {
    pub const ALL: [Self; 3] = [Self::Messages, Self::Responses, Self::Chat];

    /// The `provider` of events.
    #[must_use]
    pub const fn provider(self) -> &'static str {
        match self {
            Self::Messages => "anthropic",
            Self::Responses => "openai",
            Self::Chat => "openai-chat",
        }
    }

    /// Below the base URL, which has the version for OpenAI's, as its variable has by convention.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Messages => "/v1/messages",
            Self::Responses => "/responses",
            Self::Chat => "/chat/completions",
        }
    }

    pub(crate) fn authenticate(self, headers: &mut HeaderMap, key: &ApiKey) {
        match self {
            Self::Messages => {
                headers.insert("anthropic-version", MESSAGES_VERSION);
                headers.insert("x-api-key", key.header());
            }
            Self::Responses | Self::Chat => {
                headers.insert(AUTHORIZATION, key.bearer());
            }
        }
    }

    pub(crate) fn encode(self, question: &Question<'_>) -> Result<Bytes, serde_json::Error> {
        let body = match self {
            Self::Messages => serde_json::to_vec(&question.messages())?,
            Self::Responses => serde_json::to_vec(&question.responses())?,
            Self::Chat => serde_json::to_vec(&question.chat())?,
        };
        Ok(body.into())
    }
}
