//! Figures, printed: `cargo test --release -p activity-store -- --ignored --nocapture measure`.

use std::time::{Duration, Instant};

use super::basic::{config, ingest, seal_all};
use super::kit::{Collector, T0};
use crate::{Query, Store, StoreConfig};
use activity_schema::SignedBatch;

fn cpu() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    let of = |t: nix::sys::time::TimeVal| {
        Duration::new(u64::try_from(t.tv_sec()).unwrap(), u32::try_from(t.tv_usec()).unwrap() * 1000)
    };
    of(usage.user_time()) + of(usage.system_time())
}

fn size_of(dir: &std::path::Path) -> u64 {
    let mut total = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        total += if meta.is_dir() { size_of(&entry.path()) } else { meta.len() };
    }
    total
}

/// Events as a benchmark's sandboxes make them: sessions of some minutes, tool calls, processes.
fn events(c: &mut Collector, count: u64, at: i64, step: i64) -> SignedBatch {
    let mut lines = Vec::new();
    for i in 0..count {
        let n = c.next_sequence + i;
        let time = at + i64::try_from(i).unwrap() * step;
        let name = match n % 1000 {
            0 => "session.started",
            n if n.is_multiple_of(2) => "process.exec",
            _ => "process.exited",
        };
        let session = format!("session-{}-{}", c.id, n / 1000);
        lines.push(c.line(i, name, time, |e| {
            e.correlation.session_id = Some(session.into());
            e.correlation.tool_call_id =
                Some(format!("toolu_{:024x}", (n / 20).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into());
        }));
    }
    let last = at + i64::try_from(count - 1).unwrap() * step;
    c.batch(&lines, (at, last))
}

#[test]
#[ignore = "a measurement"]
fn measure_ingest() {
    let dir = tempfile::tempdir().unwrap();
    for (size, batches) in [(256u64, 2_000u64), (1_700, 300), (10, 5_000)] {
        let store =
            Store::open(StoreConfig { dir: dir.path().join(format!("s{size}")), ..config(dir.path()) })
                .unwrap();
        let mut collectors: Vec<_> = (0..4).map(|n| Collector::new("tenant-a", &format!("c{n}"))).collect();
        let mut requests = Vec::new();
        let mut bytes = 0;
        for n in 0..batches / 16 {
            let at = T0 + i64::try_from(n).unwrap() * 1_000_000_000;
            let c = &mut collectors[usize::try_from(n % 4).unwrap()];
            let request: Vec<_> = (0..16).map(|_| events(c, size, at, 10_000)).collect();
            bytes += request.iter().map(|b| b.header.raw_bytes).sum::<u64>();
            requests.push((usize::try_from(n % 4).unwrap(), request));
        }
        let total = requests.len() as u64 * 16 * size;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (wall, used) = (Instant::now(), cpu());
        runtime.block_on(async {
            let mut tasks: [Vec<_>; 4] = Default::default();
            for (c, request) in requests {
                tasks[c].push(request);
            }
            let tasks: Vec<_> = tasks
                .into_iter()
                .enumerate()
                .map(|(c, requests)| {
                    let (store, caller) = (store.clone(), collectors[c].caller());
                    tokio::spawn(async move {
                        for request in requests {
                            store.ingest(&caller, request).await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        let (wall_acked, used_acked) = (wall.elapsed(), cpu() - used);
        seal_all(&store);
        let (wall, used) = (wall.elapsed(), cpu() - used);
        let rate = |d: Duration| total as f64 / d.as_secs_f64();
        println!(
            "batches of {size}: {:.0} bytes a line; {:.0} events/s, {:.0} events/CPU-s to the receipt; {:.0} and {:.0} with sealing",
            bytes as f64 / total as f64,
            rate(wall_acked),
            rate(used_acked),
            rate(wall),
            rate(used)
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_density() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let (mut at, mut raw, mut events_total) = (T0, 0, 0);
    for _ in 0..600 {
        let request: Vec<_> = (0..60)
            .map(|_| {
                at += 100_000_000;
                events(&mut c, 10, at, 10_000_000)
            })
            .collect();
        raw += request.iter().map(|b| b.header.raw_bytes).sum::<u64>();
        events_total += request.iter().map(|b| b.header.count).sum::<u64>();
        ingest(&store, &c, request).unwrap();
    }
    seal_all(&store);
    store.close();
    drop(store);
    let part = |name: &str| size_of(&dir.path().join("store").join(name)) as f64 / events_total as f64;
    println!(
        "{events_total} events of {:.0} bytes in batches of 10: {:.1} bytes stored each (tenants {:.1}, index {:.1}, rest {:.1})",
        raw as f64 / events_total as f64,
        size_of(&dir.path().join("store")) as f64 / events_total as f64,
        part("tenants"),
        part("index"),
        part("control") + part("keys") + part("commit"),
    );
}

#[test]
#[ignore = "a measurement; a few minutes"]
fn measure_query() {
    const COLLECTORS: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let total: u64 = std::env::var("EVENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000_000);
    let mut collectors: Vec<_> =
        (0..COLLECTORS).map(|n| Collector::new("tenant-a", &format!("c{n}"))).collect();
    let mut at = T0;
    let mut made = 0;
    let begun = Instant::now();
    while made < total {
        for c in &mut collectors {
            let request: Vec<_> = (0..8).map(|_| events(c, 250, at, 1_000_000)).collect();
            made += 2_000;
            ingest(&store, c, request).unwrap();
        }
        at += 2_000_000_000;
    }
    println!("{made} events made and stored in {:?}", begun.elapsed());
    seal_all(&store);
    let tenant = collectors[0].tenant.clone();
    let opened = || store.health().counters.blocks_opened;
    let sessions = made / COLLECTORS / 1000;
    let (before, mut times) = (opened(), Vec::new());
    for n in 0..200u64 {
        let session = format!("session-c{}-{}", n % COLLECTORS, (n * 7919) % sessions);
        let query = Query { session: Some(session), ..Query::default() };
        let since = Instant::now();
        let answer = store.query(&tenant, &query).unwrap();
        times.push(since.elapsed());
        assert!(!answer.events.is_empty() && answer.events.len() <= 1000);
    }
    times.sort_unstable();
    println!(
        "session timeline of {made} events: p50 {:?} p95 {:?}, {:.1} blocks each",
        times[100],
        times[190],
        (opened() - before) as f64 / 200.0
    );
    for (name, found) in [("session.started", sessions * COLLECTORS), ("network.dns", 0)] {
        let (before, since) = (opened(), Instant::now());
        let answer =
            store.query(&tenant, &Query { events: vec![name.to_owned()], ..Query::default() }).unwrap();
        println!(
            "{name}: {} events in {:?}, {} blocks",
            answer.events.len(),
            since.elapsed(),
            opened() - before
        );
        assert_eq!(answer.events.len() as u64, found.min(crate::LIMIT_DEFAULT as u64));
    }
    let since = Instant::now();
    let report = store.coverage(&tenant, &crate::CoverageQuery::default());
    println!("coverage: {:?} ({} instances)", since.elapsed(), report.instances.len());
    drop(store);
    let since = Instant::now();
    let store = Store::open(config(dir.path())).unwrap();
    println!("reopened in {:?}", since.elapsed());
    store.close();
    drop(store);
    let since = Instant::now();
    let store = Store::open_read_only(&config(dir.path()).dir).unwrap();
    println!("opened for reading in {:?}", since.elapsed());
    drop(store);
    std::fs::remove_dir_all(config(dir.path()).dir.join("index/coverage")).unwrap();
    let since = Instant::now();
    drop(Store::open_read_only(&config(dir.path()).dir).unwrap());
    println!("opened for reading without a snapshot of coverage in {:?}", since.elapsed());
    let rss = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", rss.lines().filter(|l| l.starts_with("VmHWM")).collect::<String>());
}
