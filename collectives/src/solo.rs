//! [`SoloCommunicator`]: a world of one, without sockets. Used by programs that run alone.

use crate::abort::AbortHandle;
use crate::backend::{CpuBackend, GroupMembership};
use crate::error::{CollectiveError, CollectiveResult};
use crate::operation::{HostOperation, Operation};
use crate::split::Ancestry;
use crate::wire::OperationSignature;

/// The group of a single rank: every operation is a copy or does nothing. Arguments are checked as in larger
/// worlds.
#[derive(Clone, Debug, Default)]
pub struct SoloCommunicator {
    term: u64,
    generation: u64,
    abort: Option<AbortHandle>,
    closed: bool,
}

impl SoloCommunicator {
    /// A world of one outside of any job: term 0, generation 0, never aborted.
    pub fn new() -> SoloCommunicator {
        SoloCommunicator::default()
    }

    /// The world of one that is `generation` of `term`; an abort of it fails the next operation.
    pub fn of_generation(term: u64, generation: u64, abort: &AbortHandle) -> SoloCommunicator {
        SoloCommunicator { term, generation, abort: Some(abort.clone()), closed: false }
    }

    fn enter(&self) -> CollectiveResult {
        if self.closed {
            return Err(CollectiveError::Closed);
        }
        let aborted =
            self.abort.as_ref().and_then(|abort| abort.aborted(self.term, self.generation));
        match aborted {
            None => Ok(()),
            Some(abort) => Err(abort.into()),
        }
    }

    fn copy(&self, input: &[u8], output: &mut [u8]) -> CollectiveResult {
        self.enter()?;
        output.copy_from_slice(input);
        Ok(())
    }
}

impl CpuBackend for SoloCommunicator {
    fn membership(&self) -> GroupMembership {
        GroupMembership { term: self.term, generation: self.generation, rank: 0, world: 1 }
    }

    fn carry_out(
        &mut self,
        _: OperationSignature,
        operation: HostOperation<'_>,
    ) -> CollectiveResult {
        match operation {
            Operation::AllGather { input, output, .. }
            | Operation::ReduceScatter { input, output, .. }
            | Operation::AllToAll { input, output, .. }
            | Operation::Gather { input, output: Some(output), .. }
            | Operation::Scatter { input: Some(input), output, .. } => self.copy(input, output),
            Operation::AllReduce { .. }
            | Operation::GroupedAllReduce { .. }
            | Operation::Reduce { .. }
            | Operation::Broadcast { .. }
            | Operation::Barrier => self.enter(),
            // A world of one is its root, and has no other rank: the check has refused other calls.
            Operation::Gather { output: None, .. }
            | Operation::Scatter { input: None, .. }
            | Operation::Send { .. }
            | Operation::Recv { .. } => self.enter(),
        }
    }

    fn ancestry(&self) -> Ancestry {
        Ancestry::Alone(self.clone())
    }

    fn close(&mut self) {
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::SoloCommunicator;
    use crate::{AbortHandle, CollectiveError, Communicator, CommunicatorExt, ReduceOp};

    #[test]
    fn a_world_of_one_keeps_its_data() {
        let mut solo = SoloCommunicator::new();
        let mut data = [1.5f32, 2.0];
        for op in ReduceOp::ALL {
            solo.all_reduce(&mut data, op).unwrap();
        }
        assert_eq!(data, [1.5, 2.0]);
        let mut gathered = [0.0f32; 2];
        solo.all_gather(&data, &mut gathered).unwrap();
        assert_eq!(gathered, data);
        let mut state = b"state".to_vec();
        solo.broadcast_vec(&mut state, 0, 5).unwrap();
        assert_eq!(state, b"state");
        solo.barrier().unwrap();
        assert!(matches!(solo.send(&data, 0), Err(CollectiveError::InvalidArgument { .. })));
        assert!(matches!(
            solo.all_reduce(&mut [1u8], ReduceOp::Mean),
            Err(CollectiveError::InvalidArgument { .. })
        ));
        solo.close();
        assert!(matches!(solo.barrier(), Err(CollectiveError::Closed)));
    }

    #[test]
    fn an_abort_reaches_a_world_of_one() {
        let abort = AbortHandle::new().unwrap();
        let mut solo = SoloCommunicator::of_generation(1, 2, &abort);
        solo.barrier().unwrap();
        abort.abort(1, 2, "a host was lost");
        assert!(matches!(solo.barrier(), Err(CollectiveError::Aborted { generation: 2, .. })));
    }
}
