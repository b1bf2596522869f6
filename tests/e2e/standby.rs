//! Several drivers with a store in etcd, of which one acts (D-1 to D-4). Without etcd on this machine the tests say so
//! and pass, unless `ELASTIC_REQUIRE_ETCD` is set, as the project's checks do.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::Ordering;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::data_path::agent_at;
use crate::etcd::Etcd;
use crate::metrics::metrics;
use crate::network::{HERE, Network};
use crate::operate::operate;
use crate::support::{Job, binary, signal};

/// Two workers on two hosts, an acting driver, and two standbys.
struct Three {
    job: Job,
    workers: [i32; 2],
}

const DRIVER_FLAGS: [&str; 4] = ["-n", "2", "--lease-timeout", "5"];

fn job(store: &str) -> Three {
    with_workers(Job::start(&[&DRIVER_FLAGS[..], &["--store", store]].concat(), &[]))
}

fn with_workers(mut job: Job) -> Three {
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let workers = [job.pid("a", 0), job.pid("b", 0)];
    Three { job, workers }
}

fn three(etcd: &Etcd) -> Three {
    let mut three = job(&etcd.address().to_string());
    three.job.standby("second", &[]);
    three.job.standby("third", &[]);
    three
}

impl Three {
    /// Waits until the nodes are back with the driver of this term.
    fn wait_for_takeover(&mut self, term: u64) {
        self.job.wait_for_term(term);
        let done = self.job.wait(&format!("the takeover of term {term}"), |job| {
            job.events_of("takeover_done").into_iter().find(|event| event["term"] == term)
        });
        assert_eq!(done["lost"], 0);
    }

    /// Asserts that no worker was stopped, started or reset while drivers failed.
    fn assert_undisturbed(&mut self) {
        self.assert_undisturbed_since(1);
    }

    /// The same from this term on: decisions that a driver of an earlier term believed it made do not count.
    fn assert_undisturbed_since(&mut self, term: u64) {
        let mut resets = self.job.events_of("reset_decided");
        resets.retain(|event| event["term"].as_u64() >= Some(term));
        assert!(resets.is_empty(), "D-3: {resets:?}");
        let workers = [self.job.pid("a", 0), self.job.pid("b", 0)];
        assert_eq!(workers, self.workers, "no worker was started again");
        assert_eq!(self.job.sizes(), [2], "no generation but the first");
        let log = self.job.log();
        let mut trained_in = log.iter().filter(|line| line["event"] == "commit");
        assert!(
            trained_in.all(|line| line["generation"] == 1),
            "D-3: the workers have not noticed"
        );
        assert_eq!(self.job.events_of("worker_started").len(), 2, "D-1");
    }

    fn finish(&mut self) {
        self.job.control("finish");
        self.assert_agents_end(0);
        self.job.assert_exact();
    }

    /// Asserts that both agents end with this code.
    fn assert_agents_end(&mut self, code: i32) {
        for host in ["a", "b"] {
            assert_eq!(self.job.agent_end(host).code(), Some(code), "agent {host}");
        }
    }
}

#[test]
fn s_12_a_standby_that_was_not_heard_for_a_while_and_has_lost_its_state_directory_leads() {
    let Some(etcd) = Etcd::start() else { return };
    let mut two = job(&etcd.address().to_string());
    two.job.standby("second", &[]);
    let (second, state) = (two.job.standbys["second"].id().cast_signed(), "state-second");
    fs::remove_dir_all(two.job.path(state)).expect("it is there");
    signal(second, Signal::SIGSTOP);
    // The nodes are told of no standby any more.
    two.job.wait("nobody stands by", |job| job.standby_addresses().is_empty().then_some(()));
    two.job.kill_driver();
    signal(second, Signal::SIGCONT);
    two.job.wait_for_term(2);
    two.job.wait("the state directory of the driver that leads", |job| {
        let files = ["token", "address", "lock", "events.jsonl"];
        files.iter().all(|name| job.path(state).join(name).exists()).then_some(())
    });
    two.job.wait_for_steps();
    let workers = [two.job.pid("a", 0), two.job.pid("b", 0)];
    assert_eq!(workers, two.workers, "D-3");
    two.job.control("finish");
    assert_eq!(two.job.standby_end("second"), 0);
    two.job.assert_exact();
}

#[test]
fn s_2_a_standby_without_descriptors_stands_by_and_leads_when_it_has_some() {
    let Some(etcd) = Etcd::start() else { return };
    let mut two = job(&etcd.address().to_string());
    two.job.standby("second", &[]);
    let second = two.job.standbys["second"].id();
    let limit = |of: usize| {
        let (pid, of) = (format!("--pid={second}"), format!("--nofile={of}:"));
        assert!(Command::new("prlimit").args([pid, of]).status().expect("util-linux").success());
    };
    let held = fs::read_dir(format!("/proc/{second}/fd")).expect("it runs").count();
    limit(held);
    let said = |job: &Job| fs::read_to_string(job.path("second.stderr")).unwrap_or_default();
    two.job.wait("the warning", |job| said(job).contains("too few descriptors").then_some(()));
    two.job.kill_driver();
    two.job.wait_for_steps();
    limit(4096);
    two.wait_for_takeover(2);
    two.assert_undisturbed();
    assert_eq!(said(&two.job).matches("too few descriptors").count(), 1, "once");
    two.job.control("finish");
    assert_eq!(two.job.standby_end("second"), 0);
    two.job.assert_exact();
}

#[test]
fn another_driver_acts_when_the_acting_one_is_killed() {
    let Some(etcd) = Etcd::start() else { return };
    let mut three = three(&etcd);
    let status = three.job.status().expect("a status");
    assert_eq!(
        (&status["term"], status["standbys"].as_array().map(Vec::len)),
        (&1.into(), Some(2))
    );
    three.job.kill_driver();
    three.wait_for_takeover(2);
    three.job.wait_for_steps();
    // Once more, with the last standby.
    let acting = three.job.status().expect("a status")["driver"]["address"].clone();
    let addresses = three.job.address.clone();
    let second_acts = addresses.split(',').nth(1).is_some_and(|address| acting == address);
    let (acts, stands_by) = if second_acts { ("second", "third") } else { ("third", "second") };
    let mut killed = three.job.standbys.remove(acts).expect("it was started");
    killed.kill().and_then(|()| killed.wait()).expect("it was ours");
    three.job.wait_for_term(3);
    three.job.wait_for_steps();
    let workers = [three.job.pid("a", 0), three.job.pid("b", 0)];
    assert_eq!(workers, three.workers, "no worker was started again");
    three.finish();
    assert_eq!(three.job.standby_end(stands_by), 0);
    assert!(three.job.events_of("reset_decided").is_empty(), "D-3");
    assert_eq!(etcd.keys_below("elastic-node/record/"), 0, "the job is over");
}

#[test]
fn d_2_a_driver_that_was_stopped_changes_nothing_when_it_goes_on() {
    let Some(etcd) = Etcd::start() else { return };
    let mut three = three(&etcd);
    let stopped = three.job.driver_pid();
    signal(stopped, Signal::SIGSTOP);
    three.wait_for_takeover(2);
    let written = three.job.events_in("state").len();
    signal(stopped, Signal::SIGCONT);
    // The former driver stands by: there are two standbys again.
    three.job.wait("the former driver among those that stand by", |job| {
        (job.standby_addresses().len() == 2).then_some(())
    });
    three.job.wait_for_steps();
    let since: Vec<_> = three.job.events_in("state").drain(written..).collect();
    assert!(since.iter().all(|event| event["kind"] == "abandoned"), "{since:?}");
    three.assert_undisturbed();
    assert_eq!(three.job.status().expect("a status")["term"], 2);
    three.finish();
    for name in ["second", "third"] {
        assert_eq!(three.job.standby_end(name), 0, "{name}");
    }
    assert_eq!(three.job.end(), 0, "it has stood by, and hears how the job ended");
}

/// The threads of a process with this name.
fn threads_of(pid: i32, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let names = tasks.filter_map(|it| fs::read_to_string(it.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

/// The term in the metrics at an address.
fn term_on(page: SocketAddr) -> Option<u64> {
    let text = metrics(page);
    let line = text.lines().find(|line| line.starts_with("elastic_node_driver_term"))?;
    // A whole number is written with its decimal.
    line.rsplit(' ').next()?.strip_suffix(".0")?.parse().ok()
}

#[test]
fn d_2_a_driver_that_stands_by_has_no_page_and_one_that_leads_again_a_fresh_one() {
    let Some(etcd) = Etcd::start() else { return };
    let reserved = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let page = reserved.local_addr().expect("it is bound");
    drop(reserved);
    let (store, at) = (etcd.address().to_string(), page.to_string());
    let flags = [&DRIVER_FLAGS[..], &["--store", &store, "--dashboard", &at]].concat();
    let mut two = with_workers(Job::start(&flags, &[]));
    let former = two.job.driver_pid();
    assert_eq!(term_on(page), Some(1));
    for round in 1..=2 {
        let name = format!("standby-{round}");
        two.job.standby(&name, &[("--dashboard", "none")]);
        signal(former, Signal::SIGSTOP);
        two.wait_for_takeover(2 * round);
        signal(former, Signal::SIGCONT);
        two.job.wait("the former driver among those that stand by", |job| {
            (job.standby_addresses().len() == 1).then_some(())
        });
        two.job.wait("the end of its page", |_| TcpStream::connect(page).err());
        assert_eq!(threads_of(former, "dashboard"), 0);
        let mut acting = two.job.standbys.remove(&name).expect("it was started");
        acting.kill().and_then(|()| acting.wait()).expect("it was ours");
        let term = 2 * round + 1;
        two.wait_for_takeover(term);
        assert_eq!(term_on(page), Some(term));
        assert_eq!(threads_of(former, "dashboard"), 1);
        // The address of the next standby follows that of this driver alone.
        two.job.address = two.job.address.split(',').next().unwrap_or_default().to_owned();
    }
    assert!(!two.job.stderr().contains("until this address is free"), "it was");
    let workers = [two.job.pid("a", 0), two.job.pid("b", 0)];
    assert_eq!(workers, two.workers, "D-3");
    two.job.control("finish");
    assert_eq!(two.job.end(), 0);
    two.job.assert_exact();
}

#[test]
fn d_2_a_driver_that_is_cut_off_from_the_store_gives_way() {
    let Some(etcd) = Etcd::start() else { return };
    let (member, is_cut) = etcd.member_that_can_be_cut_off();
    let mut two = job(&format!("etcd://{member}"));
    two.job.standby("second", &[("--store", &etcd.address().to_string())]);
    is_cut.store(true, Ordering::SeqCst);
    // The agents and workers still reach the former driver, until it knows that its lease is over.
    two.wait_for_takeover(2);
    let abandoned = two.job.events_of("abandoned");
    assert_eq!(abandoned.len(), 1, "{abandoned:?}");
    is_cut.store(false, Ordering::SeqCst);
    two.job.wait("the former driver among those that stand by", |job| {
        (job.standby_addresses().len() == 1).then_some(())
    });
    two.job.wait_for_steps();
    two.assert_undisturbed();
    two.finish();
    assert_eq!((two.job.standby_end("second"), two.job.end()), (0, 0));
}

#[test]
fn d_2_a_driver_whose_network_is_cut_changes_nothing_when_it_is_back() {
    let Some(network) = Network::enter(3) else { return };
    let Some(etcd) = Etcd::start_at(HERE) else { return };
    let store = etcd.address().to_string();
    let flags = [&DRIVER_FLAGS[..], &["--store", &store]].concat();
    let mut three = with_workers(Job::start_at(network.place(0), &flags));
    three.job.standby_at("second", Some(network.place(1)), &[]);
    three.job.standby_at("third", Some(network.place(2)), &[]);
    network.place(0).cut();
    // The former driver reaches neither its nodes nor etcd, and learns only that its lease is over.
    three.wait_for_takeover(2);
    three.job.wait("the end of the former driver's term", |job| job.events_of("abandoned").pop());
    let written = three.job.events_in("state").len();
    three.job.wait_for_steps();
    network.place(0).mend();
    three.job.wait("the former driver among those that stand by", |job| {
        (job.standby_addresses().len() == 2).then_some(())
    });
    three.job.wait_for_steps();
    assert_eq!(three.job.events_in("state").len(), written, "it does nothing but stand by");
    assert_eq!(three.job.status().expect("a status")["term"], 2);
    // Cut off, the former driver took its workers for lost; that decision had no effect.
    three.assert_undisturbed_since(2);
    three.finish();
    for name in ["second", "third"] {
        assert_eq!(three.job.standby_end(name), 0, "{name}");
    }
    assert_eq!(three.job.end(), 0, "it has stood by, and hears how the job ended");
}

#[test]
fn d_3_training_goes_on_while_etcd_is_stopped() {
    let Some(etcd) = Etcd::start() else { return };
    let mut two = job(&etcd.address().to_string());
    two.job.standby("second", &[]);
    etcd.stop();
    two.job.wait("the end of the lease", |job| job.events_of("abandoned").pop());
    // For half a minute no driver acts.
    two.job.pass_ms(30_000);
    two.job.wait_for_steps();
    etcd.go_on();
    two.wait_for_takeover(2);
    two.job.wait_for_steps();
    two.assert_undisturbed();
    two.finish();
    assert_eq!((two.job.standby_end("second"), two.job.end()), (0, 0));
}

#[test]
fn a_driver_is_replaced_by_starting_another_and_stopping_it() {
    let Some(etcd) = Etcd::start() else { return };
    let mut two = job(&etcd.address().to_string());
    two.job.standby("second", &[]);
    signal(two.job.driver_pid(), Signal::SIGTERM);
    assert_eq!(two.job.end(), 0, "it has handed over");
    assert_eq!(two.job.events_of("handed_over").len(), 1);
    two.wait_for_takeover(2);
    two.job.wait_for_steps();
    two.assert_undisturbed();
    // This driver has no standby: its end is the end of the job.
    let acting = i32::try_from(two.job.standbys["second"].id()).expect("a process id");
    signal(acting, Signal::SIGTERM);
    assert_eq!(two.job.standby_end("second"), 128 + 15);
    two.assert_agents_end(128 + 15);
}

/// Two drivers, of which the acting one was asked to end, and cannot give its lease back: etcd is stopped.
fn handing_over(etcd: &Etcd) -> Three {
    let mut two = job(&etcd.address().to_string());
    two.job.standby("second", &[]);
    etcd.stop();
    signal(two.job.driver_pid(), Signal::SIGTERM);
    two.job.wait("the handover", |job| job.events_of("handed_over").pop());
    two
}

#[test]
fn d_4_a_stop_that_reaches_a_driver_as_it_hands_over_is_refused() {
    let Some(etcd) = Etcd::start() else { return };
    let mut two = handing_over(&etcd);
    let refused = operate(&two.job, &["stop"]);
    etcd.go_on();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert_eq!(two.job.end(), 0, "it has handed over");
    two.wait_for_takeover(2);
    let own = format!("{} acts now", two.job.address);
    assert!(!two.job.stderr().contains(&own), "D-2: it follows nobody but another driver");
    two.job.wait_for_steps();
    two.assert_undisturbed();
    two.finish();
    assert_eq!(two.job.standby_end("second"), 0);
}

#[test]
fn x_17_ctrl_c_to_a_driver_that_hands_over_ends_it_with_the_way_to_end_the_job() {
    let Some(etcd) = Etcd::start() else { return };
    let mut two = handing_over(&etcd);
    signal(two.job.driver_pid(), Signal::SIGINT);
    assert_eq!(two.job.end(), 128 + 2, "{}", two.job.stderr());
    assert!(two.job.stderr().contains("`elastic-node stop` asks"), "{}", two.job.stderr());
    etcd.go_on();
    two.wait_for_takeover(2);
    two.assert_undisturbed();
    two.finish();
    assert_eq!(two.job.standby_end("second"), 0);
}

#[test]
fn a_driver_whose_standby_is_dead_ends_the_job_that_it_was_told_to_leave() {
    let Some(etcd) = Etcd::start() else { return };
    let mut two = job(&etcd.address().to_string());
    two.job.standby("second", &[]);
    let mut dead = two.job.standbys.remove("second").expect("it was started");
    dead.kill().and_then(|()| dead.wait()).expect("it was ours");
    signal(two.job.driver_pid(), Signal::SIGTERM);
    assert_eq!(two.job.end(), 128 + 15, "{}", two.job.stderr());
    assert_eq!(two.job.events_of("handed_over").len(), 1, "the standby counted as there");
    two.assert_agents_end(128 + 15);
}

#[test]
fn a_driver_that_was_asked_to_end_and_loses_its_lease_ends() {
    let Some(etcd) = Etcd::start() else { return };
    let mut two = job(&etcd.address().to_string());
    two.job.standby("second", &[]);
    etcd.stop();
    // Its disk is the store: the job's end cannot be recorded, and the lease ends first.
    signal(two.job.driver_pid(), Signal::SIGINT);
    assert_eq!(two.job.end(), 128 + 2, "{}", two.job.stderr());
    etcd.go_on();
    two.wait_for_takeover(2);
    two.job.wait_for_steps();
    two.assert_undisturbed();
    let acting = i32::try_from(two.job.standbys["second"].id()).expect("a process id");
    signal(acting, Signal::SIGTERM);
    assert_eq!(two.job.standby_end("second"), 128 + 15);
}

/// Milliseconds between two events, by the drivers' clocks.
fn ms_between(earlier: &Value, later: &Value) -> u128 {
    let time = |event: &Value| {
        let text = event["t"].as_str().expect("an event has its time");
        humantime::parse_rfc3339(text).expect("of RFC 3339")
    };
    time(later).duration_since(time(earlier)).expect("it comes later").as_millis()
}

#[test]
fn a_driver_hands_over_although_an_agent_is_frozen() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.address().to_string();
    let flags = [&DRIVER_FLAGS[..], &["--min-np", "1", "--grace-period", "3", "--store", &store]];
    let mut two = with_workers(Job::start(&flags.concat(), &[]));
    two.job.standby("second", &[]);
    let frozen = i32::try_from(two.job.agents["b"].id()).expect("a process id");
    signal(frozen, Signal::SIGSTOP);
    signal(two.job.driver_pid(), Signal::SIGTERM);
    two.job.wait_for_term(2);
    let handed_over = two.job.events_of("handed_over").pop().expect("it has handed over");
    let began = two.job.wait("the takeover of term 2", |job| {
        job.events_of("takeover_begun").into_iter().find(|event| event["term"] == 2)
    });
    assert!(ms_between(&handed_over, &began) < 6_000, "within the lease and a second");
    let ended = two.job.events_of("handed_over").len();
    assert_eq!((two.job.end(), ended), (0, 1), "the former driver's process ends, too");
    // The successor waits for the frozen agent as for all others, then goes on without it.
    two.job.wait_for_sizes(&[2, 1]);
    signal(frozen, Signal::SIGCONT);
    finish_under_the_second(two.job);
}

/// Two workers of which one is enough, an acting driver, and one standby.
fn job_that_may_shrink(etcd: &Etcd) -> Job {
    let store = etcd.address().to_string();
    let flags = [&DRIVER_FLAGS[..], &["--min-np", "1", "--store", &store]].concat();
    let mut job = with_workers(Job::start(&flags, &[])).job;
    job.standby("second", &[]);
    job
}

/// Waits until two workers train again under the former standby, and ends the job.
fn finish_under_the_second(mut job: Job) {
    job.wait("a generation of two again", |job| {
        (job.sizes().last() == Some(&2) && job.sizes().len() > 1).then_some(())
    });
    job.wait_for_progress();
    assert_eq!(job.status().expect("a status")["term"], 2);
    job.control("finish");
    assert_eq!(job.standby_end("second"), 0);
    job.assert_exact();
}

#[test]
fn a_worker_that_dies_with_the_driver_is_found_missing_by_the_next() {
    let Some(etcd) = Etcd::start() else { return };
    let mut job = job_that_may_shrink(&etcd);
    let victim = job.pid("b", 0);
    job.kill_driver();
    signal(victim, Signal::SIGKILL);
    finish_under_the_second(job);
}

#[test]
fn a_reset_that_forms_when_the_driver_is_killed_is_formed_by_the_next() {
    let Some(etcd) = Etcd::start() else { return };
    let mut job = job_that_may_shrink(&etcd);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("the decision", |job| job.events_of("reset_decided").pop());
    job.kill_driver();
    finish_under_the_second(job);
}

#[test]
fn a_driver_with_a_worker_on_the_same_machine_is_followed_all_the_same() {
    let Some(etcd) = Etcd::start() else { return };
    let mut job = job_that_may_shrink(&etcd);
    job.kill_driver();
    job.kill_agent("b");
    job.wait("a generation of one", |job| (job.sizes().last() == Some(&1)).then_some(()));
    job.wait_for_progress();
    job.agent("c", 1);
    finish_under_the_second(job);
}

#[test]
fn d_3_a_worker_started_after_a_handover_finds_the_driver_that_its_agent_was_not_given() {
    let Some(network) = Network::enter(4) else { return };
    let Some(etcd) = Etcd::start_at(HERE) else { return };
    let flags = ["--min-np", "1", "--store", &etcd.address().to_string()];
    let mut job = Job::start_at(network.place(0), &[&DRIVER_FLAGS[..], &flags].concat());
    // Their only address is the first driver's; over the loopback a worker hears of the drivers from the driver's order alone.
    agent_at(&mut job, "a", network.place(2));
    agent_at(&mut job, "b", network.place(3));
    job.wait_for_sizes(&[2]);
    job.standby_at("second", Some(network.place(1)), &[]);
    signal(job.driver_pid(), Signal::SIGTERM);
    assert_eq!(job.end(), 0, "it has handed over");
    let second = job.wait_for_term(2);
    let former = job.pid("a", 0);
    signal(former, Signal::SIGKILL);
    let pid = job.wait("another worker in its place", |job| {
        let status = job.status()?;
        let workers = status["workers"].as_array()?;
        let pids = workers.iter().filter(|it| it["host"] == "a" && it["rank"].is_u64());
        pids.filter_map(|it| it["pid"].as_i64()).find(|pid| *pid != i64::from(former))
    });
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).expect("it runs");
    let told = environment.split('\0').find_map(|it| it.strip_prefix("ELASTIC_DRIVER="));
    let first = job.address.split(',').next().unwrap_or_default();
    assert_eq!(told, Some([second.as_str(), first].join(",").as_str()));
    finish_under_the_second(job);
}

#[test]
fn another_jobs_place_is_refused() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.address().to_string();
    let two = job(&store);
    let state = two.job.path("state-other").display().to_string();
    let flags = ["--role", "driver", "--bind", "127.0.0.1:0", "--store", &store, "--state-dir"];
    let output = Command::new(binary())
        .args(flags)
        .args([&state, "--", "/bin/true"])
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("place of another job") && stderr.contains("hint:"), "{stderr}");
}
