//! How soon an event can be asked for when nothing else happens.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{lab_with, load};
use crate::lab::{Arena, Lab};

/// Times from the end of a process to its record in an answer, the middle of `times`.
pub fn one_event_then_silence(times: usize) -> anyhow::Result<Duration> {
    let arena = Arena::new("silence")?;
    let lab = lab_with(&[&arena])?;
    visible_after(&lab, &arena, times)
}

pub(super) fn visible_after(lab: &Lab, arena: &Arena, times: usize) -> anyhow::Result<Duration> {
    let mut all = Vec::new();
    for _ in 0..times {
        let process = load(arena, 1, 0)?;
        let pid = u64::from(process.id());
        let output = process.wait_with_output()?;
        ensure!(output.status.success(), "the load ended with {}", output.status);
        let ended = Instant::now();
        lab.wait_for("the record of a process", |lab| {
            let events = lab.events(&["--instance", arena.name(), "--event", "process.exited"])?;
            Ok(events.iter().any(|event| event["actor"]["pid"] == pid))
        })?;
        all.push(ended.elapsed());
        // Silence: the next event finds nothing on its way.
        std::thread::sleep(Duration::from_millis(300));
    }
    all.sort_unstable();
    Ok(all[all.len() / 2])
}
