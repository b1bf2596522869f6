//! Invariants of a State. Part of `StateCore`. They are checked after every input in debug builds and in the
//! simulation.

use super::{BoundaryAnswer, DriverAttachment, StateCore, ThreadState};

impl StateCore {
    /// Checks the invariants between the training thread's state and the records of it here.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.check_generation()?;
        self.check_rest()?;
        self.check_pause()
    }

    /// A thread that is in a generation has its placement, and no other does; progress is sampled while it trains, and until it has
    /// come to rest.
    fn check_generation(&self) -> Result<(), String> {
        let samples = matches!(self.training, ThreadState::Syncing | ThreadState::Running { .. });
        let is_in = samples || matches!(self.training, ThreadState::Forming | ThreadState::Formed);
        let is_free = is_in || matches!(self.training, ThreadState::Returned);
        let of_now = |placement: &super::Placement| placement.stamp == self.stamp;
        match &self.placement {
            Some(placement) if !is_free || !of_now(placement) => {
                Err(format!("{:?} in generation {:?}", self.training, placement.stamp))
            }
            None if is_in => Err(format!("{:?} in no generation", self.training)),
            _ if samples != self.sample_at.is_some()
                && !matches!(self.training, ThreadState::Ending) =>
            {
                Err(format!("{:?}, and progress is sampled at {:?}", self.training, self.sample_at))
            }
            _ if !self.pending.as_ref().is_none_or(of_now) => {
                Err("G-2: a generation waits that is not the newest".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// A thread at rest has no order left, and the driver knows that it rests. An order that waits for the thread's
    /// rest waits for nothing else.
    fn check_rest(&self) -> Result<(), String> {
        let rests = matches!(self.training, ThreadState::AtRest);
        let has_order = self.exit.is_some() || self.pending.is_some();
        if rests && has_order {
            return Err("G-9: a thread at rest is not given its order".to_owned());
        }
        if rests && !self.arrived && matches!(self.link, DriverAttachment::Attached) {
            return Err("G-9: the driver is not told that the thread is at rest".to_owned());
        }
        if self.exit.is_some() && self.pending.is_some() {
            return Err("G-11: a worker that leaves is to take part in a generation".to_owned());
        }
        let comes = matches!(self.training, ThreadState::Starting | ThreadState::Ending);
        if self.pending.is_some() && !comes {
            return Err(format!("a generation waits for a thread that is {:?}", self.training));
        }
        Ok(())
    }

    /// A pause that is asked for is shown to the thread, and a thread is held only as long as nothing is decided.
    fn check_pause(&self) -> Result<(), String> {
        let is_wanted = self.pause.asked || self.pause.stop_at.is_some();
        let is_in = matches!(
            self.training,
            ThreadState::Forming
                | ThreadState::Formed
                | ThreadState::Syncing
                | ThreadState::Running { .. }
        );
        if is_in && is_wanted && !self.pause.flag {
            return Err("a pause is asked for, and the thread does not see it".to_owned());
        }
        if let ThreadState::Running { held: Some(boundary) } = self.training
            && self.verdict(boundary) != BoundaryAnswer::Hold
        {
            return Err(format!("G-9: the thread is held at boundary {boundary} for nothing"));
        }
        Ok(())
    }
}
