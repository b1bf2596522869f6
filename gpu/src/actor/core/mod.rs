//! The GPU actor's decisions, without I/O: the set of communicators, their fate when a generation ends, the next work
//! of the GPU's thread, and the detection of hangs. Communicators are numbers here. The shell, which calls this, maps
//! the numbers to communicators.
//!
//! One piece of work is under way at a time. Work that the training thread waits for goes before spares, which are
//! formed in the background, and cancels a spare that is under way.

mod messages;

use std::collections::VecDeque;
use std::time::Duration;

use elastic_protocol::{Stamp, Time, WorkerId};

use crate::offer::{FormPlan, Health, How, Offer, Parent, Spare};

pub use messages::{
    AskTicket, Close, CommId, CoreConfig, GpuAnswer, GpuJobId, GpuOutput, GpuWork, ProgressSample,
    WorkOutcome,
};

/// Most pieces of work that wait. The endings of communicators are bounded by the number of communicators, and the
/// training thread asks for one thing at a time.
pub const WORK_MAX: usize = 64;
/// Spares at most, with those that are still to be formed.
pub const SPARES_MAX: u32 = 8;
/// Interval at which progress is sampled while a generation runs.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Time beyond its own deadline after which the thread of a piece of work is left behind.
pub const GRACE: Duration = Duration::from_secs(2);
/// Most time for ending, or revoking, a communicator.
pub const END_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
struct HeldComm {
    comm: CommId,
    stamp: Stamp,
    members: Vec<WorkerId>,
    health: Health,
}

#[derive(Clone, Debug)]
struct HeldSpare {
    comm: CommId,
    stamp: Stamp,
    number: u32,
    members: Vec<WorkerId>,
    rank: u32,
}

#[derive(Clone, Debug)]
enum Waits {
    Nobody,
    Identify(AskTicket),
    Form { ticket: AskTicket, held: HeldComm },
    Spare(HeldSpare),
    Revoke(CommId),
}

#[derive(Clone, Debug)]
struct GpuJob {
    id: GpuJobId,
    waits: Waits,
    due: Time,
    cancelled: bool,
}

/// The state machine.
#[derive(Debug)]
pub struct GpuCore {
    config: CoreConfig,
    held: Option<HeldComm>,
    spares: Vec<HeldSpare>,
    queue: VecDeque<(GpuWork, Waits)>,
    background: VecDeque<(GpuWork, HeldSpare)>,
    job: Option<GpuJob>,
    /// The generation that the training thread is in.
    running: Option<Stamp>,
    /// The newest generation heard of (G-2).
    newest: Stamp,
    sample_due: Option<Time>,
    next: u64,
    outputs: VecDeque<GpuOutput>,
}

impl GpuCore {
    /// Without communicators.
    pub fn new(config: CoreConfig) -> GpuCore {
        GpuCore {
            config,
            held: None,
            spares: Vec::new(),
            queue: VecDeque::new(),
            background: VecDeque::new(),
            job: None,
            running: None,
            newest: Stamp::default(),
            sample_due: None,
            next: 0,
            outputs: VecDeque::new(),
        }
    }

    /// The training thread forms a generation of these members, and asks for this member's offer.
    pub fn handle_offer(
        &mut self,
        now: Time,
        ticket: AskTicket,
        stamp: Stamp,
        members: &[WorkerId],
    ) {
        self.newest = self.newest.max(stamp);
        self.stop_running(Close::Broken);
        self.stop_background();
        let own = |members: &[WorkerId]| {
            let index = members.iter().position(|member| *member == self.config.worker)?;
            u32::try_from(index).ok()
        };
        let parent = self.held.as_ref().and_then(|held| {
            let world = u32::try_from(held.members.len()).ok()?;
            let rank = own(&held.members)?;
            Some(Parent { stamp: held.stamp, rank, world, health: held.health })
        });
        let spare = self.spares.iter().find(|spare| are_same(&spare.members, members));
        let spare =
            spare.map(|spare| Spare { stamp: spare.stamp, number: spare.number, rank: spare.rank });
        let (features, version) = (self.config.features, self.config.version);
        let offer = Offer { usable: true, features, version, parent, spare };
        self.outputs.push_back(GpuOutput::Answer(ticket, GpuAnswer::Offer(offer)));
        self.go_on(now);
    }

    /// This member serves the meeting point of the plan.
    pub fn handle_identify(&mut self, now: Time, ticket: AskTicket, plan: &FormPlan) {
        let parent = match plan.how {
            How::Grow => self.held.as_ref().map(|held| held.comm),
            _ => None,
        };
        self.push(GpuWork::Identify(parent), Waits::Identify(ticket));
        self.go_on(now);
    }

    /// Form the generation's communicator as all have worked out, by `due`.
    pub fn handle_form(
        &mut self,
        now: Time,
        ticket: AskTicket,
        stamp: Stamp,
        members: &[WorkerId],
        plan: &FormPlan,
        due: Time,
    ) {
        let place = members.iter().position(|member| *member == self.config.worker);
        let Some(rank) = place.and_then(|place| plan.ranks.get(place).copied()) else {
            let reason = "this worker is not among the members".to_owned();
            return self.answer_formed(ticket, Err(reason));
        };
        if stamp < self.newest {
            let reason = "a newer generation is forming (G-2)".to_owned();
            return self.answer_formed(ticket, Err(reason));
        }
        let mut by_rank = members.to_vec();
        for (member, rank) in members.iter().zip(&plan.ranks) {
            by_rank[*rank as usize] = member.clone();
        }
        let parent = match plan.how {
            How::Init => None,
            How::Spare => {
                let at = self.spares.iter().position(|spare| are_same(&spare.members, members));
                let spare = at.map(|at| self.spares.remove(at));
                self.release_held();
                let result = match spare {
                    Some(spare) => {
                        self.hold(now, spare.comm, stamp, by_rank);
                        Ok(spare.comm)
                    }
                    None => Err("the spare is gone".to_owned()),
                };
                self.answer_formed(ticket, result);
                return self.go_on(now);
            }
            How::Keep | How::Shrink { .. } | How::Grow => self.held.as_ref().map(|held| held.comm),
        };
        if plan.how == How::Keep {
            let result = parent.ok_or_else(|| "the communicator is gone".to_owned());
            if let Ok(comm) = result {
                self.hold(now, comm, stamp, by_rank);
            }
            self.answer_formed(ticket, result);
            return self.go_on(now);
        }
        if plan.how == How::Init {
            self.release_held();
        }
        let into = CommId(self.number());
        let world = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let how = plan.how.clone();
        let work = GpuWork::Form { into, parent, how, rank, world, stamp, due };
        let health = Health::Healthy;
        let held = HeldComm { comm: into, stamp, members: by_rank, health };
        self.push(work, Waits::Form { ticket, held });
        self.go_on(now);
    }

    /// The generation runs: form its spares in the background, each with its number and its members by rank.
    pub fn handle_spares(
        &mut self,
        now: Time,
        stamp: Stamp,
        spares: &[(u32, Vec<WorkerId>)],
        due: Time,
    ) {
        if self.running != Some(stamp) {
            return;
        }
        for (number, members) in spares {
            // Told twice, it is formed once.
            let is_known =
                self.known_spares().any(|spare| spare.stamp == stamp && spare.number == *number);
            if is_known || self.known_spares().count() >= SPARES_MAX as usize {
                continue;
            }
            let own = members.iter().position(|member| *member == self.config.worker);
            let Some(rank) = own.and_then(|own| u32::try_from(own).ok()) else { continue };
            let (comm, number, members) = (CommId(self.number()), *number, members.clone());
            let world = u32::try_from(members.len()).unwrap_or(u32::MAX);
            let work = GpuWork::FormSpare { into: comm, number, rank, world, due };
            self.background.push_back((work, HeldSpare { comm, stamp, number, members, rank }));
        }
        self.go_on(now);
    }

    /// The State aborts this generation, and all before it.
    pub fn handle_abort(&mut self, now: Time, stamp: Stamp) {
        if self.running.is_some_and(|running| running <= stamp) {
            self.stop_running(Close::Broken);
            self.stop_background();
            self.go_on(now);
        }
    }

    /// The training thread has left the generation.
    pub fn handle_close(&mut self, now: Time, stamp: Stamp, close: Close) {
        if self.running == Some(stamp) {
            self.stop_running(close);
            self.go_on(now);
        }
    }

    /// Work has ended.
    pub fn handle_done(&mut self, now: Time, id: GpuJobId, outcome: WorkOutcome) {
        // An abandoned job may still end later.
        let Some(job) = self.job.take_if(|job| job.id == id) else { return };
        match (job.waits, outcome) {
            (Waits::Nobody, _) | (Waits::Spare(_), WorkOutcome::Failed(_)) => {}
            (Waits::Identify(ticket), outcome) => {
                let result = result_of(outcome);
                self.outputs.push_back(GpuOutput::Answer(ticket, GpuAnswer::Identified(result)));
            }
            (Waits::Form { ticket, held }, WorkOutcome::Done) => {
                self.release_held();
                let comm = held.comm;
                self.hold(now, comm, held.stamp, held.members);
                // The generation may have been given up meanwhile.
                if held.stamp < self.newest {
                    self.stop_running(Close::Broken);
                }
                self.answer_formed(ticket, Ok(comm));
            }
            (Waits::Form { ticket, .. }, WorkOutcome::Failed(reason)) => {
                self.release_held();
                self.answer_formed(ticket, Err(reason));
            }
            (Waits::Spare(spare), WorkOutcome::Done) => self.spares.push(spare),
            (Waits::Revoke(_), WorkOutcome::Done) => {}
            (Waits::Revoke(comm), WorkOutcome::Failed(_)) => {
                if self.held.as_ref().is_some_and(|held| held.comm == comm) {
                    self.release_held();
                }
            }
        }
        self.go_on(now);
    }

    /// The shell's sample of the communicators, taken on request.
    pub fn handle_sample(&mut self, now: Time, stamp: Stamp, sample: ProgressSample) {
        if self.running != Some(stamp) {
            return;
        }
        let deadline = self.config.operation_deadline;
        let reason = match sample {
            ProgressSample { error: Some(error), .. } => error,
            ProgressSample { oldest: Some((time, operation)), .. } if time > deadline => {
                format!("{operation} has been under way for {} ms", time.as_millis())
            }
            _ => return,
        };
        self.outputs.push_back(GpuOutput::Fail(stamp, reason));
        self.stop_running(Close::Broken);
        self.go_on(now);
    }

    /// The deadline of [`GpuCore::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(job) = self.job.take_if(|job| job.due <= now) {
            self.outputs.push_back(GpuOutput::LeaveBehind(job.id));
            let reason = "the GPU's thread does not come back from it".to_owned();
            match job.waits {
                Waits::Form { ticket, .. } => {
                    // Its parent is in use by the thread that is stuck.
                    self.held = None;
                    self.answer_formed(ticket, Err(reason));
                }
                Waits::Identify(ticket) => {
                    let answer = GpuAnswer::Identified(Err(reason));
                    self.outputs.push_back(GpuOutput::Answer(ticket, answer));
                }
                Waits::Revoke(comm) => {
                    self.held.take_if(|held| held.comm == comm);
                }
                Waits::Nobody | Waits::Spare(_) => {}
            }
        }
        if self.sample_due.is_some_and(|due| due <= now) {
            self.sample_due = self.running.map(|_| now + SAMPLE_EVERY);
            self.outputs.extend(self.running.map(GpuOutput::Sample));
        }
        self.go_on(now);
    }

    /// Time at which [`GpuCore::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let job = self.job.as_ref().map(|job| job.due);
        [job, self.sample_due].into_iter().flatten().min()
    }

    /// The next action for the shell.
    pub fn poll_output(&mut self) -> Option<GpuOutput> {
        self.outputs.pop_front()
    }

    /// The generation is over here. Its communicator stays after an end in order. Otherwise it is revoked, or given
    /// up if NCCL cannot revoke.
    fn stop_running(&mut self, close: Close) {
        let Some(stamp) = self.running.take() else { return };
        self.sample_due = None;
        let Some(held) = self.held.as_mut().filter(|held| held.stamp == stamp) else { return };
        if close == Close::InOrder {
            return;
        }
        let comm = held.comm;
        if self.config.features.revoke {
            held.health = Health::Revoked;
            self.push(GpuWork::Revoke(comm), Waits::Revoke(comm));
        } else {
            // Until it is aborted, the GPU hangs in the operation under way.
            self.release_held();
        }
    }

    fn hold(&mut self, now: Time, comm: CommId, stamp: Stamp, members: Vec<WorkerId>) {
        let health = Health::Healthy;
        self.held = Some(HeldComm { comm, stamp, members, health });
        self.running = Some(stamp);
        self.sample_due = Some(now + SAMPLE_EVERY);
    }

    /// Spares of earlier generations fit no other world, and those not formed yet are not needed.
    fn stop_background(&mut self) {
        self.background.clear();
        self.cancel_spare();
    }

    fn release_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.push_end(held.comm);
        }
        let stale: Vec<CommId> = self.spares.drain(..).map(|spare| spare.comm).collect();
        stale.into_iter().for_each(|comm| self.push_end(comm));
    }

    /// Peers may be gone, so it is aborted, which needs no peer.
    fn push_end(&mut self, comm: CommId) {
        self.push(GpuWork::End(comm), Waits::Nobody);
    }

    fn push(&mut self, work: GpuWork, waits: Waits) {
        debug_assert!(self.queue.len() < WORK_MAX, "the training thread waits for each answer");
        self.queue.push_back((work, waits));
    }

    /// Gives the GPU's thread its next work.
    fn go_on(&mut self, now: Time) {
        if self.job.is_some() {
            if !self.queue.is_empty() {
                self.cancel_spare();
            }
            return;
        }
        let (work, waits) = match self.queue.pop_front() {
            Some(next) => next,
            None => match self.background.pop_front() {
                Some((work, spare)) => (work, Waits::Spare(spare)),
                None => return,
            },
        };
        let due = match &work {
            GpuWork::Form { due, .. } | GpuWork::FormSpare { due, .. } => *due + GRACE,
            GpuWork::Identify(_) | GpuWork::Revoke(_) | GpuWork::End(_) => now + END_MAX + GRACE,
        };
        let id = GpuJobId(self.number());
        self.job = Some(GpuJob { id, waits, due, cancelled: false });
        self.outputs.push_back(GpuOutput::Do(id, work));
    }

    /// Spares that are there, and those that are going to be.
    fn known_spares(&self) -> impl Iterator<Item = &HeldSpare> {
        let under_way = self.job.iter().filter_map(|job| match &job.waits {
            Waits::Spare(spare) => Some(spare),
            _ => None,
        });
        self.spares.iter().chain(self.background.iter().map(|(_, spare)| spare)).chain(under_way)
    }

    fn cancel_spare(&mut self) {
        if let Some(job) = self.job.as_mut()
            && matches!(job.waits, Waits::Spare(_))
            && !job.cancelled
        {
            job.cancelled = true;
            self.outputs.push_back(GpuOutput::Cancel(job.id));
        }
    }

    fn answer_formed(&mut self, ticket: AskTicket, result: Result<CommId, String>) {
        self.outputs.push_back(GpuOutput::Answer(ticket, GpuAnswer::Formed(result)));
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn result_of(outcome: WorkOutcome) -> Result<(), String> {
    match outcome {
        WorkOutcome::Done => Ok(()),
        WorkOutcome::Failed(reason) => Err(reason),
    }
}

fn are_same(spare: &[WorkerId], members: &[WorkerId]) -> bool {
    spare.len() == members.len() && spare.iter().all(|member| members.contains(member))
}
