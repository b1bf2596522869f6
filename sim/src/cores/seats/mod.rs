//! Where the logic of a node sits: in a core that the world calls, or in the product's actors, which call the
//! world through their ports. Everything here is for the actors.

mod nodes;
mod pump;
mod wire;

use elastic_protocol::Stamp;
use elastic_worker::state::core::{StateConfig, StateCore};

use super::program::Program;
use crate::actors::StateNode;

/// Where a State's logic sits.
#[derive(Debug)]
pub(super) enum StateSeat {
    /// In a core that the world calls.
    Core(Box<StateCore>),
    /// In an actor: `config` until its process has come to the library, `node` from then on to the end.
    Actor { config: Option<Box<StateConfig>>, node: Option<StateNode>, is_exited: bool },
}

impl StateSeat {
    /// Whether it has told the training thread to leave `run`.
    pub(super) fn is_exited(&self) -> bool {
        match self {
            Self::Core(core) => core.is_exited(),
            Self::Actor { is_exited, .. } => *is_exited,
        }
    }

    /// The generation that it is in; of an actor, the one that its program was told last.
    pub(super) fn stamp(&self, program: &Program) -> Stamp {
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

    pub(super) const fn node(&self) -> Option<&StateNode> {
        match self {
            Self::Core(_) => None,
            Self::Actor { node, .. } => node.as_ref(),
        }
    }

    /// Its process has ended.
    pub(super) fn end(&mut self) {
        if let Self::Actor { node, .. } = self {
            *node = None;
        }
    }
}
