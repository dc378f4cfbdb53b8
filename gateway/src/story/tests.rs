//! Golden stories. The drawing is compared byte for byte; `UPDATE_GOLDEN=1` writes what is drawn now.

mod cases;
mod make;

use std::path::PathBuf;

use super::{Style, render, tell};
use activity_schema::Event;
use activity_schema::coverage::CoverageReport;

fn check(name: &str, lines: &[String], coverage: CoverageReport, style: Style) {
    let events: Vec<Event<'_>> =
        lines.iter().map(|l| Event::parse(l.as_bytes()).unwrap_or_else(|e| panic!("{e}: {l}"))).collect();
    for event in &events {
        let row = activity_schema::catalog::row(&event.event_name).unwrap();
        for (key, value) in event.payload.iter() {
            assert!(row.field(key).is_some_and(|f| f.kind.admits(value)), "{}: {key}", event.event_name);
        }
    }
    let drawn = render(&tell(&events, coverage), style);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &drawn).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(drawn == expected, "{name} differs from {}:\n{drawn}", path.display());
}
