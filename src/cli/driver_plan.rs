//! What the driver's flags mean: defaults filled in, contradictions refused with the flag and the way out.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use elastic_driver::{DriverConfig, InvalidDriverConfig, Mode, OnFailure};
use elastic_host_manager::{
    CooldownRange, DnsTarget, HostManagerConfig, HostSlots, HostSource, parse_host_list,
};
use elastic_journal::etcd::EtcdAddress;
use elastic_protocol::messages::{DataPlane, OutputSettings};
use elastic_protocol::{Deadlines, HostName, ProgramSpec};
use elastic_worker::agent::host;

use super::arguments::RunArguments;
use super::driver_flags::{
    BackendFlag, DataPlaneFlag, DriverFlags, LauncherFlag, ModeFlag, OnFailureFlag,
};
use super::failure::{Failure, ResultExt};
use super::slurm::slurm_job;
use super::torch_plan::{is_script, read_torch, with_python};
use super::values::DEFAULT_PORT;

/// The one host of `run` where none are named.
const RUN_HOST: &str = "localhost";

/// For how long nobody acts after the acting driver has vanished, where nothing else was said.
const DEFAULT_LEASE: Duration = Duration::from_secs(5);

/// The shortest lease.
const LEAST_LEASE: Duration = Duration::from_secs(1);

/// A driver, completely described.
#[derive(Clone, Debug)]
pub(crate) struct DriverPlan {
    /// Where it listens.
    pub(crate) bind: SocketAddr,
    /// Where others reach it, if not there.
    pub(crate) advertise: Option<String>,
    /// What the Driver is told; its address is filled in once it is known.
    pub(crate) config: DriverConfig,
    /// What the HostManager is told.
    pub(crate) hosts: HostManagerConfig,
    /// What stands behind [`HostSource::Script`].
    pub(crate) discovery: DiscoveryPlan,
    /// How agents get onto hosts.
    pub(crate) launcher: LauncherPlan,
    /// Where output is stored in a folder of the job's own.
    pub(crate) log_dir: Option<PathBuf>,
    /// The role of the workers of agents that the driver starts itself.
    pub(crate) role: Option<String>,
    /// Where it keeps its state, if not in the default folder of its address.
    pub(crate) state_dir: Option<PathBuf>,
    /// Whether it writes a journal there, so that it can be killed and started again. Not where nobody would find
    /// it again: on any free port, with no folder named.
    pub(crate) keeps_journal: bool,
    /// Where it keeps the journal instead, with other drivers.
    pub(crate) store: Option<EtcdAddress>,
    /// Whether it begins no job.
    pub(crate) is_standby: bool,
    /// How long nobody acts after the acting driver has vanished.
    pub(crate) lease: Duration,
}

/// How hosts are discovered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum DiscoveryPlan {
    /// Not at all.
    None,
    /// By a program.
    Script(PathBuf),
    /// By a file.
    File(PathBuf),
    /// By the addresses of a name.
    Dns(DnsTarget),
}

/// How an agent gets onto a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LauncherPlan {
    /// It joins by itself.
    Join,
    /// A process of this machine for each host.
    Local,
    /// Over ssh.
    Ssh,
}

/// `--role driver`.
pub(crate) fn plan_driver(flags: &DriverFlags, program: &[String]) -> Result<DriverPlan, Failure> {
    let bind = flags.bind.unwrap_or_else(|| default_bind(flags, DEFAULT_PORT));
    let program = if is_script(program) { with_python(false, program) } else { program.to_vec() };
    plan(flags, &program, bind, LauncherPlan::Join, None)
}

/// `run`: on any free port, with agents of its own, on one host if no others are named.
pub(crate) fn plan_run(run: &RunArguments) -> Result<DriverPlan, Failure> {
    let (flags, torch, program) = read_torch(run)?;
    let flags = &flags;
    let bind = flags.bind.unwrap_or_else(|| default_bind(flags, 0));
    if flags.launcher == Some(LauncherFlag::Join) {
        return Err(Failure::usage("`run` starts its agents itself, so --launcher join cannot be")
            .hint("leave --launcher out, or use --role driver"));
    }
    let name = HostName::new(RUN_HOST).usage("the default host")?;
    let slots = flags.max_np.or(flags.np).unwrap_or_else(host::slots);
    // Over ssh, the hosts must be named.
    let host = (flags.launcher != Some(LauncherFlag::Ssh)).then_some(HostSlots { name, slots });
    let mut plan = plan(flags, &program, bind, LauncherPlan::Local, host)?;
    plan.config.max_job_restarts = torch.max_job_restarts.or(plan.config.max_job_restarts);
    plan.config.run_id = torch.run_id.or(plan.config.run_id);
    let directory = plan.config.output.directory.take();
    plan.config.output = OutputSettings { directory, ..torch.output };
    plan.log_dir = torch.log_dir;
    plan.role = torch.role;
    Ok(plan)
}

fn plan(
    flags: &DriverFlags,
    program: &[String],
    bind: SocketAddr,
    launcher: LauncherPlan,
    default_host: Option<HostSlots>,
) -> Result<DriverPlan, Failure> {
    let launcher = match flags.launcher {
        None => launcher,
        Some(LauncherFlag::Join) => LauncherPlan::Join,
        Some(LauncherFlag::Local) => LauncherPlan::Local,
        Some(LauncherFlag::Ssh) => LauncherPlan::Ssh,
    };
    if program.is_empty() {
        return Err(Failure::usage("no program is given")
            .hint("put it at the end, after `--`: elastic-node --role driver -- PROGRAM ARGS"));
    }
    let (source, discovery) = host_source(flags, launcher, default_host)?;
    let mut hosts = HostManagerConfig::new(source);
    // DNS knows addresses only.
    let default_slots = matches!(discovery, DiscoveryPlan::Dns(_)).then_some(1);
    hosts.default_slots = flags.slots_per_host.or(default_slots);
    hosts.cooldown = cooldown(flags)?;
    let hosts = hosts.validate().usage("the hosts cannot be used")?;
    let config = driver_config(flags, program, &hosts.source)?;
    if let HostSource::Fixed(hosts) = &hosts.source {
        check_slots(&config, hosts)?;
    }
    let advertise = flags.advertise.clone();
    let state_dir = flags.state_dir.clone();
    let store = store(flags)?;
    let (is_standby, lease) = (flags.standby, flags.lease_timeout.unwrap_or(DEFAULT_LEASE));
    let keeps_journal = state_dir.is_some() || bind.port() != 0 || store.is_some();
    let (log_dir, role) = (None, None);
    Ok(DriverPlan {
        bind,
        advertise,
        config,
        hosts,
        discovery,
        launcher,
        log_dir,
        role,
        state_dir,
        keeps_journal,
        store,
        is_standby,
        lease,
    })
}

/// Where several drivers keep one journal, if they do.
fn store(flags: &DriverFlags) -> Result<Option<EtcdAddress>, Failure> {
    let needs_store =
        [("--standby", flags.standby), ("--lease-timeout", flags.lease_timeout.is_some())];
    let Some(store) = &flags.store else {
        return match needs_store.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(Failure::usage(format!("{flag} is given, but no --store"))
                .hint("drivers that stand by share a store: --store etcd://HOST:PORT/NAME")),
            None => Ok(None),
        };
    };
    if flags.lease_timeout.is_some_and(|lease| lease < LEAST_LEASE) {
        return Err(Failure::usage("--lease-timeout is less than a second")
            .hint("etcd's leases last whole seconds, two at least with its default settings"));
    }
    Ok(Some(store.clone()))
}

fn host_source(
    flags: &DriverFlags,
    launcher: LauncherPlan,
    default_host: Option<HostSlots>,
) -> Result<(HostSource, DiscoveryPlan), Failure> {
    let given: Vec<&str> = [
        ("--hosts", flags.hosts.is_some()),
        ("--hostfile", flags.hostfile.is_some()),
        ("--host-discovery-script", flags.host_discovery_script.is_some()),
        ("--discovery", flags.discovery.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, given)| given.then_some(name))
    .collect();
    if let [first, second, ..] = given[..] {
        return Err(Failure::usage(format!("{first} and {second} both say where hosts come from"))
            .hint(
                "keep one of them (flags may also come from the environment, as ELASTIC_HOSTS)",
            ));
    }
    if given.is_empty() && flags.slots_per_host.is_some() {
        return Err(Failure::usage("--slots-per-host is given, but no hosts").hint(
            "add --hosts, --hostfile, --host-discovery-script or --discovery; hosts that join say their \
             slots themselves (--slots)",
        ));
    }
    if let Some(list) = &flags.hosts {
        let hosts = parse_host_list(list, flags.slots_per_host).usage(format!("--hosts {list}"))?;
        return Ok((HostSource::Fixed(hosts), DiscoveryPlan::None));
    }
    if let Some(file) = &flags.hostfile {
        return Ok((HostSource::Script, DiscoveryPlan::File(file.clone())));
    }
    if let Some(script) = &flags.host_discovery_script {
        return Ok((HostSource::Script, DiscoveryPlan::Script(script.clone())));
    }
    if let Some(target) = &flags.discovery {
        return Ok((HostSource::Script, DiscoveryPlan::Dns(target.clone())));
    }
    match (default_host, launcher) {
        (Some(host), _) => Ok((HostSource::Fixed(vec![host]), DiscoveryPlan::None)),
        (None, LauncherPlan::Join) => Ok((HostSource::Joined, DiscoveryPlan::None)),
        (None, LauncherPlan::Local) => Err(needs_hosts("local")),
        (None, LauncherPlan::Ssh) => Err(needs_hosts("ssh")),
    }
}

fn needs_hosts(launcher: &str) -> Failure {
    Failure::usage(format!("--launcher {launcher} needs to know the hosts"))
        .hint("name them with --hosts a:2,b:2, --hostfile, --host-discovery-script or --discovery")
}

/// Agents of other machines do not reach a driver that listens on the loopback.
fn default_bind(flags: &DriverFlags, port: u16) -> SocketAddr {
    match flags.launcher {
        Some(LauncherFlag::Ssh) => SocketAddr::from(([0, 0, 0, 0], port)),
        _ => SocketAddr::from(([127, 0, 0, 1], port)),
    }
}

fn cooldown(flags: &DriverFlags) -> Result<Option<CooldownRange>, Failure> {
    match flags.blacklist_cooldown_range.as_deref() {
        None => Ok(None),
        Some(&[min, max]) => Ok(Some(CooldownRange { min, max })),
        Some(_) => Err(Failure::usage("--blacklist-cooldown-range needs two numbers of seconds")
            .hint("such as --blacklist-cooldown-range 10 600")),
    }
}

fn driver_config(
    flags: &DriverFlags,
    program: &[String],
    source: &HostSource,
) -> Result<DriverConfig, Failure> {
    let mode = match flags.mode {
        None | Some(ModeFlag::Auto) => Mode::Auto,
        Some(ModeFlag::InProcess) => Mode::InProcess,
        Some(ModeFlag::Restart) => Mode::Restart,
    };
    let output_dir = flags.output_dir.as_ref().map(|folder| {
        folder.to_str().map(ToOwned::to_owned).ok_or_else(|| {
            Failure::usage(format!("--output-dir {} is not UTF-8", folder.display()))
                .hint("give a folder whose name is UTF-8: it is told to agents of other machines")
        })
    });
    let backend = match (flags.encrypt_data, flags.backend) {
        (true, Some(BackendFlag::Nccl)) => {
            return Err(Failure::usage("--encrypt-data and --backend nccl contradict each other")
                .hint("NCCL sends in the clear: take --backend cpu, or leave one of both out"));
        }
        (true, _) => Some(BackendFlag::Cpu),
        (false, backend) => backend,
    };
    let backend = backend.map(|flag| flag.backend().to_string());
    let environment =
        backend.map(|backend| (elastic_gpu::BACKEND.to_owned(), backend)).into_iter().collect();
    let program = ProgramSpec { argv: program.to_vec(), environment };
    let defaults = DriverConfig::new(program);
    let config = DriverConfig {
        np: flags.np,
        min_np: flags.min_np,
        max_np: flags.max_np,
        reset_limit: flags.reset_limit,
        encrypt_data: flags.encrypt_data,
        data_plane: flags.data_plane.map_or(DataPlane::Auto, DataPlaneFlag::data_plane),
        max_job_restarts: flags.max_job_restarts,
        max_restarts: flags.max_restarts.unwrap_or(defaults.max_restarts),
        on_failure: match flags.on_failure {
            None | Some(OnFailureFlag::Restart) => OnFailure::Restart,
            Some(OnFailureFlag::Blacklist) => OnFailure::Blacklist,
        },
        mode,
        hosts_join: *source == HostSource::Joined,
        deadlines: deadlines(flags),
        output: OutputSettings { directory: output_dir.transpose()?, ..OutputSettings::default() },
        run_id: slurm_job(&|name| std::env::var(name).ok()),
        ..defaults
    };
    config.validate().map_err(|error| {
        let is_of_deadlines = matches!(error, InvalidDriverConfig::Deadlines(_));
        let failure = Failure::usage("the driver's flags contradict each other").source(error);
        if is_of_deadlines { failure.hint("give a longer --form-timeout") } else { failure }
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

/// Hosts that never change must be able to hold the workers that are wanted.
fn check_slots(config: &DriverConfig, hosts: &[HostSlots]) -> Result<(), Failure> {
    let slots: u64 = hosts.iter().map(|host| u64::from(host.slots)).sum();
    for (flag, wanted) in [("--np", config.np), ("--min-np", config.min_np)] {
        if let Some(wanted) = wanted.filter(|wanted| u64::from(*wanted) > slots) {
            let message = format!("{flag} {wanted} is more than the {slots} slots of --hosts");
            return Err(
                Failure::usage(message).hint("give the hosts more slots, or ask for fewer workers")
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::torch_flags::TorchFlags;
    use super::*;

    fn program() -> Vec<String> {
        vec!["train".to_owned()]
    }

    fn refused(flags: &DriverFlags) -> String {
        plan_driver(flags, &program()).expect_err("a contradiction").to_string()
    }

    #[test]
    fn the_driver_has_the_defaults_of_the_contract() {
        let plan = plan_driver(&DriverFlags::default(), &program()).expect("nothing to refuse");
        assert_eq!(plan.bind.to_string(), "127.0.0.1:7070");
        assert_eq!(plan.hosts.source, HostSource::Joined);
        assert_eq!((plan.launcher, plan.config.max_restarts), (LauncherPlan::Join, 3));
        assert_eq!(plan.config.deadlines, Deadlines::default());
        assert!(plan.config.hosts_join);
    }

    #[test]
    fn run_has_one_host_with_the_workers_that_are_wanted() {
        let run = RunArguments {
            driver: DriverFlags { np: Some(4), ..DriverFlags::default() },
            torch: TorchFlags::default(),
            program: program(),
            is_behind_dashes: true,
        };
        let plan = plan_run(&run).expect("nothing to refuse");
        let name = HostName::new("localhost").expect("a literal");
        assert_eq!(plan.hosts.source, HostSource::Fixed(vec![HostSlots { name, slots: 4 }]));
        assert_eq!((plan.launcher, plan.bind.port()), (LauncherPlan::Local, 0));
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
        let launcher = Some(LauncherFlag::Ssh);
        let flags = DriverFlags { hosts, launcher, ..DriverFlags::default() };
        let plan = plan_driver(&flags, &program()).expect("nothing to refuse");
        assert_eq!(
            (plan.launcher, plan.bind.to_string()),
            (LauncherPlan::Ssh, "0.0.0.0:7070".into())
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
        let nccl = DriverFlags { backend: Some(BackendFlag::Nccl), ..flags };
        assert_eq!(refused(&nccl), "--encrypt-data and --backend nccl contradict each other");
    }

    #[test]
    fn the_data_plane_is_that_of_the_flag() {
        let planned = |data_plane| {
            let flags = DriverFlags { data_plane, ..DriverFlags::default() };
            plan_driver(&flags, &program()).expect("nothing to refuse").config.data_plane
        };
        assert_eq!(planned(None), DataPlane::Auto);
        assert_eq!(planned(Some(DataPlaneFlag::ShmQuic)), DataPlane::ShmQuic);
    }

    #[test]
    fn contradictions_are_refused_with_the_flag() {
        let base = DriverFlags::default;
        let ssh = DriverFlags { launcher: Some(LauncherFlag::Ssh), ..base() };
        assert_eq!(refused(&ssh), "--launcher ssh needs to know the hosts");
        let local = DriverFlags { launcher: Some(LauncherFlag::Local), ..base() };
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
        let standby = DriverFlags { standby: true, ..base() };
        assert_eq!(refused(&standby), "--standby is given, but no --store");
    }
}
