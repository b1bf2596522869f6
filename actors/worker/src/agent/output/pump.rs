//! The thread that carries a process's output from its pipes to its files and to the view.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use elastic_protocol::WorkerId;
use elastic_protocol::messages::OutputSettings;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use super::lines::Lines;
use super::tail::Tail;
use super::{OutputSink, OutputStream, file_stem};

/// How long an exit report waits for the end of the output. All that a dead process wrote is in the pipe
/// already, so this passes only when the disk is slow, or something that left the process's group holds
/// the pipe open.
pub const TAIL_PATIENCE: Duration = Duration::from_millis(200);

/// How much is read at once, in bytes: what a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// How often the pipes of a process that has ended are read, if something that left its group goes on
/// writing to them.
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

/// The agent's hold on the output of one process. Dropped, it lets what is in the pipes be read, and ends
/// the thread even if somebody holds a pipe open.
#[derive(Debug)]
pub(in crate::agent) struct Attached {
    tail: Arc<Mutex<Tail>>,
    ended: oneshot::Receiver<()>,
    /// Its other end is what the thread hears of the drop.
    _stop: OwnedFd,
}

impl Attached {
    /// Waits for the end of the output, for [`TAIL_PATIENCE`] at most; the end of stderr.
    pub(in crate::agent) async fn finish(mut self) -> String {
        // Past the patience, or if the thread is gone, the tail is what was read so far.
        let _ = tokio::time::timeout(TAIL_PATIENCE, &mut self.ended).await;
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

/// Makes a process's pipes and files, and starts its output thread.
///
/// # Errors
/// [`AttachError`] names the folder or file.
pub(in crate::agent) fn attach(
    worker: &WorkerId,
    settings: &OutputSettings,
    sink: Arc<dyn OutputSink>,
) -> Result<(Pipes, Attached), AttachError> {
    let folder = settings.directory.as_deref().map(Path::new);
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)
            .map_err(|source| AttachError::Folder { path: folder.to_owned(), source })?;
    }
    let (read_stdout, stdout) = pipe()?;
    let (read_stderr, stderr) = pipe()?;
    let (hear_stop, stop) = pipe()?;
    let tail = Arc::new(Mutex::new(Tail::default()));
    let source = |stream, pipe, tail| {
        let file = folder.map(|folder| create(folder, worker, stream)).transpose()?;
        Ok::<_, AttachError>(Source {
            stream,
            pipe: Some(File::from(pipe)),
            file,
            lines: Lines::default(),
            tail,
        })
    };
    let sources = [
        source(OutputStream::Stdout, read_stdout, None)?,
        source(OutputStream::Stderr, read_stderr, Some(Arc::clone(&tail)))?,
    ];
    let (end, ended) = oneshot::channel();
    let pump = Pump { worker: worker.clone(), sources, sink, hear_stop };
    thread::Builder::new().name(format!("output {}", worker.slot)).spawn(move || {
        pump.run();
        // Nobody waits for it if the agent ends.
        let _ = end.send(());
    })?;
    Ok((Pipes { stdout, stderr }, Attached { tail, ended, _stop: stop }))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

fn create(
    folder: &Path,
    worker: &WorkerId,
    stream: OutputStream,
) -> Result<(PathBuf, File), AttachError> {
    let path = folder.join(format!("{}.{}", file_stem(worker), stream.name()));
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
    lines: Lines,
    tail: Option<Arc<Mutex<Tail>>>,
}

struct Pump {
    worker: WorkerId,
    sources: [Source; 2],
    sink: Arc<dyn OutputSink>,
    hear_stop: OwnedFd,
}

impl Pump {
    fn run(mut self) {
        let mut buffer = vec![0; READ_BYTES];
        let mut stopped = false;
        let mut last_reads = LAST_READS_MAX;
        while self.sources.iter().any(|source| source.pipe.is_some()) {
            let (readable, stop_heard) = self.wait(stopped);
            if stopped {
                // The agent does not wait any longer: only what is left in the pipes is read.
                last_reads -= 1;
                if readable == [false, false] || last_reads == 0 {
                    break;
                }
            }
            stopped |= stop_heard;
            for (source, readable) in self.sources.iter_mut().zip(readable) {
                if readable {
                    source.read(&self.worker, self.sink.as_ref(), &mut buffer);
                }
            }
        }
        for source in &mut self.sources {
            source.finish(&self.worker, self.sink.as_ref());
        }
    }

    /// Waits until a pipe can be read, or the agent lets go; once it has, only looks.
    fn wait(&self, stopped: bool) -> ([bool; 2], bool) {
        let pipes = self.sources.iter().enumerate().filter_map(|(index, source)| {
            Some((index, PollFd::new(source.pipe.as_ref()?.as_fd(), PollFlags::POLLIN)))
        });
        let (indices, mut polled): (Vec<_>, Vec<_>) = pipes.unzip();
        if !stopped {
            polled.push(PollFd::new(self.hear_stop.as_fd(), PollFlags::empty()));
        }
        let timeout = if stopped { PollTimeout::ZERO } else { PollTimeout::NONE };
        if poll(&mut polled, timeout).is_err() {
            // A signal came in between: the caller asks again.
            return ([false; 2], stopped);
        }
        let heard = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let mut readable = [false; 2];
        for (index, fd) in indices.iter().zip(&polled) {
            readable[*index] = heard(fd);
        }
        (readable, stopped || polled.get(indices.len()).is_some_and(heard))
    }
}

impl Source {
    fn read(&mut self, worker: &WorkerId, sink: &dyn OutputSink, buffer: &mut [u8]) {
        let Some(pipe) = &mut self.pipe else { return };
        let bytes = match pipe.read(buffer) {
            Ok(0) => return self.finish(worker, sink),
            Ok(length) => &buffer[..length],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return,
            Err(error) => {
                tracing::warn!(%worker, %error, "its {} cannot be read", self.stream.name());
                return self.finish(worker, sink);
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
        self.lines.feed(bytes, &mut |line: &str| sink.line(worker, self.stream, line));
    }

    fn finish(&mut self, worker: &WorkerId, sink: &dyn OutputSink) {
        self.pipe = None;
        self.lines.finish(&mut |line: &str| sink.line(worker, self.stream, line));
    }
}
