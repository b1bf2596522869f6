//! A network for one test: the test and all its processes run in one network namespace, and each place in another,
//! connected to one bridge. A place can be cut off, as by a switch. Needs root; used by tests of several hosts.

use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sched::{CloneFlags, unshare};

/// The address of the test's own processes.
pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(10, 231, 78, 1);

/// Says that a test shows nothing here, and why; fails where networks are required.
#[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
pub(crate) fn not_shown(hint: &str) {
    assert!(std::env::var_os("ELASTIC_REQUIRE_NETWORK").is_none(), "{hint}");
    eprintln!("not shown: {hint}");
}

/// The network; removed when dropped.
pub(crate) struct Network {
    places: Vec<Place>,
}

/// A machine in the network.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: Ipv4Addr,
    /// The name of the namespace.
    name: String,
    /// The bridge's end of the cable.
    port: String,
}

impl Network {
    /// Moves this thread into a namespace with `places` places around it. None where that is not allowed, as without
    /// root.
    pub(crate) fn enter(places: u8) -> Option<Self> {
        let made = unshare(CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string());
        let made = made.and_then(|()| Self::wire(places));
        if let Err(error) = &made {
            not_shown(&format!(
                "no network can be made ({error}): that needs root and Debian's iproute2"
            ));
        }
        made.ok()
    }

    fn wire(count: u8) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        ip("link set lo up")?;
        // A fixed address: otherwise the bridge takes the lowest address of its ports, and another one when a port is
        // cut. Hosts that know the old one would lose their way until it expires.
        ip("link add bridge address 02:00:00:00:00:01 type bridge")?;
        ip(&format!("address add {HERE}/24 dev bridge"))?;
        ip("link set bridge up")?;
        let mut network = Self { places: Vec::new() };
        for number in 1..=count {
            let unique = NUMBER.fetch_add(1, Ordering::SeqCst);
            let name = format!("elastic-test-{}-{unique}", std::process::id());
            let address = Ipv4Addr::new(10, 231, 78, 10 + number);
            let port = format!("port{number}");
            ip(&format!("netns add {name}"))?;
            network.places.push(Place { address, name: name.clone(), port: port.clone() });
            ip(&format!("link add {port} type veth peer name cable netns {name}"))?;
            ip(&format!("link set {port} master bridge up"))?;
            ip(&format!("-n {name} address add {address}/24 dev cable"))?;
            ip(&format!("-n {name} link set cable up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(network)
    }

    /// Takes all IPv4 addresses but those of the loopback away, and gives IPv6 addresses instead. Returns that of the
    /// test's own processes.
    pub(crate) fn use_ipv6_alone(&self) -> &'static str {
        const PREFIX: &str = "fd00:e1a5::";
        let made = (|| {
            ip(&format!("address delete {HERE}/24 dev bridge"))?;
            ip(&format!("address add {PREFIX}1/64 dev bridge nodad"))?;
            for (number, place) in self.places.iter().enumerate() {
                let Place { name, address, .. } = place;
                ip(&format!("-n {name} address delete {address}/24 dev cable"))?;
                let address = format!("{PREFIX}1{number}/64");
                ip(&format!("-n {name} address add {address} dev cable nodad"))?;
            }
            Ok::<_, String>(())
        })();
        made.expect("a kernel with IPv6");
        "fd00:e1a5::1"
    }

    pub(crate) fn place(&self, number: usize) -> &Place {
        &self.places[number]
    }
}

impl Place {
    /// The command prefix that runs a command at this place.
    pub(crate) fn wrapper(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net=/run/netns/{}", self.name)]
    }

    /// Cuts the cable: packets to and from this place are lost without notice.
    pub(crate) fn cut(&self) {
        ip(&format!("link set {} nomaster", self.port)).expect("the port is on the bridge");
    }

    /// Drops packets of a protocol from this place without notice; all others pass.
    pub(crate) fn silence(&self, protocol: &str) {
        let Self { name, .. } = self;
        let rule = format!("-n {name} rule add ipproto {protocol} blackhole");
        ip(&rule).expect("a rule of its namespace");
    }

    /// Drops packets that open a connection over TCP to this place, as a firewall does; those of its own pass. False where
    /// no firewall can be made.
    pub(crate) fn refuse_connections(&self) -> bool {
        self.firewall("-A INPUT -p tcp --syn -j DROP")
    }

    /// Drops UDP datagrams to this place that are longer than `bytes`, as its firewall sees them: the ones of one send may
    /// be a single long one there. False where no firewall can be made.
    pub(crate) fn drop_datagrams_longer_than(&self, bytes: u32) -> bool {
        self.firewall(&format!("-A INPUT -p udp -m length --length {bytes}:65535 -j DROP"))
    }

    fn firewall(&self, rule: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, "iptables"]).args(rule.split(' '));
        let output = command.stdin(Stdio::null()).output().expect("iproute2 is there");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let is_made = output.status.success();
        if !is_made {
            not_shown(&format!("Debian's iptables is needed: {stderr}"));
        }
        is_made
    }

    pub(crate) fn hear(&self, protocol: &str) {
        let Self { name, .. } = self;
        let rule = format!("-n {name} rule delete ipproto {protocol} blackhole");
        ip(&rule).expect("the rule is there");
    }

    /// From this place, packets to `other` reach `impostor`, which has the same address now.
    pub(crate) fn mistake(&self, other: &Self, impostor: &Self) {
        let address = other.address;
        // The impostor may have it already.
        let _ = ip(&format!("-n {} address add {address}/32 dev lo", impostor.name));
        let mac = impostor.mac();
        let neighbour = format!("neighbour replace {address} lladdr {mac} dev cable nud permanent");
        ip(&format!("-n {} {neighbour}", self.name)).expect("a neighbour");
    }

    /// From this place, packets to `other` reach nobody; all others pass.
    pub(crate) fn lose(&self, other: &Self) {
        let nobody = "lladdr 02:00:00:00:00:ff dev cable nud permanent";
        let neighbour = format!("neighbour replace {} {nobody}", other.address);
        ip(&format!("-n {} {neighbour}", self.name)).expect("a neighbour");
    }

    /// From this place, packets to `other` reach it again.
    pub(crate) fn know(&self, other: &Self) {
        let Self { address, .. } = other;
        let mac = other.mac();
        let neighbour = format!("neighbour replace {address} lladdr {mac} dev cable nud reachable");
        ip(&format!("-n {} {neighbour}", self.name)).expect("a neighbour");
    }

    /// The hardware address of this place's end of the cable.
    fn mac(&self) -> String {
        let shown =
            Command::new("ip").args(["-n", &self.name, "-br", "link", "show", "cable"]).output();
        let line = String::from_utf8_lossy(&shown.expect("it runs").stdout).into_owned();
        line.split_whitespace().nth(2).expect("name, state, address").to_owned()
    }

    /// Drops packets to this place that are longer than `bytes` without notice, as on a path whose routers send no
    /// errors.
    pub(crate) fn drop_longer_than(&self, bytes: u32) {
        let Self { name, port, .. } = self;
        // Without this, packets that are not yet segmented pass a bridge whatever their length.
        ip(&format!("-n {name} link set cable gso_max_segs 1")).expect("the cable is there");
        ip(&format!("link set {port} mtu {bytes}")).expect("the port is there");
    }

    /// Sets the longest packet that this place sends, as its interface says.
    pub(crate) fn set_mtu(&self, bytes: u32) {
        ip(&format!("-n {} link set cable mtu {bytes}", self.name)).expect("the cable is there");
    }

    /// Limits the rate of the packets from this place, in megabits a second.
    pub(crate) fn limit_rate(&self, megabits: u32) {
        let bucket = format!("tbf rate {megabits}mbit burst 64kb latency 200ms");
        let command = format!("netns exec {} tc qdisc replace dev cable root {bucket}", self.name);
        ip(&command).expect("the cable is there, and iproute2 has `tc`");
    }

    /// Limits the rate of the packets from this place to `other`, in megabits a second; all else passes as before.
    pub(crate) fn limit_rate_to(&self, other: &Self, megabits: u32) {
        let address = other.address;
        for command in [
            "qdisc replace dev cable root handle 1: htb default 10".to_owned(),
            "class replace dev cable parent 1: classid 1:10 htb rate 10gbit quantum 60000"
                .to_owned(),
            format!(
                "class replace dev cable parent 1: classid 1:20 htb rate {megabits}mbit burst 16kb quantum 60000"
            ),
            format!(
                "filter replace dev cable parent 1: protocol ip prio 1 u32 match ip dst {address}/32 flowid 1:20"
            ),
        ] {
            let command = format!("netns exec {} tc {command}", self.name);
            ip(&command).expect("the cable is there, and iproute2 has `tc`");
        }
    }

    /// Lifts the limits of the packets from this place.
    pub(crate) fn lift_limits(&self) {
        ip(&format!("netns exec {} tc qdisc delete dev cable root", self.name))
            .expect("there are bounds");
    }

    /// Gives this place another address, as a new lease of DHCP does: the old one is gone at once.
    pub(crate) fn renumber(&self, new: Ipv4Addr) {
        let Self { name, address, .. } = self;
        ip(&format!("-n {name} address delete {address}/24 dev cable")).expect("it has it");
        ip(&format!("-n {name} address add {new}/24 dev cable")).expect("a free address");
    }

    /// Takes the loopback interface of this place `up` or `down`.
    pub(crate) fn set_loopback(&self, state: &str) {
        ip(&format!("-n {} link set lo {state}", self.name)).expect("each place has one");
    }

    /// Lets sockets of this place be bound to addresses of other places, as machines with keepalived or HAProxy do.
    pub(crate) fn let_bind_any_address(&self) {
        ip(&format!("netns exec {} sysctl -q -w net.ipv4.ip_nonlocal_bind=1", self.name))
            .expect("Debian's procps");
    }

    /// Takes a UDP port of this place's address until the holder is dropped.
    pub(crate) fn hold_udp_port(&self, port: u16) -> PortHolder {
        let Self { address, .. } = self;
        self.hold(&format!(
            "import socket, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind(('{address}', {port}))
print('taken', flush=True)
time.sleep(600)"
        ))
    }

    /// Leaves this place 16 ports for sockets that ask for any, half of them taken for UDP until the holder is
    /// dropped.
    pub(crate) fn leave_few_ports(&self) -> PortHolder {
        const PROGRAM: &str = "import socket, time
open('/proc/sys/net/ipv4/ip_local_port_range', 'w').write('40000 40015')
taken = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(8)]
for number, each in enumerate(taken):
    each.bind(('0.0.0.0', 40000 + number))
print('taken', flush=True)
time.sleep(600)";
        self.hold(PROGRAM)
    }

    /// Leaves no port that is free, for TCP or UDP, until the holder is dropped.
    pub(crate) fn leave_no_ports(&self) -> PortHolder {
        const PROGRAM: &str = "import socket, time
open('/proc/sys/net/ipv4/ip_local_port_range', 'w').write('40000 40015')
taken = [socket.socket(socket.AF_INET, kind) for kind in (1, 2) for _ in range(16)]
for number, each in enumerate(taken):
    each.bind(('0.0.0.0', 40000 + number % 16))
print('taken', flush=True)
time.sleep(600)";
        self.hold(PROGRAM)
    }

    /// Runs a Python program at this place that says when it has taken its ports.
    fn hold(&self, holding: &str) -> PortHolder {
        let [program, namespace] = self.wrapper().try_into().expect("two words");
        let mut command = Command::new(program);
        command.args([&namespace, "python3", "-c", holding]).stdin(Stdio::null());
        let mut holder = command.stdout(Stdio::piped()).spawn().expect("Python is installed");
        let stdout = holder.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("text");
        let holder = PortHolder(holder);
        assert_eq!(line, "taken\n");
        holder
    }

    pub(crate) fn mend(&self) {
        ip(&format!("link set {} master bridge", self.port)).expect("the bridge is there");
    }
}

/// A process that holds ports.
pub(crate) struct PortHolder(Child);

impl Drop for PortHolder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for place in &self.places {
            // The namespace is missing if making it failed.
            let _ = ip(&format!("netns delete {}", place.name));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    let output = command.args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`ip` cannot be run: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or_else(|| format!("`ip {arguments}`: {stderr}"))
}
