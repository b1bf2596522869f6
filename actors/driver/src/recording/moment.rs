//! [`moment`]: the state of a recorded job after one of the records of its journal. A simulation can go on from there
//! (`sim run --from`).

use serde::{Deserialize, Serialize};

use super::RecordingLine;
use super::replay::{ReplayError, Walk, parsed_lines};
use crate::core::{DriverConfig, DriverCore};
use crate::journal::{Image, JournalRecord};

/// A job after a record of its journal, as a driver knows it that takes over there.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RecordedMoment {
    /// Number of the record.
    pub record: u64,
    /// The driver's settings.
    pub config: DriverConfig,
    /// The state that all records up to this one give.
    pub image: Image,
}

/// Reason why a recording does not lead to a record.
#[derive(Debug, thiserror::Error)]
pub enum MomentError {
    /// The recording cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// This program's driver decides otherwise than the recorded one before the record.
    #[error(
        "the driver decides otherwise at step {step} of its life, before that record; `elastic-node replay` shows the difference"
    )]
    Differs {
        /// Number of the step.
        step: u64,
    },
    /// The recording does not have the record.
    #[error("the recording has the records {first} to {last} of the journal, not {record}")]
    NoRecord {
        /// The record that was asked for.
        record: u64,
        /// The first record that the recording leads to.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// The recorded driver had no journal.
    #[error("the recorded driver had no journal")]
    NoJournal,
}

/// The journal, followed record by record.
#[derive(Debug, Default)]
struct FollowedJournal {
    image: Image,
    last: u64,
    /// The first record that the recording leads to.
    first: Option<u64>,
}

impl FollowedJournal {
    /// Takes the journal's state over from the core at the beginning of a segment.
    fn begin(&mut self, core: &DriverCore) -> Result<(), MomentError> {
        let (image, last) = core.journaled().ok_or(MomentError::NoJournal)?;
        (self.image, self.last) = (image.clone(), last);
        self.first.get_or_insert(last);
        Ok(())
    }

    fn is_at(&self, record: Option<u64>) -> bool {
        record == Some(self.last)
    }
}

/// The job after a record of its journal, or after the last record of the recording. `segments` are in the order in which
/// they were written.
///
/// # Errors
/// [`MomentError`].
pub fn moment(
    segments: &[String],
    protocol: &str,
    record: Option<u64>,
) -> Result<RecordedMoment, MomentError> {
    let mut walk = Walk::new(protocol);
    let mut journal = FollowedJournal::default();
    for (segment, text) in (1..).zip(segments) {
        for line in parsed_lines(segment, text) {
            let (_, line) = line?;
            // In a segment that goes on without a gap, the journal is known from the batches, record by record.
            let begins = match &line {
                RecordingLine::Head(head) => !walk.is_next(head),
                RecordingLine::Step(_) => false,
            };
            let given = walk.line(&line, segment)?;
            if let Some(difference) = walk.difference() {
                return Err(MomentError::Differs { step: difference.step });
            }
            let Some((core, batch)) = walk.core() else { continue };
            if begins {
                journal.begin(core)?;
            }
            let batch = batch.filter(|_| given.is_some());
            let records = batch.iter().flat_map(|batch| (batch.first..).zip(&batch.records));
            for (number, bytes) in records {
                if journal.is_at(record) {
                    break;
                }
                // A batch that could not be stored is given again.
                if let Some(known) =
                    JournalRecord::decode(bytes).ok().filter(|_| number > journal.last)
                {
                    journal.image.apply(&known);
                    journal.last = number;
                }
            }
            if journal.is_at(record) {
                let config = core.config().clone();
                return Ok(RecordedMoment { record: journal.last, config, image: journal.image });
            }
        }
    }
    let FollowedJournal { image, last, first } = journal;
    let (core, _) = walk.core().ok_or(ReplayError::Empty)?;
    match record {
        None => Ok(RecordedMoment { record: last, config: core.config().clone(), image }),
        Some(record) => {
            Err(MomentError::NoRecord { record, first: first.unwrap_or_default(), last })
        }
    }
}
