//! The `HostManager`: owner of the list of hosts, with their slots, their order, and the blacklist.
//!
//! `core` decides, without I/O: discovery output, arrivals and failures in, snapshots out. `actor` is its shell
//! in the driver's process. `discovery` runs scripts, reads host files and queries DNS for it. The driver is
//! told of each change as a whole [`HostsSnapshot`], never as a difference that could be lost (G-7).

pub mod actor;
pub mod core;
pub mod discovery;

pub use crate::actor::{
    DrainHost, HostFailed, HostJoined, HostLeft, HostManager, HostReport, ReadmitHost,
};
pub use crate::core::{
    CooldownRange, DiscoveryError, DiscoveryFailure, DrainDecision, FailureDecision, HostEntry,
    HostFault, HostLines, HostListError, HostManagerConfig, HostManagerCore, HostManagerOutput,
    HostSlots, HostSource, HostState, HostUpdate, HostsSnapshot, InvalidConfig, JoinDecision,
    JoinRefusal, KnownHost, LeaveDecision, LineError, LineProblem, ReadmitDecision,
    parse_host_list, parse_hosts,
};
pub use crate::discovery::{
    Discovery, DiscoveryRun, DnsDiscovery, DnsTarget, HostFileDiscovery, InvalidDnsTarget,
    NoDiscovery, ScriptDiscovery,
};
