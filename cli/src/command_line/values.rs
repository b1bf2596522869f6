//! Parsers of flag values: seconds, counts and addresses. Called by clap.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::IntErrorKind;
use std::time::Duration;

use elastic_driver::CheckpointEvery;
use elastic_host_manager::core::limits::SLOTS_MAX;
use elastic_protocol::Assignment;
use elastic_protocol::messages::FileUmask;
use elastic_transport::network::is_broadcast;
use nix::net::if_::if_nametoindex;

/// The driver's default port.
pub(crate) const DEFAULT_PORT: u16 = 7070;

/// Parses seconds, possibly with a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.trim().parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| format!("{text:?} seconds: give a number from 0 to a few years"))
}

/// Parses seconds, possibly with a fraction, and more than none.
pub(crate) fn positive_seconds(text: &str) -> Result<Duration, String> {
    let duration = seconds(text)?;
    if duration.is_zero() { Err("it must be more than 0".to_owned()) } else { Ok(duration) }
}

/// Parses when a checkpoint is saved: a time with its unit, or a number of commits.
pub(crate) fn checkpoint_every(text: &str) -> Result<CheckpointEvery, String> {
    let text = text.trim();
    let wrong = || format!("{text:?} is neither a time such as 30s nor a number of commits");
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let steps = text.parse().map_err(|_| wrong())?;
        return if steps == 0 {
            Err("it must be at least 1".to_owned())
        } else {
            Ok(CheckpointEvery::Steps(steps))
        };
    }
    let period = humantime::parse_duration(text).map_err(|_| wrong())?;
    if period.is_zero() { Err(wrong()) } else { Ok(CheckpointEvery::Period(period)) }
}

/// Parses a number of bytes, possibly with a unit: 500, 64KiB, 200MiB, 2GiB.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => 0,
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!("{text:?} is no number of bytes such as 500000, 64KiB, 200MiB or 2GiB")
    })
}

/// Parses a mask of permissions, in octal.
pub(crate) fn umask(text: &str) -> Result<FileUmask, String> {
    let bits = u32::from_str_radix(text.trim(), 8);
    bits.ok().and_then(FileUmask::new).ok_or_else(|| {
        format!("{text:?} is no mask such as 077, 027 or 022: octal, without the owner's part")
    })
}

/// Parses a positive number.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    at_most(u32::MAX, text, || format!("it must be at most {}", u32::MAX))
}

/// Parses a number of slots of a host.
pub(crate) fn slots(text: &str) -> Result<u32, String> {
    at_most(SLOTS_MAX, text, || format!("a host has at most {SLOTS_MAX} slots"))
}

/// Parses a number of workers.
pub(crate) fn workers(text: &str) -> Result<u32, String> {
    const MAX: u32 = Assignment::WORLD_SIZE_MAX as u32;
    at_most(MAX, text, || format!("a job has at most {MAX} workers"))
}

/// Parses a number of shards.
pub(crate) fn shards(text: &str) -> Result<u32, String> {
    const MAX: u32 = Assignment::WORLD_SIZE_MAX as u32;
    at_most(MAX, text, || format!("a job has at most {MAX} shards"))
}

/// Parses a positive number up to a limit.
fn at_most(max: u32, text: &str, too_many: impl Fn() -> String) -> Result<u32, String> {
    match text.trim().parse::<u32>() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(number) if number <= max => Ok(number),
        Ok(_) => Err(too_many()),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Err(too_many()),
        Err(_) => Err(format!("{text:?} is not a whole number of at least 1")),
    }
}

/// Parses `HOST:PORT`, `HOST` or `[IPV6]:PORT`; the default port is [`DEFAULT_PORT`].
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    host_and_port_or(text, DEFAULT_PORT)
}

/// Checks an address of the driver from outside, and leaves it as it is. One without a port gets the driver's own,
/// which is known once the driver listens.
pub(crate) fn advertised(text: &str) -> Result<String, String> {
    host_and_port(text).map(|_| text.trim().to_owned())
}

/// Parses `HOST:PORT`, `HOST` or `[IPV6]:PORT`, with this default port.
pub(crate) fn host_and_port_or(text: &str, default_port: u16) -> Result<String, String> {
    let text = text.trim();
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, default_port).to_string());
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (text, Ok(default_port)),
        Some((host, port)) => (host, port.parse()),
    };
    let host = &with_scope_id(host)?;
    let is_name =
        !host.is_empty() && !host.contains(|it: char| it.is_whitespace() || it.is_control());
    match port {
        Ok(port) if is_name => Ok(format!("{host}:{port}")),
        _ => Err(format!("{text:?} is no address of the form HOST:PORT")),
    }
}

/// Puts the number of an interface in the place of its name in `[fe80::1%eth0]`: the system takes no name there.
fn with_scope_id(host: &str) -> Result<String, String> {
    let Some((ip, scope)) = host.split_once('%') else { return Ok(host.to_owned()) };
    let scope = scope.trim_end_matches(']');
    let id = match scope.parse::<u32>() {
        Ok(id) => id,
        Err(_) => if_nametoindex(scope)
            .map_err(|_| format!("{host:?}: this machine has no interface {scope:?}"))?,
    };
    Ok(format!("[{}%{id}]", ip.trim_start_matches('[')))
}

/// Parses a comma-separated list of [`host_and_port`].
pub(crate) fn hosts_and_ports(text: &str) -> Result<String, String> {
    let all: Result<Vec<String>, String> = text.split(',').map(host_and_port).collect();
    Ok(all?.join(","))
}

/// Parses [`host_and_port`] and resolves it.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let text = host_and_port(text)?;
    let mut addresses =
        text.to_socket_addrs().map_err(|error| format!("{text:?} cannot be resolved: {error}"))?;
    addresses.next().ok_or_else(|| format!("{text:?} has no address"))
}

/// Parses [`address`] for a listener. The system lets a program listen at an address of many hosts, at which no peer
/// reaches it.
pub(crate) fn listening_address(text: &str) -> Result<SocketAddr, String> {
    let address = address(text)?;
    let ip = address.ip();
    let kind = match (ip.is_multicast(), is_broadcast(ip)) {
        (false, false) => return Ok(address),
        (true, _) => "multicast",
        (_, true) => "broadcast",
    };
    let any = if ip.is_ipv4() { "0.0.0.0" } else { "[::]" };
    Err(format!("{ip} is a {kind} address: give one of this machine, or {any} for all that it has"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_fraction_and_may_not_be_negative() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds("600"), Ok(Duration::from_secs(600)));
        for wrong in ["-1", "NaN", "inf", "1e300", "ten", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn s_13_nonsense_is_refused() {
        for wrong in ["", " ", ":1", "a b:1", "a:b", "a\u{1b}:1", "a:70000"] {
            assert!(host_and_port(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["0", "-1", "", "65537", "1000000", "1e3"] {
            assert!(workers(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(workers("65536"), Ok(65_536));
    }

    #[test]
    fn s_12_a_mask_takes_nothing_from_the_owner_and_lets_nobody_else_write() {
        let modes = |text| umask(text).map(|umask| (umask.of_files(), umask.of_folders()));
        assert_eq!(modes("077"), Ok((0o600, 0o700)));
        assert_eq!(modes("27"), Ok((0o640, 0o750)));
        assert_eq!(modes("0"), Ok((0o644, 0o755)));
        for wrong in ["", "8", "-1", "0o27", "700", "177", "4000", "u=rwx"] {
            assert!(umask(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn s_13_an_address_of_one_link_has_its_interface_with_it() {
        let loopback = if_nametoindex("lo").expect("a machine has a loopback");
        let at = format!("[fe80::1%{loopback}]:7075");
        assert_eq!(host_and_port("[fe80::1%lo]:7075").as_ref(), Ok(&at));
        assert_eq!(host_and_port("[fe80::1%7]:7075"), Ok("[fe80::1%7]:7075".to_owned()));
        assert_eq!(address("[fe80::1%lo]:7075").map(|it| it.to_string()), Ok(at));
        let refused = host_and_port("[fe80::1%nowhere7]:7075").expect_err("no such interface");
        assert!(refused.contains("no interface \"nowhere7\""), "{refused}");
    }

    #[test]
    fn drivers_stand_in_a_list() {
        assert_eq!(hosts_and_ports("a, b:1"), Ok("a:7070,b:1".to_owned()));
        assert!(hosts_and_ports("a,,b").is_err() && hosts_and_ports("").is_err());
    }

    #[test]
    fn an_advertised_address_without_a_port_is_left_as_it_is() {
        assert_eq!(advertised(" head "), Ok("head".to_owned()));
        assert_eq!(host_and_port_or("head", 9), Ok("head:9".to_owned()));
        assert_eq!(host_and_port_or("head:8", 9), Ok("head:8".to_owned()));
        assert!(advertised("a b").is_err());
    }

    #[test]
    fn an_address_has_a_default_port() {
        let at = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(at("127.0.0.1"), Ok("127.0.0.1:7070".to_owned()));
        assert_eq!(at("127.0.0.1:0"), Ok("127.0.0.1:0".to_owned()));
        assert_eq!(at("[::1]"), Ok("[::1]:7070".to_owned()));
        assert_eq!(at("::1"), Ok("[::1]:7070".to_owned()));
        assert_eq!(at("[::1]:9"), Ok("[::1]:9".to_owned()));
        assert!(at("127.0.0.1:port").is_err());
    }
}
