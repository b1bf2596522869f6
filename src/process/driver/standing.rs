//! A driver with `--store`: it stands by until it may act, and acts for as long as its lease lasts.

use std::time::Duration;

use elastic_driver::{Abandon, Driver, StandbysChanged};
use elastic_journal::JournalError;
use elastic_journal::etcd::{
    Campaign, Candidate, DriverCard, EtcdAddress, EtcdJournal, Keeper, Moment, Permit, Told,
};
use elastic_protocol::JobResult;
use elastic_protocol::messages::DriverStatus;
use elastic_runtime::OffloadPort;
use futures_util::future::{Either, select};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::cli::{DriverPlan, Failure, ResultExt};
use crate::process::signals::{Heard, Signals};

/// How often a driver that stands by looks whether it is its turn.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long etcd may be out of reach before it has ever answered.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What the keeper has told and nobody has taken yet, at most.
const TOLD_MAX: usize = 16;

/// The right to act, while it lasts.
#[derive(Debug)]
pub(super) struct Seat {
    journal: EtcdJournal,
    keeper: Keeper,
    told: mpsc::Receiver<Told>,
}

/// How standing by ends.
#[derive(Debug)]
pub(super) enum Stood {
    /// It may act.
    Acts(Box<Seat>),
    /// The job was ended by the driver that acted.
    Over(JobResult),
    /// Somebody asked it to end.
    Asked(Heard),
}

/// Time since the machine started, its sleep included: etcd counts on while this machine sleeps, or this process.
pub(super) fn boot_time() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or(Duration::MAX)
}

/// Stands by until this driver may act. `since` is when the process first did.
pub(super) async fn stand(
    store: &EtcdAddress,
    plan: &DriverPlan,
    reached_at: &str,
    since: &mut Option<Moment>,
    signals: &mut Signals,
) -> Result<Stood, Failure> {
    let card = DriverCard {
        address: reached_at.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: plan.config.program.argv.join(" "),
    };
    let program = card.program.clone();
    let offload = OffloadPort::blocking_threads();
    let mut candidate =
        Candidate::new(store.clone(), card, plan.lease, plan.is_standby).standing_since(*since);
    let begun = Instant::now();
    let mut said = None;
    loop {
        let campaigned = offload.run("campaign", move || {
            let campaign = candidate.campaign(&boot_time);
            (candidate, campaign)
        });
        let campaign;
        (candidate, campaign) = campaigned.await.failed("this driver cannot stand by")?;
        *since = candidate.since().or(*since);
        let now = match campaign {
            Ok(Campaign::Won(leadership)) => {
                let journal = leadership.journal();
                let (tell, told) = mpsc::channel(TOLD_MAX);
                let keeper =
                    Keeper::start(*leadership, boot_time, move |what| tell.try_send(what).is_ok());
                let keeper = keeper.failed("the lease cannot be kept")?;
                return Ok(Stood::Acts(Box::new(Seat { journal, keeper, told })));
            }
            Ok(Campaign::Over(last_words)) => {
                let result = serde_json::from_slice(&last_words);
                let result = result.failed("the job is over, and its result cannot be read")?;
                return Ok(Stood::Over(result));
            }
            Ok(Campaign::StandsBy(Some(card)))
                if !card.program.is_empty() && card.program != program =>
            {
                return Err(of_another_job(store, &card));
            }
            Ok(Campaign::StandsBy(Some(card))) => format!("stands by: {} acts", card.address),
            Ok(Campaign::StandsBy(None)) => {
                "stands by: there is no job to take over yet".to_owned()
            }
            Err(error) if since.is_none() && begun.elapsed() > FIRST_ANSWER_WITHIN => {
                return Err(unreachable(store, error));
            }
            Err(error) => format!("cannot stand by: {}", with_cause(&error)),
        };
        if said.as_ref() != Some(&now) {
            tracing::info!(store = %store, "{now}");
            said = Some(now);
        }
        let heard = std::pin::pin!(signals.next());
        let waited = std::pin::pin!(sleep(LOOK_EVERY));
        if let Either::Left((heard, _)) = select(heard, waited).await {
            let withdrawn = offload.run("withdrawal", move || candidate.withdraw()).await;
            // Its lease ends by itself otherwise.
            drop(withdrawn);
            return Ok(Stood::Asked(heard));
        }
    }
}

fn with_cause(error: &JournalError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

fn unreachable(store: &EtcdAddress, error: JournalError) -> Failure {
    Failure::new(format!("the store {store} cannot be used"))
        .source(error)
        .hint("is etcd running there, and does it let this machine in?")
}

fn of_another_job(store: &EtcdAddress, card: &DriverCard) -> Failure {
    let message = format!(
        "{store} is the place of another job: the driver at {} runs `{}` there",
        card.address, card.program
    );
    Failure::usage(message).hint("give this job a place of its own: --store etcd://HOST:PORT/NAME")
}

impl Seat {
    /// The job's journal, which only this driver writes.
    pub(super) fn journal(&self) -> EtcdJournal {
        self.journal.clone()
    }

    /// Whether this driver may act.
    pub(super) fn permit(&self) -> Permit {
        self.keeper.permit()
    }

    /// Tells the driver what the keeper tells, until its lease is over or given back.
    pub(super) fn serve(self, driver: actix::Addr<Driver>) -> Keeper {
        let Self { keeper, mut told, .. } = self;
        tokio::task::spawn_local(async move {
            while let Some(told) = told.recv().await {
                match told {
                    Told::Standbys(cards) => {
                        let standbys = cards.into_iter().map(|card| DriverStatus {
                            address: card.address,
                            version: card.version,
                        });
                        driver.do_send(StandbysChanged(standbys.collect()));
                    }
                    Told::Ended(end) => driver.do_send(Abandon { reason: end.to_string() }),
                }
            }
        });
        keeper
    }
}

/// The job is over: those that stand by are told, through the store.
pub(super) async fn finish(keeper: Keeper, result: &JobResult) {
    let last_words = serde_json::to_vec(result).expect("a result has no part that can fail");
    let offload = OffloadPort::blocking_threads();
    let error = match offload.run("last words", move || keeper.finish(last_words)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => with_cause(&error),
        Err(error) => error.to_string(),
    };
    tracing::warn!(
        error,
        "the store does not say that the job is over: who stands by will see to it"
    );
}

/// Gives the right to act back, so that another need not wait for the lease to end.
pub(super) async fn resign(keeper: Keeper) {
    let resigned = OffloadPort::blocking_threads().run("resignation", move || drop(keeper)).await;
    if let Err(error) = resigned {
        tracing::warn!(%error, "the lease was not given back, and ends by itself");
    }
}
