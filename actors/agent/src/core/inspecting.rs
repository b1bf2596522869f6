//! Inspections: the driver asks for observations of a worker's process, and the process port makes them. Part of
//! [`AgentCore`].

use elastic_protocol::WorkerId;
use elastic_protocol::messages::{AgentToDriver, ProcessSight};
use elastic_protocol::planted::{Bug, is_planted};

use super::AgentCore;
use super::output::{AgentOutput, AgentWarning};
use super::slot::Inspection;

impl AgentCore {
    /// The driver asks for an inspection of a worker's process. Each process has at most one inspection at a time. If
    /// stacks are asked for meanwhile, a further inspection takes them. A process that has ended gets no answer, since
    /// the report of its end says more.
    pub(super) fn inspect(&mut self, worker: WorkerId, with_stack: bool) {
        let Some(process) = self.process_mut(&worker).filter(|process| process.pid.is_some())
        else {
            return self.warn(AgentWarning::UnknownProcess { worker });
        };
        match &mut process.inspection {
            Some(under_way) => under_way.stack_follows |= with_stack && !under_way.with_stack,
            None => {
                process.inspection = Some(Inspection { with_stack, stack_follows: false });
                self.outputs.push_back(AgentOutput::Inspect { worker, with_stack });
            }
        }
    }

    /// The process port has looked at a process.
    pub fn handle_inspected(&mut self, worker: &WorkerId, sight: Box<ProcessSight>) {
        // A process that has ended meanwhile was reported.
        let Some(process) = self.process_mut(worker) else { return };
        let ended = process.inspection.take();
        if is_planted(Bug::InspectedOnce) {
            process.inspection = ended;
        }
        if self.accepted {
            self.send(AgentToDriver::Inspected { worker: worker.clone(), sight });
        }
        if ended.is_some_and(|ended| ended.stack_follows) {
            self.inspect(worker.clone(), true);
        }
    }
}
