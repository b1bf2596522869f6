//! The events on the agenda, and their dispatch to handlers. Called by the world's main loop.

use elastic_protocol::Stamp;

use super::World;
use super::network::{LinkDirection, LinkSide};

/// An event on the agenda.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    Deliver {
        link: u32,
        connection: u32,
        lane: LinkDirection,
    },
    /// Acknowledgements of one end arrive at the other end.
    Acknowledge {
        link: u32,
        connection: u32,
        end: LinkSide,
    },
    /// A connection may have been idle for too long.
    Idle {
        link: u32,
        connection: u32,
        end: LinkSide,
        epoch: u32,
    },
    /// A message that a node's port is closed.
    Refused {
        link: u32,
        is_forged: bool,
    },
    /// Deadline for the answer to a hello.
    GreetingDue {
        link: u32,
        connection: u32,
    },
    /// A timer of a node's sessions.
    Look {
        link: u32,
    },
    /// A timer of the sessions of a driver's life.
    DriverLook {
        life: u32,
    },
    Dial {
        link: u32,
        token: u32,
    },
    /// The disk has finished a batch of the driver.
    Stored {
        life: u32,
    },
    /// The driver hears the store's answer.
    Answered {
        life: u32,
    },
    /// A former driver finds that its journal belongs to another.
    Fenced {
        life: u32,
    },
    /// The operator starts the driver again after this life.
    DriverBoot {
        life: u32,
    },
    DriverTimer {
        life: u32,
    },
    HostManagerTimer {
        life: u32,
    },
    AgentTimer {
        host: u32,
        life: u32,
    },
    StateTimer {
        process: u32,
    },
    Local {
        life: u32,
    },
    Discovered {
        life: u32,
        poll: u64,
    },
    AgentBoot {
        host: u32,
        life: u32,
    },
    Spawned {
        host: u32,
        life: u32,
        token: u64,
    },
    Booted {
        process: u32,
    },
    /// A program that does not train has called `init()`.
    Joined {
        process: u32,
    },
    Signalled {
        process: u32,
        kills: bool,
    },
    Exited {
        process: u32,
        code: i32,
    },
    /// The lock of a dead worker has lost its owner.
    Dying {
        host: u32,
        life: u32,
        process: u32,
    },
    /// The agent has looked at a worker's process.
    Inspected {
        host: u32,
        life: u32,
        process: u32,
        with_stack: bool,
    },
    /// A health check has ended.
    HealthChecked {
        host: u32,
        life: u32,
    },
    /// The agent looks at its process's lanes.
    LaneLook {
        host: u32,
        life: u32,
    },
    /// The memory of a dead process is cleared, and its connections end.
    Cleared {
        host: u32,
        life: u32,
        process: u32,
    },
    Reaped {
        host: u32,
        life: u32,
        process: u32,
    },
    /// The agent has read the last output of an ended process.
    Read {
        host: u32,
        life: u32,
        process: u32,
    },
    Command {
        process: u32,
    },
    Told {
        process: u32,
    },
    Computed {
        process: u32,
        token: u32,
    },
    AbortSeen {
        process: u32,
        token: u32,
    },
    Entered {
        process: u32,
        generation: Stamp,
        operation: u32,
        value: u64,
    },
    Result {
        process: u32,
        generation: Stamp,
        operation: u32,
        value: u64,
    },
    /// The thread that writes checkpoints has written its part.
    PartWritten {
        process: u32,
        stamp: Stamp,
        step: u64,
    },
    /// The thread that writes checkpoints has made one whole.
    MadeWhole {
        process: u32,
        stamp: Stamp,
        step: u64,
        ranks: u32,
        /// Number of checkpoints to keep.
        keep: u32,
    },
    /// A collective's deadline may have passed.
    Overdue {
        process: u32,
    },
    PeerBroken {
        process: u32,
        generation: Stamp,
        rank: u32,
    },
    Fault(u32),
    Mended(u32),
    Heal,
    Check,
    /// A periodic check of the liveness bounds.
    InTime,
    /// The driver's status and the states of the cores are looked at, if decisions or states are recorded.
    LookedAt,
    /// Deadline for a member, paused for a change that was undone, to train again.
    Resumed {
        process: u32,
        since: u64,
    },
    /// A process that was ordered to stop must be gone.
    StopDue {
        process: u32,
    },
    /// An agent that was asked to leave must be gone.
    LeaveDue {
        host: u32,
        life: u32,
    },
    /// Deadline for a member's death to be noticed.
    Noticed {
        process: u32,
        generation: Stamp,
    },
}

impl Happening {
    /// Whether the event concerns a process's training thread only.
    pub(super) const fn is_of_a_thread(&self) -> bool {
        matches!(
            self,
            Self::Command { .. }
                | Self::Computed { .. }
                | Self::AbortSeen { .. }
                | Self::Entered { .. }
                | Self::Result { .. }
                | Self::Overdue { .. }
                | Self::PeerBroken { .. }
                | Self::Exited { .. }
        )
    }
}

impl World {
    pub(super) fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver { link, connection, lane } => {
                self.handle_deliver(link, connection, lane);
            }
            Happening::Acknowledge { link, connection, end } => {
                self.handle_acknowledge(link, connection, end);
            }
            Happening::Idle { link, connection, end, epoch } => {
                self.handle_idle(link, connection, end, epoch);
            }
            Happening::Refused { link, is_forged } => self.handle_refused(link, is_forged),
            Happening::GreetingDue { link, connection } => {
                self.handle_greeting_due(link, connection);
            }
            Happening::LookedAt => self.look_at_nodes(),
            Happening::Look { link } => self.handle_look(link),
            Happening::DriverLook { life } => {
                self.in_life(life, Self::handle_driver_look);
            }
            Happening::Dial { link, token } => self.handle_dial(link, token),
            Happening::Stored { life } => {
                self.in_life(life, |world| world.handle_stored(life));
            }
            Happening::Answered { life } => {
                self.in_life(life, |world| world.handle_answered(life));
            }
            Happening::Fenced { life } => {
                self.in_life(life, |world| world.abandon("its lease is another's"));
            }
            Happening::DriverBoot { life } => self.boot_driver(life),
            Happening::DriverTimer { life } => {
                self.in_life(life, |world| world.handle_driver_timer(life));
            }
            Happening::HostManagerTimer { life } => {
                self.in_life(life, |world| world.handle_host_manager_timer(life));
            }
            Happening::AgentTimer { host, life } => self.handle_agent_timer(host, life),
            Happening::StateTimer { process } => self.handle_state_timer(process),
            Happening::Local { life } => {
                self.in_life(life, |world| world.handle_local(life));
            }
            Happening::Discovered { life, poll } => {
                self.in_life(life, |world| world.handle_discovered(life, poll));
            }
            Happening::AgentBoot { host, life } => self.boot_agent(host, life),
            Happening::Spawned { host, life, token } => self.handle_spawned(host, life, token),
            Happening::Booted { process } => self.handle_booted(process),
            Happening::Joined { process } => self.handle_joined_job(process),
            Happening::Signalled { process, kills } => self.handle_signalled(process, kills),
            Happening::Exited { process, code } => self.handle_exited(process, code),
            Happening::Dying { host, life, process } => self.handle_dying(host, life, process),
            Happening::Inspected { host, life, process, with_stack } => {
                self.handle_inspected((host, life), process, with_stack);
            }
            Happening::HealthChecked { host, life } => self.handle_health_checked(host, life),
            Happening::LaneLook { host, life } => self.handle_lane_look(host, life),
            Happening::Cleared { host, life, process } => self.handle_cleared(host, life, process),
            Happening::Reaped { host, life, process } => self.handle_reaped(host, life, process),
            Happening::Read { host, life, process } => {
                self.handle_last_words(host, life, process);
            }
            Happening::Command { process } => self.handle_command(process),
            Happening::Told { process } => self.handle_told(process),
            Happening::Computed { process, token } => self.handle_computed(process, token),
            Happening::AbortSeen { process, token } => self.handle_abort_seen(process, token),
            Happening::Entered { process, generation, operation, value } => {
                self.handle_entered(process, generation, operation, value, true);
            }
            Happening::Result { process, generation, operation, value } => {
                self.handle_result(process, generation, operation, value);
            }
            Happening::PartWritten { process, stamp, step } => {
                self.handle_part_written(process, stamp, step);
            }
            Happening::MadeWhole { process, stamp, step, ranks, keep } => {
                self.handle_made_whole(process, (stamp, step), (ranks, keep));
            }
            Happening::Overdue { process } => self.handle_overdue(process),
            Happening::PeerBroken { process, generation, rank } => {
                self.handle_peer_broken(process, generation, rank);
            }
            Happening::Fault(index) => self.begin_fault(index),
            Happening::Mended(index) => self.end_fault(index),
            Happening::Heal => self.heal(),
            Happening::InTime => self.look(),
            Happening::Check => self.check_liveness(),
            Happening::StopDue { process } => self.check_stopped(process),
            Happening::LeaveDue { host, life } => self.check_left(host, life),
            Happening::Resumed { process, since } => self.check_resumed(process, since),
            Happening::Noticed { process, generation } => self.check_noticed(process, generation),
        }
    }
}
