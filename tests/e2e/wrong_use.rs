//! Wrong command lines, through the binary (S-13): exit code 2, one clear error, a way out.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use super::support::{binary, now, pause};

/// A wrong command line: its environment, its words (FOLDER stands for the test's folder), and what the error names.
struct Wrong {
    environment: &'static [(&'static str, &'static str)],
    line: &'static [&'static str],
    names: &'static str,
}

const fn wrong(line: &'static [&'static str], names: &'static str) -> Wrong {
    Wrong { environment: &[], line, names }
}

const fn wrong_with(
    environment: &'static [(&'static str, &'static str)],
    line: &'static [&'static str],
    names: &'static str,
) -> Wrong {
    Wrong { environment, line, names }
}

const DRIVER: &str = "--role";

#[rustfmt::skip]
const LINES: &[Wrong] = &[
    // No command, or none that exists.
    wrong(&[], "no command and no role"),
    wrong(&["stauts"], "status"),
    wrong(&["rum", "-n", "2", "--", "x"], "run"),
    wrong(&["doktor"], "doctor"),
    wrong(&["version"], "--version"),
    wrong(&["completions", "basch"], "bash"),
    wrong(&["timeline", "/nope"], "/nope"),
    wrong(&["logs", "/nope"], "/nope"),
    wrong(&["doctor", "--join", "h:x"], "--join"),
    wrong(&["doctor", "--join", "127.0.0.1:1", "--interface", "nowhere7"], "--interface"),
    wrong(&["logs", "--rank", "one"], "--rank"),
    wrong(&["logs", "--host", ""], "--host"),
    wrong(&["man", "--output", "/nope"], "/nope"),
    wrong(&["--role", "drivr", "--", "x"], "driver"),
    wrong(&["--roll", "driver"], "--role"),
    wrong(&["--np", "3"], "no role"),
    wrong(&["-n", "3", "run", "--", "x"], "before `run`"),
    wrong(&["status", "--jsn"], "--json"),
    wrong(&["demo", "extra"], "extra"),
    wrong(&["lsit"], "list"),
    wrong(&["list", "--al"], "--al"),
    wrong(&["status"], "no job of this user"),
    wrong(&["status", "12345678"], "elastic-node list"),
    wrong(&["status", "1234", "--driver", "a:1"], "--driver"),
    wrong(&["explain"], "no job of this user"),
    wrong(&["explain", "yesterday"], "yesterday"),
    wrong(&["explain", "--job", "1234"], "elastic-node list"),
    wrong(&["explain", "last", "FOLDER/none"], "event log"),
    wrong(&["explain", "--state-dir", "FOLDER/none"], "event log"),
    wrong(&["logs", "--state-dir", "FOLDER/none"], "event log"),
    wrong(&["timeline", "--state-dir", "FOLDER/none"], "event log"),
    wrong(&["stop"], "no job of this user"),
    wrong(&["stop", "1234"], "elastic-node list"),
    wrong(&["drain"], "<HOST>"),
    wrong(&["drain", "b"], "no job of this user"),
    wrong(&["readmit", "b", "--job", "1234"], "elastic-node list"),
    wrong(&["forget"], "<JOB>"),
    wrong(&["forget", "1234"], "elastic-node list"),
    wrong(&["history"], "no job of this user"),
    wrong(&["history", "--state-dir", "FOLDER/none"], "event log"),
    wrong(&["replay", "FOLDER/none"], "recording"),
    wrong(&["report"], "--output"),
    wrong(&["report", "-o", "FOLDER/new"], "no job of this user"),
    wrong(&["report", "12345678", "-o", "FOLDER/new"], "elastic-node list"),
    wrong(&["report", "FOLDER", "-o", "FOLDER/new"], "no state directory"),
    wrong(&["report", "FOLDER/none", "-o", "FOLDER/new"], "no state directory"),
    wrong(&["report", "-o", "FOLDER/hosts"], "exists already"),
    wrong(&["report", "-o", "FOLDER/none/new"], "does not exist"),
    wrong(&["checkpoint", "lst", "FOLDER"], "list"),
    // Numbers.
    wrong(&["run", "-n", "0", "--", "x"], "at least 1"),
    wrong(&["run", "-n", "-1", "--", "x"], "-1"),
    wrong(&["run", "-n", "1000000", "--", "x"], "65536"),
    wrong(&["run", "-n", "4097", "--", "x"], "4096"),
    wrong(&["run", "-n", "many", "--", "x"], "many"),
    wrong(&["run", "-n", "2", "--max-np", "1", "--", "x"], "max"),
    wrong(&["run", "-n", "2", "--min-np", "3", "--", "x"], "min"),
    wrong(&["run", "-n", "9", "--shards", "8", "--", "x"], "--shards"),
    wrong(&["run", "-n", "2", "--max-np", "9", "--shards", "8", "--", "x"], "--max-np (9)"),
    wrong(&["run", "-n", "2", "--shards", "0", "--", "x"], "at least 1"),
    wrong(&["run", "-n", "1", "--shards", "1", "--", "x"], "at least 2"),
    wrong(&["run", "-n", "1", "--shards", "99999999999", "--", "x"], "at most 65536 shards"),
    wrong(&["run", "-n4097", "--", "x"], "4096"),
    wrong(&[DRIVER, "driver", "--elastic-timeout", "-5", "--", "x"], "elastic-timeout"),
    wrong(&[DRIVER, "driver", "--elastic-timeout", "NaN", "--", "x"], "elastic-timeout"),
    wrong(&[DRIVER, "driver", "--hang-timeout", "0", "--", "x"], "more than 0"),
    wrong(&[DRIVER, "driver", "--form-timeout", "soon", "--", "x"], "form-timeout"),
    wrong(&[DRIVER, "driver", "--reset-limit", "-1", "--", "x"], "reset-limit"),
    wrong(&[DRIVER, "driver", "--blacklist-cooldown-range", "10", "--", "x"], "two numbers"),
    wrong(&[DRIVER, "driver", "-H", "a:1", "--blacklist-cooldown-range", "20", "10", "--", "x"], "cooldown"),
    wrong(&["run", "--nproc-per-node", "some", "x.py"], "some"),
    wrong(&["run", "--nnodes", "3:2", "x.py"], "more than the most"),
    wrong(&["run", "--redirects", "9", "x.py"], "9"),
    wrong(&["run", "--output-prefix", "rnak", "--", "true"], "none, rank"),
    wrong(&["run", "--output-prefix", "{pid} ", "--", "true"], "{host}"),
    wrong(&["run", "--output-prefix", "{host ", "--", "true"], "{host"),
    wrong(&["run", "--output-prefix", "rank", "--log-line-prefix-template", "x", "--", "true"], "--output-prefix"),
    // Choices.
    wrong(&[DRIVER, "driver", "--mode", "restrat", "--", "x"], "restart"),
    wrong(&[DRIVER, "driver", "--launcher", "shh", "--", "x"], "ssh"),
    wrong(&[DRIVER, "driver", "--backend", "ncll", "--", "x"], "nccl"),
    wrong(&[DRIVER, "driver", "--on-failure", "ignore", "--", "x"], "blacklist"),
    wrong(&[DRIVER, "driver", "--on-hang", "kill", "--", "x"], "restart"),
    wrong(&[DRIVER, "driver", "--on-straggler", "hurry", "--", "x"], "replace"),
    wrong(&[DRIVER, "driver", "--on-straggler", "replace", "--mode", "restart", "--", "x"], "--on-straggler replace"),
    wrong(&["--log", "lots of", "--role", "driver", "--", "x"], "--log"),
    // Addresses.
    wrong(&[DRIVER, "driver", "--bind", "nowhere.invalid:1", "--", "x"], "nowhere.invalid"),
    wrong(&[DRIVER, "driver", "--bind", "192.0.2.1:7070", "--state-dir", "FOLDER/state", "--", "x"], "listen"),
    wrong(&[DRIVER, "driver", "--bind", "127.0.0.1:99999", "--", "x"], "99999"),
    wrong(&[DRIVER, "driver", "--bind", "255.255.255.255:0", "--", "x"], "a broadcast address"),
    wrong(&[DRIVER, "driver", "--bind", "127.255.255.255:0", "--", "x"], "a broadcast address"),
    wrong(&[DRIVER, "driver", "--bind", "[ff0e::1]:0", "--", "x"], "a multicast address"),
    wrong(&[DRIVER, "driver", "--dashboard", "224.0.0.1:0", "--", "x"], "a multicast address"),
    wrong(&[DRIVER, "driver", "--advertise", "", "--", "x"], "advertise"),
    wrong(&[DRIVER, "driver", "--advertise", "a b:1", "--", "x"], "a b:1"),
    wrong(&["--role", "worker"], "--join"),
    wrong(&["--role", "worker", "--join", ""], "--join"),
    wrong(&["--role", "worker", "--join", "a:b"], "--join"),
    wrong(&["status", "--driver", "a:b"], "a:b"),
    // Hosts.
    wrong(&[DRIVER, "driver", "-H", "", "--", "x"], "--hosts"),
    wrong(&[DRIVER, "driver", "-H", "hö st:1", "--", "x"], "no name of a host"),
    wrong(&[DRIVER, "driver", "-H", "a:0", "--", "x"], "--hosts"),
    wrong(&[DRIVER, "driver", "-H", "a:x", "--", "x"], "--hosts"),
    wrong(&[DRIVER, "driver", "-H", "a:1,a:1", "--", "x"], "--hosts"),
    wrong(&[DRIVER, "driver", "-H", "a:1", "--hostfile", "FOLDER/hosts", "--", "x"], "--hostfile"),
    wrong(&[DRIVER, "driver", "-H", "a:1", "-n", "2", "--", "x"], "slots"),
    wrong(&[DRIVER, "driver", "--hostfile", "FOLDER/none", "--", "x"], "no such file"),
    wrong(&[DRIVER, "driver", "--hostfile", "FOLDER", "--", "x"], "--hostfile"),
    wrong(&[DRIVER, "driver", "--hostfile", "FOLDER/nonsense", "--", "x"], "--hostfile"),
    wrong(&[DRIVER, "driver", "--host-discovery-script", "FOLDER/none", "--", "x"], "--host-discovery-script"),
    wrong(&[DRIVER, "driver", "--host-discovery-script", "FOLDER/hosts", "--", "x"], "chmod"),
    wrong(&[DRIVER, "driver", "--discovery", "http://x", "--", "x"], "dns://"),
    wrong(&[DRIVER, "driver", "--slots-per-host", "2", "--", "x"], "no hosts"),
    wrong(&[DRIVER, "driver", "--launcher", "ssh", "--", "x"], "hosts"),
    wrong(&["--role", "worker", "--join", "a:1", "--host", ""], "--host"),
    wrong(&["--role", "worker", "--join", "a:1", "--slots", "0"], "at least 1"),
    wrong(&["--role", "worker", "--join", "a:1", "--slots", "4097"], "at most 4096"),
    wrong(&[DRIVER, "driver", "-H", "a", "--slots-per-host", "4097", "--", "x"], "at most 4096"),
    // Programs.
    wrong(&[DRIVER, "driver"], "no program"),
    wrong(&[DRIVER, "driver", "--", ""], "empty"),
    wrong(&["run", "-n", "2"], "PROGRAM"),
    wrong(&["run", "-n", "2", "--", ""], "empty"),
    wrong(&["run", "-n", "2", ""], "empty"),
    wrong(&["run", "-n", "2", "--", "FOLDER/none"], "no such program"),
    wrong(&["run", "-n", "2", "--", "no-such-program-anywhere"], "no such program"),
    wrong(&["run", "-n", "2", "--", "FOLDER/hosts"], "chmod"),
    wrong(&["run", "-n", "2", "--", "FOLDER"], "folder"),
    wrong(&["run", "-n", "2", "FOLDER/none.py"], "no such script"),
    wrong(&["run", "-m", "--no-python", "x"], "--no-python"),
    wrong(&["run", "-n", "2", "--min-npp", "1", "x.py"], "--min-np"),
    wrong(&["run", "--slotz=4", "x.py"], "--slotz"),
    wrong(&["run", "-n", "2", "-u", "x.py"], "behind `--`"),
    // Files and folders.
    wrong(&[DRIVER, "driver", "--output-dir", "FOLDER/hosts", "--", "x"], "no folder"),
    wrong(&[DRIVER, "driver", "--checkpoint", "FOLDER/hosts", "--", "x"], "no folder"),
    wrong(&["run", "--checkpoint", "FOLDER/step-0000000003", "--", "true"], "--resume"),
    wrong(&[DRIVER, "driver", "--umask", "700", "--", "x"], "027"),
    wrong(&["run", "--log-dir", "FOLDER/hosts", "--tee", "3", "--", "true"], "--log-dir"),
    wrong(&[DRIVER, "driver", "--bind", "127.0.0.1:0", "--state-dir", "FOLDER/hosts", "--", "x"], "--state-dir"),
    wrong(&[DRIVER, "driver", "--bind", "127.0.0.1:0", "--state-dir", "/proc/nothing", "--", "x"], "--state-dir"),
    wrong(&["--role", "worker", "--join", "127.0.0.1:1", "--token-file", "/nope/token"], "--token-file"),
    wrong(&["--role", "worker", "--join", "127.0.0.1:1", "--token-file", "FOLDER/hosts"], "chmod"),
    wrong(&["--role", "worker", "--join", "127.0.0.1:1", "--token", "abc"], "token"),
    wrong(&["--role", "worker", "--join", "a:1", "--token", "a", "--token-file", "b"], "token"),
    wrong(&["status", "--driver", "127.0.0.1:1", "--token-file", "/nope"], "--token-file"),
    // The configuration file.
    wrong(&["run", "--config", "FOLDER/none.toml", "--", "true"], "none.toml"),
    wrong(&["run", "--config", "FOLDER", "--", "true"], "cannot be read"),
    wrong(&["run", "--config", "FOLDER/broken.toml", "--", "true"], "broken.toml, line 2, column 8"),
    wrong(&[DRIVER, "driver", "--config", "FOLDER/key.toml", "--", "x"], "did you mean min-np?"),
    wrong(&[DRIVER, "driver", "--config", "FOLDER/table.toml", "--", "x"], "did you mean [driver]?"),
    wrong(&["--role", "worker", "--config", "FOLDER/role.toml"], "role.toml, line 2: np"),
    wrong(&["run", "--config", "FOLDER/type.toml", "--", "true"], "type.toml, line 1: np takes"),
    wrong(&["run", "--config", "FOLDER/value.toml", "--", "true"], "value.toml, line 1: mode"),
    wrong(&["--role", "worker", "--config", "FOLDER/secret.toml"], "token-file"),
    wrong(&["run", "--config", "FOLDER/twice.toml", "--", "true"], "contradict"),
    wrong(&["--config", "FOLDER/value.toml"], "no role"),
    wrong(&["config", "show", "status"], "config show run"),
    wrong(&["config", "show", "-n", "0"], "at least 1"),
    wrong(&["config", "sohw"], "show"),
    // The store.
    wrong(&[DRIVER, "driver", "--store", "http://a:1", "--", "x"], "etcd://"),
    wrong(&[DRIVER, "driver", "--standby", "--", "x"], "--store"),
    wrong(&[DRIVER, "driver", "--store", "etcd://a:1", "--lease-timeout", "0.1", "--", "x"], "--lease-timeout"),
    wrong(&[DRIVER, "driver", "--store", "etcd://a:1", "--store-ca", "/nope", "--", "x"], "--store-ca"),
    wrong(&[DRIVER, "driver", "--store", "etcd://a:1", "--store-cert", "FOLDER/hosts", "--", "x"], "--store-key"),
    wrong(&[DRIVER, "driver", "--store", "etcd://a:1", "--store-ca", "FOLDER/hosts", "--", "x"], "PEM"),
    wrong(&[DRIVER, "driver", "--store-secret", "FOLDER/hosts", "--", "x"], "--store"),
    wrong(&[DRIVER, "driver", "--store", "etcd://a:1", "--store-secret", "FOLDER/open", "--", "x"], "chmod 600"),
    // Contradictions.
    wrong(&[DRIVER, "driver", "--token-file", "x", "--", "x"], "--role worker"),
    wrong(&["--role", "worker", "--join", "a:1", "--min-np", "1"], "--role driver"),
    wrong(&["--role", "worker", "--join", "a:1", "--", "x"], "no program"),
    wrong(&[DRIVER, "driver", "--encrypt-data", "--backend", "nccl", "--", "x"], "contradict"),
    wrong(&["run", "--launcher", "join", "--", "x"], "--launcher"),
    wrong(&["run", "-n", "2", "--nproc-per-node", "3", "--", "true"], "--nproc-per-node 3"),
    wrong(&["run", "--grace-period", "2", "--shutdown-timeout", "3", "x.py"], "--shutdown-timeout 3"),
    wrong(&["run", "--output-dir", "FOLDER/a", "--log-dir", "FOLDER/b", "--", "true"], "--log-dir"),
    wrong(&["run", "--mode", "restart", "--on-divergence", "fail", "--", "true"], "--on-divergence"),
    wrong(&["run", "--node-rank", "1", "x.py"], "--nnodes"),
    wrong(&["run", "--nnodes", "2", "x.py"], "--rdzv-endpoint"),
    // From the environment.
    wrong_with(&[("ELASTIC_LOG", "debgu")], &["run", "--", "true"], "debug"),
    wrong_with(&[("ELASTIC_NP", "some")], &[DRIVER, "driver", "--", "x"], "some"),
    wrong_with(&[("ELASTIC_ROLE", "boss")], &[], "boss"),
    wrong_with(&[("ELASTIC_BIND", "a b")], &[DRIVER, "driver", "--", "x"], "a b"),
    wrong_with(&[("ELASTIC_CONFIG", "/nope")], &["run", "--", "true"], "/nope"),
    wrong_with(&[("PET_MAX_RESTARTS", "x")], &["run", "--", "true"], "PET_MAX_RESTARTS"),
    wrong_with(&[("PATH", "/nope")], &["run", "x.py"], "PYTHON_EXEC"),
];

fn command(folder: &Path, wrong: &Wrong) -> Command {
    let mut command = Command::new(binary());
    let fill = |word: &&str| word.replace("FOLDER", &folder.display().to_string());
    command
        .args(wrong.line.iter().map(fill))
        .envs(wrong.environment.iter().copied())
        .env("HOME", folder)
        .env_remove("XDG_STATE_HOME")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Time limit of one command line: none of them asks the network for anything.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Runs a command line that must end by itself.
fn output(mut command: Command) -> Option<Output> {
    let mut child = command.spawn().expect("it starts");
    let until = now() + ENDS_WITHIN;
    while child.try_wait().expect("ours").is_none() {
        if now() > until {
            child.kill().expect("ours");
            child.wait().expect("ours");
            return None;
        }
        pause();
    }
    Some(child.wait_with_output().expect("it ended"))
}

/// Fault of the answer to a wrong command line; `None` if it is right.
fn fault(wrong: &Wrong, output: Option<&Output>) -> Option<String> {
    let Some(output) = output else { return Some("it did not end".to_owned()) };
    let stderr = String::from_utf8_lossy(&output.stderr);
    let errors = stderr.lines().filter(|line| line.starts_with("error:")).count();
    let ways_out = ["hint:", "tip:", "Usage:", "possible values", "--help"];
    let faults = [
        (output.status.code() != Some(2), format!("exit code {:?}", output.status.code())),
        (errors != 1, format!("{errors} errors")),
        (!stderr.contains(wrong.names), format!("does not name {:?}", wrong.names)),
        (!ways_out.iter().any(|way| stderr.contains(way)), "no way out".to_owned()),
        (!output.stdout.is_empty(), "says something on stdout".to_owned()),
    ];
    let faults: Vec<String> =
        faults.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, text)| text).collect();
    (!faults.is_empty()).then(|| format!("{}\n{stderr}", faults.join(", ")))
}

#[test]
fn s_13_wrong_command_lines_end_with_code_2_one_error_and_a_way_out() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("hosts", "a:1\n"),
        ("nonsense", "a b c d\n"),
        ("open", "a text that is long enough for a secret\n"),
        ("broken.toml", "np = 4\nmin-np 2\n"),
        ("key.toml", "np = 4\nmim-np = 2\n"),
        ("table.toml", "[drivre]\nnp = 4\n"),
        ("role.toml", "[worker]\nnp = 4\n"),
        ("type.toml", "np = true\n"),
        ("value.toml", "mode = \"restrat\"\n"),
        ("secret.toml", "[worker]\ntoken = \"abc\"\n"),
        ("twice.toml", "np = 2\nnproc-per-node = 2\n"),
    ] {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let of_step = folder.path().join("step-0000000003");
    fs::create_dir(&of_step).expect("a folder");
    fs::write(of_step.join("manifest.json"), "{}").expect("written");
    let faults: Vec<String> = LINES
        .iter()
        .filter_map(|wrong| {
            let output = output(command(folder.path(), wrong));
            let fault = fault(wrong, output.as_ref())?;
            Some(format!("{:?} {:?}: {fault}", wrong.environment, wrong.line))
        })
        .collect();
    assert!(LINES.len() >= 60, "{} lines", LINES.len());
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), LINES.len(), faults.join("\n"));
}

/// Runs `elastic-node` with a folder of its own.
fn run(environment: &'static [(&str, &str)], line: &'static [&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = Wrong { environment, line, names: "" };
    let output = output(command(folder.path(), &wrong)).expect("it ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn s_13_a_variable_that_is_nearly_a_flag_s_is_warned_of() {
    let (code, stderr) = run(&[("ELASTIC_MIM_NP", "1")], &["run", "-n", "1", "--", "true"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("ELASTIC_MIM_NP sets nothing: did you mean ELASTIC_MIN_NP?"),
        "{stderr}"
    );
    let (_, stderr) = run(&[("ELASTIC_NP", "1")], &["run", "--", "true"]);
    assert!(!stderr.contains("sets nothing"), "{stderr}");
}

/// The exit code and stderr of a command that must not wait; 124 if it does.
fn run_at_once(line: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("timeout").arg("20").arg(binary()).args(line).output();
    let output = output.expect("coreutils");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn s_13_a_pipe_or_a_folder_in_the_place_of_a_file_is_refused_at_once_and_named() {
    let make = |pipe: &Path| {
        nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR)
            .expect("a pipe");
    };
    for name in ["lock", "events.jsonl", "journal.redb"] {
        let folder = tempfile::tempdir().expect("a folder");
        make(&folder.path().join(name));
        let state = folder.path().display().to_string();
        let (code, stderr) = run_at_once(&["run", "-n", "1", "--state-dir", &state, "--", "true"]);
        assert!(matches!(code, Some(1 | 2)), "{name}: {code:?}: {stderr}");
        assert!(stderr.contains("is no plain file") && stderr.contains(name), "{name}: {stderr}");
    }
    for name in ["token", "address", "events.jsonl"] {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join(name)).expect("a folder");
        let state = folder.path().display().to_string();
        let run = ["run", "-n", "1", "--state-dir", &state, "--", "true"];
        // The second time, too: nothing is begun at the first.
        for _ in 0..2 {
            let (code, stderr) = run_at_once(&run);
            assert_eq!(code, Some(2), "{name}: {stderr}");
            let said = format!("a folder stands in the place of the driver's file {state}/{name}");
            assert!(stderr.contains(&said) && stderr.contains("hint:"), "{name}: {stderr}");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    make(&pipe);
    let pipe = pipe.display().to_string();
    let join = ["--role", "worker", "--join", "127.0.0.1:1", "--host", "a", "--token-file", &pipe];
    let (code, stderr) = run_at_once(&join);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("is no plain file") && stderr.contains(&pipe), "{stderr}");
}

#[test]
fn s_13_a_file_without_an_end_or_far_too_long_is_refused_and_not_read_into_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long");
    // Sparse: it takes no room on the disk.
    fs::File::create(&long).and_then(|file| file.set_len(3 << 30)).expect("a file");
    let long = long.display().to_string();
    let driver = ["--role", "driver", "--bind", "127.0.0.1:0"];
    let store = ["--store", "etcd://127.0.0.1:1"];
    for (flags, said) in [
        (vec!["--hostfile", &long], "more than 1048576 bytes"),
        ([&store[..], &["--store-ca", &long]].concat(), "more than 1048576 bytes"),
        ([&store[..], &["--store-ca", "/dev/zero"]].concat(), "is no plain file"),
    ] {
        let (code, stderr) = run_at_once(&[&driver[..], &flags, &["--", "true"]].concat());
        assert_eq!(code, Some(2), "{flags:?}: {stderr}");
        assert!(stderr.contains(said) && stderr.contains(flags[flags.len() - 1]), "{stderr}");
        assert!(!stderr.contains("stdout"), "{stderr}");
    }
}

#[test]
fn s_13_a_binary_without_dashes_is_run_as_it_is() {
    let (code, stderr) = run(&[], &["run", "-n", "1", "/bin/true"]);
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn g_9_a_store_that_never_answers_ends_the_driver_with_code_1_and_the_reason() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let state = folder.path().display().to_string();
    let begun = now();
    let output = Command::new(binary())
        .args(["--role", "driver", "--bind", "127.0.0.1:0", "--state-dir", &state])
        .args(["--store", "etcd://127.0.0.1:1", "--", "true"])
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the store does not answer"), "at once: {stderr}");
    assert!(stderr.contains("error: the store etcd://127.0.0.1:1"), "{stderr}");
    assert!(stderr.contains("hint: is etcd running there"), "{stderr}");
    assert!(begun.elapsed().as_secs() >= 30, "it may come up with the driver: {stderr}");
}
