//! [`Section`]: a named part of the training program, such as an evaluation. Made by [`Worker::section`].

use std::rc::Rc;
use std::time::Duration;

use elastic_protocol::messages::TrainingSection;

use super::control::TrainingControl;
use super::worker::Worker;
use crate::state::core::prefix;

/// A named part of the training program, which ends when this is dropped. Sections may be nested: the innermost counts.
#[must_use = "the section ends when this is dropped"]
pub struct Section(Option<OpenSection>);

struct OpenSection {
    control: Rc<TrainingControl>,
    /// The section around it.
    outer: Option<TrainingSection>,
    /// When a section that waits for data began, on the clock of the steps.
    data_since: Option<Duration>,
}

impl Worker {
    /// Names a part of the program in which other ranks may wait for this one for longer than in a step, such as an
    /// evaluation or a checkpoint by rank 0. The usual length of such a wait is learnt for each name separately. Until
    /// one wait has ended, it is 120 s. `within` sets it instead. A worker for which others have waited for longer
    /// counts as hanging.
    ///
    /// The time in a section is no part of a step, but for sections called `data`, in which the program waits for its
    /// data: goodput has that time in a bucket of its own.
    ///
    /// At most the first 64 bytes of the name count. It costs no message.
    ///
    /// ```text
    /// let section = worker.section("evaluation", None);
    /// evaluate(&state);
    /// drop(section);
    /// ```
    pub fn section(&self, name: &str, within: Option<Duration>) -> Section {
        Section(self.control().map(|control| OpenSection::begin(control, name, within)))
    }
}

impl OpenSection {
    fn begin(control: &Rc<TrainingControl>, name: &str, within: Option<Duration>) -> Self {
        let within_ms = within.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
        let name = prefix(name, TrainingSection::NAME_BYTES_MAX).to_owned();
        let shared = control.shared();
        let data_since = (name == TrainingSection::DATA).then(|| shared.step_clock());
        let outer = shared.turn_to_section(Some(TrainingSection { name, within_ms }));
        Self { control: Rc::clone(control), outer, data_since }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        if let Some(OpenSection { control, outer, data_since }) = &mut self.0 {
            let shared = control.shared();
            if let Some(since) = data_since {
                shared.note_data(shared.step_clock().saturating_sub(*since));
            }
            shared.turn_to_section(outer.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::state::training::ControlShared;

    #[test]
    fn the_innermost_section_counts_until_it_ends() {
        let shared = Arc::new(ControlShared::default());
        let (_to_thread, commands) = mpsc::sync_channel(TrainingControl::COMMANDS_MAX);
        let control =
            TrainingControl::new(|_message| {}, commands, Arc::clone(&shared), String::new);
        let control = Rc::new(control);
        let begin = |name: &str, within| Section(Some(OpenSection::begin(&control, name, within)));
        let current = || shared.progress().position.section;
        let named =
            |name: &str, within_ms| Some(TrainingSection { name: name.to_owned(), within_ms });
        assert_eq!(current(), None);
        let epoch = begin("end of epoch", Some(Duration::from_secs(90)));
        let evaluation = begin("evaluation", None);
        assert_eq!(current(), named("evaluation", None));
        drop(evaluation);
        assert_eq!(current(), named("end of epoch", Some(90_000)));
        let long = begin(&"€".repeat(100), None);
        assert_eq!(current().map(|section| section.name.len()), Some(63), "whole characters");
        drop((long, epoch));
        assert_eq!(current(), None);
        let _left_open = begin("evaluation", None);
        shared.begin_generation();
        assert_eq!(current(), None, "a generation begins outside of all sections");
    }
}
