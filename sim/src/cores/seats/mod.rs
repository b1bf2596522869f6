//! Seats of a node's logic: a core that the world calls, or the product's actors, which call the world through their
//! ports. This folder serves the actors.

mod nodes;
mod pump;
mod wire;

use elastic_protocol::Stamp;
use elastic_worker::state::core::{StateConfig, StateCore};

use super::program::TrainingProgram;
use crate::actors::StateNode;

/// Form in which a State's logic runs.
#[derive(Debug)]
pub(super) enum StateSeat {
    /// A core that the world calls.
    Core(Box<StateCore>),
    /// An actor. `config` is set until its process has come to the library, `node` from then on to the end.
    Actor { config: Option<Box<StateConfig>>, node: Option<StateNode>, is_exited: bool },
}

impl StateSeat {
    /// Whether the State has told the training thread to leave `run`.
    pub(super) fn is_exited(&self) -> bool {
        match self {
            Self::Core(core) => core.is_exited(),
            Self::Actor { is_exited, .. } => *is_exited,
        }
    }

    /// The State's generation. For an actor, the last one that its program was told.
    pub(super) fn stamp(&self, program: &TrainingProgram) -> Stamp {
        match self {
            Self::Core(core) => core.stamp(),
            Self::Actor { .. } => program.newest,
        }
    }

    pub(super) fn core(&mut self) -> Option<&mut StateCore> {
        match self {
            Self::Core(core) => Some(core),
            Self::Actor { .. } => None,
        }
    }

    /// The core, to look at.
    pub(super) const fn core_here(&self) -> Option<&StateCore> {
        match self {
            Self::Core(core) => Some(core),
            Self::Actor { .. } => None,
        }
    }

    pub(super) const fn node(&self) -> Option<&StateNode> {
        match self {
            Self::Core(_) => None,
            Self::Actor { node, .. } => node.as_ref(),
        }
    }

    /// The process has ended: drops the actor's node.
    pub(super) fn end(&mut self) {
        if let Self::Actor { node, .. } = self {
            *node = None;
        }
    }
}
