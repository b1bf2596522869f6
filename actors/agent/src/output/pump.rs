//! The output thread of a process: copies its output from the pipes to the files and to the `OutputSink`.
//! Started with each process.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use elastic_protocol::WorkerId;
use elastic_protocol::messages::AgentToDriver;
use elastic_runtime::wall_clock;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use super::lines::Lines;
use super::owner::FolderTaken;
use super::plan::{OutputPlan, StreamPlan};
use super::prefix::LinePrefix;
use super::stored::{self, OutputFiles, StoredFile};
use super::tail::StreamTail;
use super::{OutputSink, OutputStream};

/// Timeout for reading the last output of a process that has ended, before its last words are reported.
pub const TAIL_PATIENCE: Duration = AgentToDriver::LAST_WORDS_WITHIN;

/// Bytes that are read at once: the capacity of a pipe.
const READ_BYTES: usize = 64 << 10;

/// The most reads of the pipes of a process that has ended, before its last words go out. The bound matters if
/// a descendant that left the process group goes on writing.
const LAST_READS_MAX: u32 = 64;

/// Errors of preparing the output of a process.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The folder cannot be made.
    #[error("the output folder {} cannot be made: {source}", path.display())]
    Folder {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be made.
    #[error("the output file {} cannot be made: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The folder holds the output of another job.
    #[error(transparent)]
    Taken(#[from] FolderTaken),
    /// A pipe cannot be made.
    #[error("there is no pipe for its output: {0}")]
    Pipe(#[source] io::Error),
    /// A thread that reads or stores the output cannot be started.
    #[error(
        "there is no thread for its output: {0} (limits: ulimit -u, and pids.max of the control group)"
    )]
    Thread(#[source] io::Error),
}

/// The write ends of the pipes, which become the stdout and stderr of the process.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// The agent's handle on the output of one process. The output thread ends when every holder of the pipes is
/// gone, including descendants that left the process group.
#[derive(Debug)]
pub(crate) struct Attached {
    tail: Arc<Mutex<StreamTail>>,
    all_read: oneshot::Receiver<()>,
    /// Dropped when the process has ended: the output thread sees that this pipe closes.
    process_lives: OwnedFd,
}

impl Attached {
    /// Waits until all output of the process was read, for [`TAIL_PATIENCE`] at most, and returns the end of
    /// stderr. To be called when the process has ended.
    pub(crate) async fn finish(self) -> String {
        drop(self.process_lives);
        // After the timeout, or if the thread is gone, the tail holds what was read so far.
        let _ = tokio::time::timeout(TAIL_PATIENCE, self.all_read).await;
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

/// Makes a process's pipes and files, and starts its output thread.
///
/// # Errors
/// [`AttachError`] names the folder or file.
pub(crate) fn attach(
    worker: &WorkerId,
    plan: &OutputPlan,
    sink: Arc<dyn OutputSink>,
    files: &OutputFiles,
) -> Result<(Pipes, Attached), AttachError> {
    let deadline = stored::deadline(files);
    // If a stream is stored, its file makes the folder, on a lane of its own.
    let is_stored = plan.stdout.file.is_some() || plan.stderr.file.is_some();
    let folder = plan.error_file.as_deref().and_then(Path::parent);
    if let Some(folder) = folder.filter(|_| !is_stored)
        && let Err(error) = std::fs::create_dir_all(folder)
    {
        let folder = folder.display();
        tracing::warn!(%worker, %folder, %error, "its program cannot write down why it fails");
    }
    let (read_stdout, stdout) = pipe()?;
    let (read_stderr, stderr) = pipe()?;
    let (hear_end, process_lives) = pipe()?;
    let tail = Arc::new(Mutex::new(StreamTail::default()));
    let source = |stream, of: &StreamPlan, pipe, tail| {
        let begin = |path| StoredFile::begin(path, plan, files).map_err(AttachError::Thread);
        let file = of.file.as_deref().map(begin).transpose()?;
        let (pipe, lines) = (Some(File::from(pipe)), of.is_shown.then(Lines::default));
        Ok::<_, AttachError>(Source { stream, pipe, file, lines, tail })
    };
    let mut sources = [
        source(OutputStream::Stdout, &plan.stdout, read_stdout, None)?,
        source(OutputStream::Stderr, &plan.stderr, read_stderr, Some(Arc::clone(&tail)))?,
    ];
    sources.iter_mut().for_each(|source| source.open(worker, deadline));
    let (told, all_read) = oneshot::channel();
    let (worker, prefix) = (worker.clone(), plan.prefix.clone());
    let slot = worker.slot;
    let pump =
        OutputPump { worker, prefix, sources, sink, end: EndProgress::Awaited { hear_end, told } };
    let thread = thread::Builder::new().name(format!("output {slot}")).spawn(move || pump.run());
    thread.map_err(AttachError::Thread)?;
    Ok((Pipes { stdout, stderr }, Attached { tail, all_read, process_lives }))
}

fn pipe() -> Result<(OwnedFd, OwnedFd), AttachError> {
    nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|error| AttachError::Pipe(error.into()))
}

/// One stream of the process.
struct Source {
    stream: OutputStream,
    /// The read end of the pipe; `None` once its end was read.
    pipe: Option<File>,
    file: Option<StoredFile>,
    /// The line splitter, if the stream is shown.
    lines: Option<Lines>,
    tail: Option<Arc<Mutex<StreamTail>>>,
}

struct OutputPump {
    worker: WorkerId,
    prefix: LinePrefix,
    sources: [Source; 2],
    sink: Arc<dyn OutputSink>,
    end: EndProgress,
}

/// Progress of the process's end, as its output thread sees it.
enum EndProgress {
    /// The process lives. `hear_end` closes when it ends.
    Awaited { hear_end: OwnedFd, told: oneshot::Sender<()> },
    /// The process has ended. The rest of the pipes is being read, then `told` is signalled.
    Heard { reads_left: u32, told: oneshot::Sender<()> },
    /// All output was read, and `told` was signalled.
    Told,
}

impl OutputPump {
    fn run(mut self) {
        let mut buffer = vec![0; READ_BYTES];
        while self.sources.iter().any(|source| source.pipe.is_some()) {
            let (readable, end_heard) = self.wait();
            let prefix = self.prefix.text(wall_clock());
            for (source, readable) in self.sources.iter_mut().zip(readable) {
                if readable {
                    source.read(&self.worker, &prefix, self.sink.as_ref(), &mut buffer);
                }
            }
            self.end = match std::mem::replace(&mut self.end, EndProgress::Told) {
                EndProgress::Awaited { told, .. } if end_heard => {
                    EndProgress::Heard { reads_left: LAST_READS_MAX, told }
                }
                EndProgress::Heard { reads_left, told }
                    if reads_left > 0 && readable != [false, false] =>
                {
                    EndProgress::Heard { reads_left: reads_left - 1, told }
                }
                EndProgress::Heard { told, .. } => self.all_read(told),
                as_it_is => as_it_is,
            };
        }
        if let EndProgress::Awaited { told, .. } | EndProgress::Heard { told, .. } =
            std::mem::replace(&mut self.end, EndProgress::Told)
        {
            self.all_read(told);
        }
    }

    /// Shows last lines without a line end, flushes the files, and signals that the process's output is
    /// complete.
    fn all_read(&mut self, told: oneshot::Sender<()>) -> EndProgress {
        let prefix = self.prefix.text(wall_clock());
        for source in &mut self.sources {
            source.show_rest(&prefix, self.sink.as_ref());
        }
        for file in self.sources.iter().filter_map(|source| source.file.as_ref()) {
            file.flush(TAIL_PATIENCE / 2);
        }
        // The receiver is gone if the agent is ending.
        let _ = told.send(());
        EndProgress::Told
    }

    /// Waits until a pipe can be read or the process has ended. After the end of the process it polls without
    /// waiting.
    fn wait(&self) -> ([bool; 2], bool) {
        let pipes = self.sources.iter().enumerate().filter_map(|(index, source)| {
            Some((index, PollFd::new(source.pipe.as_ref()?.as_fd(), PollFlags::POLLIN)))
        });
        let (indices, mut polled): (Vec<_>, Vec<_>) = pipes.unzip();
        if let EndProgress::Awaited { hear_end, .. } = &self.end {
            polled.push(PollFd::new(hear_end.as_fd(), PollFlags::empty()));
        }
        let only_looks = matches!(self.end, EndProgress::Heard { .. });
        let timeout = if only_looks { PollTimeout::ZERO } else { PollTimeout::NONE };
        if poll(&mut polled, timeout).is_err() {
            // A signal interrupted the call: the caller polls again.
            return ([false; 2], false);
        }
        let heard = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let mut readable = [false; 2];
        for (index, fd) in indices.iter().zip(&polled) {
            readable[*index] = heard(fd);
        }
        (readable, polled.get(indices.len()).is_some_and(heard))
    }
}

impl Source {
    /// Waits for its file. If there can be none, the stream is shown: a disk that takes no files costs no worker.
    fn open(&mut self, worker: &WorkerId, deadline: Instant) {
        let opened = self.file.as_mut().map_or(Ok(()), |file| file.wait(deadline));
        if let Err(error) = opened {
            tracing::error!(%worker, "{error}: its {} is only shown", self.stream.name());
            self.file = None;
            self.lines.get_or_insert_default();
        }
    }

    fn read(&mut self, worker: &WorkerId, prefix: &str, sink: &dyn OutputSink, buffer: &mut [u8]) {
        let Some(pipe) = &mut self.pipe else { return };
        let bytes = match pipe.read(buffer) {
            Ok(0) => return self.finish(prefix, sink),
            Ok(length) => &buffer[..length],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return,
            Err(error) => {
                tracing::warn!(%worker, %error, "its {} cannot be read", self.stream.name());
                return self.finish(prefix, sink);
            }
        };
        if let Some(file) = &mut self.file {
            file.write(bytes);
        }
        if let Some(tail) = &self.tail {
            tail.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
        if let Some(lines) = &mut self.lines {
            lines.feed(bytes, &mut |line: &str| sink.line(prefix, self.stream, line));
        }
    }

    /// Closes the stream after the end of its pipe was read.
    fn finish(&mut self, prefix: &str, sink: &dyn OutputSink) {
        self.pipe = None;
        self.show_rest(prefix, sink);
    }

    fn show_rest(&mut self, prefix: &str, sink: &dyn OutputSink) {
        if let Some(lines) = &mut self.lines {
            lines.finish(&mut |line: &str| sink.line(prefix, self.stream, line));
        }
    }
}
