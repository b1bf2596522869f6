//! One kind of collectives within a host and the CPU's between hosts, for machines whose network NCCL cannot use well.
//! Reductions and broadcasts go by way of each host's first member; everything else goes over the CPU group of all.

use std::time::Duration;

use bytemuck::cast_slice_mut;
use elastic_collectives::wire::OperationKind;
use elastic_collectives::{CollectiveError, Communicator, DataType, ReduceOp, check};
use elastic_protocol::WorkerId;
use half::{bf16, f16};

type Done = Result<(), CollectiveError>;

/// The members of one generation, by host.
pub struct HierarchicalGroup {
    /// The members of this host.
    inner: Box<dyn Communicator>,
    /// The first member of each host; only those have it.
    leaders: Option<Box<dyn Communicator>>,
    /// Everybody.
    control: Box<dyn Communicator>,
    /// By rank: the number of its host, and its rank there.
    places: Vec<(u32, u32)>,
}

/// The CPU groups below that of all: of this host, with its members, and of the first members.
pub(crate) type Split = (Box<dyn Communicator>, Vec<WorkerId>, Option<Box<dyn Communicator>>);

impl HierarchicalGroup {
    /// Splits the CPU group of all. `None` where no host has two members.
    pub(crate) fn split(
        control: &mut dyn Communicator,
        members: &[WorkerId],
    ) -> Result<Option<Split>, CollectiveError> {
        let places = places(members);
        if places.iter().all(|(_, local)| *local == 0) {
            return Ok(None);
        }
        let (host, local) = places[control.rank() as usize];
        let inner = control.split(Some(host), 0)?;
        let leaders = control.split((local == 0).then_some(0), 0)?;
        let here = members.iter().zip(&places).filter(|(_, place)| place.0 == host);
        let here = here.map(|(member, _)| member.clone()).collect();
        Ok(inner.map(|inner| (inner, here, leaders)))
    }

    pub(crate) fn new(
        inner: Box<dyn Communicator>,
        leaders: Option<Box<dyn Communicator>>,
        control: Box<dyn Communicator>,
        members: &[WorkerId],
    ) -> HierarchicalGroup {
        HierarchicalGroup { inner, leaders, control, places: places(members) }
    }
}

/// By rank: the number of its host, in the order in which hosts come first, and its rank there.
fn places<'a>(members: &'a [WorkerId]) -> Vec<(u32, u32)> {
    let mut hosts: Vec<(&WorkerId, u32)> = Vec::new();
    let mut place = |member: &'a WorkerId| {
        let known =
            hosts.iter().position(|(first, _): &(&WorkerId, u32)| first.host == member.host);
        let host = known.unwrap_or_else(|| {
            hosts.push((member, 0));
            hosts.len() - 1
        });
        let local = hosts[host].1;
        hosts[host].1 += 1;
        (host as u32, local)
    };
    members.iter().map(&mut place).collect()
}

/// Divides a sum over all ranks. Integers have no mean: their check has refused it.
fn divide(data: &mut [u8], data_type: DataType, ranks: u32) {
    let ranks = f64::from(ranks);
    match data_type {
        DataType::F32 => each::<f32>(data, |value| (f64::from(value) / ranks) as f32),
        DataType::F64 => each::<f64>(data, |value| value / ranks),
        DataType::F16 => each::<f16>(data, |value| f16::from_f64(value.to_f64() / ranks)),
        DataType::Bf16 => each::<bf16>(data, |value| bf16::from_f64(value.to_f64() / ranks)),
        _ => {}
    }
}

fn each<T: bytemuck::Pod>(data: &mut [u8], change: impl Fn(T) -> T) {
    cast_slice_mut::<u8, T>(data).iter_mut().for_each(|value| *value = change(*value));
}

impl Communicator for HierarchicalGroup {
    fn rank(&self) -> u32 {
        self.control.rank()
    }

    fn world_size(&self) -> u32 {
        self.control.world_size()
    }

    fn term(&self) -> u64 {
        self.control.term()
    }

    fn generation(&self) -> u64 {
        self.control.generation()
    }

    fn all_reduce_bytes(&mut self, data: &mut [u8], data_type: DataType, op: ReduceOp) -> Done {
        check::reduction(OperationKind::AllReduce, data_type, op)?;
        let partial = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        self.inner.all_reduce_bytes(data, data_type, partial)?;
        if let Some(leaders) = &mut self.leaders {
            leaders.all_reduce_bytes(data, data_type, partial)?;
        }
        self.inner.broadcast_bytes(data, data_type, 0)?;
        if op == ReduceOp::Mean {
            divide(data, data_type, self.control.world_size());
        }
        Ok(())
    }

    fn all_gather_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        self.control.all_gather_bytes(input, output, data_type)
    }

    fn all_gather_v_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        data_type: DataType,
    ) -> Done {
        self.control.all_gather_v_bytes(input, output, counts, data_type)
    }

    fn reduce_scatter_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Done {
        self.control.reduce_scatter_bytes(input, output, data_type, op)
    }

    fn broadcast_bytes(&mut self, data: &mut [u8], data_type: DataType, root: u32) -> Done {
        check::rank(OperationKind::Broadcast, root, self.world_size())?;
        let (host, local) = self.places[root as usize];
        let is_here = self.places[self.rank() as usize].0 == host;
        if is_here {
            self.inner.broadcast_bytes(data, data_type, local)?;
        }
        if let Some(leaders) = &mut self.leaders {
            leaders.broadcast_bytes(data, data_type, host)?;
        }
        if !is_here {
            self.inner.broadcast_bytes(data, data_type, 0)?;
        }
        Ok(())
    }

    fn all_to_all_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        self.control.all_to_all_bytes(input, output, data_type)
    }

    fn all_to_all_v_bytes(
        &mut self,
        input: &[u8],
        input_counts: &[usize],
        output: &mut [u8],
        output_counts: &[usize],
        data_type: DataType,
    ) -> Done {
        self.control.all_to_all_v_bytes(input, input_counts, output, output_counts, data_type)
    }

    fn barrier(&mut self) -> Done {
        self.control.barrier()
    }

    fn send_bytes(&mut self, data: &[u8], data_type: DataType, to: u32) -> Done {
        self.control.send_bytes(data, data_type, to)
    }

    fn receive_bytes(&mut self, data: &mut [u8], data_type: DataType, from: u32) -> Done {
        self.control.receive_bytes(data, data_type, from)
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        self.control.split(colour, key)
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.inner.set_operation_deadline(deadline);
        self.control.set_operation_deadline(deadline);
        if let Some(leaders) = &mut self.leaders {
            leaders.set_operation_deadline(deadline);
        }
    }

    fn close(&mut self) {
        self.inner.close();
        if let Some(leaders) = &mut self.leaders {
            leaders.close();
        }
        self.control.close();
    }
}
