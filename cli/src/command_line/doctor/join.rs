//! `doctor --join`: tries step by step the way of an agent of this host to a driver: the name, the route, the token,
//! the handshake, an answer; then the clocks, and the address for data. The first step that fails is named, with a
//! remedy. Called by `doctor`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use elastic_protocol::messages::{StatusReport, UnreachableHost};
use elastic_runtime::{system, wall_clock};
use elastic_transport::ConnectError;
use serde::Serialize;
use tokio::time::Instant;

use super::DoctorReport;
use super::data_ports::DataPortsReport;
use super::driver_clock::{ahead_ms, fault_of};
use crate::command_line::failure::{CommandFailure, ResultExt as _};
use crate::command_line::values::hosts_and_ports;
use crate::command_line::worker_flags::TOKEN_VARIABLE;
use crate::process::{
    StatusClient, TokenSource, UdpAnswer, addresses_of, advice, check_interface, ip_of, probe,
    route_to, short_packets_towards, try_hosts,
};

/// The flags that say which driver, as an agent has them.
#[derive(Args, Clone)]
pub(super) struct JoinFlags {
    /// Try the way to this driver, HOST:PORT, as an agent of this host would
    #[arg(long, env = "ELASTIC_JOIN", value_name = "ADDR")]
    join: Option<String>,
    /// The driver's token. Prefer --token-file: everyone on this machine can read a command line
    #[arg(long, env = TOKEN_VARIABLE, value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the driver's token [default: that of its state directory on this machine]
    #[arg(long, env = "ELASTIC_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The network interface by which other hosts would reach this one [default: that of the way to the driver]
    #[arg(long, env = "ELASTIC_INTERFACE", value_name = "NAME")]
    interface: Option<String>,
}

/// The flags without the token.
impl fmt::Debug for JoinFlags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { join, token: _, token_file, interface } = self;
        let mut shown = formatter.debug_struct("JoinFlags");
        shown.field("join", join).field("token_file", token_file).field("interface", interface);
        shown.finish_non_exhaustive()
    }
}

/// The findings on the way to a driver.
#[derive(Debug, Default, Serialize)]
pub(super) struct JoinReport {
    /// The driver, as it was given.
    driver: String,
    /// The addresses that its name stands for.
    addresses: Vec<SocketAddr>,
    /// This host's address on the way there.
    from: Option<String>,
    /// Whether a driver let this host in.
    is_joined: bool,
    /// Time until it was let in, and time from then to an answer, in milliseconds.
    join_ms: Option<f64>,
    answer_ms: Option<f64>,
    /// Its job.
    job: Option<String>,
    /// Time by which this host's clock is ahead of the driver's, in milliseconds; wrong by at most half of `answer_ms`.
    clock_ahead_ms: Option<i64>,
    /// The address for data.
    data: Option<DataPortsReport>,
    /// Problems of a host that the driver lets in, each with a remedy.
    #[serde(skip)]
    warnings: Vec<(String, String)>,
}

impl JoinFlags {
    /// Tries the way to the driver, if one is given.
    pub(super) fn examine(&self, report: &mut DoctorReport) -> Result<(), CommandFailure> {
        let Some(join) = &self.join else { return Ok(()) };
        let drivers = hosts_and_ports(join).map_err(|reason| {
            CommandFailure::usage(format!("--join: {reason}"))
                .hint("give HOST:PORT, as the driver prints it")
        })?;
        if let Some(interface) = &self.interface {
            check_interface(interface)?;
        }
        let mut failures = Vec::new();
        for driver in drivers.split(',') {
            let mut found = JoinReport { driver: driver.to_owned(), ..JoinReport::default() };
            let tried = self.try_way(&mut found);
            for (what, hint) in std::mem::take(&mut found.warnings) {
                report.problem(false, what, hint);
            }
            report.join = Some(found);
            match tried {
                Ok(()) => break,
                Err(failure) => failures.push(failure),
            }
        }
        // An agent needs one of the drivers that may act.
        let is_joined = report.join.as_ref().is_some_and(|found| found.is_joined);
        for failure in failures {
            let (what, hint) = failure.finding();
            report.problem(!is_joined, what, hint);
        }
        Ok(())
    }

    fn token_source(&self, driver: &str) -> Result<TokenSource, CommandFailure> {
        TokenSource::new(driver, self.token.as_deref(), self.token_file.as_deref(), None)
    }

    fn try_way(&self, found: &mut JoinReport) -> Result<(), CommandFailure> {
        let driver = found.driver.clone();
        found.addresses = addresses_of(&driver)
            .failed(format!("the name of {driver} cannot be resolved"))
            .map_err(|failure| {
                failure.hint("check its spelling, and this host's /etc/hosts and DNS, or give the IP address")
            })?;
        let routes: Vec<_> = found.addresses.iter().map(|to| route_to(*to)).collect();
        found.from = routes.iter().flatten().next().map(|route| route.from.to_string());
        if found.from.is_none()
            && let Some(Err(error)) = routes.into_iter().next()
        {
            return Err(CommandFailure::new(format!("this host has no route to {driver}"))
                .source(error)
                .hint("connect both hosts by one network, or give an address of the driver in this one's"));
        }
        if let Some(short) = short_packets_towards(&driver) {
            return Err(
                CommandFailure::new(short).hint("raise the MTU of the interfaces on the way")
            );
        }
        if found.addresses.iter().all(|to| probe(*to) == UdpAnswer::Refused) {
            return Err(CommandFailure::new(format!("nothing listens on the UDP port of {driver}"))
                .hint("start the driver, or give its port; it listens on 127.0.0.1 only, unless it was given --bind"));
        }
        let token = self.token_source(&driver)?.read()?;
        let data_address = self.data_address(found);
        let asked = system::run(async {
            let begun = Instant::now();
            let client = StatusClient::join(&driver, token).await?;
            let (joined, asked_at) = (Instant::now(), wall_clock());
            let status = client.ask().await;
            let (answered, answered_at) = (joined.elapsed(), wall_clock());
            let hosts = match data_address {
                Some(address) => try_hosts(address, |request| client.try_ports(request)).await.ok(),
                None => None,
            };
            client.close().await;
            let times = (asked_at, answered_at);
            Ok::<_, ConnectError>((joined - begun, status, answered, times, hosts))
        });
        let (joined, status, answered, (asked_at, answered_at), hosts) = asked
            .failed("the system refuses a client")?
            .map_err(|error| refused(&driver, error))?;
        let ms = |it: std::time::Duration| Some(it.as_secs_f64() * 1000.0);
        found.is_joined = true;
        found.join_ms = ms(joined);
        let status = status?;
        (found.job, found.answer_ms) = (Some(status.job.to_string()), ms(answered));
        let said = status.answered_at.as_deref();
        found.clock_ahead_ms = said.and_then(|said| ahead_ms(asked_at, answered_at, said));
        if let Some((what, hint)) = found.clock_ahead_ms.and_then(fault_of) {
            found.warnings.push((what, hint.to_owned()));
        }
        if let Some(address) = data_address {
            let data = DataPortsReport::examine(address, &found.addresses, hosts);
            found.warnings.extend(data.faults());
            found.data = Some(data);
        }
        note_unreachable(found, &status);
        Ok(())
    }

    /// This host's address for data, as an agent would report it.
    fn data_address(&self, found: &JoinReport) -> Option<IpAddr> {
        let of_route = || found.from.as_deref()?.parse().ok();
        self.interface.as_deref().map_or_else(of_route, ip_of)
    }
}

/// Notes which hosts the job has found not to reach each other.
fn note_unreachable(found: &mut JoinReport, status: &StatusReport) {
    for UnreachableHost { from, to, error, .. } in &status.unreachable {
        let warning = if from == to {
            (
                format!("in this job workers of {to} do not reach each other: {error}"),
                format!("check that the loopback interface of {to} is up (ip link show lo)"),
            )
        } else {
            (
                format!("in this job {from} does not reach {to}: {error}"),
                "let TCP and UDP pass between the hosts, or name another --interface".to_owned(),
            )
        };
        found.warnings.push(warning);
    }
}

/// The failure of a host that a driver does not let in.
fn refused(driver: &str, error: ConnectError) -> CommandFailure {
    if matches!(error, ConnectError::Unreachable { .. }) {
        return CommandFailure::new(format!("nobody answers on the UDP port of {driver}"))
            .source(error)
            .hint("let UDP to and from this port pass the firewalls of both hosts and those between them");
    }
    let hint = advice(driver, &error);
    CommandFailure::new(format!("the driver at {driver} does not let this host in"))
        .source(error)
        .hint(hint)
}

impl JoinReport {
    /// A line for the way to the driver, and those for the findings there.
    pub(super) fn describe(&self) -> Vec<String> {
        let from = self.from.as_ref().map(|from| format!(", from {from}")).unwrap_or_default();
        let job = self.job.as_deref().map(|job| format!(", job {job}")).unwrap_or_default();
        let state = match (self.join_ms, self.answer_ms) {
            (Some(join), Some(answer)) => {
                format!("joined in {join:.1} ms, answers in {answer:.1} ms{job}")
            }
            (Some(join), None) => format!("joined in {join:.1} ms"),
            _ => "not joined".to_owned(),
        };
        let mut lines = vec![format!("driver         {}{from}: {state}", self.driver)];
        lines.extend(self.clock_ahead_ms.map(|ahead| {
            let side = if ahead < 0 { "behind" } else { "ahead of" };
            format!("               this clock is {} ms {side} the driver's", ahead.unsigned_abs())
        }));
        lines.extend(self.data.as_ref().map(DataPortsReport::describe));
        lines
    }
}
