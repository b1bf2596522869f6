//! What the registry actor is told within the driver's process, and what it tells. Votes come as
//! [`Delivery<Vote>`](elastic_runtime::Delivery), from workers over the wire and from the driver itself.

use actix::Message;
use elastic_protocol::{Stamp, WorkerId};
use elastic_runtime::Exit;

use crate::core::{OpenError, Verdict};

/// A generation begins: from now on only its votes count.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OpenGeneration {
    /// Which; newer than all before (G-2).
    pub stamp: Stamp,
    /// Its members, by rank.
    pub members: Vec<WorkerId>,
}

impl Message for OpenGeneration {
    type Result = Result<(), OpenError>;
}

/// A generation has ended otherwise than by a verdict (an interrupt, a deadline): its votes count no more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CloseGeneration {
    /// Which; of any other it changes nothing.
    pub stamp: Stamp,
}

impl Message for CloseGeneration {
    type Result = ();
}

/// The driver gives a member up: its host is gone, or it is silent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemberLost {
    /// In which generation.
    pub stamp: Stamp,
    /// Who.
    pub worker: WorkerId,
    /// Why.
    pub reason: String,
}

impl Message for MemberLost {
    type Result = ();
}

/// Who is waited for? Answered with [`RegistryReport::Missing`], so in order with the verdicts: whoever is
/// named there had not voted when it was sent, and no verdict was on its way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AskMissing {
    /// In which generation.
    pub stamp: Stamp,
}

impl Message for AskMissing {
    type Result = ();
}

/// What the registry tells the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RegistryReport {
    /// Votes came to something.
    Verdict(Verdict),
    /// The answer to [`AskMissing`]; nobody, if that generation is not open (any more).
    Missing {
        /// In which generation.
        stamp: Stamp,
        /// Who, by rank.
        missing: Vec<WorkerId>,
    },
    /// A generation, as a supervised child, has ended: stopped when all succeeded or it was closed, failed
    /// with the first loss. Told once a generation.
    GenerationEnded {
        /// Which.
        stamp: Stamp,
        /// How.
        exit: Exit,
    },
    /// A vote was dropped (G-2).
    VoteDropped {
        /// How many were dropped since the start.
        total: u64,
    },
}

impl Message for RegistryReport {
    type Result = ();
}
