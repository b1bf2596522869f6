//! Ranks as processes, one of which is killed: the stand-in's communicators span processes as NCCL's do.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use elastic_protocol::WorkerId;

use crate::support::{LONG, Options, Rank, describe, sum, worker};

const TEST: &str = "processes::one_is_killed_and_the_other_goes_on_with_a_new_one";
/// Tells this test that it is one of the ranks, and which.
const NUMBER: &str = "STAND_IN_RANK";

/// A rank, as the test sees it: told and heard by lines.
struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    number: u32,
    address: SocketAddr,
}

impl Process {
    fn start(number: u32) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("the test's own path"));
        command.args(["--exact", TEST, "--nocapture"]).env(NUMBER, number.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (line, lines) = mpsc::channel();
        let stdout = BufReader::new(stdout.expect("it is piped"));
        std::thread::spawn(move || {
            // The reader may be gone.
            stdout.lines().map_while(Result::ok).try_for_each(|text| line.send(text))
        });
        let stdin = stdin.expect("it is piped");
        let mut process =
            Process { child, stdin, lines, number, address: ([0, 0, 0, 0], 0).into() };
        process.address = process.hear("address ").parse().expect("an address");
        process
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }

    /// Waits for a line that has this in it, and gives what follows.
    fn hear(&self, what: &str) -> String {
        let due = Instant::now() + LONG;
        loop {
            let patience = due.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(patience);
            let line = line.unwrap_or_else(|_| panic!("rank {} said no {what:?}", self.number));
            // The test harness writes to the same stream, without ending its lines.
            if let Some((_, rest)) = line.split_once(what) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn form(generation: u64, processes: &mut [&mut Process]) {
    let members: Vec<String> =
        processes.iter().map(|process| format!("{} {}", process.number, process.address)).collect();
    let line = format!("form {generation} {}", members.join(" "));
    processes.iter_mut().for_each(|process| process.tell(&line));
    processes.iter().for_each(|process| drop(process.hear("formed")));
}

#[test]
fn one_is_killed_and_the_other_goes_on_with_a_new_one() {
    if let Ok(number) = std::env::var(NUMBER) {
        return be_a_rank(number.parse().expect("a number"));
    }
    let (mut stays, mut dies) = (Process::start(0), Process::start(1));
    form(1, &mut [&mut stays, &mut dies]);
    stays.tell("train");
    dies.tell("train");
    (0..3).for_each(|_| assert_eq!(stays.hear("sum "), "3"));
    dies.child.kill().expect("it lives");
    dies.child.wait().expect("it ends");
    // The remaining rank is told by its State only.
    stays.tell("end 1");
    let after = stays.hear("aborted after ");
    tell(&format!("the survivor was out of its collective {after} after the abort"));

    let mut comes = Process::start(2);
    form(2, &mut [&mut stays, &mut comes]);
    stays.tell("train");
    comes.tell("train");
    (0..3).for_each(|_| assert_eq!(stays.hear("sum "), "3"));
}

#[expect(clippy::print_stderr, reason = "a figure for the reader")]
fn tell(text: &str) {
    eprintln!("{text}");
}

/// A rank: does what its stdin says, until it is killed.
#[expect(clippy::print_stdout, reason = "the test reads it")]
fn be_a_rank(number: u32) {
    let mut rank = Rank::new(number, &Options::default());
    let ended = Arc::new(Mutex::new(None));
    let (abort, port, end) = (rank.abort.clone(), rank.port.clone(), Arc::clone(&ended));
    let (line, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for text in std::io::stdin().lines().map_while(Result::ok) {
            if let Some(generation) = text.strip_prefix("end ") {
                *end.lock().expect("nobody panics") = Some(Instant::now());
                Rank::end(&abort, &port, generation.parse().expect("a number"));
            } else if line.send(text).is_err() {
                return;
            }
        }
    });
    println!("\naddress {}", rank.address());
    let mut group = None;
    for text in lines {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["form", generation, ref members @ ..] => {
                let member = |pair: &[&str]| -> (WorkerId, SocketAddr) {
                    let number = pair[0].parse().expect("a number");
                    (worker(number, "a"), pair[1].parse().expect("an address"))
                };
                let members: Vec<_> = members.chunks(2).map(member).collect();
                drop(group.take());
                let generation = generation.parse().expect("a number");
                match rank.form(generation, &members) {
                    Ok(formed) => group = Some(formed),
                    Err(error) => panic!("{}", describe(&error)),
                }
                println!("formed");
            }
            _ => {
                let group = group.as_mut().expect("it was formed");
                while let Ok(sum) = sum(&mut **group) {
                    println!("sum {sum}");
                }
                let begun = ended.lock().expect("nobody panics").take().expect("it was ended");
                println!("aborted after {} ms", begun.elapsed().as_millis());
            }
        }
    }
}
