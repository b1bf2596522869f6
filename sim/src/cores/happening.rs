//! What is on the agenda, and who reacts to it.

use elastic_protocol::Stamp;

use super::World;
use super::network::{End, Lane};

/// What is on the agenda.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    Deliver {
        link: u32,
        lane: Lane,
    },
    Silence {
        link: u32,
        end: End,
        epoch: u32,
        is_lost: bool,
    },
    Forget {
        link: u32,
        end: End,
        session: u32,
    },
    Dial {
        link: u32,
        token: u32,
    },
    /// A former driver hears no more from somebody who has turned to the next.
    Outlived {
        link: u32,
        life: u32,
    },
    /// The disk is done with a batch of the driver's.
    Stored {
        life: u32,
    },
    /// The driver hears of it.
    Answered {
        life: u32,
    },
    /// A former driver finds that another has its journal.
    Fenced {
        life: u32,
    },
    /// The driver's process is started after this life of it.
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
    Signalled {
        process: u32,
        kills: bool,
    },
    Exited {
        process: u32,
        code: i32,
    },
    Reaped {
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
    /// Who was paused for a change that was undone must train again by now.
    Resumed {
        process: u32,
        since: u64,
    },
    /// A member's death must have been noticed by now.
    Noticed {
        process: u32,
        generation: Stamp,
    },
}

impl World {
    pub(super) fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver { link, lane } => self.handle_deliver(link, lane),
            Happening::Silence { link, end, epoch, is_lost } => {
                self.handle_silence(link, end, epoch, is_lost);
            }
            Happening::Forget { link, end, session } => self.handle_forget(link, end, session),
            Happening::Dial { link, token } => self.handle_dial(link, token),
            Happening::Outlived { link, life } => self.handle_outlived(link, life),
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
            Happening::Signalled { process, kills } => self.handle_signalled(process, kills),
            Happening::Exited { process, code } => self.handle_exited(process, code),
            Happening::Reaped { host, life, process } => self.handle_reaped(host, life, process),
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
            Happening::Overdue { process } => self.handle_overdue(process),
            Happening::PeerBroken { process, generation, rank } => {
                self.handle_peer_broken(process, generation, rank);
            }
            Happening::Fault(index) => self.begin_fault(index),
            Happening::Mended(index) => self.end_fault(index),
            Happening::Heal => self.heal(),
            Happening::Check => self.check_liveness(),
            Happening::Resumed { process, since } => self.check_resumed(process, since),
            Happening::Noticed { process, generation } => self.check_noticed(process, generation),
        }
    }
}
