//! Reads a task's environment under Slurm, for flags that are not given: the host's name, its slots, the job's name.
//! Called by `worker_flags` and `driver_plan`.
//!
//! Names and meanings are those of srun's manual, "OUTPUT ENVIRONMENT VARIABLES".

use elastic_protocol::HostName;

use super::failure::{CommandFailure, ResultExt};

/// A task of a Slurm job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SlurmTask {
    /// The node's name in Slurm.
    pub(crate) node: HostName,
    /// The workers of this node: one per GPU, else one per task, else one per CPU of a task.
    pub(crate) slots: u32,
    /// The index of this task on its node, from 0: task 0 is the node's agent.
    pub(crate) local_id: u32,
}

/// The id of the Slurm job, which names the job.
pub(crate) fn slurm_job(lookup: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    lookup("SLURM_JOB_ID").filter(|id| !id.is_empty())
}

impl SlurmTask {
    /// The task of this process; none outside Slurm.
    pub(crate) fn read(
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, CommandFailure> {
        let (Some(_), Some(node)) = (slurm_job(lookup), lookup("SLURMD_NODENAME")) else {
            return Ok(None);
        };
        let node = HostName::new(&node).usage("SLURMD_NODENAME")?;
        let number = |name: &str| number(name, lookup(name));
        let local_id = number("SLURM_LOCALID")?.unwrap_or(0);
        let tasks = number("SLURM_NTASKS_PER_NODE")?.or_else(|| step_tasks(lookup));
        let cpus = number("SLURM_CPUS_ON_NODE")?;
        let cpus_per_task = number("SLURM_CPUS_PER_TASK")?.filter(|cpus| *cpus > 0).unwrap_or(1);
        let slots = number("SLURM_GPUS_ON_NODE")?
            .filter(|gpus| *gpus > 0)
            .or(tasks)
            .or(cpus.map(|cpus| cpus / cpus_per_task))
            .unwrap_or(1);
        Ok(Some(Self { node, slots: slots.max(1), local_id }))
    }
}

fn number(name: &str, value: Option<String>) -> Result<Option<u32>, CommandFailure> {
    let parsed = value.map(|text| text.trim().parse::<u32>()).transpose();
    parsed
        .usage(format!("{name} is not a number"))
        .map_err(|failure| failure.hint("say it by a flag: --slots N, --host NAME"))
}

/// The number of tasks on this node, from a list by node: `2(x3),1` are three nodes with two and one with one.
fn step_tasks(lookup: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    let mut node: u32 = lookup("SLURM_NODEID")?.parse().ok()?;
    for part in lookup("SLURM_STEP_TASKS_PER_NODE")?.split(',') {
        let (tasks, repeated) = match part.split_once("(x") {
            Some((tasks, rest)) => (tasks, rest.trim_end_matches(')').parse().ok()?),
            None => (part, 1),
        };
        match node.checked_sub(repeated) {
            Some(rest) => node = rest,
            None => return tasks.parse().ok().filter(|tasks| *tasks > 1),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<SlurmTask>, CommandFailure> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        SlurmTask::read(&lookup)
    }

    fn slots(variables: &[(&str, &str)]) -> u32 {
        let task = [("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "n3")];
        let task = read(&[&task[..], variables].concat()).expect("nothing to refuse");
        task.expect("within Slurm").slots
    }

    #[test]
    fn outside_slurm_there_is_no_task() {
        assert_eq!(read(&[]).expect("nothing to refuse"), None);
        assert_eq!(read(&[("SLURMD_NODENAME", "n3")]).expect("nothing to refuse"), None);
    }

    #[test]
    fn a_worker_for_each_gpu_else_for_each_task_else_for_each_tasks_cpus() {
        assert_eq!(slots(&[]), 1);
        let cpus = ("SLURM_CPUS_ON_NODE", "16");
        assert_eq!(slots(&[cpus]), 16);
        assert_eq!(slots(&[cpus, ("SLURM_CPUS_PER_TASK", "4")]), 4);
        assert_eq!(slots(&[cpus, ("SLURM_CPUS_PER_TASK", "32")]), 1);
        let tasks = ("SLURM_NTASKS_PER_NODE", "2");
        assert_eq!(slots(&[cpus, tasks]), 2);
        assert_eq!(slots(&[cpus, tasks, ("SLURM_GPUS_ON_NODE", "8")]), 8);
        assert_eq!(slots(&[cpus, tasks, ("SLURM_GPUS_ON_NODE", "0")]), 2);
    }

    #[test]
    fn the_tasks_of_a_step_are_counted_node_by_node() {
        let at =
            |node, tasks| slots(&[("SLURM_NODEID", node), ("SLURM_STEP_TASKS_PER_NODE", tasks)]);
        assert_eq!((at("0", "4"), at("2", "2(x3),5"), at("3", "2(x3),5")), (4, 2, 5));
        assert_eq!(at("9", "2(x3),5"), 1, "no such node");
        let cpus = [("SLURM_CPUS_ON_NODE", "8"), ("SLURM_NODEID", "0")];
        assert_eq!(slots(&[&cpus[..], &[("SLURM_STEP_TASKS_PER_NODE", "1(x2)")]].concat()), 8);
    }

    #[test]
    fn what_is_no_number_is_named() {
        let task = [("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "n3"), ("SLURM_LOCALID", "x")];
        let refused = read(&task).expect_err("no number");
        assert_eq!(refused.to_string(), "SLURM_LOCALID is not a number");
    }
}
