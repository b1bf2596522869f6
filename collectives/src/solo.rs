//! [`SoloCommunicator`]: a world of one, without sockets. A program that runs alone uses it.

use crate::abort::AbortHandle;
use crate::backend::{Backend, Done, Membership, Places, Reduction};
use crate::error::CollectiveError;
use crate::split::Ancestry;
use crate::wire::Operation;

/// The group of a single rank: every operation is a copy or nothing at all. Arguments are checked as in
/// larger worlds.
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

    fn enter(&self) -> Done {
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

    fn copy(&self, input: &[u8], output: &mut [u8]) -> Done {
        self.enter()?;
        output.copy_from_slice(input);
        Ok(())
    }
}

impl Backend for SoloCommunicator {
    fn membership(&self) -> Membership {
        Membership { term: self.term, generation: self.generation, rank: 0, world: 1 }
    }

    fn all_reduce(&mut self, _: Operation, _: &mut [u8], _: Reduction) -> Done {
        self.enter()
    }

    fn all_gather(&mut self, _: Operation, input: &[u8], output: &mut [u8], _: &Places) -> Done {
        self.copy(input, output)
    }

    fn reduce_scatter(
        &mut self,
        _: Operation,
        input: &[u8],
        output: &mut [u8],
        _: Reduction,
    ) -> Done {
        self.copy(input, output)
    }

    fn broadcast(&mut self, _: Operation, _: &mut [u8], _: u32) -> Done {
        self.enter()
    }

    fn all_to_all(
        &mut self,
        _: Operation,
        input: &[u8],
        _: &Places,
        output: &mut [u8],
        _: &Places,
    ) -> Done {
        self.copy(input, output)
    }

    fn barrier(&mut self, _: Operation) -> Done {
        self.enter()
    }

    // There is no other rank to send to or to receive from: the arguments' check has refused the call.
    fn send(&mut self, _: Operation, _: &[u8], _: u32) -> Done {
        self.enter()
    }

    fn receive(&mut self, _: Operation, _: &mut [u8], _: u32) -> Done {
        self.enter()
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
