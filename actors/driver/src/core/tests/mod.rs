//! Scenarios of the design's sections H and X on the driver's core, with the registry's core beside it and
//! workers that answer at once unless a test holds them back.

mod checkpoints;
mod cluster;
mod deaths;
mod divergence;
mod drivers;
mod endings;
mod failures;
mod first_steps;
mod forgiveness;
mod hangs;
mod hangs_day;
mod health;
mod held_orders;
mod inactivity;
mod invariants;
mod last_words;
mod late_failures;
mod links;
mod membership;
mod own_pause;
mod pacing;
mod quarrels;
mod rebalancing;
mod replacements;
mod reported;
mod restart;
mod stragglers;
mod takeover;
mod total_loss;
mod untrained_ends;

use self::cluster::{Cluster, host};
