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
    let is_too_long = |n| matches!(Event::parse(&vec![b' '; n]), Err(ParseError::TooLong { .. }));
    assert!(!is_too_long(65_536) && is_too_long(65_537));
}

#[test]
fn parsing_borrows_from_the_line() {
    let event = Event::parse(LINE.as_bytes()).unwrap();
    let within = |t: &Text<'_>| LINE.as_bytes().as_ptr_range().contains(&t.as_ptr());
    assert!(within(&event.event_name));
    assert!(within(event.correlation.process_id.as_ref().unwrap()));
}

/// The general reader alone.
fn slow(line: &str) -> Result<Event<'_>, ParseError> {
    Event::check(serde_json::from_str(line)?)
}

fn same_either_way(line: &str) {
    match (Event::parse_str(line), slow(line)) {
        (Ok(fast), Ok(slow)) => {
            assert_eq!(fast, slow, "{line}");
            assert_eq!(fast.to_line(), slow.to_line(), "{line}");
            assert_eq!(fast.to_line(), serde_json::to_vec(&slow).unwrap(), "{line}");
        }
        (Err(fast), Err(slow)) => assert_eq!(fast.to_string(), slow.to_string(), "{line}"),
        (fast, slow) => panic!("{line}: {fast:?}, {slow:?}"),
    }
}

const EVERYTHING: &str = r#"{"schema_version":"activity.event/v1","event_id":"01980000-0000-7000-8000-00000000008c","event_name":"process.exec","plane":"action","occurred_at":"2026-08-01T12:00:00.000124001Z","observed_at":"2026-08-01T12:00:01Z","source":{"collector":"c/e/critical","layer":"guest","runtime":"docker","trust":"observed","clock_id":"boot:1","clock_error_ms":16.25},"correlation":{"tenant_id":"t","host_id":"h","instance_id":"i","agent_id":"a","session_id":"s","mission_id":"m","task_id":"k","tool_call_id":"c","command_id":"d","process_id":"p","parent_event_id":"01980000-0000-7000-8000-000000000001","trace_id":"0123456789abcdef0123456789abcdef","span_id":"0123456789abcdef"},"actor":{"type":"process","id":"p","uid":1000,"gid":1000,"pid":901},"target":{"type":"file","id":"q"},"outcome":{"status":"failure","exit_code":-7,"reason":"no"},"sensitivity":"metadata","retention_class":"security","payload":{"executable":"bäsh","n":0,"big":18446744073709551615,"huge":9999999999999999999,"neg":-9223372036854775808,"yes":true,"no":false,"flags":["a","b",3,true],"none":[],"float":1.5,"deep":[{"a":1}],"nil":null},"integrity":{"collector_sequence":32,"key_id":"0123"}}"#;

#[test]
fn the_usual_form_is_read_without_the_general_reader() {
    for line in [
        LINE,
        &EVERYTHING
            .replace(r#","float":1.5,"deep":[{"a":1}],"nil":null"#, "")
            .replace("-9223372036854775808", "-9"),
    ] {
        assert!(fast::parse(&line.replace("18446744073709551615", "1")).is_some(), "{line}");
    }
}

#[test]
fn any_byte_put_for_any_other_reads_the_same_either_way() {
    same_either_way(EVERYTHING);
    let bytes = [
        b'"', b'\\', b'{', b'}', b'[', b']', b',', b':', b'0', b'9', b'-', b'.', b'e', b' ', b'a', b'\n',
        0x1f, 0x7f,
    ];
    for at in 0..EVERYTHING.len() {
        for byte in bytes {
            let mut line = EVERYTHING.as_bytes().to_vec();
            line[at] = byte;
            if let Ok(line) = std::str::from_utf8(&line) {
                same_either_way(line);
            }
            let mut longer = EVERYTHING.as_bytes().to_vec();
            longer.insert(at, byte);
            if let Ok(line) = std::str::from_utf8(&longer) {
                same_either_way(line);
            }
        }
        if EVERYTHING.is_char_boundary(at) {
            same_either_way(&EVERYTHING[..at]);
        }
    }
}

proptest::proptest! {
    #[test]
    fn pieces_put_together_read_the_same_either_way(
        at in 0..EVERYTHING.len(), len in 0usize..40, to in 0..EVERYTHING.len(), text in ".{0,6}", number in "-?[0-9]{1,21}(\\.[0-9]{1,3})?(e[0-9])?"
    ) {
        let whole = |mut at: usize| { while !EVERYTHING.is_char_boundary(at) { at -= 1; } at };
        let (from, end, to) = (whole(at), whole((at + len).min(EVERYTHING.len())), whole(to));
        let end = end.max(from);
        same_either_way(&format!("{}{}", &EVERYTHING[..from], &EVERYTHING[end..]));
        same_either_way(&format!("{}{}{}", &EVERYTHING[..to], &EVERYTHING[from..end], &EVERYTHING[to..]));
        same_either_way(&format!("{}{text}{}", &EVERYTHING[..to], &EVERYTHING[to..]));
        same_either_way(&EVERYTHING.replace("bäsh", &text));
        for field in [":0", "18446744073709551615", ":16.25", ":-7", ":1000", ":32"] {
            let colon = if field.starts_with(':') { ":" } else { "" };
            same_either_way(&EVERYTHING.replace(field, &format!("{colon}{number}")));
        }
    }
}
