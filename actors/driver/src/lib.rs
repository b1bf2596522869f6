//! The driver: the one authority of a job. It decides who takes part, with which ranks, when a generation
//! begins and why it ends. `core` is the state machine; `actor` is its actix shell; the command line starts it.

pub mod actor;
pub mod core;
pub mod journal;

pub use self::actor::{
    Abandon, AskGlance, Driver, DriverObserver, DriverParts, JournalPort, LaunchFailed,
    StandbysChanged, StopJob, WorkerCredentials,
};
pub use self::core::{
    DriverConfig, DriverCore, DriverOutput, Event, EventKind, Glance, InvalidDriverConfig, Mode,
    OnFailure,
};
