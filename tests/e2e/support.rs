//! A job for a test: driver, agents and workers as processes in a temporary folder. Used by all end-to-end tests.

mod reading;

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::network::Place;
use crate::ports::free_port;
use crate::sickness::{Disk, Sickness};

/// Timeout for anything that should take milliseconds; test machines are slow, and eight imports of torch on two busy
/// processors take half a minute.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_elastic-node")
}

pub(crate) fn program(name: &str) -> PathBuf {
    let folder = Path::new(binary()).parent().expect("the binary lies in a folder");
    let program = folder.join("examples").join(name);
    assert!(program.exists(), "build the examples first: cargo build --examples");
    program
}

/// A driver with its agents.
pub(crate) struct Job {
    pub(crate) folder: TempDir,
    pub(crate) driver: Child,
    /// The standbys, by name.
    pub(crate) standbys: BTreeMap<String, Child>,
    pub(crate) agents: BTreeMap<String, Child>,
    /// The addresses of the driver and of the standbys, separated by commas.
    pub(crate) address: String,
    /// The command that starts the driver, without its place.
    command: Vec<String>,
    /// The place where the driver runs; none: in the test's own namespace.
    place: Option<Place>,
    /// Variables added to the driver's environment.
    environment: Vec<(String, String)>,
    /// The disk of the state directory, where the test has made one.
    pub(crate) disk: Option<Disk>,
}

impl Job {
    /// Starts a driver of the trainer with these flags, and waits until it listens.
    pub(crate) fn start(driver_flags: &[&str], trainer_flags: &[&str]) -> Self {
        Self::start_in(&[], driver_flags, trainer_flags)
    }

    /// The same with more variables in the driver's environment.
    pub(crate) fn start_in(
        environment: &[(&str, &str)],
        driver_flags: &[&str],
        trainer_flags: &[&str],
    ) -> Self {
        let driver_flags = [driver_flags, &["--mode", "in-process"]].concat();
        Self::start_program_in(environment, &driver_flags, &trainer(trainer_flags))
    }

    /// The same with the driver at a place.
    pub(crate) fn start_at(place: &Place, driver_flags: &[&str]) -> Self {
        Self::start_trainer_at(place, driver_flags, &[])
    }

    /// The same with more flags for the trainer.
    pub(crate) fn start_trainer_at(
        place: &Place,
        driver_flags: &[&str],
        trainer_flags: &[&str],
    ) -> Self {
        let driver_flags = [driver_flags, &["--mode", "in-process"]].concat();
        let (trainer, sickness) = (trainer(trainer_flags), Sickness::default());
        Self::start_anywhere(Some(place.clone()), &[], &driver_flags, &trainer, sickness)
    }

    /// The same with faulty parts (see `Sickness`).
    pub(crate) fn start_sick(sickness: Sickness, driver_flags: &[&str]) -> Self {
        Self::start_sick_trainer(sickness, driver_flags, &[])
    }

    /// The same with flags for the training program.
    pub(crate) fn start_sick_trainer(
        sickness: Sickness,
        driver_flags: &[&str],
        program_flags: &[&str],
    ) -> Self {
        let driver_flags = [driver_flags, &["--mode", "in-process"]].concat();
        Self::start_anywhere(None, &[], &driver_flags, &trainer(program_flags), sickness)
    }

    /// The same with another program. In all flags, CONTROL, LOG and DIR stand for the test's folders.
    pub(crate) fn start_program(driver_flags: &[&str], program: &[String]) -> Self {
        Self::start_program_in(&[], driver_flags, program)
    }

    pub(crate) fn start_program_in(
        environment: &[(&str, &str)],
        driver_flags: &[&str],
        program: &[String],
    ) -> Self {
        Self::start_anywhere(None, environment, driver_flags, program, Sickness::default())
    }

    /// The same at a place, if one is given.
    pub(crate) fn start_anywhere(
        place: Option<Place>,
        environment: &[(&str, &str)],
        driver_flags: &[&str],
        program: &[String],
        sickness: Sickness,
    ) -> Self {
        let Sickness { disk, stderr } = sickness;
        let folder = TempDir::new().expect("a temporary folder");
        for name in ["control", "log", "out", "state"] {
            let path = folder.path().join(name);
            match &disk {
                Some(disk) if name == disk.holds => {
                    std::os::unix::fs::symlink(disk.path(), path).expect("a link");
                }
                _ => fs::create_dir(path).expect("a folder"),
            }
        }
        let fill = |text: &str| {
            let at = |name: &str| folder.path().join(name).display().to_string();
            text.replace("CONTROL", &at("control"))
                .replace("LOG", &at("log"))
                .replace("DIR", &folder.path().display().to_string())
        };
        let state = folder.path().join("state").display().to_string();
        // A test may name an address of its own.
        let is_bound = driver_flags.contains(&"--bind");
        let bind = (!is_bound).then(|| ["--bind".to_owned(), bind_at(place.as_ref())]);
        let mut command: Vec<String> =
            ["--role", "driver", "--state-dir", &state].map(ToOwned::to_owned).to_vec();
        command.extend(bind.into_iter().flatten());
        command.extend(driver_flags.iter().map(|flag| fill(flag)));
        command.push("--".to_owned());
        command.extend(program.iter().map(|part| fill(part)));
        let environment: Vec<(String, String)> =
            environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let (path, place_of_driver) = (folder.path(), place.as_ref());
        let mut starter = driver_starter(path, "driver", place_of_driver, &command, &environment);
        if let Some(stderr) = stderr {
            starter.stderr(stderr);
        }
        let driver = starter.spawn().expect("the driver starts");
        drop(starter);
        let (standbys, agents, address) = (BTreeMap::new(), BTreeMap::new(), String::new());
        let mut job =
            Self { folder, driver, standbys, agents, address, command, place, environment, disk };
        let file = job.path("state/address");
        job.address = job.wait("the driver's address", |job| {
            // A driver removes the file at its end, which may have come already: the event log has the address, too.
            let started = job.events_of("driver_started").pop();
            let address = fs::read_to_string(&file)
                .ok()
                .or_else(|| Some(started?["address"].as_str()?.to_owned()))?;
            (!address.trim().is_empty()).then(|| address.trim().to_owned())
        });
        job
    }

    /// Sends SIGKILL to the driver.
    pub(crate) fn kill_driver(&mut self) {
        self.driver.kill().expect("it runs");
        self.driver.wait().expect("it was ours");
    }

    /// Starts the driver again with the same command.
    pub(crate) fn start_driver_again(&mut self) {
        let (folder, place) = (self.folder.path(), self.place.as_ref());
        self.driver = start_driver(folder, "driver", place, &self.command, &self.environment);
    }

    /// The training program of this job, with its flags.
    pub(crate) fn program(&self) -> &[String] {
        let end = self.command.iter().position(|part| part == "--").expect("it has a program");
        &self.command[end + 1..]
    }

    /// Starts a standby, with the first driver's flags except for these, and waits until it is listed.
    pub(crate) fn standby(&mut self, name: &str, changed: &[(&str, &str)]) {
        self.standby_at(name, None, changed);
    }

    /// The same at a place.
    pub(crate) fn standby_at(
        &mut self,
        name: &str,
        place: Option<&Place>,
        changed: &[(&str, &str)],
    ) {
        let state = self.path(&format!("state-{name}")).display().to_string();
        let (bind, mut command) = (bind_at(place), self.command.clone());
        let own = [("--state-dir", state.as_str()), ("--bind", &bind)];
        for (flag, value) in own.iter().chain(changed) {
            let at = command.iter().position(|part| part == flag).expect("the first has that flag");
            command[at + 1] = (*value).to_owned();
        }
        command.insert(0, "--standby".to_owned());
        let known = self.standby_addresses();
        let child = start_driver(self.folder.path(), name, place, &command, &self.environment);
        self.standbys.insert(name.to_owned(), child);
        let address = self.wait(&format!("standby {name} in the list"), |job| {
            job.standby_addresses().into_iter().find(|address| !known.contains(address))
        });
        self.address = format!("{},{address}", self.address);
    }

    /// The addresses of the standbys that the acting driver knows.
    pub(crate) fn standby_addresses(&self) -> Vec<String> {
        let status = self.status().unwrap_or_default();
        let standbys = status["standbys"].as_array().cloned().unwrap_or_default();
        standbys.iter().filter_map(|it| Some(it["address"].as_str()?.to_owned())).collect()
    }

    /// Waits until a driver of this term acts; returns its address.
    pub(crate) fn wait_for_term(&mut self, term: u64) -> String {
        self.wait(&format!("a driver of term {term}"), |job| {
            let status = job.status().filter(|status| status["term"] == term)?;
            Some(status["driver"]["address"].as_str()?.to_owned())
        })
    }

    /// Waits for the end of a standby; returns its exit code.
    pub(crate) fn standby_end(&mut self, name: &str) -> i32 {
        let status = self.wait(&format!("the end of {name}"), |job| {
            job.standbys.get_mut(name)?.try_wait().ok()?
        });
        status.code().unwrap_or(-1)
    }

    /// Sends SIGKILL to an agent; its workers end with it.
    pub(crate) fn kill_agent(&mut self, host: &str) {
        let mut agent = self.agents.remove(host).expect("it was started");
        agent.kill().expect("it runs");
        agent.wait().expect("it was ours");
    }

    /// Lets time pass, in milliseconds: to reach a moment of the test's choice, not to wait for a condition.
    pub(crate) fn pass_ms(&self, ms: u64) {
        let until = now() + Duration::from_millis(ms);
        while now() < until {
            pause();
        }
    }

    /// Whether any process of this job runs.
    pub(crate) fn has_processes(&self) -> bool {
        !self.processes().is_empty()
    }

    /// The processes whose command line names this job's folder.
    fn processes(&self) -> Vec<i32> {
        let folder = self.folder.path().display().to_string();
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_ours = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            *pid != std::process::id() as i32
                && String::from_utf8_lossy(&line).contains(&folder)
                && is_running(*pid)
        };
        pids.filter(is_ours).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts an agent that joins.
    pub(crate) fn agent(&mut self, host: &str, slots: u32) {
        let child = self.agent_command(host, slots).spawn().expect("the agent starts");
        self.agents.insert(host.to_owned(), child);
    }

    /// The same for a host name that is no valid file name.
    pub(crate) fn agent_named(&mut self, host: &str) {
        let mut command = self.agent_command(host, 1);
        let child = command.spawn().expect("the agent starts");
        self.agents.insert(format!("{} characters", host.chars().count()), child);
    }

    /// Whether another user may start the program under test. No other user may if the sources lie in a folder of one
    /// user alone.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    pub(crate) fn is_reached_by(user: &str) -> bool {
        let mut test = Command::new("setpriv");
        test.arg(format!("--reuid={user}")).args(["--clear-groups", "test", "-x", binary()]);
        let is_reached = test.status().is_ok_and(|status| status.success());
        if !is_reached {
            eprintln!("not shown: user {user} does not reach {}", binary());
        }
        is_reached
    }

    /// Starts an agent as another user, who may read this job's folder and write the trainers' log. Needs root. `wrapper`
    /// comes before its command.
    pub(crate) fn agent_as(&mut self, wrapper: &[&str], user: &str, host: &str, slots: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        let file = self.path("state/token");
        let written = || fs::read_to_string(&file).ok().filter(|it| !it.is_empty());
        let token = wait_until("the token", written);
        for (folder, mode) in [("", 0o755), ("control", 0o755), ("log", 0o777)] {
            let folder = self.folder.path().join(folder);
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("it is ours");
        }
        let stderr = fs::File::create(self.path(&format!("agent.{host}.stderr")));
        let child = in_own_session()
            .args(wrapper)
            .arg("setpriv")
            .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"])
            .arg(binary())
            .args(["--role", "worker", "--join", &self.address, "--host", host])
            .args(["--slots", &slots.to_string()])
            .env("ELASTIC_TOKEN", token.trim())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr.expect("a file"))
            .spawn();
        self.agents.insert(host.to_owned(), child.expect("the agent starts"));
    }

    pub(crate) fn agent_command(&self, host: &str, slots: u32) -> Command {
        let safe: String = host.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        let stderr = self.path(&format!("agent.{safe}.stderr"));
        let stderr = fs::OpenOptions::new().create(true).append(true).open(stderr);
        let mut command = in_own_session();
        command
            .arg(binary())
            .args(["--role", "worker", "--join", &self.address, "--host", host])
            .args(["--slots", &slots.to_string(), "--token-file"])
            .arg(self.path("state/token"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr.expect("a file"));
        command
    }

    /// A discovery script that prints the file `hosts`, which `list_hosts` writes.
    pub(crate) fn discovery_script(folder: &Path, hosts: &str) -> PathBuf {
        let script = folder.join("discover.sh");
        fs::write(folder.join("hosts"), hosts).expect("a file");
        let text = format!("#!/bin/sh\ncat '{}'\n", folder.join("hosts").display());
        fs::write(&script, text).expect("a file");
        make_executable(&script);
        script
    }

    /// Writes a control file of the trainer.
    pub(crate) fn control(&self, name: &str) {
        fs::write(self.path("control").join(name), "").expect("a control file");
    }

    /// The driver's process.
    pub(crate) fn driver_pid(&self) -> i32 {
        i32::try_from(self.driver.id()).expect("a process id")
    }

    /// The process id of the worker on a slot; waits until there is one.
    pub(crate) fn pid(&mut self, host: &str, slot: u64) -> i32 {
        self.wait(&format!("the process of {host}[{slot}]"), |job| {
            let status = job.status()?;
            let worker = status["workers"].as_array()?.iter().find(|worker| {
                worker["host"] == host && worker["slot"] == slot && worker["rank"].is_u64()
            })?;
            i32::try_from(worker["pid"].as_i64()?).ok()
        })
    }

    /// Asks the trainers to finish, and waits for the driver's end; returns its exit code.
    pub(crate) fn finish(&mut self) -> i32 {
        self.control("finish");
        self.end()
    }

    /// Waits for the driver's end; returns its exit code.
    pub(crate) fn end(&mut self) -> i32 {
        let status = self.wait("the driver's end", |job| job.driver.try_wait().ok()?);
        status.code().unwrap_or(-1)
    }

    pub(crate) fn agent_end(&mut self, host: &str) -> ExitStatus {
        self.wait(&format!("the end of agent {host}"), |job| {
            job.agents.get_mut(host)?.try_wait().ok()?
        })
    }

    pub(crate) fn stderr(&self) -> String {
        let bytes = fs::read(self.path("driver.stderr")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(disk) = &self.disk {
            disk.thaw();
        }
        let drivers = self.standbys.values_mut().chain([&mut self.driver]);
        for child in self.agents.values_mut().chain(drivers) {
            // Workers die with their agents.
            let _ = child.kill();
            let _ = child.wait();
        }
        for pid in self.processes() {
            // Agents of the local launcher outlive their driver and wait for another.
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
    }
}

/// The training program of these tests, with more flags.
pub(crate) fn trainer(flags: &[&str]) -> Vec<String> {
    let program = program("trainer").display().to_string();
    let own = ["--control", "CONTROL", "--log", "LOG"];
    let flags = own.iter().chain(flags).map(|flag| (*flag).to_owned());
    std::iter::once(program).chain(flags).collect()
}

fn bind_at(place: Option<&Place>) -> String {
    match place {
        // Its network has no ports of other jobs.
        Some(place) => format!("{}:0", place.address),
        // A driver that is started again needs the same one.
        None => format!("{}:{}", Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)),
    }
}

fn start_driver(
    folder: &Path,
    name: &str,
    place: Option<&Place>,
    command: &[String],
    environment: &[(String, String)],
) -> Child {
    driver_starter(folder, name, place, command, environment).spawn().expect("the driver starts")
}

fn driver_starter(
    folder: &Path,
    name: &str,
    place: Option<&Place>,
    command: &[String],
    environment: &[(String, String)],
) -> Command {
    let file = |kind: &str| {
        let path = folder.join(format!("{name}.{kind}"));
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        file.expect("a file")
    };
    let mut whole = place.map(Place::wrapper).unwrap_or_default();
    whole.push(binary().to_owned());
    let mut starter = in_own_session();
    starter
        .args(whole)
        .args(command)
        // The list of jobs: not that of the user who runs the tests.
        .env("XDG_STATE_HOME", folder.join("user"))
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"));
    starter
}

/// Starts the program of its arguments in a session of its own. The kernel shares out processors by sessions first, and each worker
/// is one: a driver in the session of all tests would have as much of a processor as one of its workers, together with all tests.
fn in_own_session() -> Command {
    Command::new("setsid")
}

/// Reproducible random numbers (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, below a bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// A short wait between two looks at a condition.
pub(crate) fn pause() {
    std::thread::park_timeout(Duration::from_millis(15));
}

#[expect(clippy::disallowed_methods, reason = "real processes live in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits for a condition outside of a job.
pub(crate) fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(now() <= deadline, "waited in vain for {what}");
        pause();
    }
}

pub(crate) fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("the process is there");
}

/// Whether a process runs (a zombie does not).
pub(crate) fn is_running(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

pub(crate) fn make_executable(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("the file is ours");
}
