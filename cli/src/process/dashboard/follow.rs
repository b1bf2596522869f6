//! Follows the job for its page: first the event log of former drivers, then the driver's events as they come. Run by
//! `server` on the dashboard's thread.

use std::rc::Rc;
use std::time::Duration;

use elastic_observe::{LoggedEntry, LoggedLine, PageRecord, since_1970};
use elastic_runtime::wall_clock;
use tokio::time::{sleep, timeout};

use super::DashboardJob;
use super::feed::FedEvents;
use super::server::DashboardService;
use crate::process::{lines_of, open_log_to_go_on};

/// Interval between two looks at changes, if nothing happens.
const TOLD_EVERY: Duration = Duration::from_millis(500);

/// Shortest interval between two pieces of news, if much happens.
const TOLD_APART: Duration = Duration::from_millis(100);

/// The record of a job up to now, from the event log. The file is read on the dashboard's thread, so that nobody waits
/// for it.
pub(super) fn record_of(job: &DashboardJob) -> PageRecord {
    let mut record = PageRecord::new(job.id.clone(), job.since);
    if let Ok(file) = open_log_to_go_on(&job.log) {
        let mut is_known = false;
        for text in lines_of(file) {
            let Ok(line) = LoggedLine::read(&text) else { continue };
            if line.at >= job.since {
                break;
            }
            if let LoggedEntry::DriverStarted { job: of, .. }
            | LoggedEntry::LogContinued { job: of, .. } = &line.entry
                && !is_known
                && *of == job.id
            {
                // The job, or the rest of its log, began with this line.
                record = PageRecord::new(of.clone(), line.at);
                is_known = true;
                continue;
            }
            if is_known {
                record.handle_line(&line);
            }
        }
        if is_known {
            let entry = LoggedEntry::DriverStarted {
                job: job.id.clone(),
                is_successor: false,
                output_dir: None,
            };
            record.handle_line(&LoggedLine { at: job.since, entry });
        }
    }
    record
}

/// Takes events and tells open pages of changes, until the driver is gone.
pub(super) async fn follow(service: Rc<DashboardService>, mut events: FedEvents) {
    loop {
        let next = timeout(TOLD_EVERY, events.next()).await;
        let is_over = matches!(next, Ok(None));
        {
            let mut record = service.record.borrow_mut();
            if let Ok(Some((at, event))) = next {
                record.handle_event(at, event);
            }
            while let Some((at, event)) = events.next_now() {
                record.handle_event(at, event);
            }
            record.handle_missed(events.missed());
            let (now, snapshot) = (since_1970(wall_clock()), service.published.last());
            let status = snapshot.as_ref().map(|snapshot| &snapshot.status);
            // Also while nobody looks: a page that is opened later shows the past, too.
            if let Some(status) = status {
                record.handle_status(now, status);
            }
            if !service.viewers.is_empty() {
                service.viewers.tell(&record.changes(now, status));
            }
        }
        if is_over {
            return;
        }
        sleep(TOLD_APART).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use elastic_protocol::Time;

    use super::*;

    #[test]
    fn the_page_of_a_new_driver_has_what_the_former_one_has_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let mut text = String::new();
        for (second, rest) in [
            (1, r#""kind":"driver_started","job":"other""#),
            (2, r#""kind":"warning","message":"of another job""#),
            (3, r#""kind":"driver_started","job":"j""#),
            (4, r#""kind":"generation_running","world_size":3"#),
            (9, r#""kind":"warning","message":"of this driver: it comes as an event""#),
        ] {
            let line =
                format!(r#""t":"1970-01-01T00:00:0{second}Z","term":1,"generation":1,{rest}"#);
            writeln!(text, "{{{line}}}").expect("a string");
        }
        std::fs::write(&path, text).expect("a file");
        let since = Time::from_ms(8_000);
        let job = DashboardJob { id: "j".to_owned(), log: path, since, output_dir: None };
        let record = record_of(&job);
        let whole = record.whole(since, None);
        let of = |name: &str| {
            whole.iter().find(|topic| topic.name == name).map(|topic| topic.json.as_str())
        };
        assert!(of("events").is_some_and(|it| it.contains("runs with 3") && !it.contains("of ")));
        assert!(of("world").is_some_and(|it| it.contains(r#""size":3"#)));
    }
}
