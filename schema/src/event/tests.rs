use super::*;

const LINE: &str = r#"{"schema_version":"activity.event/v1","event_id":"01980000-0000-7000-8000-000000000002","event_name":"process.exec","plane":"action","occurred_at":"2026-08-01T12:00:00.000000001Z","observed_at":"2026-08-01T12:00:01Z","source":{"collector":"c/e/critical","layer":"guest","runtime":"docker","trust":"observed","clock_id":"boot:1","clock_error_ms":0.5},"correlation":{"tenant_id":"t","host_id":"h","instance_id":"i","agent_id":"a","process_id":"p"},"actor":{"type":"process","id":"p","uid":0,"pid":12},"outcome":{"status":"success"},"sensitivity":"metadata","retention_class":"security","payload":{"executable":"bash","argc":3},"integrity":{"collector_sequence":7}}"#;

#[test]
fn the_canonical_line_is_written_as_it_was_read() {
    let event = Event::parse(LINE.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(event.to_line()).unwrap(), LINE);
}

fn refused(from: &str, to: &str) -> String {
    assert!(LINE.contains(from), "{from}");
    Event::parse(LINE.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
}

#[test]
fn bad_input_is_refused_with_the_name_of_the_key() {
    assert!(refused(r#""actor":"#, r#""actress":"#).contains("actress"));
    assert!(refused(r#""layer":"guest","#, r#""layer":"guest","layer":"guest","#).contains("layer"));
    assert!(refused(r#""argc":3"#, r#""argc":3,"argc":3"#).contains("argc"));
    assert!(refused(r#""tenant_id":"t""#, r#""tenant_id":"""#).contains("tenant_id"));
    assert!(refused(r#""collector_sequence":7"#, r#""collector_sequence":0"#).contains("collector_sequence"));
    assert!(refused(r#""collector_sequence":7"#, r#""collector_sequence":-7"#).contains("integer"));
    assert!(refused(r#""process_id":"p""#, r#""process_id":null"#).contains("null"));
    assert!(refused(r#""process_id":"p""#, r#""trace_id":"ABC""#).contains("trace_id"));
    assert!(refused("process.exec", "Process.exec").contains("event_name"));
    assert!(refused("activity.event/v1", "activity.event/v2").contains("activity.event/v2"));
    assert!(refused("2026-08-01T12:00:01Z", "yesterday").contains("RFC 3339"));
    assert!(
        refused("01980000-0000-7000-8000-000000000002", "{01980000000070008000000000000002}")
            .contains("UUID")
    );
    assert!(refused(r#""clock_error_ms":0.5"#, r#""clock_error_ms":-1"#).contains("number from 0"));
}

#[test]
fn what_json_schema_calls_an_integer_is_one() {
    let line = LINE.replace(r#""collector_sequence":7"#, r#""collector_sequence":7.0"#);
    assert_eq!(Event::parse(line.as_bytes()).unwrap().integrity.collector_sequence, 7);
}

#[test]
fn a_line_over_the_bound_is_refused_before_it_is_read() {
    let long = vec![b' '; EVENT_BYTES_MAX + 1];
    assert!(matches!(Event::parse(&long), Err(ParseError::TooLong { .. })));
}

#[test]
fn parsing_borrows_from_the_line() {
    let event = Event::parse(LINE.as_bytes()).unwrap();
    let within = |t: &Text<'_>| LINE.as_bytes().as_ptr_range().contains(&t.as_ptr());
    assert!(within(&event.event_name));
    assert!(within(event.correlation.process_id.as_ref().unwrap()));
}
