//! The operations of a [`Group`] that are launched beside the training thread, on vectors that come back from
//! [`Pending::wait`]. Training code calls them.

use elastic_collectives::{CommunicatorExt, Element, ReduceOp};

use super::error::Result;
use super::group::{Group, Pending};

/// Each of these runs after all operations that were launched before, on this group or another. The order of launches
/// must be the same on every rank.
///
/// # Errors
/// Each returns [`Error::Aborted`](super::Error::Aborted) when the generation has ended.
#[expect(clippy::missing_errors_doc, reason = "the error is the same for all, and stands above")]
impl Group {
    /// Launches [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_async<E: Element>(
        &self,
        mut data: Vec<E>,
        op: ReduceOp,
    ) -> Result<Pending<Vec<E>>> {
        self.launch(move |group| group.all_reduce(&mut data, op).map(|()| data))
    }

    /// Launches [`reduce`](Self::reduce).
    pub fn reduce_async<E: Element>(
        &self,
        mut data: Vec<E>,
        op: ReduceOp,
        root: u32,
    ) -> Result<Pending<Vec<E>>> {
        self.launch(move |group| group.reduce(&mut data, op, root).map(|()| data))
    }

    /// Launches [`broadcast`](Self::broadcast).
    pub fn broadcast_async<E: Element>(
        &self,
        mut data: Vec<E>,
        root: u32,
    ) -> Result<Pending<Vec<E>>> {
        self.launch(move |group| group.broadcast(&mut data, root).map(|()| data))
    }

    /// Launches [`gather`](Self::gather); it gives the parts of all ranks at the root, and nothing at the others.
    pub fn gather_async<E: Element>(
        &self,
        input: Vec<E>,
        root: u32,
    ) -> Result<Pending<Option<Vec<E>>>> {
        let parts = input.len() * self.size() as usize;
        let mut output = (self.rank() == root).then(|| vec![E::zeroed(); parts]);
        self.launch(move |group| group.gather(&input, output.as_deref_mut(), root).map(|()| output))
    }

    /// Launches [`scatter`](Self::scatter); it gives `output`.
    pub fn scatter_async<E: Element>(
        &self,
        input: Option<Vec<E>>,
        mut output: Vec<E>,
        root: u32,
    ) -> Result<Pending<Vec<E>>> {
        self.launch(move |group| {
            group.scatter(input.as_deref(), &mut output, root).map(|()| output)
        })
    }

    /// Launches [`all_gather`](Self::all_gather); it gives the parts of all ranks.
    pub fn all_gather_async<E: Element>(&self, input: Vec<E>) -> Result<Pending<Vec<E>>> {
        let mut output = vec![E::zeroed(); input.len() * self.size() as usize];
        self.launch(move |group| group.all_gather(&input, &mut output).map(|()| output))
    }

    /// Launches [`reduce_scatter`](Self::reduce_scatter); it gives this rank's part.
    pub fn reduce_scatter_async<E: Element>(
        &self,
        input: Vec<E>,
        op: ReduceOp,
    ) -> Result<Pending<Vec<E>>> {
        let mut output = vec![E::zeroed(); input.len() / self.size() as usize];
        self.launch(move |group| group.reduce_scatter(&input, &mut output, op).map(|()| output))
    }

    /// Launches [`all_to_all`](Self::all_to_all); it gives the parts that were received.
    pub fn all_to_all_async<E: Element>(&self, input: Vec<E>) -> Result<Pending<Vec<E>>> {
        let mut output = vec![E::zeroed(); input.len()];
        self.launch(move |group| group.all_to_all(&input, &mut output).map(|()| output))
    }

    /// Launches [`barrier`](Self::barrier).
    pub fn barrier_async(&self) -> Result<Pending<()>> {
        self.launch(|group| group.barrier())
    }

    /// Launches [`send`](Self::send).
    pub fn send_async<E: Element>(&self, data: Vec<E>, to: u32) -> Result<Pending<Vec<E>>> {
        self.launch(move |group| group.send(&data, to).map(|()| data))
    }

    /// Launches [`recv`](Self::recv).
    pub fn recv_async<E: Element>(&self, mut data: Vec<E>, from: u32) -> Result<Pending<Vec<E>>> {
        self.launch(move |group| group.recv(&mut data, from).map(|()| data))
    }
}
