//! The agent's side of `--launcher ssh`: its launcher holds its stdin. The first line is the token; a line
//! `leave` has it leave in order; where the leash is tight, so does the end of stdin. Called by `agent` and the
//! command line.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

use actix::Addr;
use elastic_transport::Token;
use elastic_worker::agent::{AgentActor, Drain};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::cli::{Failure, Leash, ResultExt};

/// The word that asks an agent to go.
pub(super) const LEAVE: &str = "leave";

/// How long an agent whose launcher is gone has for leaving in order: its driver may still be there.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Reads the token, the first line of stdin.
pub(crate) fn read_token() -> Result<Token, Failure> {
    let said = stdin().and_then(|mut stdin| read_line(&mut stdin));
    let line = said.failed("the token cannot be read from stdin")?;
    line.parse().failed("what stdin begins with is no token")
}

/// Why an agent is to leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Word {
    Leave,
    LauncherGone,
}

/// Has the agent leave as its launcher says.
pub(super) async fn obey(leash: Leash, agent: Addr<AgentActor>) {
    match next_word(leash).await {
        None => {}
        Some(Word::Leave) => {
            agent.do_send(Drain {
                reason: "its driver has no use for this host".to_owned(),
                code: 0,
            });
        }
        Some(Word::LauncherGone) => {
            let reason = "what started it is gone".to_owned();
            agent.do_send(Drain { reason: reason.clone(), code: 1 });
            sleep(LEAVE_WITHIN).await;
            agent.do_send(Drain { reason, code: 1 });
        }
    }
}

/// What the launcher says next; none if it is gone, and that is all the same.
async fn next_word(leash: Leash) -> Option<Word> {
    let (tell, heard) = oneshot::channel();
    // A thread of its own: it waits as long as the launcher says nothing, and nobody waits for it.
    let hear = move || drop(tell.send(wait_for_leave()));
    let hearing = thread::Builder::new().name("leash".to_owned()).spawn(hear);
    if let Err(error) = hearing {
        tracing::warn!(%error, "what the launcher says is not heard");
        return None;
    }
    match (heard.await, leash) {
        (Ok(Ok(())), _) => Some(Word::Leave),
        (_, Leash::Tight) => Some(Word::LauncherGone),
        (_, Leash::Loose) => None,
    }
}

fn wait_for_leave() -> io::Result<()> {
    let mut stdin = stdin()?;
    while read_line(&mut stdin)?.trim() != LEAVE {}
    Ok(())
}

/// Past the buffer of [`std::io::stdin`], whose lock would be held while it waits.
fn stdin() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// One line, and not a byte more; the end is an error.
fn read_line(from: &mut impl io::Read) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() <= Token::LINE_BYTES_MAX {
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
        assert_eq!(read_line(&mut input).expect("a line"), "token");
        assert_eq!(input, b"leave\n");
        let cut = read_line(&mut &b"half"[..]).expect_err("no end of line");
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        let flood = vec![b'x'; 1 << 20];
        let refused = read_line(&mut &flood[..]).expect_err("longer than any token");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
