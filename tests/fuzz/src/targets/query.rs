//! Query strings of `/v1/timeline`, `/v1/query` and `/v1/coverage`, asked of a store.

use std::sync::OnceLock;

use activity_gateway::wire::{PAGE_EVENTS_MAX, Params};
use activity_schema::Event;
use activity_store::Store;
use tempfile::TempDir;

use crate::{fixture, stored};

pub fn run(data: &[u8]) {
    let Ok(params) = serde_urlencoded::from_bytes::<Params>(data) else { return };
    let written = serde_urlencoded::to_string(&params).expect("plain data");
    assert_eq!(serde_urlencoded::from_str(&written).as_ref(), Ok(&params), "what is written is read");
    if let Ok(query) = params.coverage_query() {
        let report = store().coverage(&fixture::tenant(), &query);
        assert_eq!(report.complete, report.reasons.is_empty(), "incomplete says why");
    }
    let Ok(query) = params.query() else { return };
    assert!((1..=PAGE_EVENTS_MAX).contains(&query.limit));
    let Ok(answer) = store().query(&fixture::tenant(), &query) else { return };
    assert!(answer.events.len() <= query.limit, "a page has a bound");
    for found in &answer.events {
        let event = Event::parse(&found.line).expect("stored is valid");
        let at = event.occurred_at;
        assert!(query.from.is_none_or(|from| from <= at) && query.to.is_none_or(|to| at < to));
        let is = |wanted: &Option<String>, id: &str| wanted.as_ref().is_none_or(|wanted| wanted == id);
        assert!(is(&query.instance, &event.correlation.instance_id));
        let session = event.correlation.session_id.as_ref().map_or("", |id| id);
        assert!(is(&query.session, session));
    }
}

fn store() -> &'static Store {
    static STORE: OnceLock<(TempDir, Store)> = OnceLock::new();
    let (_, store) = STORE.get_or_init(|| {
        let dir = stored::folder();
        stored::fill(dir.path());
        let store = Store::open_read_only(dir.path()).expect("it was just closed");
        (dir, store)
    });
    store
}

pub fn seeds() -> Vec<Vec<u8>> {
    let seeds = [
        "",
        "instance=sandbox-1&limit=5",
        "session=session-1&event=process.exec,agent.*&class=process,tool",
        "from=2026-08-01T12:00:00Z&to=2026-08-01T12:00:01.5%2B00:00&plane=action,network&limit=100000",
        "peer=10.0.0.0/8&outcome=denied,failure&trust=observed",
        "peer=2001:db8::/32&executable=sh&since_leaf=1",
        "tenant=tenant-a&mission=m&task=t&tool_call=c&command=k&process=p&cursor=0",
    ];
    let mut all: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    let page = Params { limit: Some(1), ..Params::default() };
    let answer = page.query().map(|query| store().query(&fixture::tenant(), &query));
    if let Ok(Ok(answer)) = answer {
        let next = Params { cursor: answer.next_cursor, limit: Some(1), ..Params::default() };
        all.push(serde_urlencoded::to_string(&next).expect("plain data").into_bytes());
    }
    all
}
