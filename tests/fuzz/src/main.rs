//! Runs one target. Built with coverage instrumentation and `--cfg fuzzing` this is libFuzzer, driven by
//! `cargo xtask soak fuzz`. Built as usual it runs inputs again that were found: `activity-fuzz TARGET FILE…`.
#![cfg_attr(fuzzing, no_main)]

/// `ACTIVITY_FUZZ_TARGET` names the target and `ACTIVITY_FUZZ_SEEDS` the folder that its seeds are written to;
/// without them the names of all targets are printed.
#[cfg(fuzzing)]
#[allow(clippy::print_stdout, reason = "tells the names")]
mod under_libfuzzer {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use activity_fuzz::{TARGETS, Target, target};

    static TARGET: OnceLock<&'static Target> = OnceLock::new();

    fn begin() {
        let Ok(name) = std::env::var("ACTIVITY_FUZZ_TARGET") else {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            std::process::exit(0);
        };
        let target = TARGET.get_or_init(|| target(&name).expect("a known target"));
        if let Some(folder) = std::env::var_os("ACTIVITY_FUZZ_SEEDS").map(PathBuf::from) {
            for (n, seed) in (target.seeds)().iter().enumerate() {
                std::fs::write(folder.join(format!("seed-{n:03}")), seed).expect("the folder can be written");
            }
        }
    }

    libfuzzer_sys::fuzz_target!(
        init: begin(),
        |data: &[u8]| {
            if let Some(target) = TARGET.get() {
                (target.run)(data);
            }
        }
    );
}

#[cfg(not(fuzzing))]
fn main() -> anyhow::Result<()> {
    use anyhow::Context as _;

    let mut arguments = std::env::args_os().skip(1);
    let name = arguments.next().unwrap_or_default();
    let target = name.to_str().and_then(activity_fuzz::target).with_context(|| {
        let names: Vec<&str> = activity_fuzz::TARGETS.iter().map(|target| target.name).collect();
        format!("usage: activity-fuzz TARGET FILE…, where TARGET is one of {}", names.join(", "))
    })?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    for file in arguments {
        (target.run)(&std::fs::read(&file).with_context(|| file.display().to_string())?);
    }
    Ok(())
}
