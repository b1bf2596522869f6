//! The driver's journal, from which its successor goes on: [`JournalRecord`] is one event, [`Image`] is the state that all
//! records give, [`Tenure`] is the starting state of a new driver.
//!
//! The core emits records before the outputs that depend on them (`RecordLedger`). [`elastic_journal`] stores them. Nothing
//! is written at the steps of a generation that trains.

mod image;
mod ledger;
mod record;
mod tenure;
#[cfg(test)]
pub(crate) mod tests;

pub use self::image::{
    CheckpointImage, DistrustedImage, GenerationImage, GenerationProgress, HostImage, Image,
    ProcessImage, SlotImage, StateLossImage, StopImage, WorkerImage,
};
pub(crate) use self::ledger::RecordLedger;
pub use self::record::{JobSecretsBytes, JournalRecord};
pub use self::tenure::{Founding, Tenure, TenureError};
