//! `demo`: a whole cluster on this machine, as real processes over QUIC on loopback. It trains digits, loses
//! a worker to SIGKILL, gains a host, and finishes. Called by `main`.

mod cluster;
mod report;
mod story;
mod view;

use std::io::IsTerminal as _;
use std::time::Duration;

use elastic_observe::with_short_names;
use elastic_runtime::{Pulse, system};
use futures_util::future::{Either, select};

use self::cluster::Cluster;
use self::report::DemoReport;
use self::story::{Story, StoryAction};
use self::view::DemoView;
use crate::command_line::{CommandFailure, ResultExt, print_line};
use crate::process::{Heard, Signals, StatusClient, TokenSource, boot_time, tick};

/// Interval between two looks at the cluster.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Timeout for the whole demo.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the demo; with `json` the last line of stdout is the report.
pub(crate) fn run_demo(json: bool) -> Result<(), CommandFailure> {
    system::run(demonstrate(json)).failed("the system refuses what the demo needs")?
}

async fn demonstrate(json: bool) -> Result<(), CommandFailure> {
    let pulse = Pulse::new(boot_time());
    tokio::task::spawn_local(tick(pulse.clone()));
    let signals = Signals::start(pulse).failed("signals cannot be heard")?;
    let mut cluster = Cluster::start()?;
    let watched = {
        let heard = std::pin::pin!(signals.next());
        let watching = std::pin::pin!(in_time(watch(&mut cluster)));
        match select(heard, watching).await {
            Either::Left((heard, _)) => Err(stopped(heard)),
            Either::Right((watched, _)) => watched,
        }
    };
    if let Err(failure) = watched {
        cluster.stop().await;
        return Err(cluster.explain(failure));
    }
    let report = DemoReport::read(&cluster.events(), cluster.accuracy())?;
    let text = if json {
        serde_json::to_string(&report).failed("the report cannot be written as JSON")?
    } else {
        with_short_names(&report.to_string()).into_owned()
    };
    print_line(&text)
}

/// Fails when the demo takes too long.
async fn in_time(
    watching: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    tokio::time::timeout(PATIENCE, watching).await.unwrap_or_else(|_elapsed| {
        let seconds = PATIENCE.as_secs();
        Err(CommandFailure::new(format!("the demo was not over after {seconds} s")))
    })
}

/// Follows the story until the job is over.
async fn watch(cluster: &mut Cluster) -> Result<(), CommandFailure> {
    let mut view = DemoView::new(std::io::stderr().is_terminal());
    view.say("starting a driver and two agents with two slots each");
    let address = cluster.address().await?;
    for (host, slots) in story::HOSTS {
        cluster.add_agent(host, slots)?;
    }
    let token = TokenSource::new(&address, None, Some(&cluster.token_file()), None)?;
    let mut client = Some(StatusClient::connect(&address, &token).await?);
    let mut story = Story::default();
    let mut is_page_known = false;
    loop {
        if let Some(status) = cluster.driver_end()? {
            view.finish();
            return cluster.judge(status).await;
        }
        if let Some(asked) = client.take() {
            // The driver exits when the job is over: from then on only its exit code counts.
            if let Ok(status) = asked.ask().await {
                if let Some(page) = status.dashboard.as_ref().filter(|_| !is_page_known) {
                    view.say(&format!("watch it in a browser: {page}"));
                    is_page_known = true;
                }
                act(story.next(&status), cluster, &view)?;
                view.show(&status);
                match status.result {
                    Some(_) => asked.close().await,
                    None => client = Some(asked),
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn act(action: StoryAction, cluster: &mut Cluster, view: &DemoView) -> Result<(), CommandFailure> {
    match action {
        StoryAction::Watch => Ok(()),
        StoryAction::Kill { worker, pid } => {
            view.say(&format!("kill -9 {pid}: that is {worker}"));
            cluster::kill(pid)
        }
        StoryAction::AddHost { host, slots } => {
            view.say(&format!("host {host} joins with {slots} slot"));
            cluster.add_agent(host, slots)
        }
    }
}

fn stopped(heard: Heard) -> CommandFailure {
    CommandFailure::new(format!("stopped by {}", heard.name)).with_code(heard.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g_9_a_demo_that_does_not_end_is_stopped_with_the_reason() {
        let failure = system::run_paused(in_time(std::future::pending()));
        let failure = failure.expect_err("it never ends");
        assert_eq!(failure.to_string(), "the demo was not over after 120 s");
    }
}
