//! When the daemon does what, and how much may wait for it: in a folder of its own, without kernel programs.

use std::sync::mpsc::Receiver;

use activity_schema::batch;
use activity_schema::{Class, Event};

use super::start::Names;
use super::*;
use crate::clock::ClockReading;
use crate::spool::Unsynced;
use crate::uplink::identity::Identity;
use crate::uplink::{EpochFeed, Uplink};

struct Lab {
    daemon: Daemon,
    start: ClockReading,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { state_dir: dir.path().to_owned(), ..Config::default() };
        let names = Names {
            tenant: "t".parse().unwrap(),
            host: "h".parse().unwrap(),
            collector_id: "c".parse().unwrap(),
            instance_id: "i".to_owned(),
            only_instance: false,
        };
        let daemon = Daemon::start(&config, &names, None).unwrap();
        Lab { start: *daemon.recorder.clock(), daemon, dir }
    }

    /// What is due so long after the start.
    fn duties_at(&mut self, after_ns: u64) {
        let clock = ClockReading { boot_ns: self.start.boot_ns + after_ns, ..self.start };
        self.daemon.recorder.set_clock(clock);
        self.daemon.duties();
    }

    /// Events of a name that are in the spool.
    fn told(&mut self, name: &str) -> usize {
        self.daemon.recorder.seal_all();
        let batches = self.daemon.recorder.seal_due();
        Unsynced::sync(&batches).unwrap();
        batches.into_iter().for_each(|batch| drop(batch.finish()));
        let reader = self.daemon.recorder.spool().current().reader();
        let mut found = 0;
        for class in Class::ALL {
            for reference in reader.pending(*class) {
                let batch = reader.read(*class, reference.number).unwrap();
                let raw = batch::decompress(batch.body.as_ref().unwrap(), batch.header.raw_bytes).unwrap();
                let lines = batch::split_lines(&raw, batch.header.count).unwrap();
                let is_it = |line: &&&[u8]| Event::parse(line).unwrap().event_name == *name;
                found += lines.iter().filter(is_it).count();
            }
        }
        found
    }
}

#[test]
fn a_heartbeat_and_a_sample_come_every_10_s_and_processes_are_polled_every_100_ms() {
    const MS: u64 = 1_000_000;
    let mut lab = Lab::new();
    lab.duties_at(0);
    let samples = lab.told("runtime.resource.sample");
    assert_eq!(lab.told("telemetry.heartbeat"), 1);
    lab.duties_at(10_000 * MS - 1);
    assert_eq!((lab.told("telemetry.heartbeat"), lab.told("runtime.resource.sample")), (1, samples));
    lab.duties_at(10_000 * MS);
    assert_eq!((lab.told("telemetry.heartbeat"), lab.told("runtime.resource.sample")), (2, 2 * samples));

    let mut lab = Lab::new();
    let next_poll = |lab: &Lab| lab.daemon.timers.poll - lab.start.boot_ns;
    for (at_ns, next_ms) in [(0, 100), (100 * MS - 1, 100), (100 * MS, 200)] {
        lab.duties_at(at_ns);
        assert_eq!(next_poll(&lab), next_ms * MS, "at {at_ns} ns");
    }
}

/// The clocks are read one after another; a busy machine may come in between.
#[test]
fn a_wall_clock_that_moves_by_50_ms_against_boot_time_was_stepped() {
    for (moved_ms, told) in [(20, 0), (-20, 0), (80, 1), (-80, 1)] {
        let mut lab = Lab::new();
        let now = ClockReading::now();
        let wall = Timestamp::from_nanos(now.wall.as_nanos() - moved_ms * 1_000_000);
        lab.daemon.recorder.set_clock(ClockReading { wall, ..now });
        lab.daemon.read_clock();
        assert_eq!(lab.told("telemetry.clock"), told, "{moved_ms} ms");
        lab.daemon.read_clock();
        assert_eq!(lab.told("telemetry.clock"), told, "once");
    }
}

#[test]
fn of_1024_messages_that_wait_none_is_lost_and_one_more_is_refused() {
    let (sender, receiver): (_, Receiver<Message>) = mpsc::sync_channel(QUEUE_MAX);
    let wake = Arc::new(EventFd::new().unwrap());
    let mailbox = Mailbox { sender, wake, unheard: Arc::default() };
    assert!((0..1_024).all(|_| mailbox.send(Message::Stop)));
    assert!(!mailbox.send(Message::Stop));
    assert!(!RequestSink::send(&mailbox, AgentRequest::Unseen));
    assert_eq!(mailbox.unheard.load(Ordering::Relaxed), 1, "an agent that is not heard is accounted for");
    assert_eq!(receiver.try_iter().count(), 1_024);
}

#[test]
fn agents_that_were_not_heard_are_told_as_lost() {
    let mut lab = Lab::new();
    lab.duties_at(0);
    let before = lab.told("telemetry.loss");
    lab.daemon.unheard.fetch_add(3, Ordering::Relaxed);
    lab.daemon.timers = Timers::default();
    lab.duties_at(0);
    assert_eq!(lab.told("telemetry.loss"), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_3_s_for_acknowledgements() {
    let mut lab = Lab::new();
    lab.duties_at(0);
    assert_eq!(lab.told("telemetry.heartbeat"), 1);
    let spool = lab.daemon.recorder.spool().current();
    let feed = EpochFeed {
        epoch: spool.identity.epoch.clone(),
        reader: spool.reader(),
        acked: std::collections::BTreeMap::new(),
        key: spool.signer.public(),
        registered: true,
    };
    let identity = Identity {
        tenant: "t".parse().unwrap(),
        host: "h".parse().unwrap(),
        instance: "i".parse().unwrap(),
        only_instance: false,
        collector_id: "c".parse().unwrap(),
        not_after: lab.start.wall,
        gateway_key: spool.signer.public(),
        gateway_url: "unix:/nowhere".to_owned(),
        server_name: None,
    };
    let dir = IdentityDir::new(lab.dir.path());
    let uplink = Uplink::new(dir, identity, vec![feed], Arc::new(|_| ())).unwrap();
    let (_, from_recorder) = tokio::sync::mpsc::unbounded_channel();
    let start = tokio::time::Instant::now();
    uplink.run(from_recorder, network::LINGER).await;
    let waited = start.elapsed();
    assert!((3_000..3_100).contains(&waited.as_millis()), "{waited:?}");
}
