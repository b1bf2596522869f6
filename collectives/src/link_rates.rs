//! [`LinkRates`]: the rates at which data comes in from each other host. The engine notes the transfers that it has
//! timed, and a worker reports the rates to its driver.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock;

/// Transfers from a host that are remembered, and for how long, but for the last few: a rate says how the link is now.
const TRANSFERS_MAX: usize = 32;
const RECENT: Duration = Duration::from_secs(10);
/// Fewest transfers of which a median is told; so many count however old they are.
const TRANSFERS_MIN: usize = 3;
/// Most marks of the data received from a host, one a second: the load is a mean over them.
const MARKS_MAX: usize = 6;
const MARK_EVERY: Duration = Duration::from_secs(1);
/// Hosts of which rates are kept; a group of more is not measured beyond them.
const HOSTS_MAX: usize = 4096;

/// The rates at which data comes in from other hosts. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct LinkRates(Arc<Mutex<BTreeMap<Arc<str>, HostTransfers>>>);

/// Transfers from one host.
#[derive(Debug, Default)]
struct HostTransfers {
    /// Ends and rates, in bytes a second, of the last timed transfers.
    timed: VecDeque<(Duration, u64)>,
    /// Bytes of all large operations of this generation.
    received: u64,
    /// Points in time, each with the number of bytes received until then, the oldest first.
    marks: VecDeque<(Duration, u64)>,
}

/// Rate and load of the data from one host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkReading {
    /// The host.
    pub from: Arc<str>,
    /// The median rate of the last transfers, in bytes a second.
    pub rate: u64,
    /// The average rate of all data received, in bytes a second.
    pub load: u64,
}

impl LinkRates {
    fn hosts(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, HostTransfers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the generation before.
    pub fn begin_generation(&self) {
        self.hosts().clear();
    }

    /// Notes an operation's bytes from a host. `timed` is the length in bytes of a part that was timed, and the time
    /// that it took.
    pub(crate) fn note(&self, from: &Arc<str>, received: u64, timed: Option<(u64, Duration)>) {
        self.note_at(clock::since_start(), from, received, timed);
    }

    fn note_at(
        &self,
        now: Duration,
        from: &Arc<str>,
        received: u64,
        timed: Option<(u64, Duration)>,
    ) {
        let mut hosts = self.hosts();
        if hosts.len() >= HOSTS_MAX && !hosts.contains_key(from) {
            return;
        }
        let host = hosts.entry(Arc::clone(from)).or_default();
        host.mark(now);
        host.received += received;
        let Some((bytes, took)) = timed else { return };
        if host.timed.len() == TRANSFERS_MAX {
            host.timed.pop_front();
        }
        let rate = u128::from(bytes) * 1_000_000_000 / took.as_nanos().max(1);
        host.timed.push_back((now, u64::try_from(rate).unwrap_or(u64::MAX)));
    }

    /// The rate from each host of which enough is known, the lowest first.
    pub fn readings(&self) -> Vec<LinkReading> {
        self.readings_at(clock::since_start())
    }

    fn readings_at(&self, now: Duration) -> Vec<LinkReading> {
        let mut hosts = self.hosts();
        let reading = |(from, host): (&Arc<str>, &mut HostTransfers)| {
            host.mark(now);
            Some(LinkReading {
                from: Arc::clone(from),
                rate: host.rate(now)?,
                load: host.load(now)?,
            })
        };
        let mut readings: Vec<LinkReading> = hosts.iter_mut().filter_map(reading).collect();
        readings.sort_by_key(|reading| reading.rate);
        readings
    }
}

impl HostTransfers {
    fn mark(&mut self, now: Duration) {
        if self.marks.back().is_some_and(|(at, _)| now < *at + MARK_EVERY) {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back((now, self.received));
    }

    fn rate(&mut self, now: Duration) -> Option<u64> {
        let is_old = |(ended, _): &(Duration, u64)| *ended + RECENT < now;
        while self.timed.len() > TRANSFERS_MIN && self.timed.front().is_some_and(is_old) {
            self.timed.pop_front();
        }
        let mut rates: Vec<u64> = self.timed.iter().map(|(_, rate)| *rate).collect();
        rates.sort_unstable();
        rates.get(rates.len() / 2).copied().filter(|_| rates.len() >= TRANSFERS_MIN)
    }

    fn load(&self, now: Duration) -> Option<u64> {
        let (since, before) = self.marks.front()?;
        let lasted = now.saturating_sub(*since);
        let bytes = u128::from(self.received - before) * 1_000_000_000;
        (lasted >= MARK_EVERY).then(|| u64::try_from(bytes / lasted.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Notes a transfer of a MiB every 100 ms, each of which took so long.
    fn transfers(rates: &LinkRates, from: &str, times_ms: &[u64]) -> Duration {
        let mut now = Duration::ZERO;
        for time in times_ms {
            now += ms(100);
            rates.note_at(now, &from.into(), 2 * MIB, Some((MIB, ms(*time))));
        }
        now
    }

    #[test]
    fn the_median_counts_and_the_slowest_host_comes_first() {
        let rates = LinkRates::default();
        transfers(&rates, "b", &[10; 40]);
        let now = transfers(&rates, "c", &[20, 20, 4_000, 20, 3_000, 20, 20].repeat(6));
        let readings = rates.readings_at(now);
        let told: Vec<(&str, u64)> =
            readings.iter().map(|reading| (&*reading.from, reading.rate / MIB)).collect();
        assert_eq!(told, [("c", 50), ("b", 100)]);
        // Two MiB every 100 ms.
        assert!(readings.iter().all(|it| (19..=21).contains(&(it.load / MIB))), "{readings:?}");
    }

    #[test]
    fn too_few_transfers_say_nothing_and_old_ones_count_only_where_there_are_few() {
        let rates = LinkRates::default();
        let now = transfers(&rates, "b", &[10; 2]);
        assert_eq!(rates.readings_at(now + ms(2_000)), [], "two");
        let rates = LinkRates::default();
        let now = transfers(&rates, "b", &[[100; 20], [10; 20]].concat());
        let rate = |now| rates.readings_at(now).first().map(|reading| reading.rate / MIB);
        assert_eq!(rate(now), Some(100));
        let later = now + RECENT + ms(2_000);
        rates.note_at(later, &"b".into(), MIB, Some((MIB, ms(50))));
        assert_eq!(rate(later), Some(100), "the last three");
        rates.note_at(later, &"b".into(), MIB, Some((MIB, ms(50))));
        assert_eq!(rate(later), Some(20));
        // Received data fades with each look.
        let loads: Vec<_> =
            (1..=10).map(|second| rates.readings_at(later + ms(1_000 * second))[0].load).collect();
        assert_eq!(loads.last(), Some(&0), "nothing came in");
        rates.begin_generation();
        assert_eq!(rates.readings_at(later), [], "of the generation before");
    }

    #[test]
    fn what_was_not_timed_counts_as_load_alone() {
        let rates = LinkRates::default();
        transfers(&rates, "b", &[10; 20]);
        for step in 0..20 {
            rates.note_at(ms(2_000 + 100 * step), &"b".into(), 6 * MIB, None);
        }
        let readings = rates.readings_at(ms(4_000));
        assert_eq!(readings[0].rate / MIB, 100);
        assert_eq!(readings[0].load / MIB, (20 * 2 + 20 * 6) * 1000 / 3_900, "{readings:?}");
    }
}
