//! A disk that is really full: a small tmpfs. Needs the right to mount.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use activity_schema::api::BatchResult;
use http::StatusCode;

use crate::support::*;

struct Mounted(PathBuf);

impl Mounted {
    /// `None`, with the reason printed, when this user may not mount.
    #[expect(clippy::print_stdout, reason = "a skipped test says why")]
    fn tmpfs(at: &Path) -> Option<Mounted> {
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(at).output();
        match output {
            Ok(output) if output.status.success() => Some(Mounted(at.to_owned())),
            Ok(output) => {
                println!("skipped: no tmpfs: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("skipped: no mount command: {error}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Takes every byte that is left.
fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    for block in [1 << 20, 4096, 1] {
        while file.write_all(&vec![7; block]).is_ok() {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fc26_a_full_disk_refuses_with_503_readers_keep_working_and_it_recovers_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::tmpfs(dir.path()) else { return };
    let world = World::start_in(dir).await;
    let admin = world.admin();
    let mut collector = world.enrol("acme", "sandbox-7", "c-1").await;
    let batch = collector.batch(20);
    collector.send(&world, &[batch]).await.results();
    let ballast = world.path("ballast");
    fill(&ballast);

    let batch = collector.batch(300);
    for _ in 0..3 {
        let refused = collector.send(&world, std::slice::from_ref(&batch)).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{:?}", refused.body);
        assert!(String::from_utf8_lossy(&refused.body).contains("full"), "{:?}", refused.body);
    }
    let ready = || async { get(world.operators(), Some(&admin), "/readyz").await.status };
    assert_eq!(ready().await, StatusCode::SERVICE_UNAVAILABLE);
    let count = || async {
        let answer = get(world.operators(), Some(&admin), "/v1/query?tenant=acme&event=process.exec").await;
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
        String::from_utf8_lossy(&answer.body).matches("\"process.exec\"").count()
    };
    assert_eq!(count().await, 20, "readers keep working");

    std::fs::remove_file(&ballast).unwrap();
    for _ in 0..200 {
        if ready().await == StatusCode::OK {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ready().await, StatusCode::OK);
    let stored = collector.send(&world, &[batch]).await.results();
    assert!(matches!(stored.results[..], [BatchResult::Stored { .. }]), "{stored:?}");
    assert_eq!(count().await, 320);
    let World { dir, server } = world;
    server.stop().await.unwrap();
    drop(mounted);
    drop(dir);
}
