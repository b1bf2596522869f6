//! Draws a plan by swarm testing (Groce et al., ISSTA 2012). In each seed some kinds of fault are off altogether and
//! the others have extreme rates. Combinations come up that even rates never give.

use elastic_runtime::random::stream;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{
    CutDirection, DiscoveryFault, DiskFault, FaultMoment, JournalIntruder, PlannedFault,
    SimulatedFault,
};
use crate::options::RunOptions;

/// Number of kinds of fault that swarm testing switches.
const KINDS: u32 = 37;

/// Number of kinds in the first sets of draws.
const KINDS_FIRST: u32 = 25;
const KINDS_SECOND: u32 = 29;
const KINDS_THIRD: u32 = 30;
const KINDS_FOURTH: u32 = 32;
const KINDS_FIFTH: u32 = 33;
const KINDS_SIXTH: u32 = 35;

/// Kinds that take the driver away: alone, together with another node, and by trouble of its disk.
const DRIVER_LOST: u32 = 17;
const DRIVER_LOST_WITH: u32 = 22;
const DRIVERS_DISK: u32 = 23;

/// Most faults of a plan.
const FAULTS_MAX: usize = 400;

/// The faults of a seed, unordered.
pub(crate) fn draw(options: &RunOptions) -> Vec<PlannedFault> {
    let RunOptions { seed, slots, seconds, .. } = *options;
    let hosts = options.hosts.max(1);
    let kinds = match options.draws {
        0 => KINDS_FIRST,
        1 | 2 => KINDS_SECOND,
        3 | 4 => KINDS_THIRD,
        5 | 6 => KINDS_FOURTH,
        7 => KINDS_FIFTH,
        8..=10 => KINDS_SIXTH,
        _ => KINDS,
    };
    let mut swarm = stream(seed, "swarm", 0);
    let end_us = seconds * 1_000_000;
    // Least mean interval between faults of one kind, in seconds. It bounds how often faults come, whichever kinds
    // are on.
    let busy = [1.0, 3.0, 10.0][swarm.random_range(0..3)];
    let hot_host = swarm.random_bool(0.3).then(|| swarm.random_range(0..hosts));
    let during_resets = swarm.random_bool(0.5);
    // In some seeds only the driver has faults. They show the effect of its death alone.
    let is_drivers_alone = stream(seed, "driver alone", 0).random_bool(0.1);
    let mut plan = Vec::new();
    for kind in 0..kinds {
        let is_drivers = matches!(kind, DRIVER_LOST | DRIVERS_DISK);
        let is_on = swarm.random_bool(0.4);
        let is_on = if is_drivers_alone { is_drivers } else { is_on };
        let mean_us = busy * 1e6 * 2_f64.powf(swarm.random_range(0.0..5.0));
        // A driver that takes over every few seconds does little else.
        let takes_driver = matches!(kind, DRIVER_LOST | DRIVER_LOST_WITH);
        let mean_us = if takes_driver { mean_us * 3.0 } else { mean_us };
        if !is_on {
            continue;
        }
        let mut random = stream(seed, "faults", u64::from(kind));
        let mut at = 0_u64;
        loop {
            let gap = -random.random_range(1e-9_f64..1.0).ln() * mean_us;
            at = at.saturating_add(gap as u64 + 1);
            if at >= end_us || plan.len() >= FAULTS_MAX {
                break;
            }
            let host = match hot_host {
                Some(host) if random.random_bool(0.7) => host,
                _ => random.random_range(0..hosts),
            };
            let slot = random.random_range(0..slots);
            let fault = one(kind, host, slot, options, &mut random);
            let moment = if during_resets && random.random_bool(0.4) {
                let number = random.random_range(1..=seconds.max(2) / 2);
                let after_us = 10_u64.pow(random.random_range(2..7));
                FaultMoment::AfterReset { number, after_us: random.random_range(0..after_us) }
            } else if takes_driver && random.random_bool(0.4) {
                // At its start a driver writes many records in a short time.
                let number = random.random_range(1..=seconds.max(2) * 4);
                let after_us = random.random_range(0..4_u64) * random.random_range(0..10_000);
                FaultMoment::AfterBatch { number, after_us }
            } else {
                FaultMoment::At(at)
            };
            plan.push(PlannedFault { moment, fault });
        }
    }
    let mut last = stream(seed, "last", 0);
    for (chance, fault) in [(0.02, SimulatedFault::KillDriver), (0.02, SimulatedFault::Interrupt)] {
        if last.random_bool(chance) {
            plan.push(PlannedFault {
                moment: FaultMoment::At(last.random_range(0..end_us)),
                fault,
            });
        }
    }
    if options.draws >= 8 {
        flips(options, hosts, &mut plan);
    }
    if options.draws >= 11 {
        starvations(options, hosts, &mut plan);
    }
    if options.draws >= 13 {
        other_releases(options, hosts, &mut plan);
    }
    if options.draws >= 14 {
        displaced_journals(options, &mut plan);
        dead_disks(options, &mut plan);
    }
    if options.draws >= 20 {
        other_batches(options, hosts, &mut plan);
    }
    if options.draws >= 18 {
        standbys(options, &mut plan);
        launchers(options, hosts, &mut plan);
        sick_and_slow(options, hosts, &mut plan);
    }
    plan
}

/// Bits that flip in the weights of workers, in some seeds.
fn flips(options: &RunOptions, hosts: u32, plan: &mut Vec<PlannedFault>) {
    let slots = options.slots;
    in_some_seeds(options, ("flips", 0.5, 3), plan, |random| {
        let host = random.random_range(0..hosts);
        let (slot, bit) = (random.random_range(0..slots), random.random_range(0..64));
        SimulatedFault::FlipBit { host, slot, bit }
    });
}

/// Programs that go through their data apart from the others, in a few seeds: such a job ends.
fn other_batches(options: &RunOptions, hosts: u32, plan: &mut Vec<PlannedFault>) {
    let slots = options.slots;
    in_some_seeds(options, ("other batches", 0.05, 1), plan, |random| {
        SimulatedFault::OtherBatches {
            host: random.random_range(0..hosts),
            slot: random.random_range(0..slots),
        }
    });
}

/// Agents on the driver's machine that are starved, in some seeds.
fn starvations(options: &RunOptions, hosts: u32, plan: &mut Vec<PlannedFault>) {
    in_some_seeds(options, ("starvations", 0.3, 5), plan, |random| {
        let host = random.random_range(0..hosts);
        // From a tenth of a second to well above the time after which a silent host is lost.
        let for_us = logarithmic_us(random, 100_000.0, 2.0);
        SimulatedFault::StarveAgent { host, for_us }
    });
}

/// Hosts whose library is of another release for a while, in some seeds.
fn other_releases(options: &RunOptions, hosts: u32, plan: &mut Vec<PlannedFault>) {
    in_some_seeds(options, ("other releases", 0.2, 3), plan, |random| {
        let host = random.random_range(0..hosts);
        // From a second, within which nothing may start, to well above the longest back-off.
        let for_us = logarithmic_us(random, 1_000_000.0, 2.0);
        SimulatedFault::OtherRelease { host, for_us }
    });
}

/// Journals that are taken away while their driver runs, in some seeds.
fn displaced_journals(options: &RunOptions, plan: &mut Vec<PlannedFault>) {
    in_some_seeds(options, ("displaced journals", 0.15, 3), plan, |random| {
        let intruders =
            [JournalIntruder::Nothing, JournalIntruder::Older, JournalIntruder::AnotherJob];
        let by = intruders[random.random_range(0..intruders.len())];
        // From a moment, within which nothing may be written, to well above all that a driver waits for.
        let for_us = logarithmic_us(random, 10_000.0, 3.5);
        SimulatedFault::DisplaceJournal { by, for_us }
    });
}

/// Jobs that are ended on a disk that stores nothing any more, in a few seeds.
fn dead_disks(options: &RunOptions, plan: &mut Vec<PlannedFault>) {
    in_some_seeds(options, ("dead disks", 0.05, 1), plan, |random| {
        let again_us = logarithmic_us(random, 10_000.0, 3.0);
        let again_us = random.random_bool(0.5).then_some(again_us);
        SimulatedFault::StopOnDeadDisk { hangs: random.random_bool(0.5), again_us }
    });
}

/// Drivers that stand by, and jobs that are handed over to them or ended by a client, in some seeds.
fn standbys(options: &RunOptions, plan: &mut Vec<PlannedFault>) {
    // From a moment to well above the time that a node looks for its driver.
    let some_us = |random: &mut ChaCha8Rng| logarithmic_us(random, 10_000.0, 3.5);
    in_some_seeds(options, ("standbys", 0.3, 3), plan, |random| {
        let number = random.random_range(0..3);
        SimulatedFault::StandBy { number, for_us: some_us(random) }
    });
    in_some_seeds(options, ("handovers", 0.25, 3), plan, |random| {
        let number = random.random_range(0..3);
        SimulatedFault::HandOver { number, for_us: some_us(random) }
    });
    in_some_seeds(options, ("asked stops", 0.02, 1), plan, |_| SimulatedFault::AskToStop);
}

/// Hosts on which nothing can be started: no agent, or not the program, in some seeds.
fn launchers(options: &RunOptions, hosts: u32, plan: &mut Vec<PlannedFault>) {
    in_some_seeds(options, ("launchers", 0.15, 2), plan, |random| SimulatedFault::LaunchFails {
        host: random.random_range(0..hosts),
    });
    in_some_seeds(options, ("missing programs", 0.2, 3), plan, |random| {
        let host = random.random_range(0..hosts);
        let for_us = logarithmic_us(random, 10_000.0, 3.0);
        SimulatedFault::NoProgram { host, for_us }
    });
}

/// Hosts that are slow for long since they are sick, in some seeds.
fn sick_and_slow(options: &RunOptions, hosts: u32, plan: &mut Vec<PlannedFault>) {
    let mut random = stream(options.seed, "sick and slow", 0);
    if !random.random_bool(0.2) {
        return;
    }
    let host = random.random_range(0..hosts);
    let for_us = random.random_range(5_000_000..200_000_000);
    let times = random.random_range(2..6);
    let at = FaultMoment::At(random.random_range(0..options.seconds * 1_000_000));
    let faults = [
        SimulatedFault::SickHost { host, for_us },
        SimulatedFault::SlowHost { host, times, for_us },
    ];
    plan.extend(faults.map(|fault| PlannedFault { moment: at, fault }));
}

/// A logarithmic time of at least so many microseconds, over so many powers of ten.
fn logarithmic_us(random: &mut ChaCha8Rng, least_us: f64, decades: f64) -> u64 {
    (least_us * 10_f64.powf(random.random_range(0.0..decades))) as u64
}

/// Faults of one kind at any moments: in this share of the seeds, from one to `most` of them.
fn in_some_seeds(
    options: &RunOptions,
    (name, share, most): (&str, f64, u32),
    plan: &mut Vec<PlannedFault>,
    mut fault: impl FnMut(&mut ChaCha8Rng) -> SimulatedFault,
) {
    let mut random = stream(options.seed, name, 0);
    if !random.random_bool(share) {
        return;
    }
    for _ in 0..random.random_range(1..=most) {
        let fault = fault(&mut random);
        let moment = FaultMoment::At(random.random_range(0..options.seconds * 1_000_000));
        plan.push(PlannedFault { moment, fault });
    }
}

fn one(
    kind: u32,
    host: u32,
    slot: u32,
    options: &RunOptions,
    random: &mut ChaCha8Rng,
) -> SimulatedFault {
    let slots = options.slots;
    // Logarithmic between 10 ms and 10 s: below and above every deadline.
    let for_us = logarithmic_us(random, 10_000.0, 3.0);
    match kind {
        0 => SimulatedFault::KillWorker { host, slot },
        1 => SimulatedFault::ExitWorker { host, slot },
        2 => SimulatedFault::RaiseWorker { host, slot },
        3 => SimulatedFault::StopWorker { host, slot, for_us },
        4 => SimulatedFault::NoticeWorker { host, slot },
        5 => SimulatedFault::KillAgent { host },
        6 => SimulatedFault::StopAgent { host, for_us },
        7 => SimulatedFault::DrainHost { host, for_us },
        8 => SimulatedFault::CrashHost { host, for_us },
        9 => {
            let ways = [
                CutDirection::ToDriver,
                CutDirection::FromDriver,
                CutDirection::Driver,
                CutDirection::Data,
                CutDirection::All,
            ];
            SimulatedFault::Cut { host, way: ways[random.random_range(0..ways.len())], for_us }
        }
        10 => {
            SimulatedFault::SlowLink { host, delay_us: random.random_range(1_000..400_000), for_us }
        }
        11 => SimulatedFault::SlowHost { host, times: random.random_range(2..50), for_us },
        12 => {
            let lies = [
                DiscoveryFault::Fail,
                DiscoveryFault::Hang,
                DiscoveryFault::Garbage,
                DiscoveryFault::HalfGarbage,
                DiscoveryFault::Nothing,
            ];
            SimulatedFault::Discovery { lie: lies[random.random_range(0..lies.len())], for_us }
        }
        13 => SimulatedFault::Unlist { host, for_us },
        14 => SimulatedFault::Slots { host, slots: random.random_range(1..=slots), for_us },
        15 if random.random_bool(0.5) => SimulatedFault::NoSpawn { host, for_us },
        15 => SimulatedFault::HangStart { host, for_us },
        16 => SimulatedFault::StopDriver { for_us: for_us / 2 },
        DRIVER_LOST => match random.random_range(0..20) {
            0..8 => SimulatedFault::CrashDriver { for_us },
            8..12 => {
                SimulatedFault::CrashDriverMidway { outputs: random.random_range(0..12), for_us }
            }
            // Mostly longer than the time until the driver is missed.
            12..19 => SimulatedFault::ReplaceDriver { for_us: for_us * 4 },
            _ => SimulatedFault::LoseDriver { for_us },
        },
        DRIVER_LOST_WITH if random.random_bool(0.6) => {
            SimulatedFault::CrashDriverAndWorker { host, slot, for_us }
        }
        DRIVER_LOST_WITH => SimulatedFault::CrashDriverAndHost { host, for_us },
        DRIVERS_DISK => {
            let faults =
                [DiskFault::Slow, DiskFault::Full, DiskFault::ReadOnly, DiskFault::FailsSyncs];
            SimulatedFault::Disk { fault: faults[random.random_range(0..faults.len())], for_us }
        }
        18 => SimulatedFault::BreakLinks { host },
        19 => SimulatedFault::LateData {
            host,
            delay_us: random.random_range(1_000..3_000_000),
            for_us,
        },
        20 => SimulatedFault::BreakData { host, slot },
        24 => SimulatedFault::NoForming { host, is_told: random.random_bool(0.5), for_us },
        // Mostly longer than a wait that is usual.
        25 if options.draws >= 6 => SimulatedFault::HangThread { host, slot, for_us: for_us * 4 },
        25 => SimulatedFault::HangThread { host, slot, for_us },
        26 => SimulatedFault::RaiseLate { host, slot },
        29 => SimulatedFault::ForgedRefusals { host },
        30 => SimulatedFault::RenumberHost { host },
        31 => SimulatedFault::HangLane { host, for_us: for_us * 4 },
        // Mostly longer than it takes to be named as slow.
        32 => {
            SimulatedFault::SlowHost { host, times: random.random_range(2..6), for_us: for_us * 20 }
        }
        33 => {
            let (times, for_us) = (random.random_range(2..6), for_us * 20);
            SimulatedFault::SlowSlot { host, slot, times, for_us }
        }
        // Mostly longer than two attempts to form.
        34 => SimulatedFault::LoopbackDown { host, for_us: for_us * 8 },
        // Mostly longer than it takes to be named as slow.
        35 => {
            let (from, times) =
                (random.random_range(0..options.hosts.max(1)), random.random_range(2..24));
            SimulatedFault::SlowData { host, from, times, for_us: for_us * 20 }
        }
        36 => SimulatedFault::SickHost { host, for_us: for_us * 20 },
        27 => SimulatedFault::Discovery { lie: DiscoveryFault::Unclear, for_us },
        // Longer than any node waits for a silent driver.
        28 => {
            let faults = [DiskFault::Full, DiskFault::FailsSyncs];
            SimulatedFault::Disk {
                fault: faults[random.random_range(0..faults.len())],
                for_us: for_us * 4,
            }
        }
        _ => {
            SimulatedFault::Rack { hosts: random.random::<u64>() & random.random::<u64>(), for_us }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_seeds_differ() {
        let drawn = |seed| draw(&RunOptions { seconds: 60, ..RunOptions::new(seed) });
        assert_eq!(drawn(1), drawn(1));
        let plans: Vec<_> = (0..50).map(drawn).collect();
        assert!(plans.windows(2).all(|pair| pair[0] != pair[1] || pair[0].is_empty()));
        let faults = plans.iter().map(Vec::len).sum::<usize>();
        assert!((500..50 * FAULTS_MAX).contains(&faults), "{faults}");
    }
}
