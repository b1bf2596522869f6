//! Start of a run from a recorded job: at a record of its journal its driver is dead, and its nodes are in the state that this
//! record describes. Part of the simulated world.
//!
//! A recording has the driver's side only. Agents and workers are brought there by the driver's own messages: each agent is
//! welcomed and told to start its workers, and these to form the recorded generation and to train. Their training state is
//! the simulated program's at the last step that the journal knows. Then they lose their driver, and its successor takes over
//! from the recorded journal, in which only the addresses of workers, commits and the boundary of a stop under way are the
//! simulation's, and in which no durable checkpoint is: the recorded job's storage is not there.

use elastic_driver::journal::{GenerationImage, GenerationProgress, Image, Tenure};
use elastic_driver::recording::moment::RecordedMoment;
use elastic_journal::JournalSnapshot;
use elastic_protocol::messages::{
    DriverToAgent, DriverToWorker, Formation, FormationTable, SyncPlan,
};
use elastic_protocol::{Assignment, CommitId, HostName, Step, WorkerId};
use elastic_runtime::transport::{LinkEvent, LossReason};

use super::driver::{DriverBirth, DriverLife, Tenancy, job_id};
use super::processes::{SimulatedProcess, data_address};
use super::program::{ProgramStage, Saved, TrainedModel};
use super::{Happening, MS, World};
use crate::scenario::Scenario;
use crate::state_dir::SimulatedStateDir;

/// Longest time in which the nodes must have come to the recorded moment.
const PREPARED_WITHIN_NS: u64 = 300_000 * MS;

/// Range of the time after which the driver is started again.
const DRIVER_AWAY_NS: (u64, u64) = (50 * MS, 2_000 * MS);

/// The job's number in the simulation.
const JOB: u32 = 1;

/// The recorded driver, dead, with its clock.
pub(super) fn recorded_driver(
    moment: &RecordedMoment,
    scenario: &Scenario,
    seed: u64,
    birth: DriverBirth,
) -> DriverLife {
    let image = Image { job: Some(job_id(seed, JOB)), ..moment.image.clone() };
    let tenure = Tenure { job: job_id(seed, JOB), image, last: moment.record, begins_at_ms: None };
    // It was given no journal of its own: its process is dead.
    let handle = SimulatedStateDir::new(seed, false).open().expect("an empty journal in memory");
    let mut driver =
        DriverLife::new(None, scenario, seed, birth, (Tenancy { tenure, handle }, None));
    driver.seat = None;
    driver.comes_back = true;
    driver
}

impl World {
    /// Brings all nodes to the recorded moment, and schedules the faults and the driver's successor from there on.
    pub(super) fn begin_from(&mut self, moment: &RecordedMoment) {
        let mut image = moment.image.clone();
        image.job = Some(job_id(self.options.seed, JOB));
        let saved = self.recorded_commit(&image);
        self.note_recorded(&image, saved);
        self.start_recorded(moment, &image, saved);
        self.form_recorded(&mut image);
        self.leave_alone(&image);
        self.rewrite(&mut image, saved);
        let snapshot = JournalSnapshot { upto: moment.record, bytes: image.encode() };
        self.state_dir.begin_from(&snapshot, image.generation, image.incarnation);
        self.disturb();
        self.schedule_run();
        let wait = self.draw_ns(DRIVER_AWAY_NS.0, DRIVER_AWAY_NS.1);
        let life = self.driver.life;
        self.agenda.push(self.now + wait, Happening::DriverBoot { life });
    }

    /// Tells the oracle the facts that the record holds.
    fn note_recorded(&mut self, image: &Image, saved: Option<Saved>) {
        for worker in image.workers.keys() {
            let checked = self.oracle.given(JOB, worker);
            self.demand(checked);
        }
        self.oracle.goes_on_from(JOB, image.resets, saved.map(|saved| saved.model.step));
        for ((host, slot), state) in &image.slots {
            self.tries.insert((host.clone(), *slot), state.failures);
        }
        for worker in image.workers.keys() {
            *self.tries.entry((worker.host.clone(), worker.slot)).or_default() += 1;
        }
    }

    /// The commit at the last step that the journal knows; none before the first.
    fn recorded_commit(&mut self, image: &Image) -> Option<Saved> {
        let held = image.workers.values().filter_map(|worker| worker.commit);
        let formed = image.current.iter().map(|current| current.formation.step);
        let known = image.committed.into_iter().chain(image.checkpoint.map(|it| it.step));
        // Members that were told to skip the sync hold the step at which their generation began.
        let is_open =
            |it: &&GenerationImage| !matches!(it.progress, GenerationProgress::Ended { .. });
        let skips = |it: &&GenerationImage| it.formation.sync == SyncPlan::Skip;
        let held_by_all = image.current.as_ref().filter(is_open).filter(skips);
        let steps: Vec<Step> = match held_by_all {
            Some(current) => vec![current.formation.step],
            None => held.clone().map(|commit| commit.step).chain(formed).chain(known).collect(),
        };
        let step = steps.into_iter().max().filter(|step| step.0 > 0)?;
        let generation = held.map(|commit| commit.generation).max().unwrap_or(image.generation);
        let samples = self.data.length();
        let weights = self.data.weights(1, 0);
        let model = TrainedModel { epoch: 1, weights, step: step.0, samples, ..Default::default() };
        Some(Saved { id: CommitId { generation, step, digest: model.digest() }, model })
    }

    pub(super) fn host_named(&self, name: &HostName) -> Option<u32> {
        self.hosts.iter().find(|host| host.name == *name).map(|host| host.number)
    }

    /// Starts the agents, and through them the workers that the journal has.
    fn start_recorded(&mut self, moment: &RecordedMoment, image: &Image, saved: Option<Saved>) {
        let config = self.scenario.driver.clone();
        let (job, term) = (job_id(self.options.seed, JOB), image.term);
        for host in 0..self.hosts.len() as u32 {
            self.boot_agent(host, 0);
            let life = self.hosts[host as usize].lives;
            self.agent_link_event(host, life, &LinkEvent::Up);
            let welcome = DriverToAgent::Welcome {
                job,
                term,
                program: config.program.clone(),
                deadlines: config.deadlines,
                output: Box::new(config.output.clone()),
            };
            self.agent_hears((host, life), term, welcome);
        }
        for worker in moment.image.workers.keys() {
            let Some(host) = self.host_named(&worker.host) else { continue };
            let life = self.hosts[host as usize].lives;
            let start = DriverToAgent::Start {
                worker: worker.clone(),
                environment: Vec::new(),
                place: None,
                credential: String::new(),
            };
            self.agent_hears((host, life), term, start);
        }
        let attached: Vec<WorkerId> = attached(image).cloned().collect();
        let holds = |worker: &WorkerId| {
            let is_member = |current: &GenerationImage| current.alive.contains(worker);
            let known = image.workers.get(worker).is_some_and(|it| it.commit.is_some());
            known || image.current.as_ref().is_some_and(is_member)
        };
        self.come_to("start", |world| {
            for process in &mut world.processes {
                if !process.has_booted && holds(&process.id) {
                    process.program.saved = saved;
                    process.program.live = saved.map(|saved| saved.model).unwrap_or_default();
                }
            }
            attached.iter().all(|worker| {
                let process = world.process_of(JOB, worker);
                process.is_some_and(|it| world.processes[it as usize].program.is_at_rest())
            })
        });
        let welcome = DriverToWorker::Welcome { job, term, deadlines: config.deadlines };
        for process in self.recorded_processes(attached.iter()) {
            self.worker_link_event(process, &LinkEvent::Up);
            self.worker_hears(process, term, welcome.clone());
        }
    }

    /// Lets events happen until a condition holds.
    fn come_to(&mut self, what: &str, mut is_there: impl FnMut(&mut Self) -> bool) {
        let until = self.now + PREPARED_WITHIN_NS;
        while !is_there(self) && self.failure.is_none() {
            match self.agenda.next_at().filter(|at| *at <= until) {
                Some(at) => self.run_until(at),
                None => {
                    let stage = |it: &SimulatedProcess| format!("{} {:?}", it.id, it.program.stage);
                    let stages: Vec<String> = self.processes.iter().map(stage).collect();
                    return self.fail_liveness(format!(
                        "the nodes do not {what} as recorded: {}",
                        stages.join(", ")
                    ));
                }
            }
        }
    }

    fn recorded_processes<'a>(&self, workers: impl Iterator<Item = &'a WorkerId>) -> Vec<u32> {
        workers.filter_map(|worker| self.process_of(JOB, worker)).collect()
    }

    /// Lets the members of the recorded generation form it and, if it trained, train.
    fn form_recorded(&mut self, image: &mut Image) {
        let term = image.term;
        let Some(current) = &mut image.current else { return };
        let table = members(current);
        let processes = self.recorded_processes(table.iter());
        let is_whole =
            processes.len() == table.len() && table.iter().all(|it| current.alive.contains(it));
        let addresses: Vec<_> = table
            .iter()
            .map(|worker| {
                let process = self.process_of(JOB, worker).unwrap_or(u32::MAX);
                let host = self.host_named(&worker.host).unwrap_or_default();
                (worker.clone(), data_address(host, 1, process))
            })
            .collect();
        let formation = &mut current.formation;
        formation.table = FormationTable::Full(std::sync::Arc::new(Assignment::new(addresses)));
        let (stamp, formation) = (formation.stamp, Formation::clone(formation));
        if matches!(current.progress, GenerationProgress::Ended { .. }) || !is_whole {
            // Nobody is in it any more, and the successor will find it in the journal.
            let checked = self.oracle.formed(JOB, stamp, &table, None);
            return self.demand(checked);
        }
        let trains = !matches!(current.progress, GenerationProgress::Forming);
        self.open_generation(stamp, &table);
        for process in &processes {
            self.worker_hears(*process, term, DriverToWorker::Assign(formation.clone()));
        }
        self.come_to("form", |world| {
            processes.iter().all(|process| {
                let program = &world.processes[*process as usize].program;
                program.stage == ProgramStage::Formed && program.tells.items.is_empty()
            })
        });
        if !trains {
            return;
        }
        for process in &processes {
            let go = DriverToWorker::Go { stamp, source: None };
            self.worker_hears(*process, term, go);
        }
        self.come_to("train", |world| {
            processes
                .iter()
                .all(|process| world.processes[*process as usize].program.trains_in(stamp))
        });
        self.hold_recorded(image, &processes);
    }

    /// Holds the members at the boundary of a stop under way: they have promised to pass no later one. The successor must give
    /// the order to stop again, because that order waited for the record.
    fn hold_recorded(&mut self, image: &mut Image, processes: &[u32]) {
        let term = image.term;
        let Some(current) = &mut image.current else { return };
        let GenerationProgress::Stopping { boundary, .. } = &mut current.progress else { return };
        let stamp = current.formation.stamp;
        for process in processes {
            self.worker_hears(*process, term, DriverToWorker::Pause { stamp });
        }
        self.come_to("hold", |world| {
            let stage = |process: &u32| world.processes[*process as usize].program.stage;
            processes.iter().all(|process| stage(process) == ProgramStage::Held)
        });
        let reached = processes.iter().map(|it| self.processes[*it as usize].program.boundary);
        // The members are a few boundaries into the generation here, and may be thousands in the recorded job.
        *boundary = reached.max().unwrap_or(0);
    }

    /// The nodes lose their driver.
    fn leave_alone(&mut self, image: &Image) {
        let lost = LinkEvent::Lost {
            reason: LossReason::Closed("the driver died".to_owned()),
            silent_ms: 0,
        };
        for process in self.recorded_processes(attached(image)) {
            self.worker_link_event(process, &lost);
        }
        for host in 0..self.hosts.len() as u32 {
            let life = self.hosts[host as usize].lives;
            self.agent_link_event(host, life, &lost);
            let now = self.now;
            if let Some(agent) = self.agent_mut(host, life) {
                agent.alone_since = Some(now);
            }
        }
    }

    /// Puts the simulation's addresses and digests into the journal.
    fn rewrite(&self, image: &mut Image, saved: Option<Saved>) {
        for (worker, state) in &mut image.workers {
            let Some(process) = self.process_of(JOB, worker) else { continue };
            let entry = &self.processes[process as usize];
            if state.data_address.is_some() {
                state.data_address = Some(data_address(entry.host, entry.address, process));
            }
            if state.commit.is_some() {
                state.commit = entry.program.saved.or(saved).map(|saved| saved.id);
            }
        }
        // The recorded job's storage is not there.
        image.checkpoint = None;
        if image.committed.is_some() {
            image.committed = saved.map(|saved| Step(saved.model.step));
        }
    }
}

/// The workers that have come to the library.
fn attached(image: &Image) -> impl Iterator<Item = &WorkerId> {
    image.workers.iter().filter(|(_, it)| it.data_address.is_some()).map(|(worker, _)| worker)
}

/// The members of a generation, by rank.
fn members(current: &GenerationImage) -> Vec<WorkerId> {
    match &current.formation.table {
        FormationTable::Full(table) => table.members().map(|member| member.worker).collect(),
        FormationTable::Delta(_) => Vec::new(),
    }
}
