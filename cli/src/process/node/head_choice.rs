//! The choice of the head where the endpoint's name has addresses of several nodes, as that of a headless service does. The
//! order of the addresses is the same on all nodes: the owner of the lowest drives at once, unless a driver answers at
//! another address; the owner of a higher one looks for a driver first, the longer the more addresses are before its own.
//! Logic without I/O. Called by [`head`](super::head).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::process::driver_reach::DriverLook;

/// Time for which the owner of the second address looks for a driver. A look takes up to 1.5 s.
const LOOKS_FOR: Duration = Duration::from_secs(4);

/// Time for which it looks longer for each further address before its own: a round of looks, and the start of a driver. Else
/// two owners would begin at once where the lowest address is dead.
const LONGER_BY: Duration = Duration::from_secs(2);

/// Time for which it looks on once another node has bound its port: that node looks around, too, and then serves.
const STARTS_WITHIN: Duration = Duration::from_secs(3);

/// Longest time for which a node looks for a driver, whatever it sees.
const LOOKS_FOR_MAX: Duration = Duration::from_secs(20);

/// Interval between the end of a look and the next.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Most addresses at which a node looks for a driver.
pub(super) const OTHERS_MAX: usize = 64;

/// The next step of a node that has bound its port at the endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HeadStep {
    /// The node joins this driver.
    Join { driver: SocketAddr },
    /// The node starts the driver.
    Begin { is_lowest: bool },
    /// The node looks again after this time.
    LookAgain { after: Duration },
}

/// The choice of the head, as one of several nodes makes it.
pub(super) struct HeadChoice {
    /// The addresses that are not this node's, in the order that all nodes have.
    others: Vec<SocketAddr>,
    /// Number of these that are before this node's own.
    lower: usize,
    /// The last look at each of them.
    seen: Vec<DriverLook>,
    /// Time since the first look after which this node starts the driver.
    until: Duration,
}

impl HeadChoice {
    /// The choice of the node that has the address `own`; none if there is no other address. A node without an own address
    /// that others know is the last in the order.
    pub(super) fn new(own: Option<IpAddr>, others: &[SocketAddr]) -> Option<Self> {
        let mut others: Vec<SocketAddr> = others
            .iter()
            .map(|other| SocketAddr::new(other.ip().to_canonical(), other.port()))
            .collect();
        others.sort_unstable();
        others.dedup();
        others.truncate(OTHERS_MAX);
        if others.is_empty() {
            return None;
        }
        let own = own.map(|ip| ip.to_canonical());
        let lower = others.iter().filter(|other| own.is_none_or(|own| other.ip() < own)).count();
        let further = u32::try_from(lower).unwrap_or(u32::MAX).saturating_sub(1);
        let until = match lower {
            0 => Duration::ZERO,
            _ => LOOKS_FOR_MAX.min(LOOKS_FOR + LONGER_BY.saturating_mul(further)),
        };
        Some(Self { others, lower, seen: Vec::new(), until })
    }

    /// The addresses at which to look.
    pub(super) fn others(&self) -> &[SocketAddr] {
        &self.others
    }

    /// These addresses as text.
    pub(super) fn listed(&self) -> String {
        let all: Vec<String> = self.others.iter().map(ToString::to_string).collect();
        all.join(", ")
    }

    /// A look at each of the addresses has ended, this long after the first look began.
    pub(super) fn handle_looks(&mut self, elapsed: Duration, looks: &[DriverLook]) -> HeadStep {
        let mut seen = self.others.iter().zip(looks);
        if let Some((driver, _)) = seen.find(|(_, look)| **look == DriverLook::Answered) {
            return HeadStep::Join { driver: *driver };
        }
        let mut lower = self.seen.iter().zip(looks).take(self.lower);
        if lower.any(|(before, now)| (*before, *now) == (DriverLook::Refused, DriverLook::Silent)) {
            self.until = LOOKS_FOR_MAX.min(self.until.max(elapsed + STARTS_WITHIN));
        }
        looks.clone_into(&mut self.seen);
        if elapsed >= self.until {
            return HeadStep::Begin { is_lowest: self.lower == 0 };
        }
        HeadStep::LookAgain { after: AGAIN_AFTER }
    }
}

#[cfg(test)]
mod tests {
    use DriverLook::{Answered, Refused, Silent};

    use super::*;

    const BEGINS_FIRST: HeadStep = HeadStep::Begin { is_lowest: true };
    const BEGINS: HeadStep = HeadStep::Begin { is_lowest: false };
    const LOOKS: HeadStep = HeadStep::LookAgain { after: AGAIN_AFTER };

    fn address(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().expect("a literal"), 29_400)
    }

    /// The choice of the node with this address.
    fn choice(own: &str, others: &[&str]) -> Option<HeadChoice> {
        let others: Vec<SocketAddr> = others.iter().map(|text| address(text)).collect();
        HeadChoice::new(Some(own.parse().expect("a literal")), &others)
    }

    fn among(own: &str, others: &[&str]) -> HeadChoice {
        choice(own, others).expect("there are others")
    }

    #[test]
    fn t_2_a_node_that_has_all_addresses_has_no_choice_to_make() {
        assert!(choice("10.0.0.1", &[]).is_none());
    }

    #[test]
    fn t_2_the_owner_of_the_lowest_address_drives_after_one_look() {
        for others in [["10.0.0.2", "10.0.0.3"], ["10.0.0.3", "10.0.0.2"], ["10.0.0.10", "::1"]] {
            for look in [Refused, Silent] {
                let mut choice = among("10.0.0.1", &others);
                assert_eq!(choice.handle_looks(Duration::ZERO, &[look; 2]), BEGINS_FIRST);
            }
        }
    }

    #[test]
    fn t_2_every_owner_joins_a_driver_that_answers_at_another_address() {
        for own in ["10.0.0.1", "10.0.0.3"] {
            let mut choice = among(own, &["10.0.0.2", "10.0.0.9"]);
            let driver = address("10.0.0.9");
            assert_eq!(
                choice.handle_looks(Duration::ZERO, &[Silent, Answered]),
                HeadStep::Join { driver }
            );
        }
    }

    #[test]
    fn t_2_the_owner_of_a_higher_address_drives_only_after_its_time_without_an_answer() {
        for look in [Refused, Silent] {
            let mut choice = among("10.0.0.2", &["10.0.0.1"]);
            assert_eq!(choice.handle_looks(Duration::ZERO, &[look]), LOOKS);
            assert_eq!(choice.handle_looks(LOOKS_FOR - AGAIN_AFTER, &[look]), LOOKS);
            assert_eq!(choice.handle_looks(LOOKS_FOR, &[look]), BEGINS);
        }
    }

    #[test]
    fn t_2_two_owners_whose_lower_address_is_dead_do_not_begin_at_one_time() {
        let mut third = among("10.0.0.3", &["10.0.0.1", "10.0.0.2"]);
        assert_eq!(third.handle_looks(LOOKS_FOR, &[Silent, Silent]), LOOKS);
        let driver = address("10.0.0.2");
        let later = LOOKS_FOR + LONGER_BY / 2;
        assert_eq!(third.handle_looks(later, &[Silent, Answered]), HeadStep::Join { driver });
    }

    #[test]
    fn t_2_a_lower_address_whose_port_is_bound_meanwhile_is_waited_for() {
        let mut choice = among("10.0.0.2", &["10.0.0.1"]);
        assert_eq!(choice.handle_looks(Duration::ZERO, &[Refused]), LOOKS);
        assert_eq!(choice.handle_looks(LOOKS_FOR, &[Silent]), LOOKS, "a node begins there");
        assert_eq!(choice.handle_looks(LOOKS_FOR + STARTS_WITHIN, &[Silent]), BEGINS);
    }

    #[test]
    fn g_9_a_choice_is_made_within_its_longest_time_whatever_is_seen() {
        let many: Vec<String> = (1..100).map(|number| format!("10.0.0.{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let mut choice = among("10.0.0.200", &many);
        assert_eq!(choice.others().len(), OTHERS_MAX);
        let mut elapsed = Duration::ZERO;
        for look in [Refused, Silent].into_iter().cycle() {
            match choice.handle_looks(elapsed, &[look; OTHERS_MAX]) {
                HeadStep::LookAgain { after } => elapsed += after,
                step => {
                    assert_eq!(step, BEGINS);
                    break;
                }
            }
        }
        assert!(elapsed <= LOOKS_FOR_MAX, "{elapsed:?}");
    }

    #[test]
    fn t_2_an_address_has_its_place_in_either_form() {
        let mut choice = among("10.0.0.1", &["::ffff:10.0.0.2", "10.0.0.2"]);
        assert_eq!(choice.handle_looks(Duration::ZERO, &[Silent]), BEGINS_FIRST);
        assert_eq!(choice.others().len(), 1);
    }
}
