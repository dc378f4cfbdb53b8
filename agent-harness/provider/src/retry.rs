//! Whether and when to ask again: a pure decision.
//!
//! Only failures before the answer's first byte are retried. After it the model has worked, text
//! may have been shown, and a second answer would be another one.

use std::time::Duration;

use crate::config::Limits;
use crate::error::ProviderError;

/// The pause before the next attempt, or nothing when this failure is final. `jitter` is uniform
/// in 0..1 and spreads clients that failed together over the upper half of the pause.
pub(crate) fn pause(limits: &Limits, attempt: u32, error: &ProviderError, jitter: f64) -> Option<Duration> {
    if attempt >= limits.attempts_max {
        return None;
    }
    let asked = match error {
        ProviderError::Transport(error) if error.is_permanent() => return None,
        ProviderError::Transport(_) | ProviderError::HeaderTimeout(_) => None,
        ProviderError::Status { status, retry_after, .. } => match status {
            408 | 409 | 429 | 500..=599 => *retry_after,
            _ => return None,
        },
        ProviderError::Encode(_)
        | ProviderError::IdleTimeout(_)
        | ProviderError::StreamCut
        | ProviderError::Event { .. }
        | ProviderError::Protocol(_)
        | ProviderError::TooLarge(_) => return None,
    };
    if let Some(asked) = asked {
        return (asked <= limits.backoff_max).then_some(asked);
    }
    let doubled = limits.backoff_first.saturating_mul(1 << attempt.saturating_sub(1).min(16));
    Some(doubled.min(limits.backoff_max).mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, retry_after: Option<u64>) -> ProviderError {
        let retry_after = retry_after.map(Duration::from_secs);
        ProviderError::Status { status, message: String::new(), retry_after }
    }

    #[test]
    fn the_servers_wish_is_obeyed_within_the_bound() {
        let limits = Limits::default();
        let of = |error| pause(&limits, 1, &error, 1.0);
        assert_eq!(of(status(429, Some(7))), Some(Duration::from_secs(7)));
        assert_eq!(of(status(429, Some(3600))), None);
        assert_eq!(of(status(529, None)), Some(limits.backoff_first));
        assert_eq!(of(status(400, Some(1))), None);
        assert_eq!(of(ProviderError::StreamCut), None);
    }

    #[test]
    fn pauses_double_to_a_bound_and_attempts_end() {
        let limits = Limits { attempts_max: 20, ..Limits::default() };
        let pauses: Vec<_> =
            (1..20).filter_map(|attempt| pause(&limits, attempt, &status(500, None), 0.0)).collect();
        assert_eq!(pauses.len(), 19);
        assert_eq!(pauses[0], limits.backoff_first / 2);
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(pauses[18], limits.backoff_max / 2);
        assert_eq!(pause(&limits, 20, &status(500, None), 0.0), None);
    }
}
