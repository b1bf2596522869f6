//! A driver that is killed and started again: no worker stops for it (D-1 to D-4).

use std::fs;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Job, Random, binary, signal, wait_until};

fn job(flags: &[&str]) -> Job {
    let mut job = Job::start(flags, &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job
}

/// Waits until all nodes are back with a driver of this term.
fn wait_for_takeover(job: &mut Job, term: u64) -> Value {
    job.wait(&format!("the takeover of term {term}"), |job| {
        job.events_of("takeover_done").into_iter().find(|event| event["term"] == term)
    })
}

#[test]
fn d_3_a_driver_killed_at_any_moment_costs_nobody_anything() {
    let mut job = job(&["-n", "2"]);
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    let mut random = Random::new(7);
    for term in 2..=4 {
        let away_ms = random.below(1_500);
        job.kill_driver();
        job.pass_ms(away_ms);
        job.start_driver_again();
        let done = wait_for_takeover(&mut job, term);
        assert_eq!(done["lost"], 0);
        job.pass_ms(random.below(300));
    }
    job.wait_for_progress();
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "no worker was started again");
    assert_eq!(job.status().expect("a status")["term"], 4);
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2], "no generation but the first");
    assert!(job.events_of("reset_decided").is_empty(), "D-3");
    assert_eq!(job.events_of("worker_started").len(), 2, "D-1");
    for host in ["a", "b"] {
        assert_eq!(job.agent_end(host).code(), Some(0), "agent {host}");
    }
    job.assert_exact();
    assert!(!job.path("state/journal.redb").exists(), "the job is over");
}

/// The driver is killed. The next one takes the job over with these workers of hosts a and b, and the job ends well.
fn ends_well_under_another_driver(mut job: Job, pids: [i32; 2]) {
    job.kill_driver();
    job.start_driver_again();
    assert_eq!(wait_for_takeover(&mut job, 2)["lost"], 0);
    job.wait_for_steps();
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "D-3");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_12_a_state_directory_that_is_removed_is_written_anew_and_a_next_driver_finds_the_job() {
    let mut job = job(&["-n", "2"]);
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    fs::remove_dir_all(job.path("state")).expect("it is there");
    job.wait("what is told of it", |job| job.stderr().contains("is written anew").then_some(()));
    for name in ["journal.redb", "token", "address", "lock"] {
        assert!(job.path("state").join(name).exists(), "{name}");
    }
    assert!(job.status().is_some(), "the token is found without asking");
    ends_well_under_another_driver(job, pids);
}

#[test]
fn s_12_a_state_directory_that_comes_back_gets_what_the_job_did_meanwhile() {
    let mut job = job(&["-n", "2"]);
    let (state, aside) = (job.path("state"), job.path("aside"));
    fs::rename(&state, &aside).expect("it is there");
    job.wait("what is told of it", |job| job.stderr().contains("is written anew").then_some(()));
    let kill_and_wait = |job: &mut Job| {
        let before = job.generation();
        signal(job.pid("b", 0), Signal::SIGKILL);
        job.wait("a generation of two again", |job| {
            let status = job.status()?;
            let is_new = status["generation"].as_u64() > Some(before);
            (is_new && status["world_size"] == 2 && status["phase"] == "run").then_some(())
        });
        job.wait_for_steps();
    };
    kill_and_wait(&mut job);
    let (one, other) = (&state, &aside);
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).expect("both are ours");
    job.wait("what is told of the older one", |job| {
        job.stderr().contains("an older journal of this job").then_some(())
    });
    assert!(!job.stderr().contains("another driver"), "there is none");
    kill_and_wait(&mut job);
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    ends_well_under_another_driver(job, pids);
}

#[test]
fn s_2_a_driver_whose_address_somebody_else_has_waits_for_it_and_goes_on_without_its_event_log() {
    let mut job = job(&["-n", "2"]);
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    job.kill_driver();
    let stranger = std::net::UdpSocket::bind(&job.address).expect("the driver is gone");
    let (log, aside) = (job.path("state/events.jsonl"), job.path("aside"));
    fs::rename(&log, &aside).expect("it is there");
    fs::create_dir(&log).expect("ours");
    job.start_driver_again();
    let told = "the job waits for its driver, whose address is not free";
    job.wait("the warning", |job| job.stderr().contains(told).then_some(()));
    job.wait_for_steps();
    drop(stranger);
    let told = "the event log cannot be written";
    job.wait("what is told of the log", |job| job.stderr().contains(told).then_some(()));
    job.wait("the same job", |job| (job.status()?["term"] == 2).then_some(()));
    fs::remove_dir(&log).expect("nothing is in it");
    job.wait("another log", |_| log.is_file().then_some(()));
    job.wait_for_steps();
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "D-3");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_12_a_state_directory_that_cannot_be_read_is_told_so_with_the_system_s_reason() {
    let mut job = job(&["-n", "2"]);
    let (state, aside) = (job.path("state"), job.path("aside"));
    fs::write(&aside, "no folder").expect("ours");
    let (one, other) = (&state, &aside);
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).expect("both are ours");
    let told = "the state directory cannot be read, nor written anew";
    job.wait("what is told of it", |job| job.stderr().contains(told).then_some(()));
    let stderr = job.stderr();
    assert!(stderr.contains("Not a directory"), "{stderr}");
    assert!(!stderr.contains("was removed"), "it was not");
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).expect("both are ours");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_12_a_job_whose_log_was_put_aside_is_explained_also_when_what_began_it_is_gone() {
    const FILE_BYTES_MAX: usize = 64 << 20;
    let mut job = job(&["-n", "2", "--min-np", "1"]);
    job.kill_driver();
    let log = job.path("state/events.jsonl");
    let mut text = fs::read_to_string(&log).expect("a log");
    let last: Value = serde_json::from_str(text.lines().last().expect("lines")).expect("an event");
    let (at, words) = (last["t"].as_str().expect("a time"), "x".repeat(60_000));
    let line =
        format!(r#"{{"t":"{at}","term":1,"generation":1,"kind":"warning","message":"{words}"}}"#);
    // As after weeks: room for the line with which the next driver begins, and for few more.
    while text.len() + 500 < FILE_BYTES_MAX {
        let room = FILE_BYTES_MAX - 500 - text.len();
        let cut = line.len().saturating_sub(room + 1).min(words.len());
        text.push_str(&line.replacen(&words, &words[cut..], 1));
        text.push('\n');
    }
    fs::write(&log, text).expect("a long log");
    job.start_driver_again();
    let aside = job.path("state/events.jsonl.1");
    job.wait("a log that is put aside", |_| aside.exists().then_some(()));
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("a generation of two again", |job| {
        let status = job.status()?;
        (status["world_size"] == 2 && status["generation"].as_u64() > Some(1)).then_some(())
    });
    let state = job.path("state").display().to_string();
    // The driver that was started again has skipped a number, which the one before had reserved.
    let resets = job.events_of("reset_done");
    let ended = resets.last().expect("one that took the newcomer in")["from"].to_string();
    let ends = format!("Generation {ended} ended");
    for is_gone in [false, true] {
        if is_gone {
            fs::remove_file(&aside).expect("it is there");
        }
        let commands: [(&[&str], &str); 3] = [
            (&["explain", &ended, &state], &ends),
            (&["history", "--state-dir", &state], "interrupt"),
            (&["timeline", &state], "began a reset"),
        ];
        for (command, told) in commands {
            let shown = std::process::Command::new(binary()).args(command).output();
            let shown = shown.expect("it runs");
            let (stdout, stderr) = (shown.stdout, String::from_utf8_lossy(&shown.stderr));
            assert!(shown.status.success(), "is gone: {is_gone}: {stderr}");
            assert!(String::from_utf8_lossy(&stdout).contains(told), "{told}");
        }
    }
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn d_4_a_journal_that_is_older_than_the_job_is_refused_and_stops_nobody() {
    let mut job = job(&["-n", "2", "--min-np", "1"]);
    let journal = job.path("state/journal.redb");
    job.kill_driver();
    let earlier = fs::read(&journal).expect("a journal");
    job.start_driver_again();
    wait_for_takeover(&mut job, 2);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("a generation of two again", |job| {
        (job.sizes().last() == Some(&2) && job.sizes().len() > 1).then_some(())
    });
    job.wait_for_progress();
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    job.kill_driver();
    let newest = fs::read(&journal).expect("a journal");
    fs::write(&journal, earlier).expect("a backup is put back");
    job.start_driver_again();
    assert_eq!(job.end(), 1);
    let said = job.stderr();
    assert!(said.contains("its journal is older than the job"), "{said}");
    assert!(said.contains("the job goes on without it"), "{said}");
    job.wait_for_steps();
    fs::write(&journal, newest).expect("the newest one");
    job.start_driver_again();
    job.wait("the nodes are back", |job| (job.status()?["phase"] == "run").then_some(()));
    job.wait_for_steps();
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "D-3");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

/// A driver is started again while the source of its hosts' names, and its folder of checkpoints, are not there.
fn goes_on_without(flag: &str, source: &Path, put_back: impl FnOnce()) {
    let folder = source.parent().expect("a folder");
    let checkpoints = folder.join("checkpoints");
    let [named, saved] = [source, &checkpoints].map(|path| path.display().to_string());
    let flags = [flag, &named, "--min-np", "2", "--checkpoint", &saved];
    let mut job = job(&flags);
    job.agent("c", 1);
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    job.kill_driver();
    fs::remove_file(source).expect("it is there");
    // A job that has saved nothing yet has no folder.
    let _ = fs::remove_dir_all(&checkpoints);
    fs::write(&checkpoints, "no folder").expect("ours");
    job.start_driver_again();
    assert_eq!(wait_for_takeover(&mut job, 2)["lost"], 0);
    let stderr = job.stderr();
    for missing in [flag, "--checkpoint"] {
        let of_it = |line: &str| line.contains("goes on all the same") && line.contains(missing);
        assert!(stderr.lines().any(of_it), "{missing}: {stderr}");
    }
    job.wait_for_steps();
    fs::remove_file(&checkpoints).expect("ours");
    put_back();
    job.wait("the third host", |job| (job.sizes().last() == Some(&3)).then_some(()));
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "D-3");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_12_a_driver_that_is_started_again_goes_on_without_its_host_file_until_that_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "a:1\nb:1\n").expect("a file");
    goes_on_without("--hostfile", &hosts, || {
        fs::write(&hosts, "a:1\nb:1\nc:1\n").expect("a file");
    });
}

#[test]
fn s_12_a_driver_that_is_started_again_goes_on_without_its_script_until_that_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = Job::discovery_script(folder.path(), "a:1\nb:1");
    goes_on_without("--host-discovery-script", &script, || {
        Job::discovery_script(folder.path(), "a:1\nb:1\nc:1");
    });
}

#[test]
fn a_worker_that_dies_with_the_driver_is_found_missing() {
    let mut job = job(&["-n", "2", "--min-np", "1"]);
    let victim = job.pid("b", 0);
    job.kill_driver();
    signal(victim, Signal::SIGKILL);
    job.start_driver_again();
    job.wait("a generation of two again", |job| {
        (job.sizes().last() == Some(&2) && job.sizes().len() > 1).then_some(())
    });
    job.wait_for_progress();
    // The cause is the agent's report or the survivor's accusation, whichever comes first.
    let cause = job.first_reset()["cause"].to_string();
    assert!(cause.contains("b[0]#") || cause.contains("host b"), "{cause}");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn a_host_that_dies_with_the_driver_is_found_missing() {
    let mut job = job(&["-n", "2", "--min-np", "1"]);
    job.kill_driver();
    job.kill_agent("b");
    job.start_driver_again();
    job.wait("a generation of one", |job| (job.sizes().last() == Some(&1)).then_some(()));
    job.wait_for_progress();
    job.agent("c", 1);
    job.wait("a generation of two", |job| (job.sizes().last() == Some(&2)).then_some(()));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn a_driver_killed_while_a_reset_forms_goes_on_with_it() {
    let mut job = job(&["-n", "2", "--min-np", "1"]);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("the decision", |job| job.events_of("reset_decided").pop());
    job.kill_driver();
    job.start_driver_again();
    job.wait("a generation of two again", |job| {
        (job.sizes().last() == Some(&2) && job.sizes().len() > 1).then_some(())
    });
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn agents_of_the_local_launcher_go_on_and_are_taken_over() {
    let flags = ["-n", "2", "--launcher", "local", "--hosts", "a:1,b:1"];
    let mut job = Job::start(&flags, &[]);
    job.wait_for_sizes(&[2]);
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    job.kill_driver();
    job.pass_ms(300);
    job.start_driver_again();
    wait_for_takeover(&mut job, 2);
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids);
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2]);
    wait_until("the agents' end", || (!job.has_processes()).then_some(()));
}

#[test]
fn a_damaged_journal_and_a_strangers_are_refused() {
    let mut job = job(&["-n", "2"]);
    job.kill_driver();
    let journal = job.path("state/journal.redb");
    let whole = fs::read(&journal).expect("a journal");
    let state = job.path("state").display().to_string();
    let start = |program: &str| {
        let flags = ["--role", "driver", "--bind", "127.0.0.1:0", "--state-dir", &state, "--"];
        let output = std::process::Command::new(binary()).args(flags).arg(program).output();
        let output = output.expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, stderr) = start("/bin/true");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("unfinished job") && stderr.contains("hint:"), "{stderr}");
    for length in [0, whole.len() / 3] {
        fs::write(&journal, &whole[..length]).expect("cut");
        let (code, stderr) = start("/bin/true");
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("damaged") && stderr.contains("hint:"), "{stderr}");
    }
    fs::write(&journal, &whole).expect("mended");
    job.start_driver_again();
    wait_for_takeover(&mut job, 2);
    assert_eq!(job.finish(), 0);
}
