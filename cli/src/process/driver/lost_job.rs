//! The failures of a driver that must not lead: the journal of its job is gone from the store, another job's is in its
//! place, or it is older than the job. Made by the driver's process, which ends with them.

use elastic_journal::etcd::EtcdAddress;

use super::Abandoned;
use crate::command_line::{CommandFailure, DriverPlan};

/// The store holds no job any more, and nothing that says how this driver's job ended.
pub(super) fn vanished(store: &EtcdAddress, job: Option<&str>) -> CommandFailure {
    let job = named(job);
    let message =
        format!("the store {store} has lost {job}: neither its journal nor its end is there");
    CommandFailure::new(message).hint(
        "put etcd's data back from the newest copy and start the drivers again, which go on with the job: its workers \
         train on until one of them fails. To give that job up, start them again as they are: they begin a new one",
    )
}

/// The store holds another job than the one that this driver led or stood by for.
pub(super) fn replaced(store: &EtcdAddress, job: Option<&str>, other: &str) -> CommandFailure {
    let job = named(job);
    let message = format!("the store {store} has lost {job}: it holds the job {other} now");
    CommandFailure::new(message).hint(
        "end the other job, put etcd's data back from the newest copy and start the drivers again, which go on with this \
         one; or leave the place to the other",
    )
}

/// The journal is older than the job: it was put back from a copy.
pub(super) fn outdated(plan: &DriverPlan, reason: String) -> CommandFailure {
    let place = if plan.store.is_some() { "etcd's data" } else { "the journal" };
    CommandFailure::new("this driver acts no more; the job goes on without it")
        .source(Abandoned(reason))
        .hint(format!(
            "put back the newest copy of {place}, and start the driver again: it goes on with the job. Its workers train \
             on meanwhile, until one of them fails"
        ))
}

fn named(job: Option<&str>) -> String {
    job.map_or_else(|| "this driver's job".to_owned(), |job| format!("the job {job}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_4_the_store_the_job_and_a_way_out_are_named() {
        let store: EtcdAddress = "etcd://e1:2379/mine".parse().expect("an address");
        for (failure, found) in [
            (vanished(&store, Some("4711")), "neither its journal"),
            (replaced(&store, Some("4711"), "4712"), "holds the job 4712"),
        ] {
            let (said, hint) = failure.finding();
            assert!(said.contains("etcd://e1:2379/mine has lost the job 4711"), "{said}");
            assert!(said.contains(found) && hint.contains("newest copy"), "{said}: {hint}");
            assert_eq!(failure.code(), 1);
        }
        assert!(vanished(&store, None).to_string().contains("has lost this driver's job"));
    }
}
