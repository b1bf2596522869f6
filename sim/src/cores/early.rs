//! Timers that come early: a shell may round a deadline down, or set one timer for several. A core that is called before
//! its deadline decides nothing. Called by the look of `bounds.rs`.

use std::fmt::Debug;
use std::time::SystemTime;

use elastic_driver::DriverInput;
use elastic_protocol::Time;

use super::World;

impl World {
    /// Calls the timer of every core that waits for a later time, and checks that it changes nothing.
    pub(super) fn check_early_timers(&mut self) -> Result<(), String> {
        let (world, now) = (self.now, self.driver_now());
        // A driver that is to die amid its outputs has not said all of them.
        if self.driver.stopped == 0
            && self.driver.dies_midway.is_none()
            && let Some(cores) = self.driver.cores()
        {
            let driver = &mut cores.driver;
            call_early(
                "the driver",
                now,
                driver,
                |core| core.poll_timeout(),
                |core| core.handle(now, DriverInput::Timeout),
                |core| core.poll_output(),
            )?;
            cores.driver.end_step(now, || SystemTime::UNIX_EPOCH);
            let host_manager = &mut cores.host_manager;
            call_early(
                "the host manager",
                now,
                host_manager,
                |core| core.poll_timeout(),
                |core| core.handle_timeout(now),
                |core| core.poll_output(),
            )?;
        }
        for host in &mut self.hosts {
            let Some(agent) = host.agent.as_mut() else { continue };
            let now = agent.clock.local(world);
            let Some(core) = agent.core() else { continue };
            call_early(
                "an agent",
                now,
                core,
                |core| core.poll_timeout(),
                |core| core.handle_timeout(now),
                |core| core.poll_output(),
            )?;
        }
        for process in self.processes.iter_mut().filter(|process| process.is_alive) {
            let now = process.clock.local(world);
            let Some(core) = process.state.core() else { continue };
            call_early(
                "a State",
                now,
                core,
                |core| core.poll_timeout(),
                |core| core.handle_timeout(now),
                |core| core.poll_output(),
            )?;
        }
        Ok(())
    }
}

fn call_early<C, O: Debug>(
    who: &str,
    now: Time,
    core: &mut C,
    timeout: impl Fn(&C) -> Option<Time>,
    call: impl FnOnce(&mut C),
    output: impl FnOnce(&mut C) -> Option<O>,
) -> Result<(), String> {
    let due = timeout(core);
    if due.is_some_and(|at| at <= now) {
        return Ok(());
    }
    call(core);
    match (output(core), timeout(core)) {
        (Some(output), _) => {
            Err(format!("{who} is called before its deadline, and says {output:?}"))
        }
        (None, after) if after != due => {
            Err(format!("{who} is called before its deadline {due:?}, and waits until {after:?}"))
        }
        (None, _) => Ok(()),
    }
}
