//! The etcd of a job is put back from a copy, or loses its keys (D-4): drivers end with the reason, nobody begins another
//! job, and training goes on. Without etcd on this machine the tests say so and pass, unless `ELASTIC_REQUIRE_ETCD` is
//! set, as the project's checks do.

use std::fs;

use nix::sys::signal::Signal;

use crate::etcd::Etcd;
use crate::support::{Job, signal};

/// Two workers on two hosts of which one is enough, an acting driver, and two standbys.
fn job(etcd: &Etcd) -> Job {
    let store = etcd.address().to_string();
    let flags = ["-n", "2", "--min-np", "1", "--lease-timeout", "5", "--store", &store];
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job.standby("second", &[]);
    job.standby("third", &[]);
    job
}

/// Waits until all three drivers have ended, each with code 1; returns what they said.
fn drivers_fail(job: &mut Job) -> Vec<String> {
    let codes = [job.end(), job.standby_end("second"), job.standby_end("third")];
    let said: Vec<String> = ["driver", "second", "third"]
        .map(|name| fs::read_to_string(job.path(&format!("{name}.stderr"))).expect("its stderr"))
        .into();
    assert_eq!(codes, [1, 1, 1], "{}", said.concat());
    said
}

/// Starts the first driver again, with what etcd has now, and ends the job under it.
fn goes_on(mut job: Job, pids: [i32; 2]) {
    job.start_driver_again();
    job.wait("the nodes are back", |job| {
        let status = job.status()?;
        (status["phase"] == "run" && status["world_size"] == 2).then_some(())
    });
    job.wait_for_steps();
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "D-3");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn d_4_drivers_of_an_etcd_that_is_older_than_the_job_end_and_stop_nobody() {
    let Some(mut etcd) = Etcd::start() else { return };
    let mut job = job(&etcd);
    let earlier = etcd.copy();
    // A term that the earlier copy does not know, as nodes go back to no earlier one.
    job.kill_driver();
    job.wait("another driver acts", |job| {
        let status = job.status()?;
        (status["term"].as_u64() > Some(1) && status["phase"] == "run").then_some(())
    });
    job.start_driver_again();
    // It stands by only once its address is free, which a connection of another process may hold for a while.
    job.wait("it stands by", |job| (job.standby_addresses().len() == 2).then_some(()));
    signal(job.pid("b", 0), Signal::SIGKILL);
    job.wait("a generation of two again", |job| {
        (job.sizes().last() == Some(&2) && job.sizes().len() > 1).then_some(())
    });
    job.wait_for_progress();
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    let newest = etcd.copy();
    etcd.stop();
    job.wait("the end of the lease", |job| job.events_of("abandoned").pop());
    etcd.put_back(&earlier);
    // These drivers have seen the records that the journal lacks.
    for said in drivers_fail(&mut job) {
        let found = said.matches("caused by: its journal is older than the job").count();
        assert_eq!(found, 1, "{said}");
        assert!(said.contains("were stored"), "{said}");
        assert!(said.contains("hint: put back the newest copy of etcd's data"), "{said}");
    }
    job.wait_for_steps();
    // One that is started now has not, and hears it from the first node that knows better.
    job.start_driver_again();
    assert_eq!(job.end(), 1, "{}", job.stderr());
    let said = job.stderr();
    assert!(said.contains("has given out no number above") || said.contains("it ends with 2"));
    let abandoned = job.events_of("abandoned");
    let outdated = abandoned.iter().filter(|it| it["reason"].to_string().contains("older than"));
    assert_eq!(outdated.count(), 1, "{abandoned:?}");
    job.wait_for_steps();
    etcd.put_back(&newest);
    goes_on(job, pids);
}

#[test]
fn d_4_drivers_whose_keys_vanish_from_etcd_end_and_begin_no_other_job() {
    let Some(mut etcd) = Etcd::start() else { return };
    let mut job = job(&etcd);
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    let newest = etcd.copy();
    job.wait("a driver acts", |job| (job.status()?["phase"] == "run").then_some(()));
    let started = job.events_of("driver_started");
    let id = started[0]["job"].as_str().expect("a job's id").to_owned();
    etcd.delete_keys();
    let store = etcd.address();
    let lost = format!("error: the store {store} has lost the job {id}: neither its journal");
    for said in drivers_fail(&mut job) {
        assert!(said.contains(&lost) && said.contains("hint: put etcd's data back"), "{said}");
        assert!(!said.contains("another driver has taken over"), "{said}");
    }
    assert!(job.events_of("driver_started").iter().all(|it| it["job"] == id), "no other job");
    assert_eq!(etcd.keys_below("elastic-node/head"), 0, "no other job");
    job.wait_for_steps();
    etcd.put_back(&newest);
    goes_on(job, pids);
}
