//! What a driver writes down so that the next incarnation can go on from there: [`Record`] says what happened,
//! [`Image`] is what all records together say, [`Tenure`] is where a new incarnation begins.
//!
//! The core emits records before whatever depends on them leaves it (`Ledger`); where they are stored is
//! [`elastic_journal`]'s affair. Nothing is written while a generation trains.

mod image;
mod ledger;
mod record;
mod tenure;
#[cfg(test)]
pub(crate) mod tests;

pub use self::image::{
    GenerationImage, HostImage, Image, ProcessImage, Progress, SlotImage, WorkerImage,
};
pub(crate) use self::ledger::Ledger;
pub use self::record::{JobSecretsBytes, Record};
pub use self::tenure::{Founding, Tenure, TenureError};
