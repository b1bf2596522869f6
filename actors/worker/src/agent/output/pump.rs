//! The thread that carries a process's output from its pipes to its files and to the view.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use elastic_protocol::WorkerId;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use super::lines::Lines;
use super::plan::{OutputPlan, StreamPlan};
use super::tail::Tail;
use super::{OutputSink, OutputStream};

/// How long an exit report waits for what the process wrote at last. It is in the pipe already, so only a
/// slow disk or an overloaded machine makes it wait at all.
pub const TAIL_PATIENCE: Duration = Duration::from_secs(2);

/// How much is read at once, in bytes: what a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// How often the pipes of a process that has ended are read before the report goes out, if something that left
/// its group goes on writing to them.
const LAST_READS_MAX: u32 = 64;

/// Why a process's output cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The folder cannot be made.
    #[error("the output folder {} cannot be made: {source}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be made.
    #[error("the output file {} cannot be made: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No pipe, or no thread.
    #[error("its output cannot be read: {0}")]
    System(#[from] io::Error),
}

/// The write ends for the process, to become its stdout and stderr.
#[derive(Debug)]
pub(in crate::agent) struct Pipes {
    pub(in crate::agent) stdout: OwnedFd,
    pub(in crate::agent) stderr: OwnedFd,
}

/// The agent's hold on the output of one process. Its thread ends with the pipes: when all who hold them, which
/// may be a descendant that left the process's group, are gone.
#[derive(Debug)]
pub(in crate::agent) struct Attached {
    tail: Arc<Mutex<Tail>>,
    all_read: oneshot::Receiver<()>,
    /// The thread hears that this is dropped.
    process_lives: OwnedFd,
}

impl Attached {
    /// To be called when the process has ended: waits until all that it wrote was read, for
    /// [`TAIL_PATIENCE`] at most; the end of stderr.
    pub(in crate::agent) async fn finish(self) -> String {
        drop(self.process_lives);
        // Past the patience, or if the thread is gone, the tail is what was read so far.
        let _ = tokio::time::timeout(TAIL_PATIENCE, self.all_read).await;
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

/// Makes a process's pipes and files, and starts its output thread.
///
/// # Errors
/// [`AttachError`] names the folder or file.
pub(in crate::agent) fn attach(
    worker: &WorkerId,
    plan: &OutputPlan,
    sink: Arc<dyn OutputSink>,
) -> Result<(Pipes, Attached), AttachError> {
    for folder in plan.folders() {
        std::fs::create_dir_all(folder)
            .map_err(|source| AttachError::Folder { path: folder.to_owned(), source })?;
    }
    let (read_stdout, stdout) = pipe()?;
    let (read_stderr, stderr) = pipe()?;
    let (hear_end, process_lives) = pipe()?;
    let tail = Arc::new(Mutex::new(Tail::default()));
    let source = |stream, of: &StreamPlan, pipe, tail| {
        let file = of.file.as_deref().map(create).transpose()?;
        let (pipe, lines) = (Some(File::from(pipe)), of.is_shown.then(Lines::default));
        Ok::<_, AttachError>(Source { stream, pipe, file, lines, tail })
    };
    let sources = [
        source(OutputStream::Stdout, &plan.stdout, read_stdout, None)?,
        source(OutputStream::Stderr, &plan.stderr, read_stderr, Some(Arc::clone(&tail)))?,
    ];
    let (told, all_read) = oneshot::channel();
    let (worker, prefix) = (worker.clone(), plan.prefix.clone());
    let slot = worker.slot;
    let pump = Pump { worker, prefix, sources, sink, end: End::Awaited { hear_end, told } };
    thread::Builder::new().name(format!("output {slot}")).spawn(move || pump.run())?;
    Ok((Pipes { stdout, stderr }, Attached { tail, all_read, process_lives }))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

fn create(path: &Path) -> Result<(PathBuf, File), AttachError> {
    let path = path.to_owned();
    let file = OpenOptions::new().create(true).append(true).open(&path);
    match file {
        Ok(file) => Ok((path, file)),
        Err(source) => Err(AttachError::File { path, source }),
    }
}

/// One stream of the process.
struct Source {
    stream: OutputStream,
    /// Until its end was read.
    pipe: Option<File>,
    /// Until it could not be written.
    file: Option<(PathBuf, File)>,
    /// If it is shown.
    lines: Option<Lines>,
    tail: Option<Arc<Mutex<Tail>>>,
}

struct Pump {
    worker: WorkerId,
    prefix: String,
    sources: [Source; 2],
    sink: Arc<dyn OutputSink>,
    end: End,
}

/// How far the end of the process is, as its output thread knows it.
enum End {
    /// The process lives; its end is heard here.
    Awaited { hear_end: OwnedFd, told: oneshot::Sender<()> },
    /// It has ended: what it left in the pipes is read, and then that is told.
    Heard { reads_left: u32, told: oneshot::Sender<()> },
    /// All that it wrote was read.
    Told,
}

impl Pump {
    fn run(mut self) {
        let mut buffer = vec![0; READ_BYTES];
        while self.sources.iter().any(|source| source.pipe.is_some()) {
            let (readable, end_heard) = self.wait();
            for (source, readable) in self.sources.iter_mut().zip(readable) {
                if readable {
                    source.read(&self.worker, &self.prefix, self.sink.as_ref(), &mut buffer);
                }
            }
            self.end = match std::mem::replace(&mut self.end, End::Told) {
                End::Awaited { told, .. } if end_heard => {
                    End::Heard { reads_left: LAST_READS_MAX, told }
                }
                End::Heard { reads_left, told } if reads_left > 0 && readable != [false, false] => {
                    End::Heard { reads_left: reads_left - 1, told }
                }
                End::Heard { told, .. } => self.all_read(told),
                as_it_is => as_it_is,
            };
        }
        if let End::Awaited { told, .. } | End::Heard { told, .. } =
            std::mem::replace(&mut self.end, End::Told)
        {
            self.all_read(told);
        }
    }

    /// Shows lines that have no end, and tells that the process's output is complete.
    fn all_read(&mut self, told: oneshot::Sender<()>) -> End {
        for source in &mut self.sources {
            source.show_rest(&self.prefix, self.sink.as_ref());
        }
        // Nobody listens if the agent is ending.
        let _ = told.send(());
        End::Told
    }

    /// Waits until a pipe can be read or the process has ended; once it has, only looks.
    fn wait(&self) -> ([bool; 2], bool) {
        let pipes = self.sources.iter().enumerate().filter_map(|(index, source)| {
            Some((index, PollFd::new(source.pipe.as_ref()?.as_fd(), PollFlags::POLLIN)))
        });
        let (indices, mut polled): (Vec<_>, Vec<_>) = pipes.unzip();
        if let End::Awaited { hear_end, .. } = &self.end {
            polled.push(PollFd::new(hear_end.as_fd(), PollFlags::empty()));
        }
        let only_looks = matches!(self.end, End::Heard { .. });
        let timeout = if only_looks { PollTimeout::ZERO } else { PollTimeout::NONE };
        if poll(&mut polled, timeout).is_err() {
            // A signal came in between: the caller asks again.
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
        if let Some((path, file)) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            let path = path.display();
            tracing::error!(%worker, %path, %error, "its output is not stored from here on");
            self.file = None;
        }
        if let Some(tail) = &self.tail {
            tail.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
        if let Some(lines) = &mut self.lines {
            lines.feed(bytes, &mut |line: &str| sink.line(prefix, self.stream, line));
        }
    }

    /// The end of the pipe was read.
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
