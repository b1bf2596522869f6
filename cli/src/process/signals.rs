//! Signals that ask a process to end: Ctrl-C (SIGINT), SIGTERM, and SIGHUP of a terminal that is closed. A separate
//! thread receives them, so that a second signal ends the process even if the actors hang. The handler counts signals,
//! so that two of them count as two even if the thread gets no processor between them. Used by every process that runs
//! until it is asked to end.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream as Pair;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use elastic_runtime::Pulse;
use elastic_runtime::pulse::TICK_EVERY;
use elastic_runtime::system::new_runtime;
use futures_util::future::select;
use nix::sys::signal::{SigSet, Signal};
use signal_hook::{flag, low_level};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::boot_time;

/// Timeout for the actors to end the process in order after a second signal.
const AT_ONCE_WITHIN: Duration = Duration::from_secs(2);

/// Age of the last tick from which the actors count as hanging and are not waited for.
const STANDS_STILL_AFTER: Duration = Duration::from_millis(500);

/// Time after a SIGTERM within which another one is the same request: `timeout` and other wrappers send it to the process, and
/// then to its process group.
const ECHO_WITHIN: Duration = Duration::from_millis(300);

/// Most signals that wait to be taken.
const WAITING_MAX: usize = 16;

/// Unblocks all signals. A launcher may have started this process with some of them blocked, and its threads and
/// workers would inherit that: neither could be asked to end. To be called before there is another thread.
pub(crate) fn unblock_signals() {
    // Cannot fail: the set is valid.
    let _ = SigSet::all().thread_unblock();
}

/// The received signals. Clones share the queue; each signal is taken once.
#[derive(Clone, Debug)]
pub(crate) struct Signals(Arc<SignalQueue>);

#[derive(Debug)]
struct SignalQueue {
    waiting: Mutex<VecDeque<Heard>>,
    /// The first signal that was taken.
    first: OnceLock<Heard>,
    /// The second signal, as soon as it has come.
    second: OnceLock<Heard>,
    came: Notify,
    pulse: Pulse,
}

/// A received signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Heard {
    /// The signal's number.
    pub(crate) number: i32,
    /// The signal's name.
    pub(crate) name: &'static str,
}

impl Heard {
    /// The exit code that a shell gives for the signal.
    pub(crate) const fn code(self) -> i32 {
        128 + self.number
    }
}

impl Signals {
    /// Starts to receive signals, once per process; from here on they do not end the process by themselves. `pulse`
    /// tells whether the actors run.
    pub(crate) fn start(pulse: Pulse) -> io::Result<Self> {
        let shared = Arc::new(SignalQueue {
            waiting: Mutex::default(),
            first: OnceLock::new(),
            second: OnceLock::new(),
            came: Notify::new(),
            pulse,
        });
        let (told, started) = sync_channel(1);
        let of_thread = Arc::clone(&shared);
        let hear = move || hear_in_runtime(&of_thread, &told);
        thread::Builder::new().name("signals".to_owned()).spawn(hear)?;
        started.recv().map_err(io::Error::other)??;
        Ok(Self(shared))
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&self) -> Heard {
        loop {
            if let Some(heard) = self.received() {
                return heard;
            }
            self.0.came.notified().await;
        }
    }

    /// The next signal, if it was received already.
    pub(crate) fn received(&self) -> Option<Heard> {
        let heard = self.0.lock().pop_front()?;
        self.0.first.get_or_init(|| heard);
        Some(heard)
    }

    /// The pulse that tells whether the actors run.
    pub(crate) fn pulse(&self) -> Pulse {
        self.0.pulse.clone()
    }

    /// The first signal that was taken, if there was one: the process was asked to end.
    pub(crate) fn first(&self) -> Option<Heard> {
        self.0.first.get().copied()
    }

    /// The second signal, taken or not, if one has come that asks for more than a driver's handover: any but SIGTERM.
    pub(crate) fn beyond_handover(&self) -> Option<Heard> {
        self.0.second.get().copied().filter(|heard| heard.number != Signal::SIGTERM as i32)
    }
}

impl SignalQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Heard>> {
        // The queue is consistent between any two statements, so a panic elsewhere does not spoil it.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a signal on to the actors.
    fn tell(&self, heard: Heard) {
        let mut waiting = self.lock();
        if waiting.len() < WAITING_MAX {
            waiting.push_back(heard);
        }
        drop(waiting);
        self.came.notify_one();
    }
}

/// Ticks the pulse for as long as the actors' thread runs.
pub(crate) async fn tick(pulse: Pulse) {
    loop {
        pulse.tick(boot_time());
        tokio::time::sleep(TICK_EVERY).await;
    }
}

fn hear_in_runtime(shared: &SignalQueue, told: &SyncSender<io::Result<()>>) {
    let failed = match new_runtime() {
        Ok(runtime) => runtime.block_on(async {
            let sources = Sources::new()?;
            // The starter may be gone if the process is ending already.
            let _ = told.send(Ok(()));
            hear(shared, sources).await;
            Ok(())
        }),
        Err(error) => Err(error),
    };
    if let Err(error) = failed {
        let _ = told.send(Err(error));
    }
}

/// Passes the first signal to the actors; after the second the process ends, with them or without.
async fn hear(shared: &SignalQueue, mut sources: Sources) {
    let first = sources.next().await;
    let asked_at = boot_time();
    shared.tell(first);
    let mut second = sources.next().await;
    while is_echo(first, second, boot_time().saturating_sub(asked_at)) {
        second = sources.next().await;
    }
    shared.second.get_or_init(|| second);
    shared.tell(second);
    let third = std::pin::pin!(sources.next());
    let waited = std::pin::pin!(while_actors_run(&shared.pulse));
    select(third, waited).await;
    end_process(second.code());
}

/// Whether the second signal, so much later, is the same request as the first. Ctrl-C is pressed twice on purpose.
fn is_echo(first: Heard, second: Heard, later: Duration) -> bool {
    first.number == Signal::SIGTERM as i32 && second == first && later < ECHO_WITHIN
}

/// Returns when the actors hang, or after their timeout.
async fn while_actors_run(pulse: &Pulse) {
    let until = boot_time() + AT_ONCE_WITHIN;
    while boot_time() < until && pulse.age(boot_time()) <= STANDS_STILL_AFTER {
        tokio::time::sleep(TICK_EVERY).await;
    }
}

/// Ends the process at once: destructors and buffered output could hang, too.
#[expect(unsafe_code, reason = "the standard library's exit may wait for stdout's lock")]
fn end_process(code: i32) -> ! {
    // SAFETY: _exit takes a number and touches no memory of this process.
    unsafe { libc::_exit(code) }
}

/// The sources of signals.
struct Sources(Vec<SignalSource>);

impl Sources {
    fn new() -> io::Result<Self> {
        // Writing beyond the file size limit is a write error, as on a full disk, and does not end the process.
        flag::register(Signal::SIGXFSZ as i32, Arc::default())?;
        let mut kinds = vec![Signal::SIGINT, Signal::SIGTERM];
        if !is_ignored(Signal::SIGHUP) {
            kinds.push(Signal::SIGHUP);
        }
        kinds.into_iter().map(SignalSource::new).collect::<io::Result<_>>().map(Self)
    }

    async fn next(&mut self) -> Heard {
        std::future::poll_fn(|context| {
            let mut heard = self.0.iter_mut().filter_map(|source| source.poll(context));
            heard.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// One kind of signal.
struct SignalSource {
    heard: Heard,
    /// Signals that the handler counted. Its writes to `wakes` are no count: a child that was forked and has not yet
    /// executed its program has the same socket.
    counted: Arc<AtomicUsize>,
    taken: usize,
    wakes: UnixStream,
}

impl SignalSource {
    #[expect(unsafe_code, reason = "a signal's handler may do next to nothing")]
    fn new(signal: Signal) -> io::Result<Self> {
        let number = signal as i32;
        let counted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&counted);
        // SAFETY: adding to an atomic number is async-signal-safe.
        unsafe {
            low_level::register(number, move || {
                counter.fetch_add(1, Relaxed);
            })
        }?;
        let (wake, wakes) = Pair::pair()?;
        wakes.set_nonblocking(true)?;
        // Handlers run in the order in which they were registered.
        low_level::pipe::register(number, wake)?;
        let heard = Heard { number, name: signal.as_str() };
        Ok(Self { heard, counted, taken: 0, wakes: UnixStream::from_std(wakes)? })
    }

    /// Takes one signal.
    fn poll(&mut self, context: &mut Context<'_>) -> Option<Heard> {
        let mut bytes = [0; 64];
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut self.wakes).poll_read(context, &mut buffer);
            if read.is_pending() || buffer.filled().is_empty() {
                break;
            }
        }
        (self.taken < self.counted.load(Relaxed)).then(|| {
            self.taken += 1;
            self.heard
        })
    }
}

/// Whether a signal was ignored when this process started, as `nohup` has SIGHUP.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & 1 << (signal as i32 - 1) != 0
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    #[test]
    fn x_17_two_signals_that_nobody_took_meanwhile_count_as_two() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut source = SignalSource::new(Signal::SIGUSR1).expect("a source");
            for _ in 0..2 {
                raise(Signal::SIGUSR1).expect("ours");
            }
            let mut take = async || std::future::poll_fn(|it| Poll::Ready(source.poll(it))).await;
            let usr1 = Heard { number: Signal::SIGUSR1 as i32, name: "SIGUSR1" };
            assert_eq!((take().await, take().await, take().await), (Some(usr1), Some(usr1), None));
        });
    }

    #[test]
    fn x_17_a_sigterm_that_a_wrapper_sends_twice_is_one_request() {
        let heard = |signal: Signal| Heard { number: signal as i32, name: signal.as_str() };
        let [term, int] = [Signal::SIGTERM, Signal::SIGINT].map(heard);
        let is_echo_at_once = |first, second| is_echo(first, second, Duration::ZERO);
        assert!(is_echo_at_once(term, term));
        assert!(!is_echo_at_once(int, int) && !is_echo_at_once(term, int));
        assert!(!is_echo(term, term, ECHO_WITHIN));
    }

    #[test]
    fn g_9_after_a_second_signal_actors_that_run_have_their_time_and_others_none() {
        let wait_for = |pulse: Pulse| {
            let begun = boot_time();
            elastic_runtime::system::run(async move { while_actors_run(&pulse).await })
                .expect("a runtime");
            boot_time() - begun
        };
        // The last tick lies ahead, so that these actors count as running.
        let run = Pulse::new(boot_time() + Duration::from_secs(600));
        assert!(wait_for(run) >= AT_ONCE_WITHIN);
        let hang = Pulse::new(boot_time().saturating_sub(Duration::from_secs(1)));
        assert!(wait_for(hang) < AT_ONCE_WITHIN);
    }
}
