//! One figure and how it is shown.

use std::fmt;

use serde::Serialize;

/// What a figure is held against.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    pub name: &'static str,
    pub value: f64,
}

impl Peer {
    /// The project's own bound, where nothing was measured beside.
    pub const fn budget(value: f64) -> Option<Self> {
        Some(Peer { name: "budget", value })
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub name: &'static str,
    /// `None` when it was skipped.
    pub value: Option<f64>,
    pub unit: &'static str,
    pub peer: Option<&'static str>,
    pub peer_value: Option<f64>,
    /// Value to peer.
    pub ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// What one must know to read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Figure {
    pub fn new(name: &'static str, value: f64, unit: &'static str, peer: Option<Peer>) -> Self {
        Figure {
            name,
            value: Some(value),
            unit,
            peer: peer.map(|p| p.name),
            peer_value: peer.map(|p| p.value),
            ratio: peer.filter(|p| p.value != 0.0).map(|p| value / p.value),
            skipped: None,
            note: None,
        }
    }

    pub fn skipped(name: &'static str, reason: &str) -> Self {
        Figure {
            name,
            value: None,
            unit: "",
            peer: None,
            peer_value: None,
            ratio: None,
            skipped: Some(reason.to_owned()),
            note: None,
        }
    }

    #[must_use]
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<34}", self.name)?;
        if let Some(reason) = &self.skipped {
            return write!(f, "  skipped: {reason}");
        }
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        write!(
            f,
            "  {:>12} {:<22} {:<13} {:>12}  {:>8}",
            number(self.value),
            self.unit,
            self.peer.unwrap_or("-"),
            number(self.peer_value),
            number(self.ratio),
        )
    }
}

/// Four significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
