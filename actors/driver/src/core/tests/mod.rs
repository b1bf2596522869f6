//! Scenarios of the design's sections H and X on the driver's core, with the registry's core beside it and
//! workers that answer at once unless a test holds them back.

mod cluster;
mod drivers;
mod endings;
mod failures;
mod forgiveness;
mod membership;
mod quarrels;
mod restart;
mod takeover;

use self::cluster::{Cluster, host};
