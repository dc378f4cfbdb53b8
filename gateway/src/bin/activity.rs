//! The operator's command line. See `activity --help`.

fn main() -> std::process::ExitCode {
    activity_gateway::cli::main()
}
