//! The shape of a cluster, drawn from the seed where none is given: hosts, slots, seconds, mode, kind of job. Small
//! clusters come as often as large ones. Most jobs are small, and large ones hide faults that hit the last holder.

use elastic_runtime::random::stream;
use rand::Rng;

use crate::options::{JobKind, SimulationMode};

/// Most hosts, slots of a host, and workers of a drawn cluster.
const HOSTS_MAX: f64 = 40.0;
const SLOTS_MAX: f64 = 8.0;
const WORKERS_MAX: u32 = 64;

/// Most workers where each node is a set of actors.
const ACTORS_WORKERS_MAX: u32 = 12;

/// A cluster's shape.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// Hosts.
    pub hosts: u32,
    /// Most slots of a host.
    pub slots: u32,
    /// Duration of the faults, in simulated seconds.
    pub seconds: u64,
    /// Whether cores or actors run.
    pub mode: SimulationMode,
    /// Kind of the job, by the part that its program takes in generations.
    pub job: JobKind,
}

impl Shape {
    /// Draws the shape of a seed. `mode` and `job` are drawn, too, unless given.
    pub fn draw(seed: u64, given: Option<(SimulationMode, JobKind)>) -> Self {
        let mut random = stream(seed, "shape", 0);
        let mut up_to = |most: f64| most.powf(random.random_range(0.0..1.0)).round() as u32;
        let (hosts, slots) = (up_to(HOSTS_MAX), up_to(SLOTS_MAX));
        let seconds = random.random_range(10..60);
        let drawn = match random.random_range(0..10) {
            0 => (SimulationMode::Actors, JobKind::InProcess),
            1..4 => (SimulationMode::Cores, JobKind::Restart),
            _ => (SimulationMode::Cores, JobKind::InProcess),
        };
        let (mode, job) = given.unwrap_or(drawn);
        let workers = if mode == SimulationMode::Actors { ACTORS_WORKERS_MAX } else { WORKERS_MAX };
        let hosts = hosts.clamp(1, workers);
        let slots = slots.clamp(1, (workers / hosts).max(1));
        Self { hosts, slots, seconds, mode, job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_of_all_sizes_and_bounded() {
        let shapes: Vec<Shape> = (0..400).map(|seed| Shape::draw(seed, None)).collect();
        let count = |is: &dyn Fn(&Shape) -> bool| shapes.iter().filter(|shape| is(shape)).count();
        assert!(count(&|shape| shape.hosts <= 3) > 60 && count(&|shape| shape.hosts >= 20) > 20);
        assert!(count(&|shape| shape.slots == 1) > 60 && count(&|shape| shape.slots >= 4) > 20);
        assert!(count(&|shape| shape.job == JobKind::Restart) > 60);
        assert!(shapes.iter().all(|shape| shape.hosts * shape.slots <= WORKERS_MAX));
        assert_eq!(Shape::draw(7, None), Shape::draw(7, None));
    }
}
