//! What an event takes on the gateway's disk, all included, once sealed: ten minutes of one collector's evidence in
//! the batches that it makes at that rate (sealed 100 ms after their first event), sent at once.

use std::time::Duration;

use anyhow::Context as _;

use super::figure::{Figure, Peer};
use super::fleet::{Fleet, Pace};
use super::gateway::settle;
use super::host;
use crate::lab::Lab;

pub const NAMES: &[&str] = &["stored_bytes_per_event_100", "stored_bytes_per_event_1000"];
const MINUTES: u32 = 10;
const BATCH_AGE_NS: i64 = 100_000_000;
const BUDGET_BYTES: f64 = 120.0;

pub fn run() -> anyhow::Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    NAMES.iter().zip([100, 1_000]).map(|(name, rate)| runtime.block_on(measure(name, rate))).collect()
}

async fn measure(name: &'static str, per_second: u32) -> anyhow::Result<Figure> {
    let mut lab = Lab::new(None)?;
    lab.init_gateway()?;
    let from = host::now()?.saturating_add_nanos(-i64::from(MINUTES * 60) * 1_000_000_000);
    let pace = Pace { from, per_second, batch_age_ns_max: Some(BATCH_AGE_NS) };
    let mut fleet = Fleet::enrol(&lab, 1, pace).await?;
    fleet.generate(u64::from(per_second * MINUTES * 60), true);
    let sent = fleet.send(Duration::from_secs(300), false).await?;
    drop(fleet);
    // A commit file is sealed when it ends; a gateway that starts ends the one before.
    lab.gateway.take().context("no gateway")?.stop()?;
    lab.start_gateway()?;
    settle(lab.gateway.as_ref().context("no gateway")?.pid()).await?;
    lab.gateway.take().context("no gateway")?.stop()?;

    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    let each = |bytes: u64| bytes as f64 / sent.events as f64;
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(lab.store())? {
        let entry = entry?;
        let bytes = each(host::disk_bytes(&entry.path())?);
        if bytes >= 0.1 {
            parts.push(format!("{} {bytes:.1}", entry.file_name().to_string_lossy()));
        }
    }
    let note = format!("{} events of {:.0} bytes; {}", sent.events, each(sent.raw_bytes), parts.join(", "));
    let value = each(host::disk_bytes(&lab.store())?);
    Ok(Figure::new(name, value, "bytes", Peer::budget(BUDGET_BYTES)).with_note(note))
}
