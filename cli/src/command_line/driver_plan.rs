//! Turns the driver's flags into a plan: fills in defaults, and refuses contradictions with the flag and a remedy.
//! Called by `main`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use elastic_agent::host;
use elastic_checkpoint::MANIFEST;
use elastic_driver::{
    CheckpointEvery, CheckpointSettings, DriverConfig, ElasticMode, HealthCheck,
    InvalidDriverConfig, OnDivergence, ResumeFrom,
};
use elastic_gpu::Backend;
use elastic_host_manager::{HostManagerConfig, HostSlots, HostSource};
use elastic_protocol::messages::OutputSettings;
use elastic_protocol::{Deadlines, HostName, ProgramSpec};
use elastic_transport::SharedSecret;

use super::arguments::RunFlags;
use super::driver_flags::{DashboardFlag, DriverFlags, LauncherKind};
use super::driver_hosts::{DiscoveryPlan, check_slots, plan_hosts};
use super::failure::{CommandFailure, ResultExt};
use super::job_start::JobStart;
use super::node_plan::{NodePlan, plan_node};
use super::output_prefix::OutputPrefix;
use super::program::check_program;
use super::slurm::slurm_job;
use super::store_plan::{StorePlan, store};
use super::torch_flags::BACKEND_FOR;
use super::torch_plan::{TorchPlan, is_script, read_torch, with_python};
use super::values::DEFAULT_PORT;

/// Name of the only host of `run`, if no hosts are named.
const RUN_HOST: &str = "localhost";

/// Default timeout of a health check, that of Slurm's `HealthCheckProgram`.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// Default leader lease: delay before a standby takes over.
const DEFAULT_LEASE: Duration = Duration::from_secs(5);

/// The complete description of a driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverPlan {
    /// The address on which the driver listens.
    pub(crate) bind: SocketAddr,
    /// The address at which others reach the driver, if it differs from `bind`.
    pub(crate) advertise: Option<String>,
    /// Configuration of the Driver; its address is filled in once it is known.
    pub(crate) config: DriverConfig,
    /// Configuration of the HostManager.
    pub(crate) hosts: HostManagerConfig,
    /// The source of hosts behind [`HostSource::Script`].
    pub(crate) discovery: DiscoveryPlan,
    /// The way agents get onto hosts.
    pub(crate) launcher: LauncherKind,
    /// Folder below which the job stores its workers' output in a folder of its own.
    pub(crate) log_dir: Option<PathBuf>,
    /// The role of the workers whose agents the driver starts itself.
    pub(crate) role: Option<String>,
    /// The network interface by which other hosts reach the workers of those agents, if one was named.
    pub(crate) interface: Option<String>,
    /// The state directory, if it is not the default folder of the driver's address.
    pub(crate) state_dir: Option<PathBuf>,
    /// Whether the driver writes a journal to the state directory, so that it can be killed and started again. It does
    /// not if a restarted driver could not be found again: on any free port, with no folder named.
    pub(crate) keeps_journal: bool,
    /// Whether it begins a job.
    start: JobStart,
    /// Whether the driver's inputs and decisions are recorded in the state directory.
    pub(crate) records: bool,
    /// The store in which several drivers share the journal, instead of the state directory.
    pub(crate) store: Option<StorePlan>,
    /// Whether this driver only stands by and never begins a job.
    pub(crate) is_standby: bool,
    /// Leader lease: delay before a standby takes over after the acting driver has vanished.
    pub(crate) lease: Duration,
    /// The dashboard's address, if there is a dashboard.
    pub(crate) dashboard: Option<DashboardPlan>,
    /// The secret that the nodes of the job share beforehand, if there is one.
    pub(crate) shared: Option<SharedSecret>,
    /// Settings of the file of `--config`, as words of a command line.
    pub(crate) from_file: Vec<String>,
}

/// The dashboard's address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DashboardPlan {
    /// The address; port 0 is any free port.
    pub(crate) bind: SocketAddr,
    /// Whether a person has asked for it: then the driver does not run without it.
    pub(crate) is_asked_for: bool,
}

impl DriverPlan {
    /// Whether the driver begins a job, as far as its state directory tells.
    pub(crate) fn begins_job(&self) -> bool {
        self.start == JobStart::First
    }

    /// The secret that seals the job's secrets in the store. A state directory is this user's; others may read the content of
    /// a store.
    pub(crate) fn sealing(&self) -> Option<&SharedSecret> {
        self.store.as_ref().and_then(|store| store.secret.as_ref().or(self.shared.as_ref()))
    }
}

impl DashboardPlan {
    /// The dashboard by default: on any free port, for this machine alone.
    const UNASKED: Self =
        Self { bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0), is_asked_for: false };
}

/// The plan for `--role driver`.
pub(crate) fn plan_driver(
    flags: &DriverFlags,
    program: &[String],
) -> Result<DriverPlan, CommandFailure> {
    let bind = flags.bind.unwrap_or_else(|| default_bind(flags, DEFAULT_PORT));
    let program = if is_script(program) { with_python(false, program) } else { program.to_vec() };
    plan(flags, &program, bind, LauncherKind::Join, None)
}

/// The part of this process in `run`.
#[derive(Clone, Debug)]
pub(crate) enum RunPlan {
    /// A driver with agents of its own.
    Driver(Box<DriverPlan>),
    /// One node of several on which the same command is typed.
    Node(Box<NodePlan>),
}

/// The plan for `run`.
pub(crate) fn plan_run(run: &RunFlags) -> Result<RunPlan, CommandFailure> {
    match plan_node(run)? {
        Some(node) => Ok(RunPlan::Node(Box::new(node))),
        None => {
            let plan = plan_here(run)?;
            if plan.launcher == LauncherKind::Local {
                let argv = &plan.config.program.argv;
                plan.start.needs(check_program(argv, *argv != run.program))?;
            }
            Ok(RunPlan::Driver(Box::new(plan)))
        }
    }
}

/// The plan for `run` on one machine: on any free port, with agents of its own, on one host if no others are named.
fn plan_here(run: &RunFlags) -> Result<DriverPlan, CommandFailure> {
    let (flags, torch, program) = read_torch(run)?;
    let flags = &flags;
    let bind = flags.bind.unwrap_or_else(|| default_bind(flags, 0));
    if flags.launcher == Some(LauncherKind::Join) {
        return Err(CommandFailure::usage(
            "`run` starts its agents itself, so --launcher join cannot be",
        )
        .hint("leave --launcher out, or use --role driver"));
    }
    let name = HostName::new(RUN_HOST).usage("the default host")?;
    let slots = flags.max_np.or(flags.np).unwrap_or_else(host::slots);
    // Over ssh, the hosts must be named.
    let host = (flags.launcher != Some(LauncherKind::Ssh)).then_some(HostSlots { name, slots });
    let mut plan = plan(flags, &program, bind, LauncherKind::Local, host)?;
    if flags.dashboard.is_none() {
        plan.dashboard = Some(DashboardPlan::UNASKED);
    }
    of_torch(&mut plan, torch)?;
    plan.interface = run.torch.interface.clone();
    Ok(plan)
}

/// Adds the values of torchrun's flags to a driver's plan.
///
/// # Errors
/// `--log-dir` is no folder, and a job begins.
pub(super) fn of_torch(plan: &mut DriverPlan, torch: TorchPlan) -> Result<(), CommandFailure> {
    check_folder(plan.start, "--log-dir", torch.log_dir.as_deref())?;
    // The flag of that name goes before torchrun's `--max-restarts`.
    plan.config.max_job_restarts = plan.config.max_job_restarts.or(torch.max_job_restarts);
    plan.config.run_id = torch.run_id.or(plan.config.run_id.take());
    let OutputSettings { directory, prefix, umask, .. } = std::mem::take(&mut plan.config.output);
    let prefix = torch.output.prefix.clone().or(prefix);
    plan.config.output = OutputSettings { directory, prefix, umask, ..torch.output };
    plan.log_dir = torch.log_dir;
    plan.role = torch.role;
    let backend_for = torch.backend_for.map(|name| (BACKEND_FOR.to_owned(), name));
    plan.config.program.environment.extend(backend_for);
    Ok(())
}

pub(super) fn plan(
    flags: &DriverFlags,
    program: &[String],
    bind: SocketAddr,
    launcher: LauncherKind,
    default_host: Option<HostSlots>,
) -> Result<DriverPlan, CommandFailure> {
    let launcher = flags.launcher.unwrap_or(launcher);
    if program.is_empty() {
        return Err(CommandFailure::usage("no program is given")
            .hint("put it at the end, after `--`: elastic-node --role driver -- PROGRAM ARGS"));
    }
    if program[0].trim().is_empty() {
        return Err(CommandFailure::usage("the program's name is empty").hint(
            "is a variable of the shell not set? elastic-node --role driver -- PROGRAM ARGS",
        ));
    }
    let (state_dir, store) = (flags.state_dir.clone(), store(flags)?);
    let keeps_journal = state_dir.is_some() || bind.port() != 0 || store.is_some();
    let start = match keeps_journal {
        true => JobStart::of(state_dir.as_deref(), bind, store.is_some()),
        false => JobStart::First,
    };
    let (hosts, discovery) = plan_hosts(flags, launcher, default_host, start)?;
    let config = driver_config(flags, program, &hosts.source, start)?;
    if let HostSource::Fixed(hosts) = &hosts.source {
        check_slots(&config, hosts)?;
    }
    let advertise = flags.advertise.clone();
    let (is_standby, lease) = (flags.standby, flags.lease_timeout.unwrap_or(DEFAULT_LEASE));
    let (log_dir, role, interface, shared) = (None, None, None, None);
    Ok(DriverPlan {
        bind,
        advertise,
        config,
        hosts,
        discovery,
        launcher,
        log_dir,
        role,
        interface,
        state_dir,
        keeps_journal,
        start,
        records: flags.record,
        store,
        is_standby,
        lease,
        dashboard: flags.dashboard.and_then(DashboardFlag::plan),
        shared,
        from_file: flags.from_file.clone(),
    })
}

/// The default address to listen on: not the loopback where agents of other machines must reach the driver.
fn default_bind(flags: &DriverFlags, port: u16) -> SocketAddr {
    match flags.launcher {
        Some(LauncherKind::Ssh) => SocketAddr::from(([0, 0, 0, 0], port)),
        _ => SocketAddr::from(([127, 0, 0, 1], port)),
    }
}

fn driver_config(
    flags: &DriverFlags,
    program: &[String],
    source: &HostSource,
    start: JobStart,
) -> Result<DriverConfig, CommandFailure> {
    check_folder(start, "--output-dir", flags.output_dir.as_deref())?;
    check_folder(start, "--checkpoint", flags.checkpoint.as_deref())?;
    start.needs(check_no_step(flags.checkpoint.as_deref()))?;
    let output_dir = flags.output_dir.as_ref().map(|folder| {
        folder.to_str().map(ToOwned::to_owned).ok_or_else(|| {
            CommandFailure::usage(format!("--output-dir {} is not UTF-8", folder.display()))
                .hint("give a folder whose name is UTF-8: it is told to agents of other machines")
        })
    });
    let repairs = matches!(flags.on_divergence, Some(OnDivergence::Repair | OnDivergence::Fail));
    if repairs && flags.mode == Some(ElasticMode::Restart) {
        return Err(CommandFailure::usage("--on-divergence and --mode restart contradict each other")
            .hint(
                "replicas are compared where programs use the library, and --mode restart runs those that do not: \
                 leave one of both out",
            ));
    }
    let backend = match (flags.encrypt_data, flags.backend) {
        (true, Some(Backend::Nccl)) => {
            return Err(CommandFailure::usage(
                "--encrypt-data and --backend nccl contradict each other",
            )
            .hint("NCCL sends in the clear: take --backend cpu, or leave one of both out"));
        }
        (true, _) => Some(Backend::Cpu),
        (false, backend) => backend,
    };
    let backend = backend.map(|backend| backend.to_string());
    let environment =
        backend.map(|backend| (elastic_gpu::BACKEND.to_owned(), backend)).into_iter().collect();
    let program = ProgramSpec { argv: program.to_vec(), environment };
    let defaults = DriverConfig::new(program);
    let config = DriverConfig {
        np: flags.np,
        min_np: flags.min_np,
        max_np: flags.max_np,
        shards: flags.shards,
        reset_limit: flags.reset_limit,
        encrypt_data: flags.encrypt_data,
        data_plane: flags.data_plane.unwrap_or_default(),
        max_job_restarts: flags.max_job_restarts,
        max_restarts: flags.max_restarts.unwrap_or(defaults.max_restarts),
        on_failure: flags.on_failure.unwrap_or_default(),
        on_total_loss: flags.on_total_loss,
        on_hang: flags.on_hang.unwrap_or_default(),
        hang_timeout: flags.hang_timeout,
        on_straggler: flags.on_straggler.unwrap_or_default(),
        health_check: flags.health_check.clone().map(|command| HealthCheck {
            command,
            timeout: flags.health_check_timeout.unwrap_or(HEALTH_CHECK_TIMEOUT),
        }),
        on_divergence: flags.on_divergence.unwrap_or_default(),
        checkpoint: checkpoints(flags)?,
        mode: flags.mode.unwrap_or_default(),
        hosts_join: *source == HostSource::Joined,
        deadlines: deadlines(flags),
        output: OutputSettings {
            directory: output_dir.transpose()?,
            prefix: flags.output_prefix.clone().map(OutputPrefix::into_template),
            umask: flags.umask.unwrap_or_default(),
            ..OutputSettings::default()
        },
        run_id: slurm_job(&|name| std::env::var(name).ok()),
        ..defaults
    };
    config.validate().map_err(|error| {
        let is_of_deadlines = matches!(error, InvalidDriverConfig::Deadlines(_));
        let failure = CommandFailure::usage("the driver's flags contradict each other")
            .source(error)
            .hint("change one of them (flags may also come from the environment, as ELASTIC_NP)");
        if is_of_deadlines { failure.hint("give a longer --form-timeout") } else { failure }
    })
}

/// Default of `--checkpoint-every`.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
/// Default of `--checkpoint-keep`.
const CHECKPOINT_KEEP: u32 = 3;

/// The settings of durable checkpoints. The folder itself is checked by the workers, which use it.
fn checkpoints(flags: &DriverFlags) -> Result<Option<CheckpointSettings>, CommandFailure> {
    let Some(folder) = &flags.checkpoint else {
        let given = [
            ("--checkpoint-every", flags.checkpoint_every.is_some()),
            ("--checkpoint-keep", flags.checkpoint_keep.is_some()),
            ("--checkpoint-bandwidth", flags.checkpoint_bandwidth.is_some()),
            ("--resume", flags.resume.is_some()),
        ];
        return match given.iter().find(|(_, given)| *given) {
            None => Ok(None),
            Some((name, _)) => {
                Err(CommandFailure::usage(format!("{name} is given, but no --checkpoint"))
                    .hint("add --checkpoint FOLDER, which all hosts share"))
            }
        };
    };
    let resume = match flags.resume.as_deref() {
        None | Some("auto") => ResumeFrom::Auto,
        Some("never") => ResumeFrom::Never,
        Some(folder) => {
            let Some(of_step) = step_folder(Path::new(folder)) else {
                return Err(CommandFailure::usage(format!(
                    "--resume {folder}: neither auto, nor never, nor the folder of a step"
                ))
                .hint("such as --resume FOLDER/step-0000000500; `elastic-node checkpoint list FOLDER` shows them"));
            };
            ResumeFrom::Exactly(absolute("--resume", &of_step)?)
        }
    };
    Ok(Some(CheckpointSettings {
        directory: absolute("--checkpoint", folder)?,
        every: flags.checkpoint_every.unwrap_or(CheckpointEvery::Period(CHECKPOINT_EVERY)),
        keep: flags.checkpoint_keep.unwrap_or(CHECKPOINT_KEEP),
        bytes_per_s: flags.checkpoint_bandwidth,
        resume,
    }))
}

/// The folder of a step: the path, or what a link of another name leads to.
fn step_folder(path: &Path) -> Option<PathBuf> {
    let is_step = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|it| it.starts_with("step-"))
    };
    let linked = || Some(path.parent()?.join(fs::read_link(path).ok()?));
    Some(path.to_owned()).filter(|path| is_step(path)).or_else(|| linked().filter(|it| is_step(it)))
}

/// Refuses the folder of a step as that of all checkpoints: they would be stored in a checkpoint, and none would be found.
fn check_no_step(folder: Option<&Path>) -> Result<(), CommandFailure> {
    let Some(folder) = folder.filter(|folder| folder.join(MANIFEST).is_file()) else {
        return Ok(());
    };
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let (above, step) = (absolute.parent().unwrap_or(&absolute).display(), folder.display());
    let message = format!("--checkpoint {step} is the checkpoint of one step");
    Err(CommandFailure::usage(message).hint(format!(
        "give the folder of all of them, --checkpoint {above}: a job goes on from the newest one; to go on \
         from this step, add --resume {step}"
    )))
}

/// Refuses a flag's path that is something else than a folder, at the beginning of a job.
fn check_folder(start: JobStart, flag: &str, folder: Option<&Path>) -> Result<(), CommandFailure> {
    let Some(folder) = folder.filter(|it| it.exists() && !it.is_dir()) else { return Ok(()) };
    start.needs(Err(CommandFailure::usage(format!("{flag} {} is no folder", folder.display()))
        .hint("give a folder, or a name that is not taken")))
}

/// A folder's absolute path: workers may have another working directory.
fn absolute(flag: &str, folder: &Path) -> Result<String, CommandFailure> {
    let absolute = std::path::absolute(folder).usage(format!("{flag} is no folder"))?;
    absolute.to_str().map(ToOwned::to_owned).ok_or_else(|| {
        CommandFailure::usage(format!("{flag} {} is not UTF-8", folder.display()))
            .hint("give the folder another name")
    })
}

fn deadlines(flags: &DriverFlags) -> Deadlines {
    let defaults = Deadlines::default();
    let or = |given: Option<Duration>, default| given.unwrap_or(default);
    Deadlines {
        form: or(flags.form_timeout, defaults.form),
        last_call: or(flags.last_call_timeout, defaults.last_call),
        start: or(flags.start_timeout, defaults.start),
        elastic: or(flags.elastic_timeout, defaults.elastic),
        grace: or(flags.grace_period, defaults.grace),
        orphan: or(flags.orphan_timeout, defaults.orphan),
        orphan_training: flags.orphan_timeout,
        ..defaults
    }
}

/// Refuses a fixed list of hosts with fewer slots than the wanted workers.
#[cfg(test)]
mod tests {
    use super::super::torch_flags::TorchFlags;
    use elastic_protocol::DataPlane;

    use super::*;

    fn program() -> Vec<String> {
        vec!["train".to_owned()]
    }

    fn refused(flags: &DriverFlags) -> String {
        plan_driver(flags, &program()).expect_err("a contradiction").to_string()
    }

    #[test]
    fn a_link_to_the_folder_of_a_step_is_that_step() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for (link, target) in [("latest", "step-0000000005"), ("runs", "run-7")] {
            std::os::unix::fs::symlink(target, at(link)).expect("a link");
        }
        assert_eq!(step_folder(&at("step-0000000003")), Some(at("step-0000000003")));
        assert_eq!(step_folder(&at("latest")), Some(at("step-0000000005")));
        assert_eq!([step_folder(&at("runs")), step_folder(&at("none"))], [None, None]);
    }

    #[test]
    fn the_driver_has_the_defaults_of_the_contract() {
        let plan = plan_driver(&DriverFlags::default(), &program()).expect("nothing to refuse");
        assert_eq!(plan.bind.to_string(), "127.0.0.1:7070");
        assert_eq!(plan.hosts.source, HostSource::Joined);
        assert_eq!((plan.launcher, plan.config.max_restarts), (LauncherKind::Join, 3));
        assert_eq!(plan.config.deadlines, Deadlines::default());
        assert!(plan.config.hosts_join);
    }

    #[test]
    fn run_has_one_host_with_the_workers_that_are_wanted() {
        let run = RunFlags {
            driver: DriverFlags { np: Some(4), ..DriverFlags::default() },
            torch: TorchFlags::default(),
            program: program(),
            is_behind_dashes: true,
        };
        let plan = plan_here(&run).expect("nothing to refuse");
        let name = HostName::new("localhost").expect("a literal");
        assert_eq!(plan.hosts.source, HostSource::Fixed(vec![HostSlots { name, slots: 4 }]));
        assert_eq!((plan.launcher, plan.bind.port()), (LauncherKind::Local, 0));
    }

    #[test]
    fn the_job_s_limit_of_failures_goes_before_that_of_torchrun() {
        let limit = |max_job_restarts| {
            let driver = DriverFlags {
                max_restarts: Some(3),
                max_job_restarts,
                np: Some(1),
                ..DriverFlags::default()
            };
            let (torch, program) = (TorchFlags::default(), vec!["train.py".to_owned()]);
            let run = RunFlags { driver, torch, program, is_behind_dashes: false };
            plan_here(&run).expect("nothing to refuse").config.max_job_restarts
        };
        assert_eq!([limit(None), limit(Some(5))], [Some(3), Some(5)]);
    }

    #[test]
    fn each_address_of_a_name_is_a_host_with_a_slot_unless_more_are_said() {
        let discovery = "dns://workers".parse().ok();
        let flags = DriverFlags { discovery, ..DriverFlags::default() };
        let plan = plan_driver(&flags, &program()).expect("nothing to refuse");
        assert_eq!((plan.hosts.source, plan.hosts.default_slots), (HostSource::Script, Some(1)));
        assert!(matches!(plan.discovery, DiscoveryPlan::Dns(_)));
        let flags = DriverFlags { slots_per_host: Some(8), ..flags };
        let plan = plan_driver(&flags, &program()).expect("nothing to refuse");
        assert_eq!(plan.hosts.default_slots, Some(8));
    }

    #[test]
    fn over_ssh_the_driver_listens_where_other_machines_reach_it() {
        let hosts = Some("a:1".to_owned());
        let launcher = Some(LauncherKind::Ssh);
        let flags = DriverFlags { hosts, launcher, ..DriverFlags::default() };
        let plan = plan_driver(&flags, &program()).expect("nothing to refuse");
        assert_eq!(
            (plan.launcher, plan.bind.to_string()),
            (LauncherKind::Ssh, "0.0.0.0:7070".into())
        );
        let flags = DriverFlags { bind: "127.0.0.1:1".parse().ok(), ..flags };
        let plan = plan_driver(&flags, &program()).expect("nothing to refuse");
        assert_eq!(plan.bind.to_string(), "127.0.0.1:1");
    }

    #[test]
    fn encrypted_data_does_not_go_by_nccl() {
        let flags = DriverFlags { encrypt_data: true, ..DriverFlags::default() };
        let plan = plan_driver(&flags, &program()).expect("nothing to refuse");
        assert!(plan.config.encrypt_data);
        let backend = plan.config.program.environment.iter();
        let backend: Vec<_> = backend.filter(|(name, _)| name == elastic_gpu::BACKEND).collect();
        assert_eq!(backend, [&(elastic_gpu::BACKEND.to_owned(), "cpu".to_owned())]);
        let nccl = DriverFlags { backend: Some(Backend::Nccl), ..flags };
        assert_eq!(refused(&nccl), "--encrypt-data and --backend nccl contradict each other");
    }

    #[test]
    fn the_data_plane_is_that_of_the_flag() {
        let planned = |data_plane| {
            let flags = DriverFlags { data_plane, ..DriverFlags::default() };
            plan_driver(&flags, &program()).expect("nothing to refuse").config.data_plane
        };
        assert_eq!(planned(None), DataPlane::Auto);
        assert_eq!(planned(Some(DataPlane::ShmQuic)), DataPlane::ShmQuic);
    }

    #[test]
    fn contradictions_are_refused_with_the_flag() {
        let base = DriverFlags::default;
        let ssh = DriverFlags { launcher: Some(LauncherKind::Ssh), ..base() };
        assert_eq!(refused(&ssh), "--launcher ssh needs to know the hosts");
        let local = DriverFlags { launcher: Some(LauncherKind::Local), ..base() };
        assert_eq!(refused(&local), "--launcher local needs to know the hosts");
        let hosts = Some("a:1".to_owned());
        let two = DriverFlags { hosts: hosts.clone(), hostfile: Some("f".into()), ..base() };
        assert_eq!(refused(&two), "--hosts and --hostfile both say where hosts come from");
        let many = DriverFlags { hosts, np: Some(2), ..base() };
        assert_eq!(refused(&many), "--np 2 is more than the 1 slots of --hosts");
        let range =
            DriverFlags { blacklist_cooldown_range: Some(vec![Duration::from_secs(1)]), ..base() };
        assert!(refused(&range).contains("two numbers"));
        assert!(plan_driver(&base(), &[]).is_err(), "no program");
        let unnamed = plan_driver(&base(), &[String::new()]).expect_err("S-13");
        assert_eq!(unnamed.to_string(), "the program's name is empty");
        let spaced = DriverFlags { hosts: Some("hö st:1".to_owned()), ..base() };
        assert_eq!(refused(&spaced), "--hosts: \"hö st\" is no name of a host");
        let no_file = DriverFlags { hostfile: Some("/no/such".into()), ..base() };
        assert_eq!(refused(&no_file), "--hostfile /no/such: there is no such file");
        let no_folder = DriverFlags { output_dir: Some("/dev/null".into()), ..base() };
        assert_eq!(refused(&no_folder), "--output-dir /dev/null is no folder");
        let log_dir = |start| check_folder(start, "--log-dir", Some(Path::new("/dev/null")));
        let failure = log_dir(JobStart::First).expect_err("a job begins");
        assert_eq!(failure.to_string(), "--log-dir /dev/null is no folder");
        assert!(log_dir(JobStart::Again).is_ok(), "S-12: a job goes on");
        let standby = DriverFlags { standby: true, ..base() };
        assert_eq!(refused(&standby), "--standby is given, but no --store");
    }
}
