//! An event as one line, for lists and for following.

use activity_schema::Event;

use super::render::draw_line;
use super::{Style, flow, leaf, process, tool};

/// One line with its newline: time, name, what is known, trust and join.
pub fn flat_line(event: &Event<'_>, style: Style) -> String {
    let own = [event];
    let correlation = &event.correlation;
    let id = |text: &Option<activity_schema::Text<'_>>| text.as_deref().unwrap_or_default().to_owned();
    let mut node = match event.event_name.as_str() {
        "session.started" | "session.ended" => tool::session(&id(&correlation.session_id), &own),
        "process.started" | "process.exec" | "process.exited" => {
            let mut node = process::process(&id(&correlation.process_id), None, &own);
            node.details.retain(|d| d != "no exit seen");
            node
        }
        "network.flow" | "network.flow.started" | "network.flow.closed" => flow::flow(&own),
        name if name.starts_with("agent.model.") => tool::model(&own),
        name if name.starts_with("agent.tool.") => {
            let mut node = tool::tool(&id(&correlation.tool_call_id), &own);
            node.details.retain(|d| d != "no end seen");
            node
        }
        _ => leaf::leaf(&own),
    };
    let name = event.event_name.as_str();
    if node.title != name {
        node.title = format!("{name}  {}", node.title);
    }
    node.at = Some(event.occurred_at);
    draw_line(&node, style)
}
