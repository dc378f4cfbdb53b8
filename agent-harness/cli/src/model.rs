//! Which model is asked, where it is, and with what key.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use iteron_provider::{Api, ApiKey, BaseUrlError, Limits, Provider, ProviderConfig, TransportError};

/// Longest key file, in bytes.
const KEY_BYTES_MAX: u64 = 4096;

/// Variables that commands must not see.
pub const KEY_VARIABLES: [&str; 2] = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"];

#[derive(Debug, Args)]
pub struct ModelArguments {
    /// The API to speak
    #[arg(long, value_name = "API", env = "ITERON_PROVIDER", default_value = "anthropic")]
    pub provider: Speaks,

    /// The model to ask [default: claude-sonnet-4-5 for anthropic]
    #[arg(long, value_name = "M", env = "ITERON_MODEL")]
    pub model: Option<String>,

    /// Read the model's key from this file, which only its owner may read
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Most tokens in one answer
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,

    /// Longest silence of the model, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub model_idle_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Speaks {
    /// Anthropic Messages
    Anthropic,
    /// OpenAI Responses
    Openai,
    /// Chat completions, of OpenAI or what is compatible
    OpenaiChat,
}

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("say which model to ask: --model")]
    NoModel,
    #[error("set {0} to the model's key, or use --api-key-file")]
    NoKey(&'static str),
    #[error("what is given as the model's key is not usable as one")]
    BadKey,
    #[error("cannot read the key file {path}")]
    KeyFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("others than its owner may use the key file {0}: chmod 600")]
    OpenKeyFile(PathBuf),
    #[error("{0} is not usable")]
    BaseUrl(&'static str, #[source] BaseUrlError),
    #[error("cannot set up the connection to the model")]
    Transport(#[from] TransportError),
}

impl Speaks {
    const fn api(self) -> Api {
        match self {
            Self::Anthropic => Api::Messages,
            Self::Openai => Api::Responses,
            Self::OpenaiChat => Api::Chat,
        }
    }

    /// The variables of key and address, and the address by default.
    const fn variables(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Anthropic => (KEY_VARIABLES[0], "ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
            Self::Openai | Self::OpenaiChat => {
                (KEY_VARIABLES[1], "OPENAI_BASE_URL", "https://api.openai.com/v1")
            }
        }
    }
}

impl ModelArguments {
    /// The model's name, and the way to it.
    pub fn provider(&self) -> Result<(String, Provider), ModelError> {
        let (key_variable, url_variable, url_default) = self.provider.variables();
        let model = match (&self.model, self.provider) {
            (Some(model), _) if !model.is_empty() => model.clone(),
            (_, Speaks::Anthropic) => "claude-sonnet-4-5".to_owned(),
            _ => return Err(ModelError::NoModel),
        };
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let key = match &self.api_key_file {
            Some(path) => read_key(path)?,
            None => variable(key_variable).ok_or(ModelError::NoKey(key_variable))?,
        };
        let key = ApiKey::new(&key).map_err(|_| ModelError::BadKey)?;
        let base = variable(url_variable);
        let limits = Limits { idle_timeout: self.model_idle_timeout, ..Limits::default() };
        let base = base.as_deref().unwrap_or(url_default);
        let config = ProviderConfig::new(self.provider.api(), base, key, limits)
            .map_err(|error| ModelError::BaseUrl(url_variable, error))?;
        Ok((model, Provider::new(config)?))
    }
}

fn read_key(path: &Path) -> Result<String, ModelError> {
    let failed = |source| ModelError::KeyFile { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
        return Err(ModelError::OpenKeyFile(path.to_owned()));
    }
    let mut key = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut key).map_err(failed)?;
    let key = key.trim().to_owned();
    if key.is_empty() { Err(ModelError::BadKey) } else { Ok(key) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("give a number of seconds above 0".to_owned()),
    }
}
