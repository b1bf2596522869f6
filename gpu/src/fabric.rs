//! Forms a generation's NCCL group beside its CPU group: the members exchange offers, compute the same plan, and
//! carry it out. If that fails for one of them, all form anew with no earlier communicator. If that fails too, the
//! generation fails. Called by the worker's run loop, through the Rust API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elastic_collectives::{
    AbortHandle, CollectiveError, Communicator, CommunicatorExt, FormError, form_in_hosts,
};
use elastic_protocol::{HostName, Stamp, WorkerId};
use tracing::{info, warn};

use crate::actor::core::SPARES_MAX;
use crate::actor::{GpuPort, GpuRequest};
use crate::gpu::Gpu;
use crate::group::{NcclGroup, NcclGroupParts};
use crate::lane::{StagingLane, StagingLaneHome};
use crate::nccl::{CommError, GpuPatience, UniqueId};
use crate::offer::{FormPlan, How, Offer, plan};
use crate::session::NcclSession;
use crate::settings::{Backend, Scope};

/// Most time for an answer of the actor that needs no work.
const ANSWER: Duration = Duration::from_secs(5);
/// Most time for shrinking and growing, after which all form anew: that takes some 2 s at 1,024 GPUs.
const CHEAPER_MAX: Duration = Duration::from_secs(10);

/// Settings with which NCCL groups are formed.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The demanded backend.
    pub backend: Backend,
    /// The reach of NCCL.
    pub scope: Scope,
    /// Spares per generation.
    pub spares: u32,
    /// Time after which an operation counts as hung.
    pub operation_deadline: Duration,
    /// Time for which the members that hang in an operation wait for each other, to name an absent one
    /// ([`crate::roll_call_deadline`]).
    pub roll_call: Duration,
}

/// A generation, as its members know it.
#[derive(Clone, Copy, Debug)]
pub struct GroupGeneration<'a> {
    /// Its term and number.
    pub stamp: Stamp,
    /// Its members by rank.
    pub members: &'a [WorkerId],
    /// Deadline for forming.
    pub due: Instant,
}

/// Forms NCCL groups over all generations of a worker.
#[derive(Debug)]
pub struct GpuGroups {
    config: GroupConfig,
    /// The GPU, or why there is none.
    gpu: Result<Arc<Gpu>, String>,
    port: GpuPort,
    abort: AbortHandle,
    lane: StagingLaneHome,
}

impl GpuGroups {
    /// Groups on `gpu`; without one, this worker says so to the others.
    pub fn new(
        config: GroupConfig,
        gpu: Result<Arc<Gpu>, String>,
        port: GpuPort,
        abort: AbortHandle,
    ) -> GpuGroups {
        GpuGroups { config, gpu, port, abort, lane: StagingLaneHome::default() }
    }

    /// Forms the generation's group over `control`, the CPU group of the same members, or gives that back where not
    /// all can use NCCL.
    ///
    /// # Errors
    ///
    /// [`FormError`]; with [`Backend::Nccl`] also where a member has no GPU.
    pub fn form(
        &mut self,
        control: Box<dyn Communicator>,
        generation: GroupGeneration<'_>,
    ) -> Result<Box<dyn Communicator>, FormError> {
        if self.config.backend == Backend::Cpu {
            return Ok(control);
        }
        if self.config.scope == Scope::Host {
            let (rank, hosts) = (control.rank() as usize, host_numbers(generation.members));
            let members = generation.members.iter().zip(&hosts);
            let here = members.filter(|(_, host)| **host == hosts[rank]);
            let here: Vec<WorkerId> = here.map(|(member, _)| member.clone()).collect();
            let inside = GroupGeneration { members: &here, ..generation };
            // A host without GPUs takes part by its CPU group: only its own members know.
            return form_in_hosts(control, &hosts, |local| {
                match self.form_here(local, inside)? {
                    Ok(group) => Ok(Box::new(group)),
                    Err(cpu) => Ok(cpu),
                }
            });
        }
        match self.form_here(control, generation)? {
            Ok(group) => Ok(Box::new(group)),
            Err(control) => Ok(control),
        }
    }

    /// As [`GpuGroups::form`] with NCCL in all of the world, for callers with data on the GPU.
    ///
    /// # Errors
    ///
    /// [`FormError`], also where a member cannot use NCCL.
    pub fn form_nccl(
        &mut self,
        control: Box<dyn Communicator>,
        generation: GroupGeneration<'_>,
    ) -> Result<NcclGroup, FormError> {
        let formed = self.form_here(control, generation)?;
        formed.map_err(|_cpu| device_error("forming NCCL's communicator", "a member has no GPU"))
    }

    /// The group, or the CPU's where somebody cannot.
    fn form_here(
        &mut self,
        mut control: Box<dyn Communicator>,
        generation: GroupGeneration<'_>,
    ) -> Result<Result<NcclGroup, Box<dyn Communicator>>, FormError> {
        let offers = self.exchange(&mut *control, generation)?;
        let planned = match plan(&offers) {
            Ok(planned) => planned,
            Err(rank) => return self.without(control, generation, rank),
        };
        info!(generation = %generation.stamp.generation, how = ?planned.how, reason = planned.reason, "NCCL's communicator");
        let session = match planned.how {
            How::Init => self.carry_out(&mut *control, generation, &planned, generation.due),
            _ => self.cheaper_or_anew(&mut *control, generation, &planned)?,
        };
        // A member that fails leaves at once; that ends the generation, and with it the wait of the others.
        let session =
            session.map_err(|reason| device_error("forming NCCL's communicator", reason))?;
        self.start_spares(&mut *control, generation)?;
        let lane = self.lane().map_err(|error| device_error("taking the GPU's memory", error))?;
        Ok(Ok(NcclGroup::new(NcclGroupParts {
            session,
            control,
            abort: self.abort.clone(),
            port: self.port.clone(),
            lane,
            home: self.lane.clone(),
            operation_deadline: self.config.operation_deadline,
            roll_call: self.config.roll_call,
        })))
    }

    /// Carries out a plan that derives from an earlier communicator. If that fails for one member, all form anew.
    #[expect(
        clippy::disallowed_methods,
        reason = "the training thread is outside of the deterministic world"
    )]
    fn cheaper_or_anew(
        &self,
        control: &mut dyn Communicator,
        generation: GroupGeneration<'_>,
        planned: &FormPlan,
    ) -> Result<Result<Arc<NcclSession>, String>, FormError> {
        let due = generation.due.min(Instant::now() + CHEAPER_MAX);
        let session = self.carry_out(control, generation, planned, due);
        if agree(control, session.is_ok()).map_err(form_error)? {
            return Ok(session);
        }
        let reason = "the cheaper way has failed";
        let error = session.err().unwrap_or_default();
        warn!(generation = %generation.stamp.generation, how = ?planned.how, error, "{reason}");
        let anew = FormPlan::init(generation.members.len(), reason);
        Ok(self.carry_out(control, generation, &anew, generation.due))
    }

    /// Sends this member's offer, and receives those of the others.
    fn exchange(
        &self,
        control: &mut dyn Communicator,
        generation: GroupGeneration<'_>,
    ) -> Result<Vec<Offer>, FormError> {
        let own = match &self.gpu {
            Ok(_) => self.port.ask(ANSWER, |reply| GpuRequest::Offer {
                stamp: generation.stamp,
                members: generation.members.to_vec(),
                reply,
            }),
            Err(reason) => Err(reason.clone()),
        };
        let own = own.unwrap_or_default();
        let mut bytes = vec![0; Offer::BYTES * generation.members.len()];
        control.all_gather(&own.encode(), &mut bytes).map_err(form_error)?;
        let (offers, _) = bytes.as_chunks::<{ Offer::BYTES }>();
        let offers: Result<_, _> = offers.iter().map(Offer::decode).collect();
        offers
            .map_err(|error| device_error("reading what the other ranks bring", error.to_string()))
    }

    /// Rank `rank` has no GPU.
    fn without(
        &self,
        control: Box<dyn Communicator>,
        generation: GroupGeneration<'_>,
        rank: u32,
    ) -> Result<Result<NcclGroup, Box<dyn Communicator>>, FormError> {
        let member = &generation.members[rank as usize];
        let own = control.rank() == rank;
        let reason = match &self.gpu {
            Err(reason) if own => reason.clone(),
            _ => "it has no GPU that it can use; its own log says why".to_owned(),
        };
        if self.config.backend == Backend::Nccl {
            let what = format!("--backend nccl is demanded, but rank {rank} ({member}) cannot");
            return Err(device_error(what, reason));
        }
        info!(rank, %member, reason, "the CPU's collectives are used");
        Ok(Err(control))
    }

    /// Meets where the plan needs it, and forms.
    fn carry_out(
        &self,
        control: &mut dyn Communicator,
        generation: GroupGeneration<'_>,
        plan: &FormPlan,
        due: Instant,
    ) -> Result<Arc<NcclSession>, String> {
        let mut id = None;
        if let Some(host) = plan.host_of_id() {
            let identify = |reply| GpuRequest::Identify { plan: plan.clone(), reply };
            let mut made = match control.rank() == host {
                true => self.port.ask(ANSWER, identify),
                false => Ok(UniqueId([0; UniqueId::BYTES])),
            };
            // The others wait for the id in any case: an id of zeroes says that there is none.
            let mut bytes = made.as_ref().map_or([0; UniqueId::BYTES], |id| id.0);
            control.broadcast(&mut bytes, host).map_err(|error| error.to_string())?;
            if bytes == [0; UniqueId::BYTES] && made.is_ok() {
                made = Err(format!("rank {host} could not make a meeting point"));
            }
            made?;
            id = Some(UniqueId(bytes));
        }
        let patience = remaining(due);
        self.port.ask(patience + ANSWER, |reply| GpuRequest::Form {
            stamp: generation.stamp,
            members: generation.members.to_vec(),
            plan: plan.clone(),
            id,
            patience,
            reply,
        })
    }

    /// Meeting points for the worlds that would be left if one host, or on one host one worker, were lost; the actors
    /// form them while training runs.
    fn start_spares(
        &self,
        control: &mut dyn Communicator,
        generation: GroupGeneration<'_>,
    ) -> Result<(), FormError> {
        let worlds = spare_worlds(generation.members, self.config.spares.min(SPARES_MAX));
        let own = generation.members.get(control.rank() as usize);
        let mut spares = Vec::new();
        for (number, members) in (0..).zip(worlds) {
            let host = generation.members.iter().position(|member| *member == members[0]);
            let host = host.unwrap_or_default() as u32;
            let mut bytes = [0; UniqueId::BYTES];
            if control.rank() == host {
                let plan = FormPlan::init(members.len(), "a spare");
                let id = self.port.ask(ANSWER, |reply| GpuRequest::Identify { plan, reply });
                bytes = id.map_or(bytes, |id| id.0);
            }
            control.broadcast(&mut bytes, host).map_err(form_error)?;
            if bytes != [0; UniqueId::BYTES] && own.is_some_and(|own| members.contains(own)) {
                spares.push((number, members, UniqueId(bytes)));
            }
        }
        if !spares.is_empty() {
            let (stamp, patience) = (generation.stamp, remaining(generation.due).max(ANSWER));
            self.port.tell(GpuRequest::Spares { stamp, spares, patience });
        }
        Ok(())
    }

    /// The lane of before, if nothing is under way in it any more, else another one.
    #[expect(
        clippy::disallowed_methods,
        reason = "the training thread is outside of the deterministic world"
    )]
    fn lane(&self) -> Result<StagingLane, String> {
        if let Some(lane) = self.lane.take() {
            let (due, stop) = (Instant::now() + ANSWER, || None);
            let patience = GpuPatience { due, stop: &stop };
            let idle = lane
                .mark()
                .map_err(CommError::from)
                .and_then(|()| patience.wait("the GPU", || Ok(lane.is_idle()?)));
            match idle {
                Ok(()) => return Ok(lane),
                // The operation under way still uses its memory, so the memory is leaked.
                Err(_) => std::mem::forget(lane),
            }
        }
        let gpu = self.gpu.as_ref().map_err(Clone::clone)?;
        StagingLane::new(gpu.device()).map_err(|error| error.to_string())
    }
}

/// Whether it went well for all.
fn agree(control: &mut dyn Communicator, went_well: bool) -> Result<bool, CollectiveError> {
    let mut told = vec![0_u8; control.world_size() as usize];
    control.all_gather(&[u8::from(went_well)], &mut told)?;
    Ok(told.iter().all(|told| *told == 1))
}

/// The worlds that would be left without one of the hosts, or where there is but one without one of the workers:
/// `count` of them, those without the newest first.
fn spare_worlds(members: &[WorkerId], count: u32) -> Vec<Vec<WorkerId>> {
    let is_one_host = members.windows(2).all(|pair| pair[0].host == pair[1].host);
    let mut gone: Vec<&WorkerId> = Vec::new();
    for member in members.iter().rev() {
        if is_one_host || gone.iter().all(|other| other.host != member.host) {
            gone.push(member);
        }
    }
    let without = |gone: &WorkerId| -> Vec<WorkerId> {
        let stays = |member: &&WorkerId| {
            if is_one_host { **member != *gone } else { member.host != gone.host }
        };
        members.iter().filter(stays).cloned().collect()
    };
    let worlds = gone.into_iter().map(without).filter(|world| !world.is_empty());
    worlds.take(count as usize).collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the training thread is outside of the deterministic world"
)]
fn remaining(due: Instant) -> Duration {
    due.saturating_duration_since(Instant::now())
}

fn device_error(what: impl Into<String>, reason: impl Into<String>) -> FormError {
    FormError::Device { what: what.into(), source: reason.into().into() }
}

/// The number of each member's host, in the order in which hosts come first.
fn host_numbers(members: &[WorkerId]) -> Vec<u32> {
    let mut hosts: Vec<&HostName> = Vec::new();
    let mut numbers = Vec::with_capacity(members.len());
    for WorkerId { host, .. } in members {
        let known = hosts.iter().position(|other| *other == host);
        if known.is_none() {
            hosts.push(host);
        }
        numbers.push(known.unwrap_or(hosts.len() - 1) as u32);
    }
    numbers
}

/// The meaning of a failed exchange between the members while a group forms.
fn form_error(error: CollectiveError) -> FormError {
    match error {
        CollectiveError::Aborted { .. }
        | CollectiveError::DeadlinePassed { .. }
        | CollectiveError::PeerLost { .. } => error.into(),
        error => FormError::Device {
            what: "agreeing on NCCL's communicator".to_owned(),
            source: error.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::Incarnation;

    use super::*;

    fn members(hosts: &[&str]) -> Vec<WorkerId> {
        let member = |(slot, host): (u32, &&str)| {
            let host = HostName::new(host).expect("a literal");
            WorkerId { host, slot, incarnation: Incarnation(1) }
        };
        (0..).zip(hosts).map(member).collect()
    }

    fn slots(worlds: Vec<Vec<WorkerId>>) -> Vec<Vec<u32>> {
        worlds.iter().map(|world| world.iter().map(|member| member.slot).collect()).collect()
    }

    #[test]
    fn spares_are_for_the_loss_of_a_host_the_newest_first() {
        let members = members(&["a", "a", "b", "c"]);
        assert_eq!(slots(spare_worlds(&members, 2)), [vec![0, 1, 2], vec![0, 1, 3]]);
        assert!(spare_worlds(&members, 0).is_empty());
    }

    #[test]
    fn on_one_host_they_are_for_the_loss_of_a_worker() {
        let worlds = slots(spare_worlds(&members(&["a", "a", "a"]), 8));
        assert_eq!(worlds, [vec![0, 1], vec![0, 2], vec![1, 2]]);
        assert!(spare_worlds(&members(&["a"]), 8).is_empty(), "nobody would be left");
    }
}
