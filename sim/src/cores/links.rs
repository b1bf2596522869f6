//! Slow links between hosts: simulated programs report the rate of the data that comes in, and the oracle checks the links that
//! the driver names as slow. A named link has been slow, and a link that alone is slow for long is named in time. Called by
//! `bounds` and with the driver's events.

use std::collections::BTreeMap;

use elastic_protocol::HostName;
use elastic_protocol::messages::{LinkPace, StepTimes};
use rand::Rng;

use super::driver::ObservedPhase;
use super::{MS, World};

/// The rate of a link that nothing slows, in bytes a second; it varies by an eighth.
const RATE: u64 = 1_000_000_000;

/// The part of a step that its data takes over such a link: one in so many.
const SHARE: u64 = 8;

/// Age up to which an ended slow spell explains that its link is named, and the longest pause between two faults of one spell.
const REMEMBERED_NS: u64 = 40_000 * MS;
const SPELL_GAP_NS: u64 = 10_000 * MS;

/// Shortest slow spell that explains that a link is named: half of the time for which a spell must last.
const SLOW_NS_MIN: u64 = 5_000 * MS;

/// Allowance for reports on their way, for the medians of workers, and for the looks that do not count; and the steps that a worker measures
/// until the driver has looked as often as it must.
const NAMED_AFTER_NS: u64 = 30_000 * MS;
const STEPS_UNTIL_NAMED: u64 = 16;

/// Factor from which on a slow link must be named.
const TIMES_MIN: u64 = 4;

/// The oracle's knowledge of slow links, by sender and receiver.
#[derive(Debug, Default)]
pub(super) struct LinkWatch {
    /// Spells: since when each link is slow, and until when; without an end it is slow now.
    spells: BTreeMap<(u32, u32), (u64, Option<u64>)>,
    /// The link that alone has been slow, with the world time since when.
    alone: Option<((u32, u32), u64)>,
}

impl World {
    /// Data from one host reaches another one so many times as slowly from now on.
    pub(super) fn slow_link(&mut self, from: u32, to: u32, times: u64) {
        let hosts = self.hosts.len() as u32;
        let (from, to) = (from % hosts, to % hosts);
        if from == to {
            return;
        }
        self.hosts[to as usize].slow_data.insert(from, times);
        let now = self.now;
        let spell = self.links_watch.spells.entry((from, to)).or_insert((now, None));
        if spell.1.is_some_and(|until| until + SPELL_GAP_NS < now) {
            spell.0 = now;
        }
        spell.1 = None;
    }

    pub(super) fn mend_link(&mut self, from: u32, to: u32) {
        let hosts = self.hosts.len() as u32;
        let (from, to) = (from % hosts, to % hosts);
        if self.hosts[to as usize].slow_data.remove(&from).is_some()
            && let Some(spell) = self.links_watch.spells.get_mut(&(from, to))
        {
            spell.1 = Some(self.now);
        }
    }

    pub(super) fn mend_links(&mut self) {
        for to in 0..self.hosts.len() as u32 {
            let slow: Vec<u32> = self.hosts[to as usize].slow_data.keys().copied().collect();
            slow.into_iter().for_each(|from| self.mend_link(from, to));
        }
    }

    /// Delay of a collective's result at a process, in nanoseconds: the data delay of its host, and that of the slowest link
    /// from a host with members.
    pub(super) fn late_data(&self, process: u32) -> u64 {
        let to = self.processes[process as usize].host;
        let host = &self.hosts[to as usize];
        let is_sender = |from: &u32| self.has_member_on(*from);
        let slow = host.slow_data.iter().filter(|(from, _)| is_sender(from));
        let later = slow.map(|(_, times)| (times - 1) * self.scenario.step_ns / SHARE).max();
        host.data_delay + later.unwrap_or(0)
    }

    fn has_member_on(&self, host: u32) -> bool {
        let is_there =
            |member: &u32| self.processes.get(*member as usize).is_some_and(|it| it.host == host);
        self.driver.members.iter().any(is_there)
    }

    fn has_member_in(&self, host: u32, slot: u32) -> bool {
        let is_there = |member: &u32| {
            let process = self.processes.get(*member as usize);
            process.is_some_and(|it| (it.host, it.id.slot) == (host, slot))
        };
        self.driver.members.iter().any(is_there)
    }

    /// Noise in the paces of a process's links from other hosts with members, where paces are drawn and steps are measured.
    pub(super) fn link_noises(&mut self, process: u32) -> Vec<(u32, u64)> {
        let entry = &self.processes[process as usize];
        if self.options.draws < 11 || entry.program.paces.samples.is_empty() {
            return Vec::new();
        }
        let members = self.driver.members.iter();
        let hosts = members.filter_map(|it| self.processes.get(*it as usize).map(|it| it.host));
        let mut senders: Vec<u32> = Vec::with_capacity(self.hosts.len());
        for from in hosts.filter(|from| *from != entry.host) {
            // The members of a host are neighbours in rank for the most part.
            if senders.last() != Some(&from) {
                senders.push(from);
            }
        }
        senders.sort_unstable();
        senders.dedup();
        let noise = |from| (from, self.machine.random_range(RATE / 8 * 7..=RATE / 8 * 9));
        senders.into_iter().map(noise).collect()
    }

    /// Rates at which data reaches a process from other hosts with members, with these noises. A host that computes slowly also
    /// sends and receives slowly.
    pub(super) fn link_paces_of(
        &self,
        process: u32,
        times: StepTimes,
        noises: &[(u32, u64)],
    ) -> Vec<LinkPace> {
        let to = self.processes[process as usize].host;
        let load = RATE / SHARE * (self.scenario.step_ns / 1_000) / times.step_us.max(1);
        let of_host = |number: u32| {
            let host = &self.hosts[number as usize];
            let slots = host.slow_slots.iter();
            let of_members = slots.filter(|(slot, _)| self.has_member_in(number, **slot));
            host.slow_times.max(of_members.map(|(_, times)| *times).max().unwrap_or(1))
        };
        let pace = |&(from, noise): &(u32, u64)| {
            let slow = self.hosts[to as usize].slow_data.get(&from).copied().unwrap_or(1);
            let rate = noise / slow.max(of_host(from)).max(of_host(to));
            LinkPace { from: self.hosts[from as usize].name.clone(), rate, load }
        };
        let mut links: Vec<LinkPace> = noises.iter().map(pace).collect();
        links.sort_by_key(|link| link.rate);
        links.truncate(LinkPace::LINKS_MAX);
        links
    }

    /// Checks a link that the driver names as slow: it has been slow. With a host at fault, another one of it has, too.
    pub(super) fn check_slow_link(
        &self,
        from: &HostName,
        to: &HostName,
        at_fault: Option<&HostName>,
    ) -> Result<(), String> {
        let (Some(sender), Some(receiver)) = (self.host_named(from), self.host_named(to)) else {
            return Err(format!(
                "links: that from {from} to {to} is said to be slow, between no hosts"
            ));
        };
        if self.are_words_late() {
            return Ok(());
        }
        let slow_ns = |link: &(u32, u32)| {
            let spell = self.links_watch.spells.get(link);
            let recent = spell.map(|(since, until)| (*since, until.unwrap_or(self.now)));
            recent
                .filter(|(_, until)| until + REMEMBERED_NS >= self.now)
                .map_or(0, |(since, until)| until - since)
        };
        // A host that computes slowly also sends and receives slowly. If at least half of the members are slow ones on it, none
        // of them is a straggler, and its links are named.
        let computes_slowly =
            |host: u32| self.slow_members_on(host).count() * 2 >= self.driver.members.len().max(1);
        let slow_ms = slow_ns(&(sender, receiver)) / MS;
        let has_slow_end = computes_slowly(sender) || computes_slowly(receiver);
        if slow_ms < SLOW_NS_MIN / MS && !has_slow_end {
            return Err(format!(
                "links: that from {from} to {to} is said to be slow, and was for {slow_ms} ms of late"
            ));
        }
        let Some(host) = at_fault else { return Ok(()) };
        let is_of = |link: &&(u32, u32)| match host == from {
            true => link.0 == sender,
            false => link.1 == receiver,
        };
        if host == from && computes_slowly(sender) || host == to && computes_slowly(receiver) {
            return Ok(());
        }
        let slow = self.links_watch.spells.keys().filter(is_of).filter(|link| slow_ns(link) > 0);
        match (host == from || host == to, slow.count()) {
            (true, 2..) => Ok(()),
            (_, slow) => Err(format!(
                "links: host {host} is said to be at fault for that from {from} to {to}, with {slow} slow links"
            )),
        }
    }

    /// Checks that a link is named that alone has been slow for long. Called at each check in time.
    pub(super) fn check_slow_link_is_named(&mut self) -> Result<(), String> {
        let slow = self.link_slow_alone();
        let since = match (self.links_watch.alone, slow) {
            (Some((known, since)), Some(link)) if known == link => since,
            _ => self.now,
        };
        // Any other fault, and any change of the generation, begins it anew.
        let since = since.max(self.faulted_at).max(self.driver.phase_since);
        self.links_watch.alone = slow.map(|link| (link, since));
        let (Some((from, to)), lasted) = (slow, self.now - since) else { return Ok(()) };
        let times = self.hosts[to as usize].slow_data.get(&from).copied().unwrap_or(1);
        let step_ns = self.scenario.step_ns * (2 + times / SHARE * 2);
        let measured = self.scenario.commit_every * STEPS_UNTIL_NAMED;
        if lasted < NAMED_AFTER_NS + step_ns * measured {
            return Ok(());
        }
        let now = self.driver.clock.local(self.now);
        let [from, to] = [from, to].map(|host| self.hosts[host as usize].name.clone());
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        match status.slow_links.iter().any(|link| link.from == from && link.to == to) {
            true => Ok(()),
            false => Err(format!(
                "links: that from {from} to {to} alone is slow for {} ms, and is not named: {:?}",
                lasted / MS,
                status.slow_links
            )),
        }
    }

    /// The link that is slow while all others are not, if a generation with members on three hosts trains without other disturbances.
    fn link_slow_alone(&self) -> Option<(u32, u32)> {
        let slow = (0..).zip(&self.hosts).flat_map(|(to, host)| {
            host.slow_data.iter().map(move |(from, times)| ((*from, to), *times))
        });
        let mut slow = slow.collect::<Vec<((u32, u32), u64)>>().into_iter();
        let (Some(((from, to), times)), None) = (slow.next(), slow.next()) else { return None };
        let hosts = (0..self.hosts.len() as u32).filter(|host| self.has_member_on(*host)).count();
        let is_quiet = times >= TIMES_MIN
            && hosts >= 3
            && self.has_member_on(from)
            && self.has_member_on(to)
            && self.options.draws >= 11
            && self.keeps_processes()
            && self.driver.phase == ObservedPhase::Run
            && self.is_whole_but_for_data_to(to);
        is_quiet.then_some((from, to))
    }
}
