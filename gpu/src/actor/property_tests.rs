//! The actor's core against a model of its thread: for any inputs in any order, each question is answered once,
//! one piece of work is under way at a time, nothing is used after its end, and nothing is kept for ever.

use std::collections::BTreeSet;
use std::time::Duration;

use elastic_protocol::{GenerationId, HostName, Incarnation, Stamp, Term, Time, WorkerId};
use proptest::prelude::*;

use super::core::{
    AskTicket, Close, CommId, CoreConfig, GpuAnswer, GpuCore, GpuJobId, GpuOutput, GpuWork,
    ProgressSample, SPARES_MAX, WORK_MAX, WorkOutcome,
};
use crate::nccl::Features;
use crate::offer::{FormPlan, How, plan};

/// The next input.
#[derive(Clone, Debug)]
enum Input {
    /// A generation of the first so many workers forms, with what follows from this member's own offer.
    Generation(usize),
    Close(bool),
    Abort,
    Spares,
    /// The thread ends its work, well or not.
    Done(bool),
    Sample(bool),
    Wait(u64),
}

struct Model {
    core: GpuCore,
    now: Time,
    generation: u64,
    members: Vec<WorkerId>,
    tickets: u64,
    open: BTreeSet<AskTicket>,
    job: Option<(GpuJobId, GpuWork)>,
    living: BTreeSet<CommId>,
    /// Given up with a thread that is stuck.
    lost: BTreeSet<CommId>,
}

fn worker(slot: u32) -> WorkerId {
    let host = HostName::new("a").expect("a literal");
    WorkerId { host, slot, incarnation: Incarnation(1) }
}

impl Model {
    fn new(features: Features) -> Model {
        let operation_deadline = Duration::from_secs(10);
        let config =
            CoreConfig { worker: worker(0), features, version: 23_003, operation_deadline };
        Model {
            core: GpuCore::new(config),
            now: Time::ZERO,
            generation: 0,
            members: Vec::new(),
            tickets: 0,
            open: BTreeSet::new(),
            job: None,
            living: BTreeSet::new(),
            lost: BTreeSet::new(),
        }
    }

    fn stamp(&self) -> Stamp {
        Stamp { term: Term(1), generation: GenerationId(self.generation) }
    }

    fn ticket(&mut self) -> AskTicket {
        self.tickets += 1;
        self.open.insert(AskTicket(self.tickets));
        AskTicket(self.tickets)
    }

    fn step(&mut self, input: Input) {
        match input {
            Input::Generation(world) => self.form(world),
            Input::Close(in_order) => {
                let close = if in_order { Close::InOrder } else { Close::Broken };
                self.core.handle_close(self.now, self.stamp(), close);
            }
            Input::Abort => self.core.handle_abort(self.now, self.stamp()),
            Input::Spares => {
                let spares: Vec<_> = (0..3).map(|number| (number, self.members.clone())).collect();
                let due = self.now + Duration::from_secs(5);
                self.core.handle_spares(self.now, self.stamp(), &spares, due);
            }
            Input::Done(well) => self.done(well),
            Input::Sample(error) => {
                let sample =
                    ProgressSample { oldest: None, error: error.then(|| "late".to_owned()) };
                self.core.handle_sample(self.now, self.stamp(), sample);
            }
            Input::Wait(ms) => {
                self.now = self.now + Duration::from_millis(ms);
                self.core.handle_timeout(self.now);
            }
        }
        self.drain();
    }

    /// The training thread waits for each answer before it asks again, as its port has it.
    fn form(&mut self, world: usize) {
        if !self.open.is_empty() {
            return;
        }
        self.generation += 1;
        self.members = (0..world as u32).map(worker).collect();
        let (ticket, members) = (self.ticket(), self.members.clone());
        self.core.handle_offer(self.now, ticket, self.stamp(), &members);
        let mut offer = None;
        while let Some(output) = self.core.poll_output() {
            if let GpuOutput::Answer(_, GpuAnswer::Offer(own)) = &output {
                offer = Some(*own);
            }
            self.take(output);
        }
        let own = offer.expect("an offer is answered at once");
        // The others offer the same communicators, by their places.
        let offers = (0..world as u32).map(|rank| {
            let mut offer = own;
            offer.parent = own.parent.filter(|parent| rank < parent.world);
            offer.parent.iter_mut().for_each(|parent| parent.rank = rank);
            offer.spare.iter_mut().for_each(|spare| spare.rank = rank);
            offer
        });
        let plan = plan(&offers.collect::<Vec<_>>()).expect("all have GPUs");
        if plan.host_of_id() == Some(0) {
            let ticket = self.ticket();
            self.core.handle_identify(self.now, ticket, &plan);
            self.drain();
        }
        let ticket = self.ticket();
        let due = self.now + Duration::from_secs(5);
        self.core.handle_form(self.now, ticket, self.stamp(), &members, &plan, due);
    }

    fn done(&mut self, well: bool) {
        let Some((id, work)) = self.job.take() else { return };
        match (&work, well) {
            (GpuWork::Form { into, .. } | GpuWork::FormSpare { into, .. }, true) => {
                self.living.insert(*into);
            }
            // A communicator that cannot be ended counts as gone all the same.
            (GpuWork::End(comm), _) => {
                self.living.remove(comm);
            }
            _ => {}
        }
        let outcome =
            if well { WorkOutcome::Done } else { WorkOutcome::Failed("told to".to_owned()) };
        self.core.handle_done(self.now, id, outcome);
    }

    fn drain(&mut self) {
        while let Some(output) = self.core.poll_output() {
            self.take(output);
        }
    }

    fn take(&mut self, output: GpuOutput) {
        match output {
            GpuOutput::Answer(ticket, answer) => {
                assert!(self.open.remove(&ticket), "each question is answered once");
                if let GpuAnswer::Formed(Ok(comm)) = answer {
                    assert!(self.living.contains(&comm), "what is given out lives");
                }
            }
            GpuOutput::Do(id, work) => {
                assert!(self.job.is_none(), "one piece of work at a time");
                self.check(&work);
                self.job = Some((id, work));
            }
            GpuOutput::Cancel(id) => {
                let job = self.job.as_ref().expect("something is under way");
                assert_eq!(job.0, id);
                assert!(matches!(job.1, GpuWork::FormSpare { .. }), "only spares are cancelled");
            }
            GpuOutput::LeaveBehind(id) => {
                let (job, work) = self.job.take().expect("something is under way");
                assert_eq!(job, id);
                let lost = match work {
                    GpuWork::Form { parent, .. } => parent,
                    GpuWork::Identify(_) | GpuWork::FormSpare { .. } => None,
                    GpuWork::Revoke(comm) | GpuWork::End(comm) => Some(comm),
                };
                self.lost.extend(lost);
            }
            GpuOutput::Sample(stamp) | GpuOutput::Fail(stamp, _) => assert_eq!(stamp, self.stamp()),
        }
    }

    fn check(&self, work: &GpuWork) {
        let used = match work {
            GpuWork::Form { parent, how, .. } => {
                assert!(parent.is_none() || *how != How::Init, "what is new comes of nothing");
                *parent
            }
            GpuWork::Identify(parent) => *parent,
            GpuWork::FormSpare { .. } => None,
            GpuWork::Revoke(comm) | GpuWork::End(comm) => Some(*comm),
        };
        if let Some(comm) = used {
            assert!(self.living.contains(&comm) || self.lost.contains(&comm), "{work:?}");
        }
    }

    /// The thread does all that is left.
    fn settle(&mut self) {
        for _ in 0..2 * WORK_MAX {
            self.step(Input::Done(true));
        }
        assert!(self.job.is_none(), "work comes to an end");
    }
}

fn any_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => (1..5_usize).prop_map(Input::Generation),
        2 => any::<bool>().prop_map(Input::Close),
        2 => Just(Input::Abort),
        1 => Just(Input::Spares),
        8 => any::<bool>().prop_map(Input::Done),
        1 => any::<bool>().prop_map(Input::Sample),
        1 => (1..9_000_u64).prop_map(Input::Wait),
    ]
}

fn any_features() -> impl Strategy<Value = Features> {
    (0..4_u32).prop_map(|level| Features {
        split: true,
        shrink: level > 0,
        revoke: level > 1,
        grow: level > 2,
        several_ranks_per_gpu: false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_happens_questions_are_answered_and_nothing_is_kept(
        features in any_features(),
        inputs in proptest::collection::vec(any_input(), 1..60),
    ) {
        let mut model = Model::new(features);
        for input in inputs {
            model.step(input);
        }
        model.settle();
        prop_assert!(model.open.is_empty(), "unanswered: {:?}", model.open);
        let kept = model.living.difference(&model.lost).count();
        prop_assert!(kept <= 1 + SPARES_MAX as usize, "{kept} communicators are kept");
    }
}

#[test]
fn a_hang_is_told_and_what_is_under_way_is_ended() {
    let features = Features { shrink: true, revoke: true, ..Features::default() };
    let mut model = Model::new(features);
    model.step(Input::Generation(2));
    model.settle();
    let oldest = Some((Duration::from_secs(11), "all_reduce #4".to_owned()));
    model.core.handle_sample(model.now, model.stamp(), ProgressSample { oldest, error: None });
    let outputs: Vec<GpuOutput> = std::iter::from_fn(|| model.core.poll_output()).collect();
    let [GpuOutput::Fail(_, reason), GpuOutput::Do(_, GpuWork::Revoke(_))] = outputs.as_slice()
    else {
        panic!("{outputs:?}");
    };
    assert!(reason.contains("all_reduce #4"), "{reason}");
}

#[test]
fn g_9_a_communicator_that_cannot_be_revoked_is_ended_at_once() {
    let mut model = Model::new(Features { shrink: true, ..Features::default() });
    model.step(Input::Generation(2));
    model.settle();
    model.step(Input::Abort);
    assert!(matches!(model.job, Some((_, GpuWork::End(_)))), "{:?}", model.job);
}

#[test]
fn g_2_a_generation_that_is_older_is_not_formed() {
    let mut model = Model::new(Features::default());
    model.step(Input::Generation(2));
    model.settle();
    let old = Stamp::default();
    let ticket = model.ticket();
    let plan = FormPlan::init(2, "");
    let members = model.members.clone();
    model.core.handle_form(model.now, ticket, old, &members, &plan, model.now);
    let answer = model.core.poll_output();
    assert!(
        matches!(&answer, Some(GpuOutput::Answer(_, GpuAnswer::Formed(Err(reason)))) if reason.contains("G-2")),
        "{answer:?}"
    );
}
