//! Draws a plan: swarm testing (Groce et al., ISSTA 2012). In each seed some kinds of fault are off
//! altogether and the others have wild rates, so that combinations come up which even rates never give.

use elastic_runtime::random::stream;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{DiskFault, Fault, Lie, Moment, Planned, Way};

/// Kinds of fault that swarm testing switches.
const KINDS: u32 = 24;

/// The kinds that take the driver away: by itself, with somebody else, and the trouble of its disk.
const DRIVER_LOST: u32 = 17;
const DRIVER_LOST_WITH: u32 = 22;
const DRIVERS_DISK: u32 = 23;

/// Most faults of a plan.
const FAULTS_MAX: usize = 400;

/// The faults of a seed, in no order.
pub(crate) fn draw(seed: u64, hosts: u32, slots: u32, seconds: u64) -> Vec<Planned> {
    let mut swarm = stream(seed, "swarm", 0);
    let end_us = seconds * 1_000_000;
    // All faults together come at most so often, whatever is on.
    let busy = [1.0, 3.0, 10.0][swarm.random_range(0..3)];
    let hot_host = swarm.random_bool(0.3).then(|| swarm.random_range(0..hosts));
    let during_resets = swarm.random_bool(0.5);
    // In some seeds nothing happens but to the driver: what its death alone does shows there.
    let is_drivers_alone = stream(seed, "driver alone", 0).random_bool(0.1);
    let mut plan = Vec::new();
    for kind in 0..KINDS {
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
            let fault = one(kind, host, slot, slots, &mut random);
            let moment = if during_resets && random.random_bool(0.4) {
                let number = random.random_range(1..=seconds.max(2) / 2);
                let after_us = 10_u64.pow(random.random_range(2..7));
                Moment::AfterReset { number, after_us: random.random_range(0..after_us) }
            } else if takes_driver && random.random_bool(0.4) {
                // In the first moments of a life everything is written down at once.
                let number = random.random_range(1..=seconds.max(2) * 4);
                let after_us = random.random_range(0..4_u64) * random.random_range(0..10_000);
                Moment::AfterBatch { number, after_us }
            } else {
                Moment::At(at)
            };
            plan.push(Planned { moment, fault });
        }
    }
    let mut last = stream(seed, "last", 0);
    for (chance, fault) in [(0.02, Fault::KillDriver), (0.02, Fault::Interrupt)] {
        if last.random_bool(chance) {
            plan.push(Planned { moment: Moment::At(last.random_range(0..end_us)), fault });
        }
    }
    plan
}

fn one(kind: u32, host: u32, slot: u32, slots: u32, random: &mut ChaCha8Rng) -> Fault {
    // From 10 ms to 10 s, as often short as long: below and above every deadline.
    let for_us = (10_000.0 * 10_f64.powf(random.random_range(0.0..3.0))) as u64;
    match kind {
        0 => Fault::KillWorker { host, slot },
        1 => Fault::ExitWorker { host, slot },
        2 => Fault::RaiseWorker { host, slot },
        3 => Fault::StopWorker { host, slot, for_us },
        4 => Fault::NoticeWorker { host, slot },
        5 => Fault::KillAgent { host },
        6 => Fault::StopAgent { host, for_us },
        7 => Fault::DrainHost { host, for_us },
        8 => Fault::CrashHost { host, for_us },
        9 => {
            let ways = [Way::ToDriver, Way::FromDriver, Way::Driver, Way::Data, Way::All];
            Fault::Cut { host, way: ways[random.random_range(0..ways.len())], for_us }
        }
        10 => Fault::SlowLink { host, delay_us: random.random_range(1_000..400_000), for_us },
        11 => Fault::SlowHost { host, times: random.random_range(2..50), for_us },
        12 => {
            let lies = [Lie::Fail, Lie::Hang, Lie::Garbage, Lie::HalfGarbage, Lie::Nothing];
            Fault::Discovery { lie: lies[random.random_range(0..lies.len())], for_us }
        }
        13 => Fault::Unlist { host, for_us },
        14 => Fault::Slots { host, slots: random.random_range(1..=slots), for_us },
        15 if random.random_bool(0.5) => Fault::NoSpawn { host, for_us },
        15 => Fault::HangStart { host, for_us },
        16 => Fault::StopDriver { for_us: for_us / 2 },
        DRIVER_LOST => match random.random_range(0..20) {
            0..8 => Fault::CrashDriver { for_us },
            8..12 => Fault::CrashDriverMidway { outputs: random.random_range(0..12), for_us },
            // Mostly longer than it takes to miss it.
            12..19 => Fault::ReplaceDriver { for_us: for_us * 4 },
            _ => Fault::LoseDriver { for_us },
        },
        DRIVER_LOST_WITH if random.random_bool(0.6) => {
            Fault::CrashDriverAndWorker { host, slot, for_us }
        }
        DRIVER_LOST_WITH => Fault::CrashDriverAndHost { host, for_us },
        DRIVERS_DISK => {
            let faults =
                [DiskFault::Slow, DiskFault::Full, DiskFault::ReadOnly, DiskFault::FailsSyncs];
            Fault::Disk { fault: faults[random.random_range(0..faults.len())], for_us }
        }
        18 => Fault::BreakLinks { host },
        19 => Fault::LateData { host, delay_us: random.random_range(1_000..3_000_000), for_us },
        20 => Fault::BreakData { host, slot },
        _ => Fault::Rack { hosts: random.random::<u64>() & random.random::<u64>(), for_us },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_seeds_differ() {
        assert_eq!(draw(1, 4, 2, 60), draw(1, 4, 2, 60));
        let plans: Vec<_> = (0..50).map(|seed| draw(seed, 4, 2, 60)).collect();
        assert!(plans.windows(2).all(|pair| pair[0] != pair[1] || pair[0].is_empty()));
        let faults = plans.iter().map(Vec::len).sum::<usize>();
        assert!((500..50 * FAULTS_MAX).contains(&faults), "{faults}");
    }
}
