//! Messages between the driver and the registry actor, within the driver's process. Votes come as
//! [`Delivery<Vote>`](elastic_runtime::Delivery), from workers over the wire and from the driver itself.

use actix::Message;
use elastic_protocol::{Stamp, WorkerId};

use crate::core::{GenerationVerdict, Incident, OpenError, RestartBudget};

/// Opens a generation: from now on only its votes count.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OpenGeneration {
    /// The generation; newer than all before (G-2).
    pub stamp: Stamp,
    /// The members by rank.
    pub members: Vec<WorkerId>,
    /// The rest of the restart budget.
    pub budget: RestartBudget,
}

impl Message for OpenGeneration {
    type Result = Result<(), OpenError>;
}

impl Message for Incident {
    type Result = ();
}

/// Asks for the members that are waited for. The answer is [`RegistryReport::Missing`], in order with the verdicts: a
/// member named there had not voted when it was sent, and no verdict was on its way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AskMissing {
    /// The generation.
    pub stamp: Stamp,
}

impl Message for AskMissing {
    type Result = ();
}

/// Reports of the registry to the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RegistryReport {
    /// A verdict, from votes or incidents.
    Verdict(GenerationVerdict),
    /// The answer to [`AskMissing`]; empty if that generation is not open.
    Missing {
        /// The generation.
        stamp: Stamp,
        /// The missing members, by rank.
        missing: Vec<WorkerId>,
    },
    /// A vote was dropped (G-2).
    VoteDropped {
        /// Number of dropped votes since the start.
        total: u64,
    },
}

impl Message for RegistryReport {
    type Result = ();
}
