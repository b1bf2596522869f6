//! The agenda: pending events, ordered by time, then by registration. The world's main loop takes its events from
//! here.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// One entry; the heap's largest is the earliest.
#[derive(Debug)]
struct AgendaEntry<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> PartialEq for AgendaEntry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for AgendaEntry<E> {}

impl<E> PartialOrd for AgendaEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for AgendaEntry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The future of the simulated world. Times are nanoseconds of world time.
#[derive(Debug)]
pub(crate) struct WorldAgenda<E> {
    heap: BinaryHeap<AgendaEntry<E>>,
    number: u64,
}

impl<E> WorldAgenda<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::with_capacity(1024), number: 0 }
    }

    pub(crate) fn push(&mut self, at: u64, event: E) {
        self.number += 1;
        self.heap.push(AgendaEntry { at, number: self.number, event });
    }

    /// Time of the next event.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_first_and_at_one_time_in_order() {
        let mut agenda = WorldAgenda::new();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            agenda.push(at, name);
        }
        let order: Vec<char> = std::iter::from_fn(|| agenda.pop()).map(|(_, name)| name).collect();
        assert_eq!(order, ['a', 'b', 'c', 'd']);
    }
}
