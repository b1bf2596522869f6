//! Late blocks: parts of a commit whose bytes are still being copied when the commit is encoded, such as a binding's arrays
//! on a GPU. The binding announces such a block before it encodes it; `snapshot` leaves a gap in its place; `State` has the
//! gaps filled by a thread of this module beside the next step, and waits for it before it uses the commit.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use super::device::DeviceError;

/// Longest wait for the late blocks of one commit. A GPU that takes longer is lost (G-9).
const LATE_MAX: Duration = Duration::from_secs(60);

/// Memory into which a device copies the bytes of a block.
pub trait LateBlock: fmt::Debug + Send {
    /// Waits for the copy, and writes its bytes to `into`, which has the block's length.
    ///
    /// # Errors
    /// The device refused.
    fn copy_into(&self, into: &mut [u8]) -> Result<(), DeviceError>;
}

thread_local! {
    /// Address of the announced block; 0 if none is. It is compared with every piece of an encoding.
    static ADDRESS: Cell<usize> = const { Cell::new(0) };
    static ANNOUNCED: RefCell<Option<Box<dyn LateBlock>>> = const { RefCell::new(None) };
}

/// Says that `bytes`, which this thread encodes next as one block, are still being copied: they are not read, and `block`
/// has them later.
pub fn announce_late(bytes: &[u8], block: Box<dyn LateBlock>) {
    if !bytes.is_empty() {
        ADDRESS.set(bytes.as_ptr().addr());
        ANNOUNCED.set(Some(block));
    }
}

/// The block that was announced as these bytes, if one was.
pub(super) fn take_announced(bytes: &[u8]) -> Option<Box<dyn LateBlock>> {
    if ADDRESS.get() != bytes.as_ptr().addr() || bytes.is_empty() {
        return None;
    }
    ADDRESS.set(0);
    ANNOUNCED.take()
}

/// Forgets a block that was announced and not encoded.
pub(super) fn forget_announced() {
    ADDRESS.set(0);
    ANNOUNCED.set(None);
}

/// A late block in an encoded commit.
#[derive(Debug)]
pub(super) struct CommitGap {
    /// Its place in the bytes without late blocks.
    pub(super) at: usize,
    /// Its length in bytes.
    pub(super) length: usize,
    /// The memory that has its bytes.
    pub(super) block: Box<dyn LateBlock>,
}

/// Inserts the late blocks. `gaps` are in the order of their places.
///
/// # Errors
/// The error of the first block that has no bytes.
fn fill(bytes: &mut Vec<u8>, gaps: &[CommitGap]) -> Result<(), DeviceError> {
    let mut unmoved = bytes.len();
    let late: usize = gaps.iter().map(|gap| gap.length).sum();
    let mut end = unmoved + late;
    bytes.resize(end, 0);
    for CommitGap { at, length, block } in gaps.iter().rev() {
        let start = end - (unmoved - at);
        bytes.copy_within(*at..unmoved, start);
        (unmoved, end) = (*at, start - length);
        block.copy_into(&mut bytes[end..start])?;
    }
    Ok(())
}

/// A commit whose late blocks have been filled in, or failed.
pub(super) type FilledCommit = (Vec<u8>, Result<(), DeviceError>);

/// A commit whose gaps are to be filled.
#[derive(Debug)]
struct GapJob {
    bytes: Vec<u8>,
    gaps: Vec<CommitGap>,
    done: SyncSender<FilledCommit>,
}

/// The thread that fills gaps, one commit after the other. It is started with the first commit that has gaps, and ends with
/// this object.
#[derive(Debug, Default)]
pub(super) struct GapFiller {
    jobs: Option<SyncSender<GapJob>>,
}

impl GapFiller {
    /// Begins to fill the gaps of a commit.
    ///
    /// # Errors
    /// The bytes, and the reason: no thread can be started, or an earlier commit is still waiting for its device.
    pub(super) fn begin(
        &mut self,
        bytes: Vec<u8>,
        gaps: Vec<CommitGap>,
    ) -> Result<Receiver<FilledCommit>, (Vec<u8>, DeviceError)> {
        let jobs = match self.jobs.take().map_or_else(start, Ok) {
            Ok(jobs) => self.jobs.insert(jobs),
            Err(error) => return Err((bytes, error.into())),
        };
        let (done, filled) = sync_channel(1);
        let job = GapJob { bytes, gaps, done };
        match jobs.try_send(job) {
            Ok(()) => Ok(filled),
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                Err((job.bytes, "the copies of an earlier commit have not ended".into()))
            }
        }
    }
}

fn start() -> std::io::Result<SyncSender<GapJob>> {
    let (jobs, due) = sync_channel::<GapJob>(1);
    let run = move || {
        for GapJob { mut bytes, gaps, done } in due {
            let filled = fill(&mut bytes, &gaps);
            // The memory of the blocks may be needed for the next commit.
            drop(gaps);
            // The receiver is gone if the copies took too long.
            let _ = done.send((bytes, filled));
        }
    };
    std::thread::Builder::new().name("late-blocks".to_owned()).spawn(run)?;
    Ok(jobs)
}

/// Waits for the gaps of a commit. Returns its bytes, none of them if they took too long.
pub(super) fn wait(filled: &Receiver<FilledCommit>) -> FilledCommit {
    wait_for(filled, LATE_MAX)
}

fn wait_for(filled: &Receiver<FilledCommit>, at_most: Duration) -> FilledCommit {
    filled.recv_timeout(at_most).unwrap_or_else(|error| {
        let reason = match error {
            RecvTimeoutError::Timeout => format!("its copies have not ended after {at_most:?}"),
            RecvTimeoutError::Disconnected => "the thread that copies it has ended".to_owned(),
        };
        (Vec::new(), Err(reason.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(Result<&'static [u8], &'static str>);

    impl LateBlock for Fixed {
        fn copy_into(&self, into: &mut [u8]) -> Result<(), DeviceError> {
            into.copy_from_slice(self.0?);
            Ok(())
        }
    }

    fn gap(at: usize, bytes: &'static [u8]) -> CommitGap {
        CommitGap { at, length: bytes.len(), block: Box::new(Fixed(Ok(bytes))) }
    }

    #[test]
    fn late_blocks_stand_in_their_places() {
        let cases: [(&str, Vec<CommitGap>, &str); 4] = [
            ("abc", vec![], "abc"),
            ("abc", vec![gap(0, b"--"), gap(3, b"+")], "--abc+"),
            ("abcdef", vec![gap(1, b"12345678"), gap(1, b"9"), gap(4, b"0")], "a123456789bcd0ef"),
            ("", vec![gap(0, b"x"), gap(0, b"yz")], "xyz"),
        ];
        for (bytes, gaps, whole) in cases {
            let mut bytes = bytes.as_bytes().to_vec();
            fill(&mut bytes, &gaps).expect("all are there");
            assert_eq!(String::from_utf8_lossy(&bytes), whole);
        }
    }

    #[test]
    fn a_block_without_bytes_fails_its_commit_and_no_later_one() {
        let mut filler = GapFiller::default();
        let refused = CommitGap { at: 1, length: 1, block: Box::new(Fixed(Err("no bytes"))) };
        let filled = filler.begin(vec![1, 2], vec![refused]).map_err(|(_, error)| error);
        let (_, result) = wait(&filled.expect("it begins"));
        assert_eq!(result.map_err(|error| error.to_string()), Err("no bytes".to_owned()));
        let filled = filler.begin(vec![1, 2], vec![gap(1, b"\x07")]).map_err(|(_, error)| error);
        let (bytes, result) = wait(&filled.expect("it begins"));
        assert!(result.is_ok());
        assert_eq!(bytes, [1, 7, 2]);
    }

    /// A block whose device answers when the test says so.
    #[derive(Debug)]
    struct Held(Receiver<()>);

    impl LateBlock for Held {
        fn copy_into(&self, _into: &mut [u8]) -> Result<(), DeviceError> {
            Ok(self.0.recv()?)
        }
    }

    #[test]
    fn g_9_a_device_that_does_not_answer_costs_its_commits_and_holds_nobody() {
        let mut filler = GapFiller::default();
        let (answer, answers) = sync_channel(1);
        let held = CommitGap { at: 0, length: 1, block: Box::new(Held(answers)) };
        let filled = filler.begin(vec![1], vec![held]).map_err(|(_, error)| error);
        let filled = filled.expect("it begins");
        let (bytes, result) = wait_for(&filled, Duration::from_millis(20));
        assert!(bytes.is_empty(), "they are still with the thread");
        assert!(result.is_err_and(|error| error.to_string().contains("have not ended")));
        // One further commit waits in line, and the one after it is refused at once.
        let next = filler.begin(vec![1], vec![gap(0, b"a")]).map_err(|(_, error)| error);
        let next = next.expect("it waits in line");
        let refused = filler.begin(vec![5], vec![gap(0, b"b")]);
        assert!(refused.is_err_and(|(bytes, _)| bytes == [5]), "its bytes come back");
        answer.send(()).expect("the thread waits for it");
        assert_eq!(wait(&next).0, [b'a', 1]);
    }
}
