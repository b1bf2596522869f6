//! A test of a day of training with all kinds of long waits, and five hundred hangs: no member is named that does not
//! hang, and each hanging member is named in time.

use std::time::Duration;

use elastic_protocol::WorkerId;
use elastic_protocol::messages::{CollectivePosition, ProcessActivity, TrainingSection};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::cluster::Cluster;
use super::hangs::{cold, inside, outside, seconds, sight};
use crate::core::{EventKind, OnHang};

/// Hangs that are planted.
const HANGS: usize = 500;

/// Longest waits that a healthy program makes, in milliseconds: outside of sections, for a checkpoint, an evaluation.
const PAUSE_MS_MAX: u64 = 5_000;
const CHECKPOINT_MS_MAX: u64 = 35_000;
const EVALUATION_MS_MAX: u64 = 100_000;

/// Time from the limit of a wait to its event, beside the delay of reports.
const NAMED_AFTER_MS: u64 = 700;

struct Training {
    cluster: Cluster,
    random: ChaCha8Rng,
    step: u64,
}

impl Training {
    fn begin(on_hang: OnHang) -> Self {
        let cluster = cold(|config| {
            config.on_hang = on_hang;
            config.max_restarts = u32::MAX;
        });
        Self { cluster, random: ChaCha8Rng::seed_from_u64(7), step: 0 }
    }

    fn draw(&mut self, least: u64, most: u64) -> u64 {
        self.random.random_range(least..=most)
    }

    fn anybody(&mut self) -> WorkerId {
        let members = self.cluster.members();
        let index = self.random.random_range(0..members.len());
        members[index].clone()
    }

    /// A worker begins to do something, in a section or not, and all others wait for it.
    fn begin_wait(&mut self, late: &WorkerId, activity: ProcessActivity, section: Option<&str>) {
        self.cluster.sights.insert(late.clone(), sight(activity));
        let section =
            section.map(|name| TrainingSection { name: name.to_owned(), within_ms: None });
        for worker in self.cluster.members() {
            let position = if worker == *late { outside() } else { inside() };
            let section = section.clone().filter(|_| worker == *late);
            self.cluster.stands(&worker, CollectivePosition { section, ..position });
        }
    }

    /// All others wait for a worker for this long.
    fn wait(&mut self, late: &WorkerId, activity: ProcessActivity, section: Option<&str>, ms: u64) {
        self.begin_wait(late, activity, section);
        self.cluster.pass(Duration::from_millis(ms));
        for worker in self.cluster.members() {
            self.cluster.goes_on(&worker);
        }
        self.cluster.pass(Duration::from_millis(50));
    }

    fn commit(&mut self) {
        let began_at = self.cluster.core.round.current().map_or(0, |it| it.formation.step.0);
        self.step = self.step.max(began_at) + 10;
        for worker in self.cluster.members() {
            self.cluster.say_step(&worker, self.step);
        }
        self.cluster.train(10);
        self.cluster.settle();
    }

    /// A worker compiles before the first commit of a generation.
    fn warm_up(&mut self) {
        let (late, ms) = (self.anybody(), self.draw(60_000, 110_000));
        self.wait(&late, ProcessActivity::Working, None, ms);
        self.commit();
    }

    /// Steps with pauses of any worker (a garbage collection, a slow read), a checkpoint and an evaluation of rank 0.
    fn epoch(&mut self) {
        for _pause in 0..20 {
            let ms = self.draw(10_000, 40_000);
            self.cluster.pass(Duration::from_millis(ms));
            let (late, ms) = (self.anybody(), self.draw(100, PAUSE_MS_MAX - 500));
            let activity =
                [ProcessActivity::Working, ProcessActivity::Waiting][self.draw(0, 1) as usize];
            self.wait(&late, activity, None, ms);
            self.commit();
        }
        let root = self.cluster.members()[0].clone();
        let ms = self.draw(20_000, CHECKPOINT_MS_MAX - 500);
        self.wait(&root, ProcessActivity::Uninterruptible, Some("checkpoint"), ms);
        let ms = self.draw(60_000, EVALUATION_MS_MAX - 500);
        self.wait(&root, ProcessActivity::Working, Some("evaluation"), ms);
    }
}

/// Shortest and longest time after which a hang is to be named, in milliseconds.
fn bounds(activity: ProcessActivity, section: Option<&str>) -> (u64, u64) {
    let floor = match activity {
        ProcessActivity::Stopped => return (1_500, 1_500),
        ProcessActivity::Waiting | ProcessActivity::Uninterruptible => 10_000,
        _ => 60_000,
    };
    let longest = match section {
        None => PAUSE_MS_MAX,
        Some("checkpoint") => CHECKPOINT_MS_MAX,
        Some(_) => EVALUATION_MS_MAX,
    };
    (floor, floor.max(3 * (longest + 100)))
}

#[test]
fn x_2_nobody_is_named_in_a_day_of_pauses_checkpoints_evaluations_and_compilations() {
    let mut training = Training::begin(OnHang::Tell);
    let end = training.cluster.now + seconds(24 * 3_600);
    training.warm_up();
    while training.cluster.now < end {
        training.epoch();
    }
    assert_eq!(training.cluster.stalls, []);
}

#[test]
fn x_2_five_hundred_hangs_are_named_each_in_time_and_nobody_else() {
    let mut training = Training::begin(OnHang::Restart);
    training.warm_up();
    training.epoch();
    for number in 0..HANGS {
        let late = training.anybody();
        let activity = [
            ProcessActivity::Stopped,
            ProcessActivity::Waiting,
            ProcessActivity::Uninterruptible,
            ProcessActivity::Working,
        ][number % 4];
        let section =
            [None, None, Some("checkpoint"), Some("evaluation")][training.draw(0, 3) as usize];
        let (least, most) = bounds(activity, section);
        training.cluster.stalls.clear();
        training.begin_wait(&late, activity, section);
        training.cluster.pass(Duration::from_millis(most + NAMED_AFTER_MS));
        let named = training.cluster.named();
        assert!(
            matches!(&named[..], [(worker, ms)] if *worker == late && (least..=most + NAMED_AFTER_MS).contains(ms)),
            "hang {number} of {late}, {activity:?} in {section:?}: {named:?}, not within {least} to {most} ms"
        );
        // It is replaced, and all train again.
        training.cluster.pass(seconds(300));
        assert_eq!(training.cluster.members().len(), 3, "after hang {number}");
        training.cluster.stalls.clear();
        training.warm_up();
        if number % 50 == 0 {
            training.epoch();
        }
        let is_stall = |event: &EventKind| matches!(event, EventKind::WorkerStalled { .. });
        assert!(!training.cluster.stalls.iter().any(is_stall), "{:?}", training.cluster.stalls);
    }
}
