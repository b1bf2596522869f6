//! [`WorkerOutputs`]: the files of each worker's output, by the event log. Called by the command `logs`, and by the page.
//!
//! A process that was started for one generation (by restart, and in the mode `auto`, which begins so) writes into the
//! folder of that generation and of its rank there, also when it goes on into further generations. Any other process
//! has files of its own name.

use std::collections::BTreeMap;

use elastic_driver::EventKind;
use elastic_protocol::{GenerationId, HostName, WorkerId};

use crate::log::{LoggedEntry, LoggedLine, MissingBefore, after};

/// The workers of one generation of a job, and where their output is stored.
#[derive(Clone, Debug)]
pub struct WorkerOutputs {
    /// The job.
    pub job: String,
    /// The folder on each host that gets the output of its workers, if it is stored.
    pub output_dir: Option<String>,
    /// Whether the job has ended.
    pub is_over: bool,
    missing_before: Option<MissingBefore>,
    wanted: Option<GenerationId>,
    newest: Option<GenerationId>,
    /// The selected generation, with its members by rank: the wanted one, else the last.
    chosen: Option<(GenerationId, Vec<WorkerOutput>)>,
    /// The first generation and the rank there, of each member of the newest generation.
    first: BTreeMap<WorkerId, (GenerationId, u32)>,
}

/// A worker whose output is stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WorkerOutput {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank in the selected generation.
    pub rank: u32,
    /// The first generation that it was a member of, and its rank there: its files' folder, if it was started for one
    /// generation.
    pub first: (GenerationId, u32),
}

/// A selection of workers.
#[derive(Clone, Debug, Default)]
pub struct OutputRequest {
    /// The worker with this rank; `None`: all.
    pub rank: Option<u32>,
    /// The workers of this host; `None`: of all hosts.
    pub host: Option<HostName>,
}

/// Reasons why no worker is selected.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoOutput {
    /// No generation was formed yet.
    #[error("no generation was formed yet")]
    NoGeneration,
    /// No generation was formed since the log begins.
    #[error("{missing}, and no generation was formed since")]
    NoGenerationSince {
        /// The part of the log that is missing.
        missing: MissingBefore,
    },
    /// The generation is not in the log.
    #[error("there is no generation {wanted} in the log: the newest is {newest}{}", after(*missing))]
    UnknownGeneration {
        /// The one that is wanted.
        wanted: GenerationId,
        /// The newest.
        newest: GenerationId,
        /// The part that is missing, if the log does not have the job's beginning.
        missing: Option<MissingBefore>,
    },
    /// The generation has no such rank.
    #[error("there is no rank {rank} in generation {generation}, which has {world_size} workers")]
    UnknownRank {
        /// The rank.
        rank: u32,
        /// The generation.
        generation: GenerationId,
        /// Its world size.
        world_size: usize,
    },
    /// The host has no worker that was selected.
    #[error("no such worker of generation {generation} is on {host}; its hosts are {hosts}")]
    NotOnHost {
        /// The host.
        host: HostName,
        /// The generation.
        generation: GenerationId,
        /// The hosts of its workers.
        hosts: String,
    },
}

impl NoOutput {
    /// Whether the reason may be that the log does not have its job's beginning.
    pub const fn lacks_begin(&self) -> bool {
        matches!(
            self,
            Self::NoGenerationSince { .. } | Self::UnknownGeneration { missing: Some(_), .. }
        )
    }
}

impl WorkerOutputs {
    /// The workers of a generation, or of the last one, of the last job of a log; none if the log names no job. Lines
    /// that cannot be read are left out.
    pub fn of_lines(
        lines: impl IntoIterator<Item = String>,
        wanted: Option<GenerationId>,
    ) -> Option<Self> {
        let mut outputs: Option<Self> = None;
        for line in lines.into_iter().filter_map(|line| LoggedLine::read(&line).ok()) {
            let missing_before = MissingBefore::of_first(line.at, &line.entry);
            match (line.entry, &mut outputs) {
                (
                    LoggedEntry::DriverStarted { job, output_dir, .. }
                    | LoggedEntry::LogContinued { job, output_dir },
                    outputs,
                ) => match outputs {
                    Some(outputs) if outputs.job == job => outputs.output_dir = output_dir,
                    _ => {
                        let new = Self::new(job, output_dir, wanted);
                        *outputs = Some(Self { missing_before, ..new });
                    }
                },
                (LoggedEntry::Event(event), Some(outputs)) => {
                    outputs.handle_event(event.generation, &event.kind);
                }
                (LoggedEntry::Event(_) | LoggedEntry::Goodput(_) | LoggedEntry::Sign, _) => {}
            }
        }
        outputs
    }

    /// Outputs of no workers yet.
    pub(crate) fn new(
        job: String,
        output_dir: Option<String>,
        wanted: Option<GenerationId>,
    ) -> Self {
        let (newest, chosen, first) = (None, None, BTreeMap::new());
        let (is_over, missing_before) = (false, None);
        Self { job, output_dir, is_over, missing_before, wanted, newest, chosen, first }
    }

    /// Takes an event of the job.
    pub(crate) fn handle_event(&mut self, generation: GenerationId, event: &EventKind) {
        match event {
            EventKind::GenerationFormed { members, .. } => {
                let before = std::mem::take(&mut self.first);
                for (rank, worker) in (0..).zip(members) {
                    let first = before.get(worker).copied().unwrap_or((generation, rank));
                    self.first.insert(worker.clone(), first);
                }
                self.newest = Some(generation);
                if self.wanted.is_none_or(|wanted| wanted == generation) {
                    let output = |(rank, worker): (u32, &WorkerId)| {
                        let (worker, first) = (worker.clone(), self.first[worker]);
                        WorkerOutput { worker, rank, first }
                    };
                    self.chosen = Some((generation, (0..).zip(members).map(output).collect()));
                }
            }
            EventKind::JobEnded { .. } => self.is_over = true,
            _ => {}
        }
    }

    /// The selected workers, by rank.
    ///
    /// # Errors
    /// Why there is none.
    pub fn select(&self, request: &OutputRequest) -> Result<Vec<&WorkerOutput>, NoOutput> {
        let missing = self.missing_before;
        let no_generation = || match missing {
            Some(missing) => NoOutput::NoGenerationSince { missing },
            None => NoOutput::NoGeneration,
        };
        let newest = self.newest.ok_or_else(no_generation)?;
        let Some((generation, outputs)) = &self.chosen else {
            let wanted = self.wanted.unwrap_or(newest);
            return Err(NoOutput::UnknownGeneration { wanted, newest, missing });
        };
        let of_rank = |it: &&WorkerOutput| request.rank.is_none_or(|rank| it.rank == rank);
        let ranked: Vec<&WorkerOutput> = outputs.iter().filter(of_rank).collect();
        if let (Some(rank), []) = (request.rank, &ranked[..]) {
            let (generation, world_size) = (*generation, outputs.len());
            return Err(NoOutput::UnknownRank { rank, generation, world_size });
        }
        let Some(host) = &request.host else { return Ok(ranked) };
        let mut hosts: Vec<&str> = ranked.iter().map(|it| it.worker.host.as_str()).collect();
        hosts.dedup();
        let (hosts, generation) = (hosts.join(", "), *generation);
        let there: Vec<_> = ranked.into_iter().filter(|it| it.worker.host == *host).collect();
        match there.is_empty() {
            true => Err(NoOutput::NotOnHost { host: host.clone(), generation, hosts }),
            false => Ok(there),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(generation: u64, rest: &str) -> String {
        format!(r#"{{"t":"1970-01-01T00:00:01Z","term":1,"generation":{generation},{rest}}}"#)
    }

    fn started(job: &str) -> String {
        line(0, &format!(r#""kind":"driver_started","job":"{job}","output_dir":"/out""#))
    }

    fn formed(generation: u64, members: &str) -> String {
        let members =
            format!(r#""kind":"generation_formed","members":[{members}],"root":null,"step":0"#);
        line(generation, &members)
    }

    #[test]
    fn a_log_without_the_beginning_of_its_job_does_not_say_that_there_was_no_generation() {
        let continued = line(5, r#""kind":"log_continued","job":"j","output_dir":"/out""#);
        let error = |lines: &[&str], wanted: Option<u64>| {
            let lines = lines.iter().map(|line| (*line).to_owned());
            let outputs = WorkerOutputs::of_lines(lines, wanted.map(GenerationId)).expect("a job");
            outputs.select(&OutputRequest::default()).expect_err("none").to_string()
        };
        let begins = "the event log begins at 1970-01-01T00:00:01Z: what came before is missing";
        assert_eq!(
            error(&[&continued], None),
            format!("{begins}, and no generation was formed since")
        );
        assert_eq!(error(&[&started("j"), &continued], None), "no generation was formed yet");
        let error = error(&[&continued, &formed(7, r#""a[0]#1""#)], Some(2));
        assert!(error.ends_with(&format!("the newest is 7; {begins}")), "{error}");
    }

    fn log() -> Vec<String> {
        let second = formed(2, r#""b[0]#2","b[1]#3""#);
        vec![
            started("other"),
            formed(9, r#""x[0]#1""#),
            started("j"),
            formed(1, r#""a[0]#1","b[0]#2""#),
            second,
        ]
    }

    fn found(outputs: &WorkerOutputs, request: &OutputRequest) -> Result<Vec<String>, NoOutput> {
        let shown = |it: &WorkerOutput| {
            let (generation, rank) = it.first;
            format!("{} {}: {generation}/{rank}", it.rank, it.worker)
        };
        Ok(outputs.select(request)?.into_iter().map(shown).collect())
    }

    #[test]
    fn the_last_generation_is_meant_and_each_worker_has_the_files_it_began_with() {
        let outputs = WorkerOutputs::of_lines(log(), None).expect("a job");
        assert_eq!((outputs.job.as_str(), outputs.output_dir.as_deref()), ("j", Some("/out")));
        assert!(!outputs.is_over);
        let all = found(&outputs, &OutputRequest::default());
        assert_eq!(all.expect("two"), ["0 b[0]#2: 1/1", "1 b[1]#3: 2/1"]);
        let one = OutputRequest { rank: Some(1), ..OutputRequest::default() };
        assert_eq!(found(&outputs, &one).expect("one"), ["1 b[1]#3: 2/1"]);
    }

    #[test]
    fn an_earlier_generation_and_a_host_can_be_meant() {
        let outputs = WorkerOutputs::of_lines(log(), Some(GenerationId(1))).expect("a job");
        let host = Some(HostName::new("b").expect("allowed"));
        let of_host = OutputRequest { host, ..OutputRequest::default() };
        assert_eq!(found(&outputs, &of_host).expect("one"), ["1 b[0]#2: 1/1"]);
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is() {
        let refused = |wanted: Option<u64>, rank, host: Option<&str>| {
            let outputs = WorkerOutputs::of_lines(log(), wanted.map(GenerationId)).expect("a job");
            let host = host.map(|host| HostName::new(host).expect("allowed"));
            found(&outputs, &OutputRequest { rank, host }).expect_err("not there").to_string()
        };
        assert_eq!(
            refused(Some(7), None, None),
            "there is no generation 7 in the log: the newest is 2"
        );
        assert_eq!(
            refused(None, Some(2), None),
            "there is no rank 2 in generation 2, which has 2 workers"
        );
        let hosts = "no such worker of generation 1 is on c; its hosts are a, b";
        assert_eq!(refused(Some(1), None, Some("c")), hosts);
        let empty = WorkerOutputs::of_lines([started("j")], None).expect("a job");
        assert_eq!(found(&empty, &OutputRequest::default()), Err(NoOutput::NoGeneration));
    }
}
