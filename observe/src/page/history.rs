//! The events and world sizes that the page has, within bounds. Used by `page`.

use std::collections::VecDeque;

use elastic_driver::{DriverEvent, EventKind, ResetWay};
use elastic_protocol::Time;
use serde::Serialize;

use crate::words::{EventLevel, EventWords, describe_event};
use crate::worker_names::with_short_names;

/// Events that are kept: the last ones.
const EVENTS_MAX: usize = 2_000;

/// Points of the world size that are kept: the last ones.
const POINTS_MAX: usize = 2_000;

/// Most characters of an event's text. A generation of 4,000 members names them all.
const TEXT_CHARS_MAX: usize = 600;

/// An event, as the page shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PageEvent {
    /// Number of the event on this page.
    n: u64,
    /// Time in milliseconds since 1970.
    t: u64,
    term: u64,
    generation: u64,
    kind: String,
    level: EventLevel,
    text: String,
}

/// The last events.
#[derive(Debug, Default)]
pub(super) struct EventHistory {
    events: VecDeque<PageEvent>,
    next: u64,
}

impl EventHistory {
    pub(super) fn handle_event(&mut self, at: Time, event: &DriverEvent) {
        let EventWords { level, text } = describe_event(event.generation, &event.kind);
        let kind = serde_json::to_value(&event.kind).ok();
        let kind = kind.and_then(|kind| Some(kind.get("kind")?.as_str()?.to_owned()));
        self.events.push_back(PageEvent {
            n: self.next,
            t: ms(at),
            term: event.term.0,
            generation: event.generation.0,
            kind: kind.unwrap_or_default(),
            level,
            text: shortened(with_short_names(&text).into_owned(), TEXT_CHARS_MAX),
        });
        self.next += 1;
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// The number of the next event.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// The kept events from a number on.
    pub(super) fn since(&self, number: u64) -> Vec<&PageEvent> {
        self.events.iter().filter(|event| event.n >= number).collect()
    }
}

/// The world size from a time on.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct WorldPoint {
    /// Time in milliseconds since 1970.
    t: u64,
    /// Workers that train.
    size: u32,
    generation: u64,
    /// The reset that was decided then.
    #[serde(skip_serializing_if = "Option::is_none")]
    reset: Option<ResetMark>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ResetMark {
    way: ResetWay,
    cause: String,
}

/// The world size over time.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct WorldHistory {
    points: VecDeque<WorldPoint>,
}

impl WorldHistory {
    pub(super) fn handle_event(&mut self, at: Time, event: &DriverEvent) {
        let before = self.points.back().map_or(0, |point| point.size);
        let (size, reset) = match &event.kind {
            EventKind::GenerationRunning { world_size } => (*world_size, None),
            EventKind::ResetDecided { cause, way } => {
                let cause = with_short_names(&cause.to_string()).into_owned();
                let cause = shortened(cause, TEXT_CHARS_MAX);
                // Before a planned end all train up to the step that was agreed on.
                let size = if *way == ResetWay::Interrupt { before } else { 0 };
                (size, Some(ResetMark { way: *way, cause }))
            }
            EventKind::JobEnded { .. } => (0, None),
            _ => return,
        };
        self.points.push_back(WorldPoint {
            t: ms(at),
            size,
            generation: event.generation.0,
            reset,
        });
        while self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }
}

/// Milliseconds since 1970.
pub(super) const fn ms(at: Time) -> u64 {
    at.0 / 1_000_000
}

fn shortened(text: String, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
