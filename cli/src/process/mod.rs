//! Puts the processes of a driver, an agent, a node and a client together from the actors, the runtime and the
//! transport. Called by `main` and by the commands.

mod accounting;
mod agent;
mod dashboard;
mod driver;
mod driver_address;
mod driver_reach;
mod event_log;
mod event_text;
mod host_watch;
mod job_registry;
mod launcher;
mod leash;
mod meeting_point;
mod network;
mod node;
mod observer;
mod own_program;
pub(crate) mod plain_file;
mod progress;
mod progress_text;
mod random;
mod reach;
mod recording;
mod signals;
mod socket_query;
mod socket_table;
mod state_dir;
mod state_files;
mod status_client;
mod step_rate;
mod store_access;
mod store_service;
mod stored_output;
mod token_source;
mod traces;
mod watch;

pub(crate) use agent::run_agent;
pub(crate) use driver::run_driver;
pub(crate) use driver_reach::{
    UdpAnswer, addresses_of, advice, is_answered_at, probe, route_to, short_packets_towards,
};
pub(crate) use event_log::{lines_of, number_aside, open_log, open_log_to_go_on};
pub(crate) use job_registry::{
    ForgottenFiles, JobCondition, JobEnd, JobEntry, JobRegistry, entry_time, is_locked,
};
pub(crate) use leash::read_token as read_token_from_launcher;
pub(crate) use network::{check_interface, interface_of, ip_of};
pub(crate) use node::{read_secret_file, run_node};
pub(crate) use progress_text::{bar, gather_text, moved_text};
pub(crate) use reach::{ReachCut, ReachReport, try_hosts};
pub(crate) use recording::{RECORDING_FOLDER, messages_known, read_recording};
pub(crate) use signals::{Heard, Signals, tick, unblock_signals};
pub(crate) use state_dir::{
    ADDRESS_FILE, EVENTS_FILE, JOURNAL_FILE, LOCK_FILE, address_on_this_machine, default_state_dir,
};
pub(crate) use status_client::StatusClient;
pub(crate) use step_rate::StepRate;
pub(crate) use stored_output::file_of;
pub(crate) use token_source::TokenSource;

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since the machine started, its sleep included: etcd's leases run on while this machine or this process sleeps.
pub(crate) fn boot_time() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or(Duration::MAX)
}
