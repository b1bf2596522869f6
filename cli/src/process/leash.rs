//! The leash, the agent's side of `--launcher ssh`: its launcher holds its stdin. The first line is the token; a line
//! `leave` makes it leave in order; with a tight leash, so does the end of stdin. A line `drivers HOST:PORT,…` tells the
//! drivers that may act, from a launcher that stands by itself. Called by `agent` and the command line.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

use actix::Addr;
use elastic_agent::{AgentActor, Drain};
use elastic_transport::{FoundDrivers, JoinToken};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::command_line::{CommandFailure, Leash, ResultExt};

/// The line that asks an agent to leave.
pub(super) const LEAVE: &str = "leave";

/// Prefix of the line that tells an agent the drivers that may act.
pub(super) const DRIVERS: &str = "drivers ";

/// Longest line after the token, in bytes: 16 addresses of 256 bytes.
const LINE_BYTES_MAX: usize = 16 * 256;

/// Most lines of the launcher that wait to be taken.
const LINES_MAX: usize = 4;

/// Timeout for an agent whose launcher is gone to leave in order: its driver may still be there.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Reads the token, the first line of stdin.
pub(crate) fn read_token() -> Result<JoinToken, CommandFailure> {
    let said = stdin().and_then(|mut stdin| read_line(&mut stdin, JoinToken::LINE_BYTES_MAX));
    let line = said.failed("the token cannot be read from stdin")?;
    line.parse().failed("what stdin begins with is no token")
}

/// A line of the launcher.
#[derive(Clone, Debug, Eq, PartialEq)]
enum LeashLine {
    Leave,
    Drivers(String),
}

impl LeashLine {
    /// The meaning of a line; none if it has none.
    fn read(line: &str) -> Option<Self> {
        match line.strip_prefix(DRIVERS) {
            Some(addresses) => Some(Self::Drivers(addresses.trim().to_owned())),
            None => (line.trim() == LEAVE).then_some(Self::Leave),
        }
    }
}

/// The lines of the launcher, from the agent's start.
pub(super) struct LeashLines {
    leash: Leash,
    lines: mpsc::Receiver<LeashLine>,
}

impl LeashLines {
    /// Starts to hear the launcher, on a thread of its own that is never joined: it blocks for as long as the launcher
    /// says nothing.
    pub(super) fn hear(leash: Leash) -> Self {
        let (tell, lines) = mpsc::channel(LINES_MAX);
        let hear = move || -> io::Result<()> {
            let mut stdin = stdin()?;
            loop {
                let line = LeashLine::read(&read_line(&mut stdin, LINE_BYTES_MAX)?);
                if line.is_some_and(|line| tell.blocking_send(line).is_err()) {
                    return Ok(());
                }
            }
        };
        let hearing = thread::Builder::new().name("leash".to_owned()).spawn(hear);
        if let Err(error) = hearing {
            tracing::warn!(%error, "what the launcher says is not heard");
        }
        Self { leash, lines }
    }

    /// Takes the launcher's lines for as long as the process runs: told drivers go to `found`, and the order to leave
    /// to the agent, as soon as there is one.
    pub(super) async fn obey(
        mut self,
        found: FoundDrivers,
        agent: oneshot::Receiver<Addr<AgentActor>>,
    ) {
        let order = loop {
            match self.lines.recv().await {
                Some(LeashLine::Drivers(addresses)) => found.set(&addresses),
                Some(LeashLine::Leave) => break Some(LeashLine::Leave),
                None => break None,
            }
        };
        let Ok(agent) = agent.await else { return };
        match (order, self.leash) {
            (Some(_), _) => agent.do_send(Drain {
                reason: "its driver has no use for this host".to_owned(),
                code: 0,
            }),
            (None, Leash::Tight) => {
                let reason = "what started it is gone".to_owned();
                agent.do_send(Drain { reason: reason.clone(), code: 1 });
                sleep(LEAVE_WITHIN).await;
                agent.do_send(Drain { reason, code: 1 });
            }
            (None, Leash::Loose) => {}
        }
    }
}

/// A stdin that bypasses the buffer of [`std::io::stdin`], whose lock would be held while it waits.
fn stdin() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Reads one line, and not a byte more; the end of the stream is an error.
fn read_line(from: &mut impl io::Read, bytes_max: usize) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() <= bytes_max {
        from.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return Ok(String::from_utf8_lossy(&line).into_owned()),
            [byte] => line.push(byte),
        }
    }
    Err(io::Error::from(io::ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_and_not_a_byte_more() {
        let mut input: &[u8] = b"token\nleave\n";
        assert_eq!(read_line(&mut input, 512).expect("a line"), "token");
        assert_eq!(input, b"leave\n");
        let cut = read_line(&mut &b"half"[..], 512).expect_err("no end of line");
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        let flood = vec![b'x'; 1 << 20];
        let refused = read_line(&mut &flood[..], 512).expect_err("longer than any token");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn drivers_and_leaving_are_understood_and_all_else_is_not() {
        let drivers = LeashLine::Drivers("a:1,b:1".to_owned());
        assert_eq!(LeashLine::read("drivers a:1,b:1"), Some(drivers));
        assert_eq!(LeashLine::read("leave"), Some(LeashLine::Leave));
        assert_eq!(LeashLine::read("drive a:1"), None);
    }
}
