//! The driver: the one authority of a job. It decides which workers take part and with which ranks, and when a
//! generation begins and ends. `core` is the state machine; `actor` is its actix shell; the command line starts it.

pub mod actor;
pub mod core;
pub mod journal;
pub mod recording;

pub use self::actor::{
    Abandon, AskAgents, AskGlance, AskStatus, Driver, DriverObserver, DriverParts, JournalPort,
    LaunchFailed, StandbysChanged, StopJob, WorkerCredentials,
};
pub use self::core::{
    CheckpointEvery, CheckpointSettings, DriverConfig, DriverCore, DriverEvent, DriverInput,
    DriverOutput, ElasticMode, EventKind, Glance, HealthCheck, HostResetMs, InvalidDriverConfig,
    InvalidListedHost, ListedHost, OnDivergence, OnFailure, OnHang, OnStraggler, OnTotalLoss,
    PROGRAMLESS_HOSTS, ReplacedFor, ResetWay, ResumeFrom, Until, WorkerStanding,
};
