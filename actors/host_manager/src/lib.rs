//! The `HostManager`: which hosts exist, their slots and order, and who is blacklisted until when.
//!
//! `core` decides, without I/O: discovery output, arrivals and failures in, snapshots out. The driver is
//! told of each change as a whole [`HostsSnapshot`], never as a difference that could be lost (G-7).

pub mod core;

pub use crate::core::{
    CooldownRange, DiscoveryError, DiscoveryFailure, FailureDecision, HostEntry, HostLines,
    HostListError, HostManagerConfig, HostManagerCore, HostManagerOutput, HostSlots, HostSource,
    HostState, HostUpdate, HostsSnapshot, InvalidConfig, JoinDecision, JoinRefusal, LeaveDecision,
    LineError, LineProblem, parse_host_list, parse_hosts,
};
