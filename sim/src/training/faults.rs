//! The faults of a run in mode `training`, drawn before it and struck between two of its events. Part of `world`.

use elastic_runtime::random::stream;
use rand::Rng;

use super::exchange::{GroupBreak, NodeNumber};
use super::seat::StepFate;
use super::world::TrainingWorld;
use crate::options::RunOptions;

/// A fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TrainingFault {
    /// A process is killed.
    Kill,
    /// All processes are killed.
    KillAll,
    /// The driver ends the generation at once.
    Abort,
    /// The driver interrupts the generation.
    Interrupt,
    /// A process is started.
    Start,
    /// A process is told to leave.
    Notice,
    /// Something becomes of a training function in its next step.
    Fate(StepFate),
    /// The wait of a thread for its group breaks.
    Break(GroupBreak),
    /// A checkpoint is ordered so many steps ahead, or of a step that was passed.
    Save(i64),
    /// The disk is full, or has room again.
    Full(bool),
    /// The disk loses power after so many operations.
    PowerLoss(u64),
    /// So many of the next listings of the directory of checkpoints fail.
    Unlisted(u32),
    /// A process's host gets another address.
    Move,
    /// A fabric has a warning.
    Warn,
    /// A State's actor is gone.
    ActorGone,
}

/// A fault at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedStrike {
    /// The number of the event before which it strikes.
    pub(super) at: u64,
    pub(super) fault: TrainingFault,
    /// Random number that chooses the process to strike.
    pub(super) pick: u32,
}

/// Longest time of faults, in events.
const FAULTS_MAX_EVENTS: u64 = 900;

/// The set of draws from which on the directory of checkpoints cannot be listed now and then.
const UNLISTED_FROM: u32 = 16;
/// Most listings that fail by one fault. Those of a run are fewer than the members wait for.
const UNLISTED_MAX: u32 = 12;

/// Draws the faults of a run.
pub(super) fn draw(options: &RunOptions) -> Vec<PlannedStrike> {
    let mut random = stream(options.seed, "training faults", 0);
    let count = if random.random_bool(0.1) { 0 } else { random.random_range(1..40) };
    let until = random.random_range(30..FAULTS_MAX_EVENTS);
    let is_busy_with_saves = random.random_bool(0.4);
    let mut strikes: Vec<PlannedStrike> = (0..count)
        .map(|_| {
            let kind = if is_busy_with_saves && random.random_bool(0.5) {
                60
            } else {
                random.random_range(0..100)
            };
            let fault = match kind {
                0..14 => TrainingFault::Kill,
                14..18 => TrainingFault::KillAll,
                18..24 => TrainingFault::Abort,
                24..34 => TrainingFault::Interrupt,
                34..44 => TrainingFault::Start,
                44..48 => TrainingFault::Notice,
                48..51 => TrainingFault::Fate(StepFate::Fail),
                51..53 => TrainingFault::Fate(StepFate::Panic),
                53..57 => TrainingFault::Fate(StepFate::Corrupt),
                57..58 => TrainingFault::Fate(StepFate::GiveUp),
                58..60 => TrainingFault::Fate(StepFate::LoseCopy),
                60..76 => TrainingFault::Save(random.random_range(-1..4)),
                76..85 => TrainingFault::Break(match random.random_range(0..4) {
                    0 => GroupBreak::Connection(0),
                    1 => GroupBreak::Deadline(0),
                    2 => GroupBreak::Garbage(0),
                    _ => GroupBreak::System,
                }),
                85..88 => TrainingFault::Full(true),
                88..90 => TrainingFault::Full(false),
                90..93 => TrainingFault::PowerLoss(random.random_range(0..40)),
                93..96 => TrainingFault::Move,
                96..98 => TrainingFault::Warn,
                _ => TrainingFault::ActorGone,
            };
            PlannedStrike { at: random.random_range(0..until), fault, pick: random.random() }
        })
        .collect();
    if options.draws >= UNLISTED_FROM {
        let mut random = stream(options.seed, "training listings", 0);
        let count = if random.random_bool(0.5) { 0 } else { random.random_range(1..6) };
        strikes.extend((0..count).map(|_| {
            let most = if random.random_bool(0.5) { 4 } else { UNLISTED_MAX };
            let fault = TrainingFault::Unlisted(random.random_range(1..=most));
            PlannedStrike { at: random.random_range(0..until), fault, pick: 0 }
        }));
    }
    strikes.sort_by_key(|strike| strike.at);
    strikes
}

impl TrainingWorld {
    /// One of the processes that are there.
    fn picked(&self, pick: u32) -> Option<NodeNumber> {
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.keys().nth(pick.checked_rem(count)? as usize).copied()
    }

    /// A fault strikes.
    pub(super) fn strike(&mut self, strike: PlannedStrike) {
        let PlannedStrike { fault, pick, .. } = strike;
        match fault {
            TrainingFault::KillAll => {
                for node in self.nodes.keys().copied().collect::<Vec<_>>() {
                    self.kill(node);
                }
            }
            TrainingFault::Abort => self.abort("the plan says so"),
            TrainingFault::Interrupt => self.interrupt(),
            TrainingFault::Start => self.start_node(),
            TrainingFault::Full(is_full) => self.around.store.files.fill(is_full),
            TrainingFault::Unlisted(count) => self.around.store.fail_listings(count),
            TrainingFault::PowerLoss(after) => self.power_fails = Some(after),
            TrainingFault::Save(ahead) => {
                let newest = self.newest_step() as i64;
                self.order_save((newest + ahead).max(1) as u64);
            }
            of_node => {
                if let Some(node) = self.picked(pick) {
                    self.strike_node(node, of_node, pick);
                }
            }
        }
    }

    fn strike_node(&mut self, number: NodeNumber, fault: TrainingFault, pick: u32) {
        let now = self.time();
        let Some(node) = self.nodes.get_mut(&number) else { return };
        match fault {
            TrainingFault::Kill => self.kill(number),
            TrainingFault::Notice => {
                node.core.handle_sigterm(now);
                node.carry_out(now);
            }
            TrainingFault::Fate(fate) => node.seat.orders().fate = Some(fate),
            TrainingFault::Break(of) => {
                let chosen = |rank: u32| match of {
                    GroupBreak::Connection(_) => GroupBreak::Connection(rank),
                    GroupBreak::Deadline(_) => GroupBreak::Deadline(rank),
                    GroupBreak::Garbage(_) => GroupBreak::Garbage(rank),
                    GroupBreak::System => GroupBreak::System,
                };
                let _broken = node.seat.exchange().break_wait(number, chosen, pick);
            }
            TrainingFault::Move => {
                let port = 5_000 + (pick % 50_000) as u16;
                node.seat.orders().new_address = Some(([10, 0, 0, 2], port).into());
            }
            TrainingFault::Warn => node.seat.orders().warnings.push(format!("warning {pick}")),
            TrainingFault::ActorGone => {
                node.lose_actor();
                self.gone.insert(number);
            }
            _ => {}
        }
    }
}
