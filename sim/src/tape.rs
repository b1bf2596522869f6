//! Recordings of the drivers of a run, in memory. Each life of a driver has its own, in segments. Written by the driver's
//! recorder; a test replays them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use elastic_driver::recording::{DriverRecorder, HEAD_PREFIX, RecordingSink};

/// Name of the messages of a simulated program.
pub const SIMULATED_MESSAGES: &str = "simulated";

/// Length of a segment: short, so that segments begin in the middle of jobs.
const SEGMENT_BYTES: usize = 48 << 10;

/// The segments of each life.
type SegmentsOfLives = Rc<RefCell<BTreeMap<u32, Vec<String>>>>;

/// The recordings of a run, if they are wanted. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverTape(Option<SegmentsOfLives>);

impl DriverTape {
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self(is_wanted.then(Rc::default))
    }

    /// A recorder for a life of the driver.
    pub(crate) fn recorder(&self, life: u32) -> Option<DriverRecorder> {
        let segments = Rc::clone(self.0.as_ref()?);
        let sink = TapeSink { life, segments };
        Some(DriverRecorder::new(Box::new(sink), SIMULATED_MESSAGES).segments_of(SEGMENT_BYTES))
    }

    /// The segments of each life.
    pub(crate) fn take(&self) -> Vec<Vec<String>> {
        self.0.as_ref().map(|lives| lives.take().into_values().collect()).unwrap_or_default()
    }
}

#[derive(Debug)]
struct TapeSink {
    life: u32,
    segments: SegmentsOfLives,
}

impl RecordingSink for TapeSink {
    fn keep(&mut self, line: &str) -> bool {
        let mut lives = self.segments.borrow_mut();
        let segments = lives.entry(self.life).or_default();
        if line.as_bytes().starts_with(HEAD_PREFIX) {
            segments.push(String::new());
        }
        if let Some(segment) = segments.last_mut() {
            segment.push_str(line);
            segment.push('\n');
        }
        true
    }
}
