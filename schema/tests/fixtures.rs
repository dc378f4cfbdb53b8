//! `fixtures/events.jsonl` holds one example of every event name.

use activity_schema::Event;
use activity_schema::admit::{Refusal, admit};
use activity_schema::catalog::{self, State};

const EXAMPLES: &str = include_str!("../../fixtures/events.jsonl");

#[test]
fn every_event_name_has_one_example_that_says_what_the_catalogue_says() {
    let mut names = Vec::new();
    for line in EXAMPLES.lines() {
        let event = Event::parse(line.as_bytes()).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(String::from_utf8(event.to_line()).unwrap(), line, "examples are canonical");
        let row =
            catalog::row(&event.event_name).unwrap_or_else(|| panic!("{} is not listed", event.event_name));
        match row.state {
            State::Reserved => assert_eq!(admit(&event).unwrap_err(), Refusal::Reserved, "{}", row.name),
            State::Active | State::Deprecated => {
                admit(&event).unwrap_or_else(|e| panic!("{}: {e}", row.name));
            }
        }
        let shown: Vec<&str> = event.payload.iter().map(|(k, _)| k).collect();
        for field in row.fields() {
            assert!(shown.contains(&field.name), "{}: the example lacks {}", row.name, field.name);
        }
        names.push(row.name);
    }
    let listed: Vec<&str> = catalog::EVENTS.iter().map(|r| r.name).collect();
    assert_eq!(names, listed);
}

#[test]
fn what_an_example_may_not_carry_is_refused() {
    let line = EXAMPLES.lines().find(|l| l.contains("\"process.exec\"")).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(line.contains(from), "{from}");
        let changed = line.replacen(from, to, 1);
        admit(&Event::parse(changed.as_bytes()).unwrap()).unwrap_err()
    };
    assert_eq!(refused("\"argc\":", "\"argv\":"), Refusal::PayloadKey("argv".to_owned()));
    assert_eq!(refused("\"argc\":", "\"argc\":\"x\",\"argv_bytes_\":"), Refusal::PayloadValue("argc"));
    assert_eq!(refused("\"trust\":\"observed\"", "\"trust\":\"self-reported\""), Refusal::Trust);
    assert_eq!(refused("\"layer\":\"guest\"", "\"layer\":\"provider\""), Refusal::Layer);
    assert_eq!(refused("\"plane\":\"action\"", "\"plane\":\"session\""), Refusal::Plane);
    assert_eq!(
        refused("\"sensitivity\":\"metadata\"", "\"sensitivity\":\"restricted-content\""),
        Refusal::Sensitivity
    );
    assert_eq!(
        refused("\"retention_class\":\"security\"", "\"retention_class\":\"standard\""),
        Refusal::Retention
    );
    assert_eq!(refused(",\"process_id\":\"", ",\"command_id\":\""), Refusal::Correlation("process_id"));
}

/// 512 bytes, wherever a text stands outside the payload.
#[test]
fn texts_outside_the_payload_are_bounded() {
    let line = EXAMPLES.lines().find(|l| l.contains("\"process.exec\"")).unwrap();
    let set: [fn(&mut Event<'_>, String); 5] = [
        |e, text| e.correlation.session_id = Some(text.into()),
        |e, text| e.correlation.instance_id = text.into(),
        |e, text| e.actor.as_mut().unwrap().id = text.into(),
        |e, text| e.actor.as_mut().unwrap().kind = text.into(),
        |e, text| e.outcome.as_mut().unwrap().reason = Some(text.into()),
    ];
    for (n, set) in set.iter().enumerate() {
        let admitted = |bytes| {
            let mut event = Event::parse(line.as_bytes()).unwrap();
            set(&mut event, "x".repeat(bytes));
            admit(&event).is_ok()
        };
        assert!(admitted(512) && !admitted(513), "text {n}");
    }
}
