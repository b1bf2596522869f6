//! The network address at which other workers reach this one: found at the start, and found anew when the host has
//! lost it (a new DHCP lease, a renumbered network). Called by `start`.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};

use elastic_protocol::environment::DATA_ADDRESS;
use elastic_transport::network::{
    interface_addresses, ip_towards, ip_towards_others, is_link_local, is_name_of_host,
};
use elastic_worker::state::environment::WorkerEnvironment;
use elastic_worker::state::training::{Error, NewIp, Result};

use super::patient_start::PatientStart;

/// The agent's choice, or else the local address of the route to the driver.
pub(super) fn data_ip(
    environment: &WorkerEnvironment,
    patience: &mut PatientStart,
) -> Result<IpAddr> {
    let Ok(told) = std::env::var(DATA_ADDRESS) else {
        let what = format!("finding the way to the driver at {}", environment.driver);
        return patience.until(&what, || ip_towards_driver(environment));
    };
    told.parse().map_err(|error: std::net::AddrParseError| Error::Start {
        what: format!("reading {DATA_ADDRESS}"),
        source: error.into(),
    })
}

/// A new listening address for a host that has lost its former one: the new address of the interface that had it, or
/// else that of the route to the driver.
pub(super) fn follow(first: IpAddr, environment: WorkerEnvironment) -> NewIp {
    let interface =
        interface_addresses().into_iter().find(|(_, ip)| *ip == first).map(|(name, _)| name);
    Box::new(move |old| {
        if is_here(old) {
            return None;
        }
        let of_interface = || {
            let all = interface_addresses()
                .into_iter()
                .filter(|(name, _)| Some(name) == interface.as_ref());
            all.map(|(_, ip)| ip).find(|ip| ip.is_ipv4() == old.is_ipv4() && !is_link_local(ip))
        };
        let new = of_interface().or_else(|| ip_towards_driver(&environment).ok());
        new.filter(|new| *new != old && !new.is_loopback())
    })
}

/// Whether this host has the address. Other errors than its absence say nothing about it.
fn is_here(ip: IpAddr) -> bool {
    let bound = UdpSocket::bind((ip, 0));
    !bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

/// The local address of the route to the driver: other workers can reach it too. A driver that is known by a host's name may
/// have workers on other hosts, to which its own host's name often leads over the loopback: there the way to other hosts counts.
fn ip_towards_driver(environment: &WorkerEnvironment) -> std::io::Result<IpAddr> {
    let (driver, name) = environment.driver_address()?;
    let ip = ip_towards(driver)?;
    if ip.is_loopback() && is_name_of_host(name) {
        return Ok(ip_towards_others().unwrap_or(ip));
    }
    Ok(ip)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use elastic_protocol::JobId;
    use elastic_worker::state::environment::parse_worker;

    use super::*;

    fn environment() -> WorkerEnvironment {
        WorkerEnvironment {
            driver: "127.0.0.1:7070".to_owned(),
            job: JobId(uuid::Uuid::nil()),
            worker: parse_worker("a[0]#1").expect("a literal"),
            credential: String::new(),
        }
    }

    #[test]
    fn an_address_that_the_host_still_has_is_kept() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(follow(loopback, environment())(loopback), None);
    }

    #[test]
    fn an_address_that_the_host_does_not_have_is_noticed() {
        let elsewhere: IpAddr = Ipv4Addr::new(192, 0, 2, 7).into();
        assert!(!is_here(elsewhere), "TEST-NET-1 is on no host");
        // The route to this driver leads over the loopback, at which other hosts reach nobody.
        assert_eq!(follow(elsewhere, environment())(elsewhere), None);
    }
}
