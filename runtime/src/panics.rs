//! Makes panics visible. tokio catches the panic of a task and actix drops the task's handle, so an
//! assertion that fails inside an actor would be lost. The hook keeps the first panic of each thread for
//! the thread's driver: the simulation ends its run with it, a process's shell logs it.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::sync::Once;

/// A panic.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PanicRecord {
    /// Its message.
    pub message: String,
    /// File, line and column.
    pub place: String,
}

impl fmt::Display for PanicRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (at {})", self.message, self.place)
    }
}

thread_local! {
    /// The first panic of this thread that was not taken yet.
    static FIRST: RefCell<Option<PanicRecord>> = const { RefCell::new(None) };
    /// The latest panic of this thread.
    static LATEST: RefCell<Option<PanicRecord>> = const { RefCell::new(None) };
}

/// Installs the hook, once per process. The hook that was installed before is still called. [`crate::system::run`]
/// calls this. A simulation that makes its own system calls it itself.
pub fn install_panic_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            record(info);
            before(info);
        }));
    });
}

/// The first panic on this thread since the last call, handled by a supervisor or not.
pub fn take_panic() -> Option<PanicRecord> {
    FIRST.take()
}

fn record(info: &PanicHookInfo<'_>) {
    let message = payload_text(info.payload());
    let place = info.location().map_or_else(|| "unknown place".to_owned(), ToString::to_string);
    let record = PanicRecord { message, place };
    // While a thread ends, its slots may be gone already; then they have no reader either.
    let _ = FIRST.try_with(|first| {
        if let Ok(mut first) = first.try_borrow_mut() {
            first.get_or_insert_with(|| record.clone());
        }
    });
    let _ = LATEST.try_with(|latest| {
        if let Ok(mut latest) = latest.try_borrow_mut() {
            *latest = Some(record);
        }
    });
}

/// Text of the panic that was just caught: with its place, where the hook is installed.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    LATEST.take().map_or_else(|| payload_text(payload), |record| record.to_string())
}

fn payload_text(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a text".to_owned(),
    }
}
