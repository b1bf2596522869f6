//! `--launcher ssh`: an agent is a process of another machine, reached by OpenSSH. Called by `launcher`.
//!
//! Ports, keys and users come from ssh's own configuration, for the host's name as it stands in the list. The token
//! goes through stdin, which stays open: through it the agent is asked to leave, and its end tells the agent that the
//! launcher is gone (see `leash`). The messages of ssh itself go to a file, to keep them apart from the agent's.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use elastic_protocol::HostName;
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};

use super::command::AgentCommand;
use super::core::{AgentProcessEnd, EndKind};
use super::local::of_this_driver;
use crate::command_line::Leash;

/// The name of ssh, looked up in PATH.
const PROGRAM: &str = "ssh";

/// ssh's exit code if it did not start the remote program.
const FAILED: i32 = 255;

/// A shell's exit codes if a program cannot be executed, or is missing.
const NO_PROGRAM: [i32; 2] = [126, 127];

/// Most bytes of ssh's messages that are read, from the end.
const SAID_BYTES_MAX: u64 = 4096;

/// Most lines of ssh's messages that are reported, from the end.
const SAID_LINES_MAX: usize = 3;

/// The script for a POSIX shell on the host. It changes to the driver's working directory, if that exists there too,
/// and runs this program by its path here, else by its name.
const SCRIPT: &str = "cd -- \"$0\" 2>/dev/null; program=$1; shift; \
    [ -x \"$program\" ] || program=elastic-node; exec \"$program\" \"$@\"";

/// Known messages of ssh, each with its meaning and a hint.
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

/// Starts the agent of a host, from the launcher's lane. Also returns the file to which ssh writes its messages.
pub(super) fn start(agent: &AgentCommand, name: &HostName) -> io::Result<(Child, NamedTempFile)> {
    let said = NamedTempFile::with_prefix("elastic-node-ssh-")?;
    let mut command = Command::new(PROGRAM);
    command
        .args(["-T", "-o", "BatchMode=yes", "-E"])
        .arg(said.path())
        // `--` keeps a host name from being read as an option.
        .args(["--", name.as_str(), &remote_command(agent, name)])
        .stdin(Stdio::piped());
    of_this_driver(&mut command, agent.outlives_driver);
    Ok((command.spawn()?, said))
}

/// Writes the token, the first line of the agent's stdin.
pub(super) fn greet(agent: &AgentCommand, stdin: &mut impl io::Write) -> io::Result<()> {
    stdin.write_all(format!("{}\n", agent.token).as_bytes())
}

/// The remote command as one line, for any shell of the user there.
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

/// Quotes text as one word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Translates the end of ssh.
pub(super) fn end(status: ExitStatus, program: &Path, said: &mut NamedTempFile) -> AgentProcessEnd {
    match status.code() {
        Some(FAILED) => failed(&last_words(said).unwrap_or_default()),
        Some(code) if NO_PROGRAM.contains(&code) => AgentProcessEnd {
            kind: EndKind::Refused,
            reason: format!(
                "there is neither {} nor an elastic-node in PATH there (exit code {code}): install it",
                program.display()
            ),
        },
        Some(_) => AgentProcessEnd { kind: EndKind::Ended, reason: status.to_string() },
        // ssh was killed, which says nothing about the agent.
        None => {
            AgentProcessEnd { kind: EndKind::Unreachable, reason: format!("ssh ended: {status}") }
        }
    }
}

fn failed(said: &str) -> AgentProcessEnd {
    let known = KNOWN.into_iter().find(|(text, ..)| said.contains(text));
    match known {
        Some((_, kind, hint)) => AgentProcessEnd { kind, reason: format!("ssh: {said} ({hint})") },
        None if said.is_empty() => AgentProcessEnd {
            kind: EndKind::Unreachable,
            reason: "ssh failed and did not say why".to_owned(),
        },
        None => AgentProcessEnd { kind: EndKind::Unreachable, reason: format!("ssh: {said}") },
    }
}

/// The last lines that ssh wrote, joined into one line.
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
            interface: None,
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
