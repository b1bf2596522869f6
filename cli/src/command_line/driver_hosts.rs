//! The hosts of a job, as the driver's flags name them: their source, and whether what they name can be used. Called by the plan
//! of a driver.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use elastic_driver::DriverConfig;
use elastic_host_manager::core::limits::OUTPUT_BYTES_MAX;
use elastic_host_manager::{
    CooldownRange, DnsTarget, HostManagerConfig, HostSlots, HostSource, parse_host_list,
    parse_hosts,
};

use super::driver_flags::{DriverFlags, LauncherKind};
use super::failure::{CommandFailure, ResultExt};
use super::job_start::JobStart;
use super::program::{in_path, is_executable};
use crate::process::plain_file;

/// The source from which hosts are discovered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum DiscoveryPlan {
    /// No discovery.
    None,
    /// Discovery by a program.
    Script(PathBuf),
    /// Discovery by a file.
    File(PathBuf),
    /// Discovery by the addresses of a DNS name.
    Dns(DnsTarget),
}

/// The settings of the host manager, validated, and the discovery of hosts.
pub(super) fn plan_hosts(
    flags: &DriverFlags,
    launcher: LauncherKind,
    default_host: Option<HostSlots>,
    start: JobStart,
) -> Result<(HostManagerConfig, DiscoveryPlan), CommandFailure> {
    let (source, discovery) = host_source(flags, launcher, default_host, start)?;
    let mut hosts = HostManagerConfig::new(source);
    // DNS gives addresses without slots.
    let default_slots = matches!(discovery, DiscoveryPlan::Dns(_)).then_some(1);
    hosts.default_slots = flags.slots_per_host.or(default_slots);
    hosts.cooldown = cooldown(flags)?;
    let hosts = hosts.validate().usage("the hosts cannot be used").map_err(|failure| {
        failure
            .hint("--hosts, --slots-per-host, -n and --blacklist-cooldown-range say what they are")
    })?;
    Ok((hosts, discovery))
}

fn host_source(
    flags: &DriverFlags,
    launcher: LauncherKind,
    default_host: Option<HostSlots>,
    start: JobStart,
) -> Result<(HostSource, DiscoveryPlan), CommandFailure> {
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
        return Err(CommandFailure::usage(format!(
            "{first} and {second} both say where hosts come from"
        ))
        .hint("keep one of them (flags may also come from the environment, as ELASTIC_HOSTS)"));
    }
    if given.is_empty() && flags.slots_per_host.is_some() {
        return Err(CommandFailure::usage("--slots-per-host is given, but no hosts").hint(
            "add --hosts, --hostfile, --host-discovery-script or --discovery; hosts that join say their \
             slots themselves (--slots)",
        ));
    }
    if let Some(list) = &flags.hosts {
        let hosts =
            parse_host_list(list, flags.slots_per_host).usage(format!("--hosts {list}")).map_err(
                |failure| failure.hint("give each host once, with its slots: --hosts a:2,b:2"),
            )?;
        if hosts.is_empty() {
            return Err(CommandFailure::usage("--hosts names no host")
                .hint("is a variable of the shell not set? --hosts a:2,b:2"));
        }
        if let Some(host) = hosts.iter().find(|it| it.name.as_str().contains(char::is_whitespace)) {
            let message = format!("--hosts: {:?} is no name of a host", host.name.as_str());
            return Err(CommandFailure::usage(message).hint("put commas between hosts: a:2,b:2"));
        }
        return Ok((HostSource::Fixed(hosts), DiscoveryPlan::None));
    }
    if let Some(file) = &flags.hostfile {
        start.needs(check_host_file(file, flags.slots_per_host))?;
        return Ok((HostSource::Script, DiscoveryPlan::File(file.clone())));
    }
    if let Some(script) = &flags.host_discovery_script {
        start.needs(check_script(script))?;
        return Ok((HostSource::Script, DiscoveryPlan::Script(script.clone())));
    }
    if let Some(target) = &flags.discovery {
        return Ok((HostSource::Script, DiscoveryPlan::Dns(target.clone())));
    }
    match (default_host, launcher) {
        (Some(host), _) => Ok((HostSource::Fixed(vec![host]), DiscoveryPlan::None)),
        (None, LauncherKind::Join) => Ok((HostSource::Joined, DiscoveryPlan::None)),
        (None, LauncherKind::Local) => Err(needs_hosts("local")),
        (None, LauncherKind::Ssh) => Err(needs_hosts("ssh")),
    }
}

/// Refuses a host file without a single host; later the file may be any: it is read again.
fn check_host_file(file: &Path, default_slots: Option<u32>) -> Result<(), CommandFailure> {
    let shown = file.display();
    if !file.exists() || file.is_dir() {
        let message = format!("--hostfile {shown}: there is no such file");
        return Err(CommandFailure::usage(message)
            .hint("it has one host:slots a line, and is read again every second"));
    }
    // Opening a pipe would wait for its writer.
    if !file.is_file() {
        return Ok(());
    }
    let text = plain_file::read(file, OUTPUT_BYTES_MAX as u64).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::FileTooLarge => "write one host:slots a line into it, and nothing else",
            _ => "give a file that this user may read",
        };
        let message = format!("--hostfile {shown} cannot be read");
        CommandFailure::usage(message).source(error).hint(hint)
    })?;
    let lines = parse_hosts(&String::from_utf8_lossy(&text), default_slots);
    if lines.is_garbage() {
        let complaints: Vec<String> = lines.complaints().collect();
        let message =
            format!("--hostfile {shown}: not one line is a host: {}", complaints.join("; "));
        return Err(CommandFailure::usage(message).hint("write one host:slots a line"));
    }
    Ok(())
}

fn check_script(script: &Path) -> Result<(), CommandFailure> {
    let shown = script.display();
    // A name alone may be one of PATH.
    if !script.exists() && script.to_str().is_some_and(|name| in_path(name).is_some()) {
        return Ok(());
    }
    let fault = match script {
        script if script.is_dir() => "is a folder",
        script if !script.exists() => "does not exist",
        script if !is_executable(script) => "is not executable",
        _ => return Ok(()),
    };
    Err(CommandFailure::usage(format!("--host-discovery-script {shown} {fault}"))
        .hint("give the path of an executable file (chmod +x) that begins with a #! line"))
}

fn needs_hosts(launcher: &str) -> CommandFailure {
    CommandFailure::usage(format!("--launcher {launcher} needs to know the hosts"))
        .hint("name them with --hosts a:2,b:2, --hostfile, --host-discovery-script or --discovery")
}

fn cooldown(flags: &DriverFlags) -> Result<Option<CooldownRange>, CommandFailure> {
    match flags.blacklist_cooldown_range.as_deref() {
        None => Ok(None),
        Some(&[min, max]) => Ok(Some(CooldownRange { min, max })),
        Some(_) => {
            Err(CommandFailure::usage("--blacklist-cooldown-range needs two numbers of seconds")
                .hint("such as --blacklist-cooldown-range 10 600"))
        }
    }
}

/// Refuses a wish for more workers than the named hosts have slots.
pub(super) fn check_slots(
    config: &DriverConfig,
    hosts: &[HostSlots],
) -> Result<(), CommandFailure> {
    let slots: u64 = hosts.iter().map(|host| u64::from(host.slots)).sum();
    for (flag, wanted) in [("--np", config.np), ("--min-np", config.min_np)] {
        if let Some(wanted) = wanted.filter(|wanted| u64::from(*wanted) > slots) {
            let message = format!("{flag} {wanted} is more than the {slots} slots of --hosts");
            return Err(CommandFailure::usage(message)
                .hint("give the hosts more slots, or ask for fewer workers"));
        }
    }
    Ok(())
}
