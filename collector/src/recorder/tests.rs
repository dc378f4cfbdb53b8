use activity_schema::event::{Runtime, Value};

use super::*;
use crate::spool::{EpochIdentity, OsDisk, SpoolLimits};

struct Lab {
    recorder: Recorder<OsDisk>,
    own: Arc<Instance>,
    _dir: tempfile::TempDir,
}

fn lab() -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let clock = ClockReading::now();
    let wanted = EpochIdentity::of_a_test("e");
    let limits = SpoolLimits::of_total(1 << 28);
    let (spool, _) = Spool::open(OsDisk, dir.path(), limits, wanted, &[7; 32], clock.state).unwrap();
    let own = Arc::new(Instance {
        instance_id: "i".to_owned(),
        agent_id: "a".to_owned(),
        runtime: Runtime::Host,
        layer: Layer::Host,
        cgroup: "/".to_owned(),
    });
    Lab { recorder: Recorder::new(spool, own.clone(), clock), own, _dir: dir }
}

impl Lab {
    /// A critical event whose line is about as long as its texts: `lists` times four of them.
    fn record(&mut self, lists: usize, bytes: usize) -> Result<Uuid, Refusal> {
        let class = |n: usize| {
            let mut class = Payload::new();
            class.set("class", n.to_string());
            class.set("probes", Value::List(vec![Value::from("x".repeat(bytes)); 4]));
            Value::Object(class)
        };
        let mut payload = Payload::new();
        payload.set("classes", Value::List((0..lists).map(class).collect()));
        let draft = Draft::observed("telemetry.config", self.recorder.clock.wall, &self.own, payload);
        self.recorder.record(draft)
    }

    fn appended(&self) -> u64 {
        self.recorder.spool.next_sequence(Class::Critical) - 1
    }
}

#[test]
fn an_event_over_64_kib_is_refused_and_takes_no_sequence() {
    let mut lab = lab();
    assert!(lab.record(64, 240).is_ok(), "some 63 KiB");
    assert_eq!(lab.record(64, 250), Err(Refusal::LineTooLong), "some 66 KiB");
    lab.recorder.flush(None);
    assert_eq!((lab.appended(), lab.recorder.refused), (1, 1));
}

#[test]
fn at_most_256_lines_or_512_kib_wait_to_be_appended() {
    let mut lab = self::lab();
    for n in 1..=256 {
        lab.record(0, 0).unwrap();
        assert_eq!(lab.appended(), 0, "{n}");
    }
    lab.record(0, 0).unwrap();
    assert_eq!(lab.appended(), 256);

    let mut lab = self::lab();
    let mut waiting = 0;
    while lab.appended() == 0 {
        waiting = lab.recorder.pending[slot(Class::Critical)].bytes;
        lab.record(64, 240).unwrap();
    }
    assert!((524_288..524_288 + 65_536).contains(&waiting), "{waiting}");
}
