//! An event line, as a gateway reads it: `activity_schema::event` and admission.

use activity_schema::admit::admit;
use activity_schema::event::{EVENT_BYTES_MAX, Event, ParseError};

use crate::fixture;

pub fn run(data: &[u8]) {
    // The reader for the usual form must agree with the general one, in what it takes and in what it reads.
    let general = serde_json::from_slice::<Event<'_>>(data);
    let event = match Event::parse(data) {
        Ok(event) => event,
        Err(ParseError::TooLong { bytes }) => return assert!(bytes == data.len() && bytes > EVENT_BYTES_MAX),
        Err(ParseError::Pattern { .. }) => return assert!(general.is_ok(), "only a pattern is wrong"),
        Err(ParseError::Json(_)) => return assert!(general.is_err(), "the general reader takes it"),
    };
    assert_eq!(general.as_ref().ok(), Some(&event), "the readers differ");
    let line = event.to_line();
    assert!(!line.contains(&b'\n'), "a line is one line");
    if line.len() <= EVENT_BYTES_MAX {
        let again = Event::parse(&line).expect("what is written is read");
        assert_eq!(again.to_line(), line, "canonical form is a fixpoint");
        assert_eq!(admit(&again).err(), admit(&event).err(), "admission does not depend on the form");
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    fixture::lines().map(|line| line.as_bytes().to_vec()).collect()
}
