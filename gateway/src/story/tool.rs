//! What the agent says it did: sessions, tool calls, requests to models.

use activity_schema::Event;

use super::leaf::{marks, span_ns};
use super::units;
use super::{Node, Tone};

pub(super) fn session(id: &str, own: &[&Event<'_>]) -> Node {
    let mut details = vec![];
    let client = last_text(own, "client");
    let version = last_text(own, "client_version");
    if let Some(client) = client {
        details.push(version.map_or_else(|| client.to_owned(), |v| format!("{client} {v}")));
    }
    details.extend(last_text(own, "backend").map(str::to_owned));
    details.extend(last_text(own, "profile").map(|p| format!("profile {p}")));
    let started = own.iter().any(|e| e.event_name == "session.started");
    let ended = own.iter().find(|e| e.event_name == "session.ended");
    match ended {
        Some(event) => {
            details.extend(span_ns(&moments(own)).filter(|_| started).map(units::duration_ns));
            let reason = event.payload.text("reason").map(|r| format!(": {r}")).unwrap_or_default();
            details.push(format!("ended{reason}"));
        }
        None if started => details.push("no end seen".to_owned()),
        None => details.push("its start is not in this answer".to_owned()),
    }
    Node {
        at: None,
        concurrent: false,
        title: format!("session {id}"),
        details,
        marks: marks(own),
        tone: Tone::Heading,
        children: Vec::new(),
    }
}

pub(super) fn tool(id: &str, own: &[&Event<'_>]) -> Node {
    let name = own.iter().find_map(|e| e.payload.text("tool_name"));
    let ending = own.iter().rev().find_map(|e| {
        let (_, word) = e.event_name.rsplit_once('.')?;
        let ends = matches!(word, "completed" | "failed" | "denied" | "cancelled");
        (ends && e.event_name.starts_with("agent.tool.")).then_some((*e, word.to_owned()))
    });
    let mut details = vec![id.to_owned()];
    let mut tone = Tone::Heading;
    match &ending {
        Some((event, word)) => {
            let declared = event.payload.integer("duration_ms").map(units::duration_ms);
            let measured = || span_ns(&moments(own)).map(units::duration_ns);
            if word != "denied" {
                details.extend(declared.or_else(measured));
            }
            let code = event.payload.integer("exit_code");
            let code = code.or_else(|| event.outcome.as_ref().and_then(|o| o.exit_code));
            let code = code.filter(|c| *c != 0 || word != "completed");
            let code = code.map(|c| format!(", exit {c}")).unwrap_or_default();
            details.push(format!("{word}{code}"));
            details.extend(event.outcome.as_ref().and_then(|o| o.reason.as_deref()).map(str::to_owned));
            if word != "completed" {
                tone = Tone::Bad;
            }
        }
        None if moments(own).is_empty() => {
            details.push("not declared by the agent in this answer".to_owned())
        }
        None => details.push("no end seen".to_owned()),
    }
    details.extend(last_text(own, "claim").map(|c| format!("claims {c}")));
    details.extend(last_text(own, "decision").map(|d| format!("decision {d}")));
    Node {
        at: None,
        concurrent: false,
        title: format!("tool {}", name.unwrap_or("call")),
        details,
        marks: marks(own),
        tone,
        children: Vec::new(),
    }
}

pub(super) fn model(own: &[&Event<'_>]) -> Node {
    let name = last_text(own, "model").unwrap_or("unknown");
    let mut details = Vec::new();
    let number = |key: &str| own.iter().rev().find_map(|e| e.payload.integer(key));
    let tokens = |key: &str| number(key).and_then(|n| u64::try_from(n).ok()).map(units::count);
    if let (Some(input), Some(output)) = (tokens("input_tokens"), tokens("output_tokens")) {
        details.push(format!("{input} tokens in, {output} out"));
    }
    details.extend(tokens("cache_read_tokens").filter(|n| n != "0").map(|n| format!("{n} from cache")));
    let answered = own.iter().rev().find(|e| e.event_name != "agent.model.requested");
    let failed = answered.is_some_and(|e| e.event_name == "agent.model.failed");
    details.extend(number("duration_ms").map(units::duration_ms));
    details.extend(number("attempt").filter(|n| *n > 1).map(|n| format!("attempt {n}")));
    match answered {
        Some(_) if failed => {
            let class = last_text(own, "error_class").map(|c| format!(": {c}")).unwrap_or_default();
            details.push(format!("failed{class}"));
        }
        Some(_) => {}
        None => details.push("no answer seen".to_owned()),
    }
    Node {
        at: None,
        concurrent: false,
        title: format!("model {name}"),
        details,
        marks: marks(own),
        tone: if failed { Tone::Bad } else { Tone::Plain },
        children: Vec::new(),
    }
}

/// Events that are moments of the thing itself, without the scopes that join it.
fn moments<'a, 'e>(own: &[&'a Event<'e>]) -> Vec<&'a Event<'e>> {
    own.iter().filter(|e| !e.event_name.starts_with("agent.scope.")).copied().collect()
}

fn last_text<'a>(own: &'a [&Event<'_>], key: &str) -> Option<&'a str> {
    own.iter().rev().find_map(|e| e.payload.text(key)).filter(|t| !t.is_empty())
}
