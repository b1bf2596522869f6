//! Jobs that are started by the same command on each of their hosts (`run --nnodes`). The driver's command counts for all, so a host
//! whose command says another thing is refused. Called by a host's process, by the driver as the host joins, and for the words of
//! a job that waits.

use std::collections::BTreeMap;

use elastic_protocol::counted;
use elastic_protocol::messages::JobCommand;

use super::DriverCore;
use super::config::DriverConfig;
use super::gather::missing::list;

/// Name of the program among the settings; all others are flags.
const PROGRAM: &str = "program";

impl DriverConfig {
    /// The whole job as this command describes it; none if the job is not started on each of its hosts. Not part of it: the number of
    /// workers, which follows from each host's slots, and the limits of waits.
    pub fn job_command(&self) -> Option<JobCommand> {
        let count = self.nodes?;
        let of_flags = [
            ("--shards", JobCommand::digest(&self.shards)),
            ("--reset-limit", JobCommand::digest(&self.reset_limit)),
            ("--max-restarts", JobCommand::digest(&(self.max_restarts, self.max_job_restarts))),
            ("--health-check", JobCommand::digest(&self.health_check)),
            ("--on-failure", JobCommand::digest(&self.on_failure)),
            ("--on-total-loss", JobCommand::digest(&self.on_total_loss)),
            ("--on-hang", JobCommand::digest(&self.on_hang)),
            ("--hang-timeout", JobCommand::digest(&self.hang_timeout)),
            ("--on-straggler", JobCommand::digest(&self.on_straggler)),
            ("--on-divergence", JobCommand::digest(&self.on_divergence)),
            ("--checkpoint", JobCommand::digest(&self.checkpoint)),
            ("--mode", JobCommand::digest(&self.mode)),
            ("--encrypt-data", JobCommand::digest(&self.encrypt_data)),
            ("--data-plane", JobCommand::digest(&self.data_plane)),
            (PROGRAM, JobCommand::digest(&without_interpreter(&self.program.argv))),
        ];
        let settings = of_flags.into_iter().map(|(name, digest)| (name.to_owned(), digest));
        Some(JobCommand { count, settings: settings.collect() })
    }

    /// The reason to refuse a host with this command; none if it says the same, as far as it says anything.
    pub(crate) fn refuses_command(&self, theirs: &JobCommand) -> Option<String> {
        let ours = self.job_command()?;
        if ours.count != theirs.count {
            return Some(format!(
                "this job has --nnodes {}, and this host was told --nnodes {}: give the same on every node",
                ours.count, theirs.count
            ));
        }
        let differing = differing(&ours.settings, &theirs.settings);
        let what = match &differing[..] {
            [] => return None,
            [PROGRAM] => "another program, or other arguments of it,".to_owned(),
            flags => {
                let flags = flags.iter().map(|name| match *name {
                    PROGRAM => "another program".to_owned(),
                    flag => format!("another {flag}"),
                });
                flags.collect::<Vec<String>>().join(" and ")
            }
        };
        Some(format!(
            "this host was given {what} than the node with the driver, whose command counts for all: give the same command on every \
             node, and what differs between nodes by environment variables"
        ))
    }
}

impl DriverCore {
    /// Words on a job whose nodes are all there and have too few slots together; none unless that is so.
    pub(crate) fn short_nodes(&self) -> Option<String> {
        let (slots, there) = self.slots_of_all_nodes()?;
        let needed = self.workers_needed();
        (slots < needed).then(|| {
            format!(
                "slots: {there}, and {} are wanted: give the same --nproc-per-node on every node, or -n and --min-np in numbers",
                counted(needed, "worker"),
            )
        })
    }

    /// Words on a job whose nodes are all there and have more slots than it takes, since one node has more than another; none
    /// unless that is so.
    pub(crate) fn surplus_of_nodes(&self) -> Option<String> {
        let ((slots, there), most) = (self.slots_of_all_nodes()?, self.config.max_np?);
        let are_alike = self.roster.hosts().windows(2).all(|pair| pair[0].slots == pair[1].slots);
        (slots > most && !are_alike).then(|| {
            format!(
                "{there}, and the job takes {most}: the node with the driver counts as many slots for each node as it has itself; give \
                 the same --nproc-per-node on every node, or -n, --min-np and --max-np in numbers"
            )
        })
    }

    /// The slots of a job whose nodes are all there, with words on them; none unless they are.
    fn slots_of_all_nodes(&self) -> Option<(u32, String)> {
        let (count, hosts) = (self.config.nodes?, self.roster.hosts());
        if hosts.len() < count.max as usize {
            return None;
        }
        let slots: u32 = hosts.iter().map(|host| host.slots).sum();
        let each = list(hosts.iter().map(|host| format!("{}:{}", host.name, host.slots)));
        let there = format!(
            "all {} nodes are there, with {} ({each})",
            hosts.len(),
            counted(slots, "slot")
        );
        Some((slots, there))
    }
}

/// A program's words without the Python interpreter that `run` puts before a script: it has another path or name on each host.
fn without_interpreter(argv: &[String]) -> &[String] {
    match argv {
        [_interpreter, unbuffered, script @ ..] if unbuffered == "-u" => script,
        argv => argv,
    }
}

/// Names of the settings that both have, with other values.
fn differing<'a>(ours: &'a BTreeMap<String, u64>, theirs: &BTreeMap<String, u64>) -> Vec<&'a str> {
    let differs = |(name, digest): &(&String, &u64)| {
        theirs.get(*name).is_some_and(|theirs| theirs != *digest)
    };
    ours.iter().filter(differs).map(|(name, _)| name.as_str()).collect()
}
