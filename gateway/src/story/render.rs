//! The tree as lines of text: time, branches, what happened, and at the right how far it can be believed.

use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::{Judgement, Node, Story, Tone, coverage_summary, escape, judge, units};

/// Column that marks are aligned to when no width is given.
const MARKS_END_DEFAULT: usize = 110;
/// Narrowest body; below this, lines grow beyond the width rather than say nothing.
const BODY_COLUMNS_MIN: usize = 24;

/// Terminals narrower than this get short marks.
const FULL_MARKS_COLUMNS_MIN: usize = 120;

/// How to draw.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Columns to fit into; `None` never cuts.
    pub width: Option<usize>,
    pub colour: bool,
}

/// The whole story, coverage first and last. Every line ends with a newline.
pub fn render(story: &Story, style: Style) -> String {
    let mut out = String::new();
    let coverage = coverage_line(story, style);
    out.push_str(&coverage);
    let mut drawing = Drawing { style, dated: spans_days(story), out };
    for instance in &story.instances {
        drawing.out.push('\n');
        drawing.line("", instance);
        drawing.children("", &instance.children, true);
    }
    let mut out = drawing.out;
    if story.instances.is_empty() {
        out.push_str("\nno events\n");
    }
    out.push('\n');
    out.push_str(&coverage);
    out
}

/// One node by itself, with its date.
pub(super) fn draw_line(node: &Node, style: Style) -> String {
    let mut drawing = Drawing { style, dated: true, out: String::new() };
    drawing.line("", node);
    drawing.out
}

/// `text` in a colour, when the style has colours.
pub fn paint(text: &str, sgr: &str, style: Style) -> String {
    if style.colour && !text.is_empty() { format!("\x1b[{sgr}m{text}\x1b[0m") } else { text.to_owned() }
}

fn coverage_line(story: &Story, style: Style) -> String {
    let summary = coverage_summary(&story.coverage);
    let (word, rest) = summary.split_once("  ").unwrap_or((&summary, ""));
    let sgr = if judge(&story.coverage) == Judgement::Complete { "1;32" } else { "1;31" };
    format!("{}  {}  {}\n", paint("coverage", "1", style), paint(word, sgr, style), escape(rest))
}

struct Drawing {
    style: Style,
    /// Times carry the date: the story spans several days.
    dated: bool,
    out: String,
}

impl Drawing {
    /// `branch` is what stands before the children; the first level below an instance has no branches.
    fn children(&mut self, branch: &str, children: &[Node], top: bool) {
        for (i, child) in children.iter().enumerate() {
            let last = i + 1 == children.len();
            let (own, below) = match (top, last) {
                (true, _) => ("", ""),
                (false, false) => ("├─ ", "│  "),
                (false, true) => ("└─ ", "   "),
            };
            self.line(&format!("{branch}{own}"), child);
            self.children(&format!("{branch}{below}"), &child.children, false);
        }
    }

    fn line(&mut self, branch: &str, node: &Node) {
        let time = self.time(node);
        let marks = self.marks(node);
        let left = time.width() + branch.width();
        let reserved = if marks.is_empty() { 0 } else { marks.width() + 2 };
        let mut body = body(node);
        if let Some(width) = self.style.width {
            let room = width.saturating_sub(left + reserved).max(BODY_COLUMNS_MIN);
            body = cut(&body, room);
        }
        let filled = left + body.width();
        let _ = write!(
            self.out,
            "{}{}{}",
            paint(&time, "2", self.style),
            paint(branch, "2", self.style),
            self.paint_body(&body, node)
        );
        if !marks.is_empty() {
            let end = self.style.width.unwrap_or(MARKS_END_DEFAULT);
            let gap = end.saturating_sub(filled + marks.width()).max(2);
            let _ = write!(self.out, "{:gap$}{}", "", paint(&marks, "2", self.style));
        }
        self.out.push('\n');
    }

    /// In a narrow terminal the marks are shortened before anything of the body is cut.
    fn marks(&self, node: &Node) -> String {
        let narrow = self.style.width.is_some_and(|w| w < FULL_MARKS_COLUMNS_MIN);
        let shown = node.marks.iter().map(|m| if narrow { short(m) } else { m });
        shown.collect::<Vec<_>>().join(if narrow { "·" } else { " · " })
    }

    fn paint_body(&self, body: &str, node: &Node) -> String {
        match node.tone {
            Tone::Plain => body.to_owned(),
            Tone::Bad => paint(body, "31", self.style),
            Tone::Gap => paint(body, "33", self.style),
            Tone::Heading => {
                let at = body.find(" · ").unwrap_or(body.len());
                format!("{}{}", paint(&body[..at], "1", self.style), &body[at..])
            }
        }
    }

    /// `~12:00:02.140  `: the mark says that the order against a neighbour is not known.
    fn time(&self, node: &Node) -> String {
        let Some(at) = node.at else { return String::new() };
        let mark = if node.concurrent { '~' } else { ' ' };
        if self.dated {
            let date: String = units::date(at).chars().skip(5).collect();
            return format!("{mark}{date} {}  ", units::clock_time(at));
        }
        format!("{mark}{}  ", units::clock_time(at))
    }
}

fn short(mark: &str) -> &str {
    match mark {
        "observed" => "obs",
        "attested" => "att",
        "self-reported" => "self",
        "derived" => "der",
        "registered" => "reg",
        "inherited" => "inh",
        "inferred" => "inf",
        "no join" => "none",
        other => other,
    }
}

/// Title and details, safe to show.
fn body(node: &Node) -> String {
    let mut body = escape(&node.title).into_owned();
    for detail in &node.details {
        body.push_str(" · ");
        body.push_str(&escape(detail));
    }
    body
}

/// At most `columns`, with an ellipsis where something was cut.
fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let width = c.width().unwrap_or(0);
        if used + width + 1 > columns {
            break;
        }
        used += width;
        out.push(c);
    }
    out.push('…');
    out
}

fn spans_days(story: &Story) -> bool {
    fn collect(nodes: &[Node], days: &mut std::collections::BTreeSet<String>) {
        for node in nodes {
            days.extend(node.at.map(units::date));
            collect(&node.children, days);
        }
    }
    let mut days = std::collections::BTreeSet::new();
    collect(&story.instances, &mut days);
    days.len() > 1
}
