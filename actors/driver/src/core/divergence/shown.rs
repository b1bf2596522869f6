//! The status' lines about replicas that differ and arrays that are not compared. Called by `status`.

use elastic_protocol::messages::{DivergentReplica, StatusReport, UncomparedTensor};

use crate::core::DriverCore;

impl DriverCore {
    /// Arrays of which members hold other content than others, in the order in which they were found.
    pub(crate) fn divergent_replicas(&self) -> Vec<DivergentReplica> {
        let found = self.divergence.differing.iter().take(StatusReport::DIVERGENCE_MAX);
        found
            .map(|differing| DivergentReplica {
                tensor: self.divergence.name(differing.tensor),
                rank: differing.rank,
                host: differing.worker.host.clone(),
                slot: differing.worker.slot,
                step: differing.step,
                agreeing: differing.agreeing,
                members: differing.members,
            })
            .collect()
    }

    /// Arrays that are not compared, with the reasons.
    pub(crate) fn uncompared_tensors(&self) -> Vec<UncomparedTensor> {
        let tensor = |id: u64| if id == 0 { String::new() } else { self.divergence.name(id) };
        let unclear = self.divergence.unclear.iter();
        let unclear =
            unclear.map(|(id, why)| UncomparedTensor { tensor: tensor(*id), reason: why.clone() });
        let silent = self.divergence.silent.iter().map(|rank| UncomparedTensor {
            tensor: String::new(),
            reason: format!(
                "nothing of the state is compared: rank {rank} sends no digests of its commits"
            ),
        });
        silent.chain(unclear).take(StatusReport::AWAITED_MAX).collect()
    }
}
