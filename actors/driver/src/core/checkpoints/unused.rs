//! Checkpoints of a program that does not use the library, under `--mode auto`: the library holds no state of it, so that nothing is
//! saved or loaded. `--mode restart` refuses `--checkpoint` at once; here the program may yet come to use the library, so a
//! warning tells it, once. Part of [`Checkpoints`](super::Checkpoints).

use std::time::Duration;

use elastic_protocol::Time;
use serde::{Deserialize, Serialize};

use crate::core::DriverCore;
use crate::core::config::ResumeFrom;
use crate::core::event::EventKind;
use crate::core::phase::RoundPhase;
use crate::core::timers::Timer;

/// Time after the begin of a generation by restart in which the program may come to use the library without a warning: imports take
/// many seconds.
const UNUSED_TOLD_AFTER: Duration = Duration::from_secs(60);

/// The wait for a program by restart to use the library.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct UnusedCheckpoints {
    /// Time at which its first generation under this driver began.
    since: Option<Time>,
    is_told: bool,
}

impl DriverCore {
    /// Warns of checkpoints that nobody saves once a generation by restart trains for long, and sees to it that this is called then.
    pub(crate) fn watch_unused_checkpoints(&mut self, now: Time) {
        let trains = matches!(self.round.phase(), RoundPhase::Run);
        if !self.has_unused_checkpoints() || !trains {
            return;
        }
        let due_at = *self.checkpoints.unused.since.get_or_insert(now) + UNUSED_TOLD_AFTER;
        if due_at > now {
            return self.agenda.set(due_at, Timer::Checkpoint);
        }
        let seconds = UNUSED_TOLD_AFTER.as_secs();
        self.tell_of_unused_checkpoints(&format!("has not used the library for {seconds} s"));
    }

    /// A process by restart has done its part without a trace of the library.
    pub(crate) fn note_done_without_library(&mut self) {
        if self.has_unused_checkpoints() {
            self.tell_of_unused_checkpoints("has ended without the library");
        }
    }

    /// The program uses the library, which holds its state from now on.
    pub(crate) fn note_library_used(&mut self) {
        if std::mem::take(&mut self.checkpoints.unused).is_told {
            self.checkpoints.trouble = None;
        }
    }

    fn has_unused_checkpoints(&self) -> bool {
        self.config.checkpoint.is_some() && self.is_by_restart() && !self.checkpoints.unused.is_told
    }

    fn tell_of_unused_checkpoints(&mut self, what: &str) {
        let Some(settings) = &self.config.checkpoint else { return };
        self.checkpoints.unused.is_told = true;
        let directory = &settings.directory;
        let resume = match &settings.resume {
            ResumeFrom::Exactly(of_step) => format!(", and --resume {of_step} loads nothing"),
            ResumeFrom::Auto | ResumeFrom::Never => String::new(),
        };
        self.checkpoints.trouble = Some(format!("nothing is saved: the program {what}"));
        let message = format!(
            "the program {what}: --checkpoint {directory} saves nothing{resume}; keep the state with the library, or have the program save and \
             load its own files and leave --checkpoint out"
        );
        self.event(EventKind::Warning { message });
    }
}
