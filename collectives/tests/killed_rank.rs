//! Ranks as processes, one of them killed with SIGKILL at a random moment of a large all-reduce, repeatedly. The
//! others return at once with the same error, the next generation works, and nothing is left behind.
//!
//! The processes are this test program again, told by an environment variable to be a rank.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use elastic_collectives::{
    AbortHandle, CollectiveError, Communicator, CommunicatorExt, DEFAULT_STREAMS, DataPlane,
    GroupSpec, HostFabric, ReduceOp, TcpFabric,
};

const WORLD: usize = 4;
const KILLS: u64 = 50;
/// Elements of the all-reduce that is interrupted: 64 MiB.
const LARGE: usize = 16 << 20;
/// Time limit that ends a hanging test.
const DEADLINE: Duration = Duration::from_secs(60);
const ROLE: &str = "ELASTIC_TEST_RANK";
/// Prefix of each line of a rank, since the test harness writes to the same stream.
const MARK: &str = "@";
/// The name of a generation's segment in the process's mappings: each rank maps it once.
const SEGMENT: &str = "memfd:elastic-collectives";

#[test]
fn survivors_of_sigkill_return_alike_and_form_again() {
    if std::env::var_os(ROLE).is_some() {
        return rank();
    }
    let mut ranks: Vec<Rank> = (0..WORLD).map(|_| Rank::start()).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut descriptors = Vec::new();
    for generation in 0..KILLS {
        let peers: Vec<String> = ranks.iter().map(|rank| rank.address.to_string()).collect();
        for (number, rank) in ranks.iter_mut().enumerate() {
            rank.tell(&format!("{generation} {number} {}", peers.join(",")));
        }
        for rank in &mut ranks {
            // The sum over a new generation is right before the old one's end is provoked again.
            assert_eq!(rank.hear(), "formed", "generation {generation}");
        }
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let victim = (random >> 33) as usize % WORLD;
        pause(Duration::from_micros((random >> 40) % 150_000));
        ranks[victim].child.kill().unwrap();
        for (number, rank) in ranks.iter_mut().enumerate() {
            if number != victim {
                let heard = rank.hear();
                assert_eq!(heard, format!("lost {victim}"), "rank {number} in {generation}");
            }
        }
        ranks[victim].child.wait().unwrap();
        ranks[victim] = Rank::start();
        if generation == 0 || generation == KILLS - 1 {
            let survivors = ranks.iter().enumerate().filter(|(number, _)| *number != victim);
            descriptors.push(survivors.map(|(_, rank)| rank.descriptors()).max().unwrap());
        }
    }
    // A survivor of many generations holds as many descriptors as after one of the first, and no segment.
    assert_eq!(descriptors[0], descriptors[1], "descriptors of a survivor");
    for rank in &ranks {
        assert!(!rank.maps().contains(SEGMENT), "a segment outlives its generation");
    }
    let left = std::fs::read_dir("/dev/shm").unwrap().filter_map(Result::ok);
    let left =
        left.filter(|entry| entry.file_name().to_string_lossy().contains("elastic-collectives"));
    assert_eq!(left.count(), 0, "files in /dev/shm");
}

/// A rank's process, as the test sees it.
struct Rank {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    address: SocketAddr,
}

impl Drop for Rank {
    fn drop(&mut self) {
        // The process has ended already where it was the victim.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    fn start() -> Rank {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "survivors_of_sigkill_return_alike_and_form_again", "--nocapture"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let lines = read_marked(child.stdout.take().unwrap());
        let address = lines.recv_timeout(DEADLINE).unwrap().parse().unwrap();
        Rank { child, input, lines, address }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("a rank answers within the deadline")
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    fn maps(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap()
    }
}

/// The lines of a rank, read by a thread so that the test can wait for them with a deadline.
#[expect(clippy::disallowed_methods, reason = "a pipe has no read with a deadline")]
fn read_marked(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some((_, marked)) = line.split_once(MARK)
                && sender.send(marked.to_owned()).is_err()
            {
                return;
            }
        }
    });
    lines
}

#[expect(clippy::disallowed_methods, reason = "the moment of the kill is random, in real time")]
fn pause(duration: Duration) {
    thread::sleep(duration);
}

fn say(line: &str) {
    std::io::stdout().write_all(format!("{MARK}{line}\n").as_bytes()).unwrap();
}

/// The host of each rank: all on one host, on several, or unknown, so that each path is tested. Of the two cases with
/// unknown hosts, one is encrypted.
fn hosts(generation: u64) -> Vec<u32> {
    match generation % 5 {
        2 => (0..WORLD as u32).map(|rank| rank / 2).collect(),
        1 | 3 => Vec::new(),
        _ => vec![0; WORLD],
    }
}

/// The life of a rank: one generation for each line on stdin.
fn rank() {
    let tcp = TcpFabric::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    say(&tcp.local_address().to_string());
    let mut fabric = HostFabric::new(tcp);
    let abort = AbortHandle::new().unwrap();
    let mut data = vec![0.0f32; LARGE];
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let generation = words.next().unwrap().parse().unwrap();
        let rank: u32 = words.next().unwrap().parse().unwrap();
        let peers: Vec<SocketAddr> =
            words.next().unwrap().split(',').map(|peer| peer.parse().unwrap()).collect();
        let group = GroupSpec {
            term: 1,
            generation,
            rank,
            hosts: hosts(generation),
            peers,
            host_names: Vec::new(),
            key: [generation as u8; 32],
            data_plane: DataPlane::Auto,
            encrypts: generation % 5 == 3,
            streams: DEFAULT_STREAMS,
            form_deadline: DEADLINE,
            operation_deadline: DEADLINE,
            path_deadline: elastic_collectives::DEFAULT_PATH_DEADLINE,
        };
        let mut communicator = fabric.form(&group, &abort).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let segments = usize::from(!hosts(generation).is_empty());
        assert_eq!(maps.matches(SEGMENT).count(), segments, "this generation's, and no other");
        let mut small = [rank as f32 + 1.0; 1000];
        communicator.all_reduce(&mut small, ReduceOp::Sum).unwrap();
        assert_eq!(small, [10.0; 1000]);
        say("formed");
        let failure = reduce_until_failure(&mut *communicator, &mut data);
        // The generation's resources are released before the test checks them.
        drop(communicator);
        match failure {
            CollectiveError::PeerLost { rank, .. } => say(&format!("lost {rank}")),
            other => say(&format!("{other}")),
        }
    }
}

fn reduce_until_failure(communicator: &mut dyn Communicator, data: &mut [f32]) -> CollectiveError {
    let own = communicator.rank() as f32;
    loop {
        data.fill(own);
        if let Err(error) = communicator.all_reduce(data, ReduceOp::Sum) {
            return error;
        }
        assert!(data.iter().all(|value| *value == 6.0), "a completed sum is right");
    }
}
