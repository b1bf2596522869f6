//! Property tests of the sampler (H-20, H-23): however the world changes, every sample is in the committed
//! history exactly once.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    /// All ranks make a step; `true`: and commit it.
    Step(bool),
    /// All ranks roll back to the last commit; then the world has this size.
    Abort(u32),
    /// All ranks stop at a boundary and keep live state; then the world has this size.
    Interrupt(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => any::<bool>().prop_map(Event::Step),
        1 => (1..9_u32).prop_map(Event::Abort),
        1 => (1..9_u32).prop_map(Event::Interrupt),
    ]
}

/// The job as its ranks see it: ledger and history, both live and as of the last commit.
struct Job {
    course: DataPass,
    order: Vec<u64>,
    batch: u64,
    world: u32,
    live: (SampleLedger, Vec<u64>),
    committed: (SampleLedger, Vec<u64>),
}

impl Job {
    fn step(&mut self) -> bool {
        let consumed = self.live.0.consumed(&self.course, 0);
        let shares: Vec<Option<StepShare>> = (0..self.world)
            .map(|rank| share(consumed, self.course.length, self.batch, self.world, rank))
            .collect();
        let Some(first) = shares[0].clone() else {
            assert!(shares.iter().all(Option::is_none), "one rank makes more steps than another");
            return false;
        };
        let mut place = first.global.start;
        for share in shares {
            let share = share.expect("one rank makes fewer steps than another");
            assert_eq!((share.global, share.local.start), (first.global.clone(), place));
            assert!(share.local.end - share.local.start <= self.batch);
            place = share.local.end;
            self.live.1.extend(share.local.map(|place| self.order[place as usize]));
        }
        assert_eq!(place, first.global.end);
        self.live.0.advance(&self.course, 0, first.global.end);
        true
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Step(commit) => {
                self.step();
                if commit {
                    self.committed = self.live.clone();
                }
            }
            Event::Abort(world) => {
                self.live = self.committed.clone();
                self.world = world;
            }
            Event::Interrupt(world) => {
                self.committed = self.live.clone();
                self.world = world;
            }
        }
    }
}

proptest! {
    #[test]
    fn every_sample_exactly_once(
        length in 0..300_u64,
        batch in 1..20_u64,
        world in 1..9_u32,
        events in prop::collection::vec(event(), 0..60),
    ) {
        let start = (SampleLedger::default(), Vec::new());
        let course = DataPass { name: String::new(), length, seed: Some(1), plan: None };
        let order = permutation(length, 1, 0);
        let mut job =
            Job { course, order, batch, world, live: start.clone(), committed: start };
        for event in events {
            job.act(event);
        }
        while job.step() {}
        job.live.1.sort_unstable();
        prop_assert!(job.live.1.iter().copied().eq(0..length));
    }

    /// Epochs in any order, side by side, with commits that are gone back to: the places are those of a table without bounds.
    #[test]
    fn each_epoch_keeps_its_place(
        length in 0..4_u64,
        events in prop::collection::vec((0..12_u64, 0..8_u8), 0..200),
    ) {
        let course = DataPass { name: String::new(), length, seed: Some(1), plan: None };
        let mut live = (SampleLedger::default(), BTreeMap::new());
        let mut committed = live.clone();
        for (epoch, event) in events {
            match event {
                0 => live = committed.clone(),
                1 => {
                    let bytes = postcard::to_allocvec(&live.0).expect("it encodes");
                    live.0 = postcard::from_bytes(&bytes).expect("it decodes");
                    committed = live.clone();
                }
                _ => {
                    prop_assert_eq!(live.0.begin(&course, epoch, |_, _| false), Ok(None));
                    let place = live.1.entry(epoch).or_insert(0);
                    *place = length.min(*place + 1);
                    live.0.advance(&course, epoch, *place);
                }
            }
            for epoch in 0..13 {
                prop_assert_eq!(live.0.place(&course, epoch), live.1.get(&epoch).copied());
            }
        }
    }
}
