//! Logs to stderr; stdout is for data. All output of a process to stderr goes through one lane, so that a stopped
//! terminal or an unread pipe blocks no other work: lines that do not fit are dropped and counted. Started by `main`.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::time::Duration;

use elastic_agent::output::{FRESH_LINE, not_shown};
use elastic_observe::with_short_names;
use elastic_runtime::{DroppingWriter, DroppingWriterLane, wall_clock};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use super::failure::{CommandFailure, ResultExt};
use super::refusal::MORE_THREADS;

/// Timeout for writing the last lines when the process ends.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// This process's stderr, once logging has started.
static STDERR: OnceLock<Stderr> = OnceLock::new();

#[derive(Debug)]
struct Stderr {
    words: DroppingWriter,
    /// Whether each event clears its line first: on a terminal another process may have left text there.
    is_terminal: bool,
    shows_colours: bool,
    /// Whether workers are named with their incarnation.
    is_verbose: bool,
}

impl Stderr {
    fn open(is_verbose: bool) -> io::Result<Self> {
        // A descriptor of its own avoids the lock of `std::io::stderr`, which a blocked write would hold.
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let choice = anstream::AutoStream::choice(&io::stderr());
        let words = DroppingWriter::new(
            DroppingWriterLane::shown("log"),
            Box::new(stderr),
            Box::new(not_shown),
        )?;
        Ok(Self {
            words,
            is_terminal: io::stderr().is_terminal(),
            shows_colours: choice != anstream::ColorChoice::Never,
            is_verbose,
        })
    }

    /// Writes text, with the names of workers as people read them.
    fn push(&self, text: &[u8]) {
        let short = match std::str::from_utf8(text) {
            Ok(text) if !self.is_verbose => with_short_names(text),
            _ => Cow::default(),
        };
        let text = if short.is_empty() { text } else { short.as_bytes() };
        let begin = if self.is_terminal { FRESH_LINE } else { b"" };
        self.words.push(&[begin, text]);
    }
}

/// The time of a line: for people at a terminal the time of day (UTC), in files the whole moment.
#[derive(Clone, Copy, Debug)]
struct LogTime {
    is_short: bool,
}

impl FormatTime for LogTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let text = humantime::format_rfc3339_micros(wall_clock()).to_string();
        let day = text.get(11..19).filter(|_| self.is_short);
        writer.write_str(day.unwrap_or(&text))
    }
}

/// The writer for tracing: one event per call.
#[derive(Clone, Copy, Debug)]
struct Events;

impl io::Write for Events {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if let Some(stderr) = STDERR.get() {
            stderr.push(event);
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts logging with `filter`, in colour where stderr shows colours.
pub(crate) fn start_logging(filter: &str) -> Result<(), CommandFailure> {
    // A word alone would be taken for the name of a module, and everything else be silent.
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    let words = filter.split(',').map(str::trim).filter(|it| !it.contains(['=', '[']));
    if let Some(word) = words.clone().find(|word| !levels.contains(&word.to_lowercase().as_str())) {
        let message = format!("--log {filter:?}: {word:?} is no level");
        return Err(CommandFailure::usage(message)
            .hint(format!("the levels are {}; or warn,elastic_driver=debug", levels.join(", "))));
    }
    // A send to a node that was just killed fails once, with the refusal of its host; quinn sends again.
    let quiet = format!("quinn_udp=error,{filter}");
    let filter = EnvFilter::try_new(quiet)
        .usage(format!("--log {filter:?} is neither a level nor a list of directives"))
        .map_err(|failure| failure.hint("such as: info, debug, or warn,elastic_driver=debug"))?;
    let is_verbose = filter.max_level_hint().is_none_or(|level| level > LevelFilter::INFO);
    let stderr = Stderr::open(is_verbose)
        .failed("could not start the thread that writes log lines")
        .map_err(|failure| failure.hint(MORE_THREADS))?;
    let (shows_colours, is_terminal) = (stderr.shows_colours, stderr.is_terminal);
    // Cannot fail: `main` calls this function once.
    let _ = STDERR.set(stderr);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(LogTime { is_short: is_terminal })
        .with_ansi(shows_colours)
        .with_target(false)
        .with_writer(|| Events)
        // Otherwise tracing would report on stderr that stderr cannot be written, and panic.
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// Writes text to stderr that is no log event; colours are removed where stderr shows none.
pub(crate) fn say(text: &str) {
    match STDERR.get() {
        Some(stderr) if stderr.shows_colours => stderr.push(text.as_bytes()),
        Some(stderr) => {
            stderr.push(anstream::adapter::strip_str(text).to_string().as_bytes());
        }
        // Logging has not started: no other work is running yet that a blocked write could hold up.
        None => drop(anstream::stderr().write_all(with_short_names(text).as_bytes())),
    }
}

/// The lane of stderr, for the watchdog.
pub(crate) fn stderr_lane() -> Option<DroppingWriter> {
    STDERR.get().map(|stderr| stderr.words.clone())
}

/// Waits for the last lines, for 1 s at most. To be called before the process ends.
pub(crate) fn flush_stderr() {
    if let Some(stderr) = STDERR.get() {
        // A timeout cannot be reported: stderr itself hangs.
        let _ = stderr.words.flush(LAST_LINES_WITHIN);
    }
}
