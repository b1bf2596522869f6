//! [`Witness`]: records the true state at each training thread, and is the oracle of mode `training`. It compares messages and
//! restored states of the product's code with the training functions' own observations. Written to by the training threads and
//! the scheduler, one at a time.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use elastic_protocol::{CommitId, Stamp};
use elastic_worker::state::core::TrainingEvent;
use elastic_worker::state::training::ThreadMessage;

use super::exchange::NodeNumber;
use super::job::TrainingJob;
use super::model::{TrainedState, UndisturbedRun};
use crate::dataset::mix;

/// A commit as the training function knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct HeldCommit {
    pub(super) step: u64,
    /// Of its content, with memory beside the state.
    pub(super) mark: u64,
}

/// End of a training function.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FunctionEnd {
    /// At a boundary: live state is kept.
    Kept,
    /// The generation has ended otherwise: live state is lost.
    RolledBack,
    /// It has returned, and nothing has ended.
    Finished,
    /// With an error of its own, or a panic.
    Failing,
}

/// Required start of a generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct GenerationBegin {
    pub(super) held: HeldCommit,
    /// Whether training goes on, rather than begins.
    pub(super) goes_on: bool,
    pub(super) root: NodeNumber,
}

/// The oracle's knowledge of one process.
#[derive(Debug, Default)]
pub(super) struct NodeFacts {
    pub(super) held: Option<HeldCommit>,
    /// The commit before the last one, which counts again where a copy fails.
    before: Option<HeldCommit>,
    /// And the one before that.
    older: Option<HeldCommit>,
    /// The generation whose number the last commit bears.
    label: u64,
    generation: Stamp,
    /// The last generation of which the driver's `Go` was passed on to the thread.
    went: Stamp,
    /// Whether the training function was entered ahead of its generation's `Go`, which has not come since.
    is_ahead: bool,
    /// Whether the training function had ended before that.
    ended_ahead: bool,
    /// Steps begun and checks made since the last commit.
    drawn: u64,
    checked: u64,
    end: Option<FunctionEnd>,
    /// Process that a failed collective must blame; none: no process.
    blamed: Option<NodeNumber>,
    /// Process that it had to blame when it first told of a failure in the generation that failed last.
    blame_told: Option<NodeNumber>,
    failed: Option<Stamp>,
    /// Number of callbacks since the last begin.
    called_back: u32,
    pub(super) note: String,
    /// The last value that was reported.
    pub(super) reported: Option<f64>,
    /// The last bit flip in its replica: the generation, and the first commit that has it.
    flipped: Option<(Stamp, u64)>,
    pub(super) address: Option<SocketAddr>,
}

/// The oracle.
#[derive(Debug)]
pub(super) struct Witness {
    job: TrainingJob,
    undisturbed: UndisturbedRun,
    nodes: BTreeMap<NodeNumber, NodeFacts>,
    begins: BTreeMap<Stamp, GenerationBegin>,
    /// The product's digest of each content, and the other way round.
    digests: BTreeMap<u64, u64>,
    contents: BTreeMap<u64, u64>,
    /// The content of each commit by generation and step, as rank 0 made it.
    pub(super) commits: BTreeMap<(Stamp, u64), u64>,
    pub(super) violation: Option<String>,
    pub(super) commits_made: u64,
    pub(super) batches: u64,
}

/// The mark of a content.
pub(super) fn mark(state: &TrainedState, device: &[Vec<u8>]) -> u64 {
    let mut mark = 0;
    for bytes in std::iter::once(&state.encoded()).chain(device) {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            mark = mix(mark, u64::from_le_bytes(padded));
        }
        mark = mix(mark, bytes.len() as u64);
    }
    mark
}

impl Witness {
    pub(super) fn new(job: &TrainingJob) -> Self {
        Self {
            job: job.clone(),
            undisturbed: UndisturbedRun::new(job),
            nodes: BTreeMap::new(),
            begins: BTreeMap::new(),
            digests: BTreeMap::new(),
            contents: BTreeMap::new(),
            commits: BTreeMap::new(),
            violation: None,
            commits_made: 0,
            batches: 0,
        }
    }

    pub(super) fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(super) fn facts(&mut self, node: NodeNumber) -> &mut NodeFacts {
        self.nodes.entry(node).or_default()
    }

    /// The content with which every job begins.
    pub(super) fn initial(&self) -> HeldCommit {
        let device: Vec<Vec<u8>> = self.job.device.iter().map(|length| vec![0; *length]).collect();
        HeldCommit { step: 0, mark: mark(&TrainedState::initial(&self.job), &device) }
    }

    /// Scheduler: a generation is about to begin so.
    pub(super) fn begin(&mut self, stamp: Stamp, begin: GenerationBegin) {
        self.begins.insert(stamp, begin);
    }

    /// A callback runs: training goes on.
    pub(super) fn calls_back(&mut self, node: NodeNumber) {
        self.facts(node).called_back += 1;
    }

    /// Number of callbacks since the last begin.
    pub(super) fn callbacks(&mut self, node: NodeNumber) -> u32 {
        self.facts(node).called_back
    }

    /// Scheduler: the driver's `Go` is passed on to the thread. A commit that it holds is from now on one of that generation, if the
    /// training function was entered ahead of it.
    pub(super) fn goes(&mut self, node: NodeNumber, stamp: Stamp) {
        let facts = self.facts(node);
        facts.went = stamp;
        if facts.generation == stamp && std::mem::take(&mut facts.is_ahead) {
            facts.label = stamp.generation.0;
        }
    }

    /// The training function is entered with this content, before callbacks that are expected have changed it.
    pub(super) fn entered(
        &mut self,
        node: NodeNumber,
        stamp: Stamp,
        (step, content): (u64, u64),
        state: &TrainedState,
    ) {
        let has_callbacks = self.job.has_callbacks;
        let facts = self.facts(node);
        // A thread that has synced has told so.
        if std::mem::replace(&mut facts.generation, stamp) != stamp {
            (facts.before, facts.older) = (facts.held, facts.held);
            facts.is_ahead = facts.went != stamp;
            if !facts.is_ahead {
                facts.label = stamp.generation.0;
            }
        }
        let called = std::mem::take(&mut facts.called_back);
        (facts.drawn, facts.checked, facts.end, facts.blamed) = (0, 0, None, None);
        let Some(begin) = self.begins.get(&stamp).copied() else {
            return self.violated(format!("process {node} trains in {stamp:?}, which never began"));
        };
        let due = u32::from(begin.goes_on && has_callbacks) * 2;
        if called != due {
            self.violated(format!(
                "process {node}: {called} callbacks in {stamp:?} instead of {due}"
            ));
        }
        if (step, content) != (begin.held.step, begin.held.mark) {
            self.violated(format!(
                "restored: process {node} begins {stamp:?} at step {step} with other content than that of step {} of process {}",
                begin.held.step, begin.root
            ));
        }
        self.check_state(node, state);
    }

    /// Compares a state with the undisturbed run.
    pub(super) fn check_state(&mut self, node: NodeNumber, state: &TrainedState) {
        if let Some(wrong) = self.undisturbed.wrong_with(state) {
            self.violated(format!("process {node}: {wrong}"));
        }
    }

    /// The sampler has given a batch out.
    pub(super) fn drew(&mut self, node: NodeNumber) {
        self.batches += 1;
        self.facts(node).drawn += 1;
    }

    /// A check for host updates is made.
    pub(super) fn checks(&mut self, node: NodeNumber) {
        self.facts(node).checked += 1;
    }

    /// A commit of this content was made.
    pub(super) fn committed(&mut self, node: NodeNumber, content: u64, is_first_rank: bool) {
        self.commits_made += 1;
        let facts = self.facts(node);
        (facts.drawn, facts.checked) = (0, 0);
        let step = facts.held.map_or(0, |held| held.step) + 1;
        facts.older = facts.before;
        facts.before = facts.held.replace(HeldCommit { step, mark: content });
        let stamp = facts.generation;
        if is_first_rank {
            self.commits.insert((stamp, step), content);
        }
    }

    /// The copy of a commit, the last or the one before, has failed: the one before it counts.
    pub(super) fn commit_lost(&mut self, node: NodeNumber, lost: Option<HeldCommit>) {
        let facts = self.facts(node);
        if facts.held == lost {
            (facts.held, facts.before) = (facts.before, facts.older);
        } else if facts.before == lost {
            facts.before = facts.older;
        }
    }

    /// The training function ends so, with this content.
    pub(super) fn function_ends(&mut self, node: NodeNumber, end: FunctionEnd) {
        let facts = self.facts(node);
        (facts.end, facts.ended_ahead) = (Some(end), facts.is_ahead);
    }

    /// Notes that a bit of the replica is flipped, if none was in this generation. Returns whether it is.
    pub(super) fn flips(&mut self, node: NodeNumber) -> bool {
        let facts = self.facts(node);
        let (stamp, next) = (facts.generation, facts.held.map_or(0, |held| held.step) + 1);
        let is_first = facts.flipped.is_none_or(|(of, _)| of != stamp);
        if is_first {
            facts.flipped = Some((stamp, next));
        }
        is_first
    }

    /// The last bit flip in the replica: the generation, and the first commit that has it.
    pub(super) fn flipped_at(&mut self, node: NodeNumber) -> Option<(Stamp, u64)> {
        self.facts(node).flipped
    }

    /// A collective fails, and this process is at fault.
    pub(super) fn blames(&mut self, node: NodeNumber, blamed: Option<NodeNumber>) {
        self.facts(node).blamed = blamed;
    }

    /// The blamed process, if any.
    pub(super) fn blamed(&mut self, node: NodeNumber) -> Option<NodeNumber> {
        self.facts(node).blame_told
    }

    pub(super) fn relocated(&mut self, node: NodeNumber, address: SocketAddr) {
        let facts = self.facts(node);
        // A generation that it gives up for that is nobody's fault.
        (facts.address, facts.blamed) = (Some(address), None);
    }

    /// A training thread tells its State something.
    pub(super) fn told(&mut self, node: NodeNumber, message: &ThreadMessage) {
        let ThreadMessage::Event(event) = message else { return };
        match event {
            TrainingEvent::AtRest { commit, undone } => {
                let facts = self.facts(node);
                let (mut end, held) = (facts.end.take(), facts.held);
                // The generation of a function that had ended ahead of its `Go` may have ended after it.
                if facts.ended_ahead
                    && let Some(ended @ (FunctionEnd::Finished | FunctionEnd::Failing)) = end
                {
                    if ended == FunctionEnd::Finished {
                        self.commit_lost(node, held);
                    }
                    end = Some(FunctionEnd::RolledBack);
                }
                let facts = self.facts(node);
                let due = match end {
                    Some(FunctionEnd::RolledBack) => {
                        facts.drawn.saturating_sub(1).max(facts.checked)
                    }
                    Some(FunctionEnd::Finished | FunctionEnd::Failing) => {
                        return self.violated(format!("process {node} is at rest after its end"));
                    }
                    Some(FunctionEnd::Kept) | None => 0,
                };
                if undone.steps != due {
                    let said = undone.steps;
                    self.violated(format!("process {node} has lost {due} steps, and says {said}"));
                }
                self.check_commit(node, *commit);
            }
            TrainingEvent::Moved { data_address, commit } => {
                if self.facts(node).address != Some(*data_address) {
                    self.violated(format!("process {node} says that it listens at {data_address}"));
                }
                self.check_commit(node, *commit);
            }
            TrainingEvent::Synced { stamp, commit } => {
                let held = self.begins.get(stamp).map(|begin| begin.held);
                let facts = self.facts(node);
                (facts.held, facts.before, facts.older) = (held, held, held);
                (facts.label, facts.generation) = (stamp.generation.0, *stamp);
                self.check_commit(node, Some(*commit));
            }
            TrainingEvent::Returned { commit, note, reported, .. } => {
                let facts = self.facts(node);
                let said: Vec<f64> = reported.iter().map(|(_, value)| value).collect();
                let is_told = facts.note == *note && said.first().copied() == facts.reported;
                if facts.end != Some(FunctionEnd::Finished) || !is_told {
                    let due = (facts.end, facts.note.clone(), facts.reported);
                    self.violated(format!(
                        "process {node} has returned: {note:?} {said:?}, due {due:?}"
                    ));
                }
                self.facts(node).end = None;
                self.check_commit(node, Some(*commit));
            }
            TrainingEvent::Failed { message, .. } => {
                if self.facts(node).end != Some(FunctionEnd::Failing) {
                    self.violated(format!("process {node} has failed without a reason: {message}"));
                }
            }
            TrainingEvent::CollectiveFailed { stamp, .. } => {
                let facts = self.facts(node);
                // A group that could not form is told at once, and again by the function's first call.
                if facts.failed != Some(*stamp) {
                    (facts.failed, facts.blame_told) = (Some(*stamp), facts.blamed.take());
                }
            }
            TrainingEvent::Formed { .. }
            | TrainingEvent::Resumed { .. }
            | TrainingEvent::NotResumed { .. }
            | TrainingEvent::Warned { .. } => {}
        }
    }

    /// Compares the commit that a process says it holds with the one that it does.
    fn check_commit(&mut self, node: NodeNumber, said: Option<CommitId>) {
        let initial = self.initial();
        let is_root = self.begins.values().next_back().is_some_and(|begin| begin.root == node);
        let facts = self.facts(node);
        if facts.held.is_none() && is_root && said.is_some_and(|said| said.step.0 == 0) {
            // The root saves its initial state before the sync, which may fail.
            facts.held = Some(initial);
        }
        let (held, label) = (facts.held, facts.label);
        let Some((held, said)) = held.zip(said) else {
            if held.is_some() != said.is_some() {
                self.violated(format!("process {node} holds {held:?}, and says {said:?}"));
            }
            return;
        };
        if said.step.0 != held.step || said.generation.0 != label {
            self.violated(format!(
                "process {node} holds {held:?} of generation {label}, and says {said}"
            ));
        }
        let digest = *self.digests.entry(held.mark).or_insert(said.digest);
        let content = *self.contents.entry(said.digest).or_insert(held.mark);
        if (digest, content) != (said.digest, held.mark) {
            self.violated(format!(
                "G-6: the digest of process {node} at {said} is not that of its content"
            ));
        }
    }
}
