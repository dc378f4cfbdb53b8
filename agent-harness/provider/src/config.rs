//! Where the model is, and every bound on talking to it.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::Uri;
use http::header::{HeaderValue, InvalidHeaderValue};

use crate::api::Api;

/// A secret: shown by neither `Debug` nor a log line.
#[derive(Clone)]
pub struct ApiKey {
    key: String,
    header: HeaderValue,
    bearer: HeaderValue,
}

impl ApiKey {
    pub fn new(key: &str) -> Result<Self, InvalidHeaderValue> {
        let sensitive = |text: &str| {
            let mut value = HeaderValue::from_str(text)?;
            value.set_sensitive(true);
            Ok(value)
        };
        Ok(Self {
            key: key.to_owned(),
            header: sensitive(key)?,
            bearer: sensitive(&format!("Bearer {key}"))?,
        })
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    pub(crate) fn bearer(&self) -> HeaderValue {
        self.bearer.clone()
    }

    /// What a peer said, without the key: it knows it, and errors go into records.
    pub(crate) fn scrub(&self, text: &str) -> String {
        if self.key.is_empty() { text.to_owned() } else { text.replace(&self.key, "(key)") }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKey(hidden)")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BaseUrlError {
    #[error("the base URL is not a URL")]
    Parse(#[from] http::uri::InvalidUri),
    #[error("the base URL must begin with https://, or with http:// and a loopback address")]
    Scheme,
    #[error("the base URL sends the key in clear to {host}: http:// is only for loopback; use https://")]
    ClearText { host: String },
    #[error("the base URL must not have a query")]
    Query,
}

#[derive(Debug, Clone)]
pub struct ProviderConfig {
    pub(crate) api: Api,
    pub(crate) url: Uri,
    pub(crate) api_key: ApiKey,
    pub(crate) limits: Limits,
}

/// Every bound, with the reason for its default.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// TCP and TLS: longer than any healthy handshake, shorter than a person's patience.
    pub connect_timeout: Duration,
    /// Longest silence before and within an answer. The API pings, so silence means a dead stream.
    pub idle_timeout: Duration,
    /// Attempts for one answer, the first included.
    pub attempts_max: u32,
    /// First pause between attempts; it doubles.
    pub backoff_first: Duration,
    /// Longest pause, also the longest `Retry-After` obeyed: a server that wants more gets a
    /// failed session now instead of one that hangs.
    pub backoff_max: Duration,
    /// Whole answer on the wire: far above the largest real one.
    pub answer_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
            attempts_max: 4,
            backoff_first: Duration::from_millis(500),
            backoff_max: Duration::from_secs(30),
            answer_bytes_max: 64 * 1024 * 1024,
        }
    }
}

impl ProviderConfig {
    /// `base_url` as in `ANTHROPIC_BASE_URL`, for example `https://api.anthropic.com`, or as in
    /// `OPENAI_BASE_URL`, for example `https://api.openai.com/v1`.
    pub fn new(api: Api, base_url: &str, api_key: ApiKey, limits: Limits) -> Result<Self, BaseUrlError> {
        let base: Uri = base_url.parse()?;
        let host = base.host().ok_or(BaseUrlError::Scheme)?;
        match base.scheme_str() {
            Some("https") => {}
            Some("http") if is_loopback(host) => {}
            Some("http") => return Err(BaseUrlError::ClearText { host: host.to_owned() }),
            _ => return Err(BaseUrlError::Scheme),
        }
        if base.query().is_some() {
            return Err(BaseUrlError::Query);
        }
        let url = format!("{}{}", base_url.trim_end_matches('/'), api.path()).parse()?;
        Ok(Self { api, url, api_key, limits })
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(base: &str) -> Result<String, String> {
        let key = ApiKey::new("k").unwrap();
        ProviderConfig::new(Api::Messages, base, key, Limits::default())
            .map(|config| config.url.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_never_leaves_in_clear_text() {
        assert_eq!(url("https://api.example.com/").unwrap(), "https://api.example.com/v1/messages");
        assert_eq!(url("http://127.0.0.1:8080").unwrap(), "http://127.0.0.1:8080/v1/messages");
        assert_eq!(url("http://[::1]:1/proxy").unwrap(), "http://[::1]:1/proxy/v1/messages");
        for bad in
            ["http://api.example.com", "http://127.0.0.1.evil.example", "http://10.0.0.1", "ftp://x", "x"]
        {
            assert!(url(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn the_key_is_not_in_debug_output() {
        let key = ApiKey::new("sk-very-secret").unwrap();
        let config = ProviderConfig::new(Api::Chat, "https://a.example/v1", key, Limits::default()).unwrap();
        let (header, bearer) = (config.api_key.header(), config.api_key.bearer());
        assert!(!format!("{config:?} {header:?} {bearer:?}").contains("secret"));
        assert_eq!(config.url.to_string(), "https://a.example/v1/chat/completions");
        assert_eq!(config.api_key.scrub("no sk-very-secret, sk-very"), "no (key), sk-very");
    }
}
