//! [`DriverAddresses`]: the drivers that a node knows, by its start parameters, from the driver and by meeting one. The
//! dialer tries them all; an agent passes them on to the workers that it starts.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use elastic_protocol::Incarnation;
use elastic_protocol::messages::DRIVERS_MAX;

/// Addresses of drivers that a node's process finds out by itself, after its start. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FoundDrivers(Rc<RefCell<Vec<String>>>);

impl FoundDrivers {
    /// Replaces the found addresses by these: one `HOST:PORT`, or several with commas between them.
    pub fn set(&self, addresses: &str) {
        *self.0.borrow_mut() = split(addresses).take(DRIVERS_MAX).collect();
    }
}

/// These addresses, each where it comes first.
pub fn each_once<A: PartialEq>(addresses: impl IntoIterator<Item = A>) -> Vec<A> {
    let mut once = Vec::new();
    for address in addresses {
        if !once.contains(&address) {
            once.push(address);
        }
    }
    once
}

fn split(addresses: &str) -> impl Iterator<Item = String> {
    addresses.split(',').map(|name| name.trim().to_owned())
}

/// Addresses of drivers, as `HOST:PORT`.
#[derive(Debug, Default)]
pub struct DriverAddresses {
    /// The address at which the node met the acting driver last.
    met: Cell<Option<SocketAddr>>,
    /// The addresses that the node was started with.
    given: Vec<String>,
    /// The addresses that the node's process has found out since.
    found: FoundDrivers,
    /// The addresses that the driver of the highest term sent last.
    told: RefCell<(Incarnation, Vec<String>)>,
    /// Addresses that were told before, and not the last time: a standby that was not heard for a while is back unheard where
    /// the acting driver has gone meanwhile.
    former: RefCell<Vec<String>>,
}

impl DriverAddresses {
    /// The addresses in `given`, which is one `HOST:PORT` or several with commas between them, and those that `found`
    /// gives later.
    pub(crate) fn new(given: &str, found: FoundDrivers) -> Rc<Self> {
        Rc::new(Self { given: split(given).collect(), found, ..Self::default() })
    }

    /// The address at which the node met the acting driver last, and so one that works from here; `None` before the first
    /// meeting.
    pub fn met(&self) -> Option<SocketAddr> {
        self.met.get()
    }

    /// The dialer has met the acting driver at this address.
    pub(crate) fn handle_met(&self, address: SocketAddr) {
        self.met.set(Some(address));
    }

    /// All names, each once; those from the driver first, as they are newer, and former ones last.
    pub fn all(&self) -> Vec<String> {
        let (told, found, former) =
            (self.told.borrow(), self.found.0.borrow(), self.former.borrow());
        let all = told.1.iter().chain(&*found).chain(&self.given).chain(&*former);
        each_once(all.cloned())
    }

    /// Takes the addresses that a driver of this term sends; those of an earlier term are ignored (G-2).
    pub(crate) fn handle_told(&self, term: Incarnation, mut addresses: Vec<String>) {
        let mut told = self.told.borrow_mut();
        if term >= told.0 {
            addresses.truncate(DRIVERS_MAX);
            let mut former = self.former.borrow_mut();
            let before = told.1.drain(..).chain(former.drain(..));
            let gone: Vec<String> = before.filter(|name| !addresses.contains(name)).collect();
            *former = each_once(gone);
            former.truncate(DRIVERS_MAX);
            *told = (term, addresses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_never_forgotten_and_a_former_driver_not_listened_to() {
        let addresses = DriverAddresses::new("a:1, b:1", FoundDrivers::default());
        assert_eq!(addresses.all(), ["a:1", "b:1"]);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        addresses.handle_told(Incarnation(2), names(&["c:1", "b:1"]));
        assert_eq!(addresses.all(), ["c:1", "b:1", "a:1"]);
        addresses.handle_told(Incarnation(1), names(&["d:1"]));
        assert_eq!(addresses.all(), ["c:1", "b:1", "a:1"], "G-2");
        let many = (0..1_000).map(|number| format!("x:{number}")).collect();
        addresses.handle_told(Incarnation(3), many);
        assert_eq!(addresses.all().len(), DRIVERS_MAX + 2 + 1, "c:1 is a former one");
    }

    #[test]
    fn d_2_a_standby_that_was_not_heard_for_a_while_is_tried_last() {
        let addresses = DriverAddresses::new("a:1", FoundDrivers::default());
        let tell = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            addresses.handle_told(Incarnation(1), names);
        };
        tell(&["a:1", "b:1", "c:1"]);
        tell(&["a:1"]);
        assert_eq!(addresses.all(), ["a:1", "b:1", "c:1"]);
        tell(&["a:1", "c:1"]);
        assert_eq!(addresses.all(), ["a:1", "c:1", "b:1"]);
        for number in 0..50 {
            tell(&["a:1", &format!("d:{number}")]);
        }
        assert_eq!(addresses.all().len(), 2 + DRIVERS_MAX, "the last ones are kept");
    }

    #[test]
    fn drivers_that_the_process_finds_are_tried_without_a_word_from_any_driver() {
        let found = FoundDrivers::default();
        let addresses = DriverAddresses::new("a:1,b:1", found.clone());
        found.set("c:1, b:1");
        assert_eq!(addresses.all(), ["c:1", "b:1", "a:1"]);
        found.set("d:1");
        assert_eq!(
            addresses.all(),
            ["d:1", "a:1", "b:1"],
            "the latest, and those it was started with"
        );
    }
}
