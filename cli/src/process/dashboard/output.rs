//! `/output`: a worker's last output, and the output since the reader's last request, from the files of `--output-dir`
//! on this machine. Called by `server`; a file is read on a thread that may wait for its disk.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use elastic_agent::OutputStream;
use elastic_observe::{NoOutput, PageRecord, WorkerOutput};
use elastic_store::relay::listener::Ends;
use hyper::StatusCode;
use hyper::body::Bytes;
use nix::fcntl::OFlag;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::JSON;
use super::request::{DashboardAnswer, form_field};
use crate::process::file_of;
use crate::process::socket_table::client_sockets;

/// Most bytes of a file in one answer.
const PART_BYTES_MAX: u64 = 64 << 10;

/// Most files that are read at a time. A disk that does not answer keeps so many threads, and no more.
const READS_MAX: usize = 4;

/// The wanted part of a rank's output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct OutputQuery {
    rank: u32,
    stream: OutputStream,
    /// The worker whose output the reader has, and the number of bytes of its file; `None` for a reader that has nothing.
    seen: Option<(String, u64)>,
}

impl OutputQuery {
    /// Reads `rank=0&stream=stdout`, with `&worker=NAME&from=BYTES` of a reader that has something.
    pub(super) fn parse(query: &str) -> Option<Self> {
        let field = |name: &str| form_field(query.as_bytes(), name);
        let stream = match field("stream")?.as_str() {
            "stdout" => OutputStream::Stdout,
            "stderr" => OutputStream::Stderr,
            _ => return None,
        };
        let seen = match (field("worker"), field("from")) {
            (Some(worker), Some(from)) => Some((worker, from.parse().ok()?)),
            _ => None,
        };
        Some(Self { rank: field("rank")?.parse().ok()?, stream, seen })
    }
}

/// The folder of this job's workers' output, and places for a bounded number of readers.
#[derive(Debug)]
pub(super) struct OutputFolder {
    folder: Option<PathBuf>,
    reads: Arc<Semaphore>,
}

/// A part of a worker's output.
#[derive(Debug, Eq, PartialEq, Serialize)]
struct OutputPart {
    /// The worker, as the reader names it when it asks for more.
    worker: String,
    /// Offset of its start in the file, in bytes.
    from: u64,
    /// Offset of its end.
    next: u64,
    text: String,
}

/// Reasons why there is no output to show.
#[derive(Debug, thiserror::Error)]
enum OutputError {
    #[error("the job does not store what its workers write: start it with --output-dir FOLDER")]
    NotStored,
    #[error(transparent)]
    Nobody(#[from] NoOutput),
    #[error(
        "there is no output of {worker} on the driver's machine: each host stores that of its own workers"
    )]
    NotHere { worker: String },
    #[error("the output of {worker} cannot be read: {source}")]
    Unreadable { worker: String, source: io::Error },
    #[error(
        "on a loopback address output is shown to the user of this job alone, as its files are to be read by; or use \
         `elastic-node logs`"
    )]
    OtherUser,
    #[error("other output is being read, and its disk does not answer")]
    Busy,
}

impl OutputFolder {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, reads: Arc::new(Semaphore::new(READS_MAX)) }
    }

    /// Makes the checks that need no wait, and returns the reading itself, for a thread that may wait.
    fn prepare(
        &self,
        query: OutputQuery,
        reader: Option<Ends>,
        record: &PageRecord,
    ) -> Result<OutputRead, OutputError> {
        let folder = self.folder.clone().ok_or(OutputError::NotStored)?;
        let output = record.output_of(query.rank)?.clone();
        let place = Arc::clone(&self.reads).try_acquire_owned().map_err(|_| OutputError::Busy)?;
        Ok(OutputRead { folder, output, query, reader, _place: place })
    }
}

/// Answers a request for output. `reader` is the connection on which it came, if nobody has to log in.
pub(super) async fn answer_output(
    folder: &OutputFolder,
    query: OutputQuery,
    reader: Option<Ends>,
    record: &std::cell::RefCell<PageRecord>,
) -> DashboardAnswer {
    let prepared = folder.prepare(query, reader, &record.borrow());
    let read = match prepared {
        #[expect(
            clippy::disallowed_methods,
            reason = "the dashboard's own runtime, and no actor's"
        )]
        Ok(read) => match tokio::task::spawn_blocking(move || read.run()).await {
            Ok(read) => read,
            Err(_panicked) => Err(OutputError::Busy),
        },
        Err(error) => Err(error),
    };
    match read {
        Ok(part) => {
            let json = serde_json::to_vec(&part).unwrap_or_default();
            DashboardAnswer::new(StatusCode::OK, JSON, Bytes::from(json))
        }
        Err(error) => {
            let status = match error {
                OutputError::Busy => StatusCode::SERVICE_UNAVAILABLE,
                OutputError::OtherUser => StatusCode::FORBIDDEN,
                _ => StatusCode::NOT_FOUND,
            };
            DashboardAnswer::plain(status, &error.to_string())
        }
    }
}

/// A reading that has its place among those of [`READS_MAX`].
struct OutputRead {
    folder: PathBuf,
    output: WorkerOutput,
    query: OutputQuery,
    /// The reader's connection, where its user must be this process's own.
    reader: Option<Ends>,
    _place: OwnedSemaphorePermit,
}

impl OutputRead {
    fn run(self) -> Result<OutputPart, OutputError> {
        if !self.reader.is_none_or(is_of_this_user) {
            return Err(OutputError::OtherUser);
        }
        let worker = self.output.worker.to_string();
        let Some(path) = file_of(&self.folder, &self.output, self.query.stream) else {
            return Err(OutputError::NotHere { worker });
        };
        let seen = self.query.seen.filter(|(of, _)| *of == worker).map(|(_, bytes)| bytes);
        match read_part(&path, seen) {
            Ok((from, next, text)) => Ok(OutputPart { worker, from, next, text }),
            Err(source) => Err(OutputError::Unreadable { worker, source }),
        }
    }
}

/// Whether the client of a connection is a process of this user, or of root. The files have the same readers.
fn is_of_this_user(reader: Ends) -> bool {
    let (found, _errors) = client_sockets(&[reader]);
    let me = nix::unistd::geteuid().as_raw();
    found.into_iter().flatten().any(|socket| socket.user == me || socket.user == 0)
}

/// The bytes of the file after those that were seen. If these are too many, or nothing was seen, the end of the file.
/// Returns the offsets of the part's start and end.
fn read_part(path: &Path, seen: Option<u64>) -> io::Result<(u64, u64, String)> {
    // A worker may have put something else in the place of its file: a link, or a pipe that would be waited for.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let end = metadata.len();
    let follows = seen.filter(|at| end.checked_sub(*at).is_some_and(|it| it <= PART_BYTES_MAX));
    let mut from = follows.unwrap_or(end.saturating_sub(PART_BYTES_MAX));
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(PART_BYTES_MAX).read_to_end(&mut bytes)?;
    if follows.is_none() && from > 0 {
        // The part begins with a whole character.
        let is_inner = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
        let cut = bytes.iter().take(3).take_while(|byte| is_inner(byte)).count();
        bytes.drain(..cut);
        from += cut as u64;
    }
    // A character whose end is not there yet comes with the next part.
    if let Err(error) = str::from_utf8(&bytes)
        && error.error_len().is_none()
    {
        bytes.truncate(error.valid_up_to());
    }
    let next = from + bytes.len() as u64;
    Ok((from, next, String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn queries_are_read_and_wrong_ones_refused() {
        let query = |text: &str| OutputQuery::parse(text);
        let seen = Some(("b[0]#4".to_owned(), 17));
        let expected = OutputQuery { rank: 3, stream: OutputStream::Stderr, seen };
        let text = "rank=3&stream=stderr&worker=b%5B0%5D%234&from=17";
        assert_eq!(query(text), Some(expected));
        assert_eq!(query("rank=0&stream=stdout").map(|it| it.seen), Some(None));
        for wrong in
            ["", "rank=0", "rank=-1&stream=stdout", "rank=0&stream=../../x", "stream=stdout"]
        {
            assert_eq!(query(wrong), None, "{wrong}");
        }
        assert_eq!(query("rank=0&stream=stdout&worker=a&from=x"), None);
    }

    #[test]
    fn a_reader_gets_the_end_then_what_follows_and_after_a_gap_the_end_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        fs::write(&path, "first\n").expect("ours");
        assert_eq!(read_part(&path, None).expect("readable"), (0, 6, "first\n".to_owned()));
        fs::write(&path, "first\nnext\n").expect("ours");
        assert_eq!(read_part(&path, Some(6)).expect("readable"), (6, 11, "next\n".to_owned()));
        assert_eq!(read_part(&path, Some(11)).expect("readable"), (11, 11, String::new()));
        // The file is another one, or has grown by more than a part.
        assert_eq!(read_part(&path, Some(12)).expect("readable").0, 0);
        fs::write(&path, "x".repeat(1_000_000)).expect("ours");
        let (from, next, text) = read_part(&path, Some(11)).expect("readable");
        assert_eq!((from, next, text.len()), (1_000_000 - 65_536, 1_000_000, 65_536));
    }

    #[test]
    fn characters_stay_whole_and_other_bytes_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let euros = "€".repeat(50_000);
        fs::write(&path, &euros.as_bytes()[..149_999]).expect("ours");
        let (from, next, text) = read_part(&path, None).expect("readable");
        assert!(text.chars().all(|it| it == '€') && from > 80_000, "{from}");
        assert_eq!(next, 149_997, "the rest is still to come");
        fs::write(&path, &euros).expect("ours");
        assert_eq!(read_part(&path, Some(next)).expect("readable").2, "€");
        fs::write(&path, b"a\xffb").expect("ours");
        assert_eq!(read_part(&path, None).expect("readable").2, "a\u{fffd}b");
    }

    #[test]
    fn what_a_worker_puts_in_the_place_of_its_file_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let (secret, link) = (folder.path().join("secret"), folder.path().join("link"));
        fs::write(&secret, "of somebody else").expect("ours");
        std::os::unix::fs::symlink(&secret, &link).expect("ours");
        read_part(&link, None).expect_err("a link");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("ours");
        assert!(read_part(&pipe, None).expect_err("a pipe").to_string().contains("no file"));
        read_part(folder.path(), None).expect_err("a folder");
    }

    #[test]
    fn a_job_that_stores_nothing_says_which_flag_does() {
        let record = PageRecord::new("j".to_owned(), elastic_protocol::Time::ZERO);
        let query = OutputQuery::parse("rank=0&stream=stdout").expect("sound");
        let error = OutputFolder::new(None).prepare(query.clone(), None, &record).err();
        let said = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(said.ends_with("start it with --output-dir FOLDER"), "{said}");
        let stored = OutputFolder::new(Some(PathBuf::from("/nowhere")));
        let error = stored.prepare(query, None, &record).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("no generation was formed yet"));
    }
}
