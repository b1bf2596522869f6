//! The agenda: pending events, ordered by time, then by registration. The world's main loop takes its events from
//! here.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The time of one event, and its place; the heap's largest is the earliest.
#[derive(Debug)]
struct AgendaEntry {
    at: u64,
    number: u64,
    place: u32,
}

impl PartialEq for AgendaEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for AgendaEntry {}

impl PartialOrd for AgendaEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for AgendaEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The future of the simulated world. Times are nanoseconds of world time.
///
/// Events are large, so the heap orders their places and moves no event.
#[derive(Debug)]
pub(crate) struct WorldAgenda<E> {
    heap: BinaryHeap<AgendaEntry>,
    events: Vec<Option<E>>,
    /// Places without an event.
    free: Vec<u32>,
    number: u64,
}

impl<E> WorldAgenda<E> {
    pub(crate) fn new() -> Self {
        let heap = BinaryHeap::with_capacity(1024);
        Self { heap, events: Vec::with_capacity(1024), free: Vec::new(), number: 0 }
    }

    pub(crate) fn push(&mut self, at: u64, event: E) {
        self.number += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() as u32 - 1
            }
        };
        self.heap.push(AgendaEntry { at, number: self.number, place });
    }

    /// Time of the next event.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        let AgendaEntry { at, place, .. } = self.heap.pop()?;
        self.free.push(place);
        self.events[place as usize].take().map(|event| (at, event))
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
        assert_eq!(agenda.pop(), Some((1, 'a')));
        agenda.push(3, 'e');
        let order: Vec<char> = std::iter::from_fn(|| agenda.pop()).map(|(_, name)| name).collect();
        assert_eq!(order, ['b', 'e', 'c', 'd']);
    }
}
