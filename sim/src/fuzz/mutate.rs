//! Mutations of a run: of its seed, and of its plan, fault by fault. Called by `GuidedSearch`.
//!
//! Mutated are faults, not the bytes that they were drawn from. A byte more or less in a stream of draws makes another fault of all
//! that follow, so that nothing of the run that was found is left.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};

use crate::options::RunOptions;
use crate::plan::{FaultMoment, FaultPlan, PlannedFault, SimulatedFault};

/// Most mutations of one run, as a power of two.
const MUTATIONS_LOG2_MAX: u32 = 3;

/// Most faults of a mutated plan, as of a drawn one.
const FAULTS_MAX: usize = 400;

/// Most bits that flip in a plan, as in a drawn one.
const FLIPS_MAX: usize = 3;

/// A run made from `parent`, with faults of `other`.
pub(super) fn mutate(
    parent: RunOptions,
    other: &RunOptions,
    random: &mut ChaCha8Rng,
) -> RunOptions {
    let mut plan = FaultPlan::of(&parent).0;
    let others = FaultPlan::of(other).0;
    // Without this bound faults pile up, and each run is the same turmoil.
    let most = plan.len().max(others.len()).min(FAULTS_MAX);
    let mut seed = parent.seed;
    let end_us = parent.seconds * 1_000_000;
    for _ in 0..1_u32 << random.random_range(0..=MUTATIONS_LOG2_MAX) {
        match random.random_range(0..9) {
            // Another job under the same faults: its scenario and all times are drawn from the seed.
            0 => seed = other.seed,
            1 => splice(&mut plan, &others, end_us, random),
            2 => remove_some(&mut plan, random),
            3 => take_some(&mut plan, &others, random),
            4 => repeat_one(&mut plan, end_us, random),
            5 => bring_together(&mut plan, end_us, random),
            6 => aim(&mut plan, &parent, random),
            7 => shorten(&mut plan, random),
            _ => retime(&mut plan, end_us, random),
        }
    }
    while plan.len() > most {
        plan.swap_remove(random.random_range(0..plan.len()));
    }
    keep_bounds(&mut plan);
    RunOptions { seed, plan: Some(FaultPlan(plan)), keep: None, ..parent }
}

/// One of a plan's faults, drawn.
fn pick(plan: &[PlannedFault], random: &mut ChaCha8Rng) -> Option<PlannedFault> {
    (!plan.is_empty()).then(|| plan[random.random_range(0..plan.len())])
}

const fn is_before(planned: &PlannedFault, at_us: u64) -> bool {
    matches!(planned.moment, FaultMoment::At(at) if at < at_us)
}

/// The faults of one plan until a moment, and those of the other from there on.
fn splice(
    plan: &mut Vec<PlannedFault>,
    others: &[PlannedFault],
    end_us: u64,
    random: &mut ChaCha8Rng,
) {
    let at_us = random.random_range(0..end_us.max(1));
    plan.retain(|planned| is_before(planned, at_us));
    plan.extend(others.iter().filter(|planned| !is_before(planned, at_us)));
}

/// Leaves each fault out with one chance for all.
fn remove_some(plan: &mut Vec<PlannedFault>, random: &mut ChaCha8Rng) {
    let chance = random.random_range(0.05..0.7);
    plan.retain(|_| !random.random_bool(chance));
}

/// Adds some faults of the other plan.
fn take_some(plan: &mut Vec<PlannedFault>, others: &[PlannedFault], random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..=4) {
        plan.extend(pick(others, random));
    }
}

/// A number of microseconds up to 10 s, short ones as likely as long ones.
fn a_while(random: &mut ChaCha8Rng) -> u64 {
    let digits = random.random_range(1..=7);
    random.random_range(0..10_u64.pow(digits))
}

/// A moment so close to another that both may have to do with each other.
fn near(moment: FaultMoment, end_us: u64, random: &mut ChaCha8Rng) -> FaultMoment {
    let by = a_while(random);
    match moment {
        FaultMoment::At(at) if random.random_bool(0.5) => FaultMoment::At(at.saturating_sub(by)),
        FaultMoment::At(at) => FaultMoment::At((at + by).min(end_us.saturating_sub(1))),
        FaultMoment::AfterReset { number, .. } => FaultMoment::AfterReset { number, after_us: by },
        FaultMoment::AfterBatch { number, .. } => FaultMoment::AfterBatch { number, after_us: by },
    }
}

/// A fault comes once more, near itself.
fn repeat_one(plan: &mut Vec<PlannedFault>, end_us: u64, random: &mut ChaCha8Rng) {
    if let Some(PlannedFault { moment, fault }) = pick(plan, random) {
        plan.push(PlannedFault { moment: near(moment, end_us, random), fault });
    }
}

/// A fault comes near another one.
fn bring_together(plan: &mut [PlannedFault], end_us: u64, random: &mut ChaCha8Rng) {
    let Some(PlannedFault { moment, .. }) = pick(plan, random) else { return };
    let index = random.random_range(0..plan.len());
    plan[index].moment = near(moment, end_us, random);
}

/// A fault comes at another moment: any, after any reset, or after any batch of the journal.
fn retime(plan: &mut [PlannedFault], end_us: u64, random: &mut ChaCha8Rng) {
    if plan.is_empty() {
        return;
    }
    let index = random.random_range(0..plan.len());
    let after_us = a_while(random);
    plan[index].moment = match random.random_range(0..4) {
        0 => FaultMoment::AfterReset { number: random.random_range(1..20), after_us },
        1 => FaultMoment::AfterBatch { number: random.random_range(1..80), after_us },
        _ => FaultMoment::At(random.random_range(0..end_us.max(1))),
    };
}

/// A fault hits another host or slot: one that is drawn, or that of another fault.
fn aim(plan: &mut [PlannedFault], options: &RunOptions, random: &mut ChaCha8Rng) {
    let Some(other) = pick(plan, random) else { return };
    let index = random.random_range(0..plan.len());
    let is_drawn = random.random_bool(0.3);
    for (field, end) in [("host", options.hosts), ("slot", options.slots)] {
        let drawn = u64::from(random.random_range(0..end.max(1)));
        let value = number(&other.fault, field).filter(|_| !is_drawn).unwrap_or(drawn);
        set_number(&mut plan[index].fault, field, value);
    }
}

/// A fault lasts less long. Longer ones come from other plans, which keep to the longest of each kind.
fn shorten(plan: &mut [PlannedFault], random: &mut ChaCha8Rng) {
    if plan.is_empty() {
        return;
    }
    let index = random.random_range(0..plan.len());
    let fault = &mut plan[index].fault;
    if let Some(for_us) = number(fault, "for_us") {
        set_number(fault, "for_us", (for_us / random.random_range(2..=10)).max(1));
    }
}

/// The content of a fault in its serialised form, whose one key is the kind of fault.
fn content(fault: &mut Value) -> Option<&mut Map<String, Value>> {
    fault.as_object_mut()?.values_mut().next()?.as_object_mut()
}

/// A number of a fault, by its name.
fn number(fault: &SimulatedFault, field: &str) -> Option<u64> {
    let mut fault = serde_json::to_value(fault).ok()?;
    content(&mut fault)?.get(field)?.as_u64()
}

/// Changes a number of a fault. A fault without it stays as it is.
fn set_number(fault: &mut SimulatedFault, field: &str, number: u64) {
    let Ok(mut changed) = serde_json::to_value(*fault) else { return };
    let Some(held) = content(&mut changed).and_then(|content| content.get_mut(field)) else {
        return;
    };
    *held = number.into();
    if let Ok(changed) = serde_json::from_value(changed) {
        *fault = changed;
    }
}

/// Keeps the bounds of drawn plans: at most so many flips, and at most one end.
fn keep_bounds(plan: &mut Vec<PlannedFault>) {
    let (mut flips, mut ends) = (0, 0);
    plan.retain(|planned| match planned.fault {
        SimulatedFault::FlipBit { .. } => {
            flips += 1;
            flips <= FLIPS_MAX
        }
        SimulatedFault::KillDriver
        | SimulatedFault::Interrupt
        | SimulatedFault::OtherBatches { .. }
        | SimulatedFault::StopOnDeadDisk { .. } => {
            ends += 1;
            ends == 1
        }
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use elastic_runtime::random::stream;

    use super::*;

    #[test]
    fn a_number_of_a_fault_is_changed_and_others_stay() {
        let mut fault = SimulatedFault::StopWorker { host: 1, slot: 0, for_us: 7 };
        set_number(&mut fault, "host", 3);
        assert_eq!(fault, SimulatedFault::StopWorker { host: 3, slot: 0, for_us: 7 });
        set_number(&mut fault, "delay_us", 3);
        assert_eq!(number(&fault, "delay_us"), None);
        let mut fault = SimulatedFault::Interrupt;
        set_number(&mut fault, "host", 3);
        assert_eq!(fault, SimulatedFault::Interrupt);
    }

    #[test]
    fn mutated_plans_keep_to_the_bounds_of_drawn_ones() {
        let mut random = stream(1, "mutations", 0);
        let options = |seed| RunOptions { draws: crate::DRAWS, ..RunOptions::new(seed) };
        let mut run = options(1);
        let mut plans = Vec::new();
        for seed in 2..400 {
            run = mutate(run, &options(seed), &mut random);
            let plan = FaultPlan::of(&run).0;
            assert!(plan.len() <= FAULTS_MAX);
            let end_us = run.seconds * 1_000_000;
            let is_late =
                |it: &PlannedFault| matches!(it.moment, FaultMoment::At(at) if at >= end_us);
            assert!(!plan.iter().any(is_late), "{plan:?}");
            plans.push(plan);
        }
        assert!(plans.windows(2).filter(|pair| pair[0] != pair[1]).count() > 300);
    }
}
