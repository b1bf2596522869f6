//! Numbers of workers that the job wants and needs. Called by the core's handlers. The slots that are to have a worker are
//! chosen by the roster (`roster::wanted`).

use elastic_protocol::Assignment;

use super::DriverCore;

impl DriverCore {
    /// Slots of all hosts that are listed, whether their agents are there or not, up to the cap.
    pub(crate) fn listed_slots(&self) -> u32 {
        let all = self.roster.seating().listed_slots();
        self.config.max_np.map_or(all, |max| all.min(max))
    }

    /// Most workers that are ever wanted at once.
    pub(crate) fn workers_max(max_np: Option<u32>) -> usize {
        max_np.map_or(usize::MAX, |max| max as usize).min(Assignment::WORLD_SIZE_MAX)
    }

    /// Workers needed for the next generation: `np` for the first, `min_np` after it.
    pub(crate) fn workers_needed(&self) -> u32 {
        let np = self.config.np.unwrap_or_else(|| self.listed_slots()).max(1);
        if self.round.current().is_none() { np } else { self.min_np() }
    }

    /// Fewest workers to go on with: as many as the job began with, unless fewer are asked for. A driver that is started again
    /// with a smaller `--np` asks for that many.
    pub(crate) fn min_np(&self) -> u32 {
        let (began_with, np) = (self.round.started_with(), self.config.np);
        let fewest = began_with.map(|began_with| np.map_or(began_with, |np| began_with.min(np)));
        self.config.min_np.or(fewest).or(np).unwrap_or(1)
    }
}
