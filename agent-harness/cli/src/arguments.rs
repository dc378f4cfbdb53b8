//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use iteron_protocol::{AgentId, SessionId, TokenId};

use crate::model::ModelArguments;
use crate::policy::PolicyArguments;

/// A coding agent that leaves evidence of what it does.
#[derive(Debug, Parser)]
#[command(name = "iteron", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Give the agent one task, and wait until it is done
    #[command(after_help = EXEC_HELP)]
    Exec(Box<ExecArguments>),
    /// Hold a session that front ends steer by JSON-RPC
    #[command(after_help = SERVE_HELP)]
    Serve(Box<ServeArguments>),
    /// Look at session records
    #[command(subcommand)]
    Record(RecordCommand),
}

#[derive(Debug, Subcommand)]
pub enum RecordCommand {
    /// Check every hash and link of a record, offline
    #[command(after_help = VERIFY_HELP)]
    Verify {
        /// The record, <session>.jsonl
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// A head that was kept before: the record must still contain it
        #[arg(long, value_name = "HASH")]
        head: Option<String>,
        /// A public key that was kept: heads must be signed by it, or by another that is trusted
        #[arg(long, value_name = "KEY")]
        trust: Vec<String>,
    },
}

const SERVE_HELP: &str = "\
JSON-RPC 2.0, one message a line. Its schema is docs/reference/iteron-rpc-v1.schema.json.
  initialize {protocol_version: 1}       first of all; answers with the session's ids
  subscribe {}                           from then on: notifications event and acknowledgement
  submit {submission_id, prompt}         hands a prompt over
  control {submission_id, operation}     hands a control operation over, such as
                                         {\"op\": \"cancel_turn\"} or {\"op\": \"quit_frontend\"}
An answer to submit and control says that the session has it; what becomes of it comes as an
acknowledgement, which the same submission_id again asks for once more. The socket has mode 0600, and
processes of other users are turned away. Signals, environment and exit statuses are those of exec.

Examples:
  iteron serve --socket ./iteron.sock --record ./sessions
  iteron serve --stdio --sandbox workspace";

const VERIFY_HELP: &str = "\
Prints how many entries there are, the hash of the last, what is open (calls and runs without an end),
who signed heads, and up to which entry. A chain of hashes shows that no entry was changed, taken out or
put in. That all of it was not written anew, signatures show to who kept the public key elsewhere and
gives it with --trust; that its end was not cut off, only a head that was kept.

Exit status:
  0    the record verifies; a torn tail is said
  1    it does not, does not contain the given head, or is signed by nobody or somebody who is not trusted
  2    it cannot be read";

const EXEC_HELP: &str = "\
Environment:
  ANTHROPIC_API_KEY    the model's key for --provider anthropic, and
  OPENAI_API_KEY       for openai and openai-chat; commands that the agent runs see neither
  ANTHROPIC_BASE_URL   the model's address, https:// or a loopback http:// one
                       [default: https://api.anthropic.com]
  OPENAI_BASE_URL      the same for openai and openai-chat [default: https://api.openai.com/v1]
  ITERON_LOG           log filter for stderr [default: warn]

Permissions:
  Calls of the classes read, write, execute and network are allowed, asked about, or denied. Nobody can
  be asked here: what must be asked about is denied, or allowed with --on-ask allow. A rule that
  commands could get around is refused; deny execute as well. The file of --policy has the same rules:
      [permissions]
      write = \"deny\"
      execute = \"deny\"
  With --sandbox workspace, commands run behind walls that enforce the rules on writing and on the
  network: Landlock, a filter of system calls, namespaces. What this machine lacks of them is said and
  recorded; where the needed ones cannot be had, nothing runs.

Exit status:
  0    the agent ended its task
  1    the task failed: turn limit, token limit, refusal, or a broken session record
  2    usage or configuration error; nothing was asked
  3    the model could not be reached, refused the request, or broke off
  130  interrupted by SIGINT, SIGTERM, SIGHUP, or because nobody reads the output

On an interrupt a running command gets SIGTERM and, 50 ms later or on a second interrupt, SIGKILL,
with all its processes, and so do background jobs and what commands left in the background. A
killed iteron leaves nothing either. The last line of --json is always session.ended.

Examples:
  iteron exec 'make the failing test in ./parser pass'
  iteron exec --provider openai-chat --model qwen3-coder 'explain ./parser'
  iteron exec --sandbox workspace --writable ~/.cargo 'fix the warnings'
  iteron exec --deny write,execute 'explain how ./parser works'
  iteron exec --json --record ./sessions --max-turns 20 - < task.md
  iteron exec --collector-socket /run/activity/agent.sock --session attempt-7 'run the checks'";

#[derive(Debug, Args)]
pub struct ExecArguments {
    /// The task, or - to read it from standard input
    #[arg(value_name = "PROMPT")]
    pub prompt: String,

    /// Print one JSON event a line instead of the answer's text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub session: SessionArguments,
}

#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Speak on standard input and output; the session ends when the input does
    #[arg(long, required_unless_present = "socket", conflicts_with = "socket")]
    pub stdio: bool,

    /// Listen on this Unix socket, for any number of front ends of this user
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    #[command(flatten)]
    pub session: SessionArguments,
}

/// What a session is, whatever front end it has.
#[derive(Debug, Args)]
pub struct SessionArguments {
    #[command(flatten)]
    pub model: ModelArguments,

    /// Most model requests; tools asked for in the last answer are not run
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_turns: u32,

    /// The session's id; a fresh one otherwise. A known one begins a new conversation in its record
    #[arg(long, value_name = "ID")]
    pub session: Option<SessionId>,

    /// The agent's id in events
    #[arg(long, value_name = "ID", env = "ACTIVITY_AGENT_ID", default_value = "iteron")]
    pub agent: AgentId,

    /// The mission that the session belongs to
    #[arg(long, value_name = "ID", env = "ACTIVITY_MISSION_ID")]
    pub mission: Option<TokenId>,

    /// The task that the session belongs to
    #[arg(long, value_name = "ID", env = "ACTIVITY_TASK_ID")]
    pub task: Option<TokenId>,

    /// The collector's agent socket; without one, effects are unobserved
    #[arg(long, value_name = "PATH", env = "ACTIVITY_SOCKET")]
    pub collector_socket: Option<PathBuf>,

    /// Keep a hash-chained record of the session here, content included
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,

    /// Sign the record's heads with this key: a file, or a pipe, of 64 hex digits. Without it, with a
    /// fresh one that ends with this process; its public part is in session.started
    #[arg(long, value_name = "FILE", requires = "record")]
    pub signing_key: Option<PathBuf>,

    /// Go on with the conversation in the record. What a crash left open is closed as interrupted;
    /// nothing is done again
    #[arg(long, requires = "record", requires = "session")]
    pub resume: bool,

    #[command(flatten)]
    pub policy: PolicyArguments,

    /// Work in this directory
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
