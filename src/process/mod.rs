//! Processes: how a driver, an agent and a client are put together from the actors, the kit and the
//! transport. Called by `main` and by the commands.

mod agent;
mod driver;
mod driver_address;
mod event_log;
mod event_text;
mod launcher;
mod leash;
mod observer;
mod progress;
mod random;
mod signals;
mod state_dir;
mod status_client;
mod store_access;
mod store_service;
mod token_source;

pub(crate) use agent::run_agent;
pub(crate) use driver::run_driver;
pub(crate) use leash::read_token as read_token_from_launcher;
pub(crate) use signals::{Heard, Signals};
pub(crate) use state_dir::{ADDRESS_FILE, EVENTS_FILE};
pub(crate) use status_client::StatusClient;
pub(crate) use token_source::TokenSource;
