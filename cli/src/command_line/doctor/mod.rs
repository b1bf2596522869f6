//! `doctor`: this host's resources, the ones that will be used, and problems with hints. A table for people, or one
//! JSON object; exit code 1 if there is a problem. Called by `main`; `join` tries the way to a driver, with
//! `driver_clock` and `data_ports`; `control_group` reads the limits of the host's workers.

mod control_group;
mod data_ports;
mod driver_clock;
mod join;

use std::net::TcpListener;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use elastic_agent::host;
use elastic_gpu::cuda::{Cuda, Device, DeviceFacts};
use elastic_gpu::load::{CUDA_LIBRARY, LibrarySearch, LoadError, NCCL_LIBRARY, WantedLibrary};
use elastic_gpu::nccl::{Features, Nccl};
use elastic_gpu::{Backend, Settings, describe_error};
use nix::sys::resource::{Resource, getrlimit};
use serde::Serialize;

use self::control_group::GroupLimits;
use self::join::{JoinFlags, JoinReport};
use super::failure::{CommandFailure, ResultExt};
use super::stdout::print_line;
use super::values::DEFAULT_PORT;

/// Fewest open files for a host of many workers: each worker has a link to every other.
const OPEN_FILES_WANTED: u64 = 4_096;
/// Least shared memory, in bytes, with which the collectives of one host need not fall back to TCP.
const SHARED_MEMORY_WANTED: u64 = 256 << 20;
/// 2025-01-01 as time since the Unix epoch: an earlier wall clock is not set.
const CLOCK_FLOOR: Duration = Duration::from_secs(1_735_689_600);

/// Flags of `doctor`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorFlags {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The value of --backend to check for
    #[arg(long, env = elastic_gpu::BACKEND, value_name = "BACKEND", default_value = "auto",
          value_parser = ["auto", "cpu", "nccl"])]
    backend: String,
    /// The driver that an agent of this host would join.
    #[command(flatten)]
    join: JoinFlags,
}

/// All findings about this host.
#[derive(Debug, Default, Serialize)]
struct DoctorReport {
    host: Option<String>,
    slots: u32,
    gpus: Vec<DeviceFacts>,
    driver: Option<LibraryReport>,
    runtime: Option<LibraryReport>,
    nccl: Option<NcclReport>,
    shared_memory: SpaceReport,
    port: PortReport,
    clock: ClockReport,
    open_files: LimitReport,
    /// The limits of the control group; none without cgroup v2.
    control_group: Option<GroupLimits>,
    /// The way to the driver of `--join`.
    #[serde(skip_serializing_if = "Option::is_none")]
    join: Option<JoinReport>,
    /// The collectives that workers will use, and why.
    used: Used,
    /// The problems found.
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct LibraryReport {
    version: Option<String>,
    file: String,
    found: &'static str,
}

#[derive(Debug, Serialize)]
struct NcclReport {
    #[serde(flatten)]
    library: LibraryReport,
    features: Features,
}

#[derive(Debug, Default, Serialize)]
struct SpaceReport {
    total_bytes: u64,
    free_bytes: u64,
}

#[derive(Debug, Default, Serialize)]
struct PortReport {
    port: u16,
    is_free: bool,
}

#[derive(Debug, Default, Serialize)]
struct ClockReport {
    unix_seconds: u64,
    is_plausible: bool,
}

#[derive(Debug, Default, Serialize)]
struct LimitReport {
    soft: u64,
    hard: u64,
}

#[derive(Debug, Default, Serialize)]
struct Used {
    collectives: &'static str,
    reason: String,
}

/// A problem on this host, present or possible.
#[derive(Debug, Serialize)]
struct Problem {
    /// Whether a job would fail; otherwise it only runs slower.
    is_fatal: bool,
    what: String,
    hint: String,
}

/// Examines this host and prints the findings.
pub(crate) fn run_doctor(flags: &DoctorFlags) -> Result<(), CommandFailure> {
    let backend: Backend = flags.backend.parse().unwrap_or_default();
    let lookup = |name: &str| std::env::var(name).ok();
    let mut report = examine(&LibrarySearch::from_environment(lookup), backend);
    if let Err(error) = Settings::parse(lookup) {
        report.problem(true, error.to_string(), "unset the variable, or give one of these values");
    }
    flags.join.examine(&mut report)?;
    let text = match flags.json {
        true => serde_json::to_string(&report).failed("the report cannot be written as JSON")?,
        false => report.describe(),
    };
    print_line(&text)?;
    let fatal = report.problems.iter().filter(|problem| problem.is_fatal).count();
    match fatal {
        0 => Ok(()),
        1 => Err(CommandFailure::new("a job would fail on this host: see the problem above")),
        _ => Err(CommandFailure::new(format!("a job would fail on this host: {fatal} problems"))),
    }
}

/// The findings about this host as JSON, for a support bundle.
pub(super) fn host_findings() -> serde_json::Result<serde_json::Value> {
    let search = LibrarySearch::from_environment(|name| std::env::var(name).ok());
    serde_json::to_value(examine(&search, Backend::Auto))
}

fn examine(search: &LibrarySearch, backend: Backend) -> DoctorReport {
    let mut report = DoctorReport {
        host: host::host_name().ok().map(|name| name.to_string()),
        slots: host::slots(),
        ..DoctorReport::default()
    };
    let cuda = report.opened(Cuda::open(search), CUDA_LIBRARY, backend);
    let nccl = report.opened(Nccl::open(search), NCCL_LIBRARY, backend);
    report.libraries(search, cuda.as_ref(), nccl.as_ref());
    report.used(backend, cuda.is_some(), nccl.as_ref());
    report.machine();
    report
}

impl DoctorReport {
    fn problem(&mut self, is_fatal: bool, what: impl Into<String>, hint: impl Into<String>) {
        self.problems.push(Problem { is_fatal, what: what.into(), hint: hint.into() });
    }

    /// Returns a library that was opened, if there is one; a broken library is a problem, a missing one is not.
    fn opened<T>(
        &mut self,
        opened: Result<Option<T>, LoadError>,
        variable: &str,
        backend: Backend,
    ) -> Option<T> {
        opened.unwrap_or_else(|error| {
            let is_fatal = backend == Backend::Nccl || std::env::var_os(variable).is_some();
            let hint = format!("install it again, or name another one with {variable}");
            self.problem(is_fatal, describe_error(&error), hint);
            None
        })
    }

    fn libraries(&mut self, search: &LibrarySearch, cuda: Option<&Cuda>, nccl: Option<&Nccl>) {
        if let Some(cuda) = cuda {
            let file = cuda.file().display().to_string();
            self.driver =
                Some(LibraryReport { version: Some(cuda.version()), file, found: cuda.how() });
            match Device::count(cuda) {
                Ok(count) => {
                    let facts = (0..count).map(|ordinal| Device::facts_of(cuda, ordinal));
                    self.gpus = facts.filter_map(Result::ok).collect();
                }
                Err(error) => {
                    self.problem(false, error.to_string(), "see whether `nvidia-smi` works");
                }
            }
        }
        if let Ok(Some(found)) = search.open(WantedLibrary::Runtime) {
            let file = found.library.file().display().to_string();
            self.runtime = Some(LibraryReport { version: None, file, found: found.how });
        }
        if let Some(nccl) = nccl {
            let library = LibraryReport {
                version: Some(nccl.version().to_string()),
                file: nccl.file().display().to_string(),
                found: nccl.how(),
            };
            self.nccl = Some(NcclReport { library, features: nccl.features() });
            if let Some(fault) = nccl.known_fault() {
                self.problem(false, fault, "install NCCL 2.29 or newer");
            }
        }
    }

    fn used(&mut self, backend: Backend, has_driver: bool, nccl: Option<&Nccl>) {
        let missing = match (has_driver, self.gpus.len(), nccl) {
            (false, ..) => Some(("no CUDA driver", "install NVIDIA's driver")),
            (_, 0, _) => Some(("no GPU", "see `nvidia-smi`, and CUDA_VISIBLE_DEVICES")),
            (.., None) => Some(("no NCCL", "pip install nvidia-nccl-cu13, or NVIDIA's package")),
            _ => None,
        };
        self.used = match (backend, missing) {
            (Backend::Cpu, _) => Used { collectives: "cpu", reason: "--backend cpu".to_owned() },
            (_, None) => {
                Used { collectives: "nccl", reason: format!("{} GPUs and NCCL", self.gpus.len()) }
            }
            (_, Some((what, _))) => Used { collectives: "cpu", reason: what.to_owned() },
        };
        if let (Backend::Nccl, Some((what, hint))) = (backend, missing) {
            self.problem(true, format!("--backend nccl is demanded, but there is {what}"), hint);
        } else if let (Backend::Auto, true, Some((what, hint))) =
            (backend, !self.gpus.is_empty(), missing)
        {
            self.problem(false, format!("the GPUs are not used for collectives: {what}"), hint);
        }
    }

    fn machine(&mut self) {
        if let Ok(space) = nix::sys::statvfs::statvfs("/dev/shm") {
            let unit = space.fragment_size();
            self.shared_memory = SpaceReport {
                total_bytes: space.blocks() * unit,
                free_bytes: space.blocks_available() * unit,
            };
        }
        let free = self.shared_memory.free_bytes;
        if free < SHARED_MEMORY_WANTED {
            let what = format!("/dev/shm has {} MiB free", free >> 20);
            self.problem(
                false,
                what,
                "give it more: `mount -o remount,size=2G /dev/shm`, or --shm-size",
            );
        }
        let is_free = TcpListener::bind(("127.0.0.1", DEFAULT_PORT)).is_ok()
            && std::net::UdpSocket::bind(("127.0.0.1", DEFAULT_PORT)).is_ok();
        self.port = PortReport { port: DEFAULT_PORT, is_free };
        if !is_free {
            let what = format!("the driver's default port {DEFAULT_PORT} is taken");
            self.problem(
                false,
                what,
                "a job runs there already, or give the driver another --bind",
            );
        }
        let now = wall_clock();
        let is_plausible = now >= CLOCK_FLOOR;
        self.clock = ClockReport { unix_seconds: now.as_secs(), is_plausible };
        if !is_plausible {
            let what = "the clock is not set, and certificates depend on it";
            self.problem(true, what, "set it: `timedatectl set-ntp true`");
        }
        if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
            self.open_files = LimitReport { soft, hard };
            // A worker raises its own soft limit as far as it may.
            if hard < OPEN_FILES_WANTED {
                let what = format!("a process may have at most {hard} files open");
                self.problem(
                    false,
                    what,
                    format!("`ulimit -Hn {OPEN_FILES_WANTED}` for large worlds"),
                );
            }
        }
        self.control_group = GroupLimits::own();
        let shortages = self.control_group.as_ref().map(|limits| limits.shortages(self.slots));
        for (what, hint) in shortages.unwrap_or_default() {
            self.problem(false, what, hint);
        }
    }

    fn describe(&self) -> String {
        let none = || "none".to_owned();
        let library = |library: &LibraryReport| {
            let version = library.version.as_deref().unwrap_or("there");
            format!("{version}, {} (found {})", library.file, library.found)
        };
        let mut lines = vec![
            format!("host           {}", self.host.clone().unwrap_or_else(none)),
            format!("slots          {}", self.slots),
        ];
        if self.gpus.is_empty() {
            lines.push("GPUs           none".to_owned());
        }
        for gpu in &self.gpus {
            let memory = gpu.memory_bytes >> 30;
            lines.push(format!(
                "GPU {}          {}, {}, {memory} GiB",
                gpu.ordinal, gpu.name, gpu.bus
            ));
        }
        lines.push(format!("CUDA driver    {}", self.driver.as_ref().map_or_else(none, library)));
        lines.push(format!("CUDA runtime   {}", self.runtime.as_ref().map_or_else(none, library)));
        match &self.nccl {
            None => lines.push("NCCL           none".to_owned()),
            Some(nccl) => {
                lines.push(format!("NCCL           {}", library(&nccl.library)));
                lines.push(format!("               can {}", describe_features(nccl.features)));
            }
        }
        let space = &self.shared_memory;
        lines.push(format!(
            "shared memory  {} MiB free of {} MiB",
            space.free_bytes >> 20,
            space.total_bytes >> 20
        ));
        let state = if self.port.is_free { "free" } else { "taken" };
        lines.push(format!("port {}      {state}", self.port.port));
        let clock = if self.clock.is_plausible { "set" } else { "not set" };
        lines.push(format!("clock          {clock}"));
        let LimitReport { soft, hard } = self.open_files;
        lines.push(format!("open files     {soft} (at most {hard})"));
        let group = self.control_group.as_ref().map(GroupLimits::describe);
        lines
            .push(format!("control group  {}", group.unwrap_or_else(|| "no cgroup v2".to_owned())));
        let Used { collectives, reason } = &self.used;
        lines.push(format!("collectives    {collectives}: {reason}"));
        lines.extend(self.join.iter().flat_map(JoinReport::describe));
        for Problem { is_fatal, what, hint } in &self.problems {
            let kind = if *is_fatal { "error" } else { "warning" };
            lines.push(format!("\n{kind}: {what}\nhint: {hint}"));
        }
        lines.join("\n")
    }
}

fn describe_features(features: Features) -> String {
    let Features { split, shrink, revoke, grow, several_ranks_per_gpu } = features;
    let all = [
        (split, "split"),
        (shrink, "shrink"),
        (revoke, "revoke"),
        (grow, "grow"),
        (several_ranks_per_gpu, "several ranks on one GPU"),
    ];
    let names: Vec<&str> = all.into_iter().filter_map(|(has, name)| has.then_some(name)).collect();
    if names.is_empty() {
        "nothing of split, shrink, revoke and grow".to_owned()
    } else {
        names.join(", ")
    }
}

#[expect(clippy::disallowed_methods, reason = "the wall clock itself is examined")]
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_gpus_uses_the_cpu_and_that_is_no_problem() {
        let report = examine(&LibrarySearch::default(), Backend::Auto);
        assert_eq!(report.used.collectives, "cpu");
        assert_eq!(report.used.reason, "no CUDA driver");
        assert!(report.problems.iter().all(|problem| !problem.is_fatal), "{:?}", report.problems);
        assert!(report.describe().contains("collectives    cpu: no CUDA driver"));
        let json = serde_json::to_value(&report).expect("it is JSON");
        assert_eq!(json["used"]["collectives"], "cpu");
        assert_eq!(json["gpus"], serde_json::json!([]));
    }

    #[test]
    fn where_nccl_is_demanded_what_is_missing_is_an_error_with_a_hint() {
        let report = examine(&LibrarySearch::default(), Backend::Nccl);
        let problem =
            report.problems.iter().find(|problem| problem.is_fatal).expect("there is one");
        assert!(problem.what.contains("no CUDA driver") && !problem.hint.is_empty());
    }

    #[test]
    fn a_broken_library_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libnccl.so.2");
        std::fs::write(&file, "no library").expect("a file");
        let search = LibrarySearch { nccl: Some(file.clone()), ..LibrarySearch::default() };
        let report = examine(&search, Backend::Nccl);
        let name = file.display().to_string();
        assert!(report.problems.iter().any(|p| p.is_fatal && p.what.contains(&name)));
    }
}
