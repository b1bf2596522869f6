//! `--launcher ssh`: an agent is a process of another machine, reached by OpenSSH.
//!
//! Ports, keys, users and all else are ssh's own configuration, for the host's name as it stands in the list. The
//! token goes through stdin, which stays open: by it the agent is asked to go, and sees that its launcher is
//! gone (see `leash`). ssh's own words go to a file, so that they are told apart from the agent's.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use elastic_protocol::HostName;
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};

use super::command::AgentCommand;
use super::core::{AgentEnd, EndKind};
use super::local::of_this_driver;
use crate::cli::Leash;

/// Where ssh is, unless PATH says so.
const PROGRAM: &str = "ssh";

/// ssh's exit code where it did not get as far as the program there.
const FAILED: i32 = 255;

/// A shell's exit codes where a program cannot be executed, or is not there.
const NO_PROGRAM: [i32; 2] = [126, 127];

/// How much of what ssh said is read: its end.
const SAID_BYTES_MAX: u64 = 4096;

/// How many of its last lines are told.
const SAID_LINES_MAX: usize = 3;

/// What a POSIX shell there does: to the driver's working directory, if that is there too; this very program by its
/// path here, else by its name.
const SCRIPT: &str = "cd -- \"$0\" 2>/dev/null; program=$1; shift; \
    [ -x \"$program\" ] || program=elastic-node; exec \"$program\" \"$@\"";

/// What ssh says, what it means, and what to do about it.
const KNOWN: [(&str, EndKind, &str); 4] = [
    (
        "Host key verification failed",
        EndKind::Refused,
        "ssh does not know this host's key: add it to known_hosts, by `ssh-keyscan` or by one `ssh` by hand",
    ),
    (
        "Permission denied",
        EndKind::Refused,
        "ssh must get in without a question: by a key without a passphrase, or by ssh-agent",
    ),
    (
        "Could not resolve hostname",
        EndKind::Refused,
        "the list of hosts, or ssh's configuration, must give it an address",
    ),
    (
        "Bad configuration option",
        EndKind::Refused,
        "ssh's configuration file cannot be read as it is",
    ),
];

/// Starts the agent of a host; also the file to which ssh writes.
pub(super) fn start(agent: &AgentCommand, name: &HostName) -> io::Result<(Child, NamedTempFile)> {
    let said = NamedTempFile::with_prefix("elastic-node-ssh-")?;
    let mut command = Command::new(PROGRAM);
    command
        .args(["-T", "-o", "BatchMode=yes", "-E"])
        .arg(said.path())
        // A name is never an option.
        .args(["--", name.as_str(), &remote_command(agent, name)])
        .stdin(Stdio::piped());
    of_this_driver(&mut command, agent.outlives_driver);
    Ok((command.spawn()?, said))
}

/// The first line of its stdin.
pub(super) fn greet(agent: &AgentCommand, stdin: &mut impl io::Write) -> io::Result<()> {
    stdin.write_all(format!("{}\n", agent.token).as_bytes())
}

/// One line, for whatever shell the user has there.
fn remote_command(agent: &AgentCommand, name: &HostName) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let leash = if agent.outlives_driver { Leash::Loose } else { Leash::Tight };
    let mut words = vec!["exec".to_owned(), "sh".to_owned(), "-c".to_owned(), quoted(SCRIPT)];
    words.push(quoted(&here.to_string_lossy()));
    words.push(quoted(&agent.program.to_string_lossy()));
    words.extend(agent.arguments(name).iter().map(|argument| quoted(argument)));
    words.extend(["--leash".to_owned(), leash.as_str().to_owned()]);
    words.join(" ")
}

/// As one word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// What the end of ssh says.
pub(super) fn end(status: ExitStatus, program: &Path, said: &mut NamedTempFile) -> AgentEnd {
    match status.code() {
        Some(FAILED) => failed(&last_words(said).unwrap_or_default()),
        Some(code) if NO_PROGRAM.contains(&code) => AgentEnd {
            kind: EndKind::Refused,
            reason: format!(
                "there is neither {} nor an elastic-node in PATH there (exit code {code}): install it",
                program.display()
            ),
        },
        Some(_) => AgentEnd { kind: EndKind::Ended, reason: status.to_string() },
        // It was killed: of the agent this says nothing.
        None => AgentEnd { kind: EndKind::Unreachable, reason: format!("ssh ended: {status}") },
    }
}

fn failed(said: &str) -> AgentEnd {
    let known = KNOWN.into_iter().find(|(text, ..)| said.contains(text));
    match known {
        Some((_, kind, hint)) => AgentEnd { kind, reason: format!("ssh: {said} ({hint})") },
        None if said.is_empty() => AgentEnd {
            kind: EndKind::Unreachable,
            reason: "ssh failed and did not say why".to_owned(),
        },
        None => AgentEnd { kind: EndKind::Unreachable, reason: format!("ssh: {said}") },
    }
}

/// The last lines that ssh wrote, on one line.
fn last_words(said: &mut NamedTempFile) -> io::Result<String> {
    let file = said.as_file_mut();
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SAID_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(SAID_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Ok(lines[lines.len().saturating_sub(SAID_LINES_MAX)..].join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> AgentCommand {
        AgentCommand {
            program: "/opt/it's here/elastic-node".into(),
            driver: "head:7070".to_owned(),
            token_file: "/tmp/token".into(),
            token: "en1-secret".to_owned(),
            outlives_driver: false,
            role: Some("trainer".to_owned()),
            log: "warn".to_owned(),
        }
    }

    #[test]
    fn words_reach_the_program_there_as_they_are_and_the_token_is_not_among_them() {
        let name = HostName::new("a b;$(reboot)'\"*").expect("any name");
        let command = remote_command(&agent(), &name);
        assert!(!command.contains("secret"), "{command}");
        let shown = command.replacen("exec sh -c", "exec printf '%s\\n' -c", 1);
        let printed = std::process::Command::new("/bin/sh").args(["-c", &shown]).output();
        let printed = String::from_utf8(printed.expect("a shell").stdout).expect("UTF-8");
        let words: Vec<&str> = printed.lines().collect();
        assert_eq!(words[1], SCRIPT);
        assert_eq!(words[3], "/opt/it's here/elastic-node");
        assert!(words.contains(&name.as_str()), "{words:?}");
        assert_eq!(words[words.len() - 4..], ["--role-name", "trainer", "--leash", "tight"]);
    }

    #[test]
    fn the_shell_there_takes_the_program_by_its_path_and_else_by_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = |program: &str| {
            let output = std::process::Command::new("/bin/sh")
                .args(["-c", SCRIPT])
                .arg(folder.path())
                .args([program, "here"])
                .env("PATH", "/nowhere")
                .output();
            let output = output.expect("a shell");
            (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
        };
        assert_eq!(run("/bin/echo"), ("here\n".to_owned(), Some(0)));
        assert_eq!(run("/no/such/program").1, Some(127));
    }

    #[test]
    fn what_ssh_says_is_told_with_the_way_out() {
        let refused = failed("alice@b: Permission denied (publickey).");
        assert_eq!(refused.kind, EndKind::Refused);
        assert!(refused.reason.contains("Permission denied (publickey)"), "{}", refused.reason);
        assert!(refused.reason.contains("without a question"), "{}", refused.reason);
        let away = failed("ssh: connect to host b port 22: Connection refused");
        assert_eq!(away.kind, EndKind::Unreachable);
        assert_eq!(failed("").kind, EndKind::Unreachable);
    }
}
