//! One question and its answer: attempts, timeouts, and the stream.

use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::{StreamExt, TryStreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, BodyStream, Full, Limited};
use hyper::body::Incoming;
use iteron_context::Question;
use iteron_protocol::ProviderErrorClass;
use sse_stream::SseByteStream;
use tokio::time::timeout;

use crate::api::Api;
use crate::assemble::{Answer, Assembler, Step};
use crate::config::{Limits, ProviderConfig};
use crate::error::{ErrorBody, ProviderError};
use crate::retry;
use crate::transport::{Transport, TransportError};

const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("iteron/", env!("CARGO_PKG_VERSION")));

/// An error body is read up to here; it is for a person.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;
const ERROR_MESSAGE_CHARS_MAX: usize = 500;

/// What happens on the way to an answer, in order. Every `Attempt` is followed by one `Failed` or
/// by the answer itself, unless the caller drops the future.
#[derive(Debug)]
pub enum Progress<'a> {
    Attempt {
        attempt: u32,
    },
    Text {
        text: &'a str,
    },
    /// `retry_in` is nothing when this was the last attempt.
    Failed {
        attempt: u32,
        error: &'a ProviderError,
        class: ProviderErrorClass,
        retry_in: Option<Duration>,
    },
}

/// A question, ready to be asked.
#[derive(Debug, Clone)]
pub struct Encoded(Bytes);

#[derive(Debug, Clone)]
pub struct Provider {
    config: ProviderConfig,
    transport: Transport,
}

impl Provider {
    pub fn new(config: ProviderConfig) -> Result<Self, TransportError> {
        let secure = config.url.scheme_str() == Some("https");
        let transport = Transport::new(secure, config.limits.connect_timeout)?;
        Ok(Self { config, transport })
    }

    /// The API that is spoken.
    #[must_use]
    pub const fn api(&self) -> Api {
        self.config.api
    }

    /// A question in the form of the API.
    pub fn encode(&self, question: &Question<'_>) -> Result<Encoded, ProviderError> {
        self.config.api.encode(question).map(Encoded).map_err(ProviderError::Encode)
    }

    /// Asks, and asks again within the limits. Dropping the future cancels the request.
    pub async fn ask(
        &self,
        question: &Encoded,
        mut observe: impl FnMut(Progress<'_>),
    ) -> Result<Answer, ProviderError> {
        let mut attempt = 1;
        loop {
            observe(Progress::Attempt { attempt });
            let error = match self.attempt(question.0.clone(), &mut observe).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.scrubbed(error),
            };
            let retry_in = retry::pause(&self.config.limits, attempt, &error, rand::random());
            observe(Progress::Failed { attempt, error: &error, class: error.class(), retry_in });
            let Some(pause) = retry_in else { return Err(error) };
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        body: Bytes,
        observe: &mut impl FnMut(Progress<'_>),
    ) -> Result<Answer, ProviderError> {
        let idle = self.config.limits.idle_timeout;
        let response = timeout(idle, self.transport.send(self.request(body)))
            .await
            .map_err(|_| ProviderError::HeaderTimeout(idle))?
            .map_err(ProviderError::Transport)?;
        if !response.status().is_success() {
            return Err(refused(response, idle).await);
        }
        let kind = response.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        if !kind.starts_with(b"text/event-stream") {
            return Err(ProviderError::Protocol("the content type is not text/event-stream"));
        }
        // The limit is what bounds the parser's buffer as well.
        let body = Limited::new(response.into_body(), self.config.limits.answer_bytes_max);
        let bytes = BodyStream::new(body)
            .filter_map(|frame| ready(frame.map(|frame| frame.into_data().ok()).transpose()));
        read(self.config.api, bytes, &self.config.limits, observe).await
    }

    fn scrubbed(&self, error: ProviderError) -> ProviderError {
        let key = &self.config.api_key;
        match error {
            ProviderError::Status { status, message, retry_after } => {
                ProviderError::Status { status, message: key.scrub(&message), retry_after }
            }
            ProviderError::Event { kind, message } => {
                ProviderError::Event { kind: key.scrub(&kind), message: key.scrub(&message) }
            }
            other => other,
        }
    }

    fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.config.url.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        headers.insert(http::header::USER_AGENT, USER_AGENT);
        self.config.api.authenticate(headers, &self.config.api_key);
        request
    }
}

type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Reads an answer from the bytes of its stream, however they are cut.
async fn read(
    api: Api,
    bytes: impl Stream<Item = Result<Bytes, BodyError>> + Send,
    limits: &Limits,
    observe: &mut impl FnMut(Progress<'_>),
) -> Result<Answer, ProviderError> {
    // In a box of a plain type: of the stream's own, the compiler cannot tell that it may be sent.
    let bytes: Pin<Box<dyn Stream<Item = Result<Bytes, BrokenBody>> + Send + '_>> =
        Box::pin(bytes.map_err(BrokenBody));
    let mut events = std::pin::pin!(SseByteStream::new(bytes));
    let mut assembler = Assembler::of(api);
    loop {
        let event = timeout(limits.idle_timeout, events.next())
            .await
            .map_err(|_| ProviderError::IdleTimeout(limits.idle_timeout))?
            .ok_or(ProviderError::StreamCut)?
            .map_err(|error| stream_error(&error, limits))?;
        // Comments and bare fields keep the connection alive, and say nothing.
        let Some(data) = event.data.filter(|data| !data.is_empty()) else { continue };
        match assembler.take(&data)? {
            Step::Nothing => {}
            Step::Text(text) => observe(Progress::Text { text: &text }),
            Step::Done => return Ok(assembler.finish()),
        }
    }
}

/// A body's error, as the parser wants it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct BrokenBody(BodyError);

fn stream_error(error: &sse_stream::Error, limits: &Limits) -> ProviderError {
    match error {
        sse_stream::Error::Body(error) => {
            let broken = error.downcast_ref::<BrokenBody>();
            if broken.is_some_and(|BrokenBody(error)| error.is::<http_body_util::LengthLimitError>()) {
                ProviderError::TooLarge(limits.answer_bytes_max)
            } else {
                ProviderError::StreamCut
            }
        }
        sse_stream::Error::Utf8Parse(_) => ProviderError::Protocol("the stream is not UTF-8"),
        _ => ProviderError::Protocol("the stream is not server-sent events"),
    }
}

async fn refused(response: Response<Incoming>, idle: Duration) -> ProviderError {
    let status = response.status().as_u16();
    let retry_after = retry_after(response.headers());
    let body = Limited::new(response.into_body(), ERROR_BODY_BYTES_MAX).collect();
    let body = match timeout(idle, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        // The status says enough.
        _ => Bytes::new(),
    };
    let message = match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(ErrorBody { error }) => error.told(),
        Err(_) => String::from_utf8_lossy(&body).into_owned(),
    };
    let message = message.chars().take(ERROR_MESSAGE_CHARS_MAX).collect();
    ProviderError::Status { status, message, retry_after }
}

/// Seconds; the date form (RFC 9110, section 10.2.3) falls back to our own pauses.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests;
