//! [`Tracks`]: the processes and threads of the trace: the job's own, and each host's. Used by `timeline`.

use std::collections::BTreeMap;

use elastic_protocol::HostName;
use serde_json::{Value, json};

/// A track: a process and a thread of it. No two threads have the same number, even in different processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Track {
    pub(super) process: u32,
    pub(super) thread: u32,
}

impl Track {
    /// The process of the job itself; those of hosts follow.
    pub(super) const JOB: u32 = 1;
    pub(super) const GENERATIONS: Self = Self { process: Self::JOB, thread: 1 };
    pub(super) const RESETS: Self = Self { process: Self::JOB, thread: 2 };
    pub(super) const CHECKPOINTS: Self = Self { process: Self::JOB, thread: 3 };
    pub(super) const DRIVER: Self = Self { process: Self::JOB, thread: 4 };
    /// The first number of a host's threads.
    const FIRST_OF_HOSTS: u32 = 5;
}

/// A thread of a host.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum HostThread {
    /// The host's part in resets.
    Resets,
    /// A slot.
    Slot(u32),
}

/// All tracks of hosts that were seen.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    hosts: BTreeMap<HostName, u32>,
    threads: BTreeMap<(u32, HostThread), u32>,
}

impl Tracks {
    /// Names of the job's own tracks.
    pub(super) fn name_job(&self, job: &str) -> Vec<Value> {
        let tracks = [
            (Track::GENERATIONS, "generations"),
            (Track::RESETS, "resets"),
            (Track::CHECKPOINTS, "checkpoints"),
            (Track::DRIVER, "driver"),
        ];
        let threads = tracks.map(|(track, name)| thread_name(track, name));
        [process_name(Track::JOB, &format!("job {job}"))].into_iter().chain(threads).collect()
    }

    /// The track of a slot, with its names if it is new.
    pub(super) fn of_slot(&mut self, host: &HostName, slot: u32) -> (Track, Vec<Value>) {
        self.of(host, HostThread::Slot(slot))
    }

    /// The track of a host's part in resets, with its names if it is new.
    pub(super) fn of_resets_on(&mut self, host: &HostName) -> (Track, Vec<Value>) {
        self.of(host, HostThread::Resets)
    }

    fn of(&mut self, host: &HostName, thread: HostThread) -> (Track, Vec<Value>) {
        let mut names = Vec::new();
        let next = Track::JOB + 1 + count(&self.hosts);
        let process = *self.hosts.entry(host.clone()).or_insert(next);
        if process == next {
            names.push(process_name(process, &format!("host {host}")));
        }
        let next = Track::FIRST_OF_HOSTS + count(&self.threads);
        let number = *self.threads.entry((process, thread)).or_insert(next);
        let track = Track { process, thread: number };
        if number == next {
            let name = match thread {
                HostThread::Resets => "resets".to_owned(),
                HostThread::Slot(slot) => format!("slot {slot}"),
            };
            names.push(thread_name(track, &name));
        }
        (track, names)
    }
}

fn count<K, V>(map: &BTreeMap<K, V>) -> u32 {
    u32::try_from(map.len()).unwrap_or(u32::MAX)
}

fn process_name(process: u32, name: &str) -> Value {
    json!({ "ph": "M", "name": "process_name", "pid": process, "args": { "name": name } })
}

fn thread_name(Track { process, thread }: Track, name: &str) -> Value {
    json!({
        "ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": { "name": name },
    })
}
