//! [`SoloCommunicator`]: a world of one, without sockets. A program that runs alone uses it.

use crate::abort::AbortHandle;
use crate::check;
use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::ReduceOp;
use crate::wire::OperationKind;

/// The group of a single rank: every operation is a copy or nothing at all. Arguments are checked as in
/// larger worlds.
#[derive(Debug, Default)]
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

    fn enter(&self) -> Result<(), CollectiveError> {
        if self.closed {
            return Err(CollectiveError::Closed);
        }
        let aborted =
            self.abort.as_ref().and_then(|abort| abort.aborted(self.term, self.generation));
        match aborted {
            None => Ok(()),
            Some(abort) => Err(CollectiveError::Aborted {
                term: abort.term,
                generation: abort.generation,
                reason: abort.reason,
            }),
        }
    }

    fn copy(
        &self,
        kind: OperationKind,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
    ) -> Result<(), CollectiveError> {
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), input.len())?;
        self.enter()?;
        output.copy_from_slice(input);
        Ok(())
    }
}

impl Communicator for SoloCommunicator {
    fn rank(&self) -> u32 {
        0
    }

    fn world_size(&self) -> u32 {
        1
    }

    fn term(&self) -> u64 {
        self.term
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn all_reduce_bytes(
        &mut self,
        data: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        check::buffer(OperationKind::AllReduce, data, data_type)?;
        check::reduction(OperationKind::AllReduce, data_type, op)?;
        self.enter()
    }

    fn all_gather_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
    ) -> Result<(), CollectiveError> {
        self.copy(OperationKind::AllGather, input, output, data_type)
    }

    fn all_gather_v_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        data_type: DataType,
    ) -> Result<(), CollectiveError> {
        check::counts(OperationKind::AllGatherV, counts, 1, data_type, input)?;
        self.copy(OperationKind::AllGatherV, input, output, data_type)
    }

    fn reduce_scatter_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        check::reduction(OperationKind::ReduceScatter, data_type, op)?;
        self.copy(OperationKind::ReduceScatter, input, output, data_type)
    }

    fn broadcast_bytes(
        &mut self,
        data: &mut [u8],
        data_type: DataType,
        root: u32,
    ) -> Result<(), CollectiveError> {
        check::buffer(OperationKind::Broadcast, data, data_type)?;
        check::rank(OperationKind::Broadcast, root, 1)?;
        self.enter()
    }

    fn all_to_all_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
    ) -> Result<(), CollectiveError> {
        self.copy(OperationKind::AllToAll, input, output, data_type)
    }

    fn all_to_all_v_bytes(
        &mut self,
        input: &[u8],
        input_counts: &[usize],
        output: &mut [u8],
        output_counts: &[usize],
        data_type: DataType,
    ) -> Result<(), CollectiveError> {
        check::counts(OperationKind::AllToAllV, input_counts, 1, data_type, input)?;
        check::counts(OperationKind::AllToAllV, output_counts, 1, data_type, output)?;
        self.copy(OperationKind::AllToAllV, input, output, data_type)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.enter()
    }

    fn send_bytes(
        &mut self,
        _data: &[u8],
        _data_type: DataType,
        to: u32,
    ) -> Result<(), CollectiveError> {
        check::peer(OperationKind::SendReceive, to, 0, 1)
    }

    fn receive_bytes(
        &mut self,
        _data: &mut [u8],
        _data_type: DataType,
        from: u32,
    ) -> Result<(), CollectiveError> {
        check::peer(OperationKind::SendReceive, from, 0, 1)
    }

    fn close(&mut self) {
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommunicatorExt;

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
