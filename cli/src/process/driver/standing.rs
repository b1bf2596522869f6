//! A driver with `--store`: it stands by until it may act, and acts for as long as its lease lasts. Used by the
//! driver's process.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use elastic_driver::{Abandon, Driver, StandbysChanged};
use elastic_journal::JournalError;
use elastic_journal::etcd::{
    Campaign, Candidate, DriverCard, EtcdAddress, EtcdJournal, Keeper, KeeperMessage, LeaderSign,
    Permit, SeenRecords, StoreRevision,
};
use elastic_protocol::JobResult;
use elastic_protocol::messages::DriverStatus;
use elastic_runtime::{OffloadPort, Pulse};
use elastic_transport::SharedSecret;
use futures_util::future::{Either, select};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::durable::{Durable, OverMark, SAME_SECRET};
use super::lost_job::{outdated, replaced, vanished};
use crate::command_line::{CommandFailure, DriverPlan, ResultExt, short_id};
use crate::process::boot_time;
use crate::process::signals::{Heard, Signals, tick};

/// Interval between two campaigns of a driver that stands by, and between the end of a term and the next campaign.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Timeout for etcd's first answer.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Timeout for a driver that has just won until its actors run: it reads the journal first.
const BEGINS_WITHIN: Duration = Duration::from_secs(10);

/// Most messages of the keeper that wait to be received.
const TOLD_MAX: usize = 16;

/// The right to act, while the lease lasts.
#[derive(Debug)]
pub(super) struct LeaderSeat {
    journal: EtcdJournal,
    keeper: Keeper,
    told: mpsc::Receiver<KeeperMessage>,
    /// The heartbeat of the actors, without which the lease is not renewed.
    pulse: Pulse,
}

/// Time beyond the lease after which nobody follows a driver that leaves: it takes its job again, and ends it.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);

/// The way in which standing by ends.
#[derive(Debug)]
pub(super) enum Stood {
    /// This driver may act.
    Acts(Box<LeaderSeat>),
    /// The acting driver has ended the job.
    Over(JobResult),
    /// A signal asked the driver to end.
    Asked(Heard),
    /// Another driver has followed this one, which leaves.
    Followed,
    /// The store has lost this driver's job.
    Lost(CommandFailure),
}

/// The state of a process that stands by.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// When it first stood by.
    pub(super) since: Option<StoreRevision>,
    /// The signal by which it was asked to go while it acted. It waits for a driver that follows it.
    pub(super) leaves: Option<Heard>,
    /// Its last leadership, which is over.
    led: Option<LeaderSign>,
    /// The records of its job that it has seen: it begins no other job, and leads from no older journal.
    pub(super) seen: SeenRecords,
    /// The id of the job that it has led or stood by for.
    pub(super) job: Option<String>,
    /// Whether it has just lost the right to act.
    pub(super) is_deposed: bool,
    /// Whether it has told that it lacks descriptors, since it last led.
    lacks_descriptors: bool,
}

impl Standing {
    /// Whether the process stands by again after a failure for want of descriptors. Only a driver that has stood by
    /// already stays for that, since its job needs it later.
    pub(super) fn outlasts(&mut self, failure: &CommandFailure) -> bool {
        if self.since.is_none() || !failure.is_for_want_of_descriptors() {
            return false;
        }
        self.lacks(&failure.finding().0);
        true
    }

    fn lacks(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.lacks_descriptors, true) {
            tracing::warn!(
                reason,
                "too few descriptors are left to lead (ulimit -n): this driver tries again"
            );
        }
    }

    /// Notes that this process leads the job.
    ///
    /// # Errors
    /// The id of this driver's own job, which is another one.
    pub(super) fn leads(&mut self, job: String) -> Result<(), String> {
        match &self.job {
            Some(own) if *own != job => Err(own.clone()),
            _ => {
                self.job = Some(job);
                Ok(())
            }
        }
    }

    /// Notes which job the acting driver leads, if its card names one. Returns whether it is this driver's.
    fn follows(&mut self, card: &DriverCard) -> bool {
        if card.job.is_empty() {
            return true;
        }
        *self.job.get_or_insert_with(|| card.job.clone()) == card.job
    }
}

/// Descriptors that a driver needs to begin to lead.
const NEEDED_DESCRIPTORS: usize = 16;

/// Whether so many descriptors are free.
fn has_descriptors() -> io::Result<()> {
    let stderr = io::stderr();
    let one = || stderr.as_fd().try_clone_to_owned();
    let all: io::Result<Vec<_>> = std::iter::repeat_with(one).take(NEEDED_DESCRIPTORS).collect();
    all.map(drop)
}

/// Stands by until this driver may act; one that leaves, until another one acts. `tell_acting` receives the address of
/// the acting driver.
pub(super) async fn stand(
    store: &EtcdAddress,
    plan: &DriverPlan,
    reached_at: &str,
    standing: &mut Standing,
    signals: &Signals,
    lane: &OffloadPort,
    tell_acting: &dyn Fn(&str) -> Result<(), CommandFailure>,
) -> Result<Stood, CommandFailure> {
    let card = own_card(plan, reached_at);
    let program = card.program.clone();
    let leaves = standing.leaves;
    if leaves.is_some() {
        tracing::info!(%store, "stays until another driver acts");
    }
    // A cause that lasts costs no more than standing by.
    if std::mem::take(&mut standing.is_deposed)
        && let Some(heard) = asked_within(signals, LOOK_EVERY).await
    {
        return Ok(Stood::Asked(heard));
    }
    let mut candidate = Candidate::new(store.clone(), card, plan.lease, plan.is_standby)
        .standing_since(standing.since)
        .having_seen(standing.seen.clone())
        .having_led(standing.led);
    let begun = Instant::now();
    let (mut said, mut failing) = (None, None);
    // While this driver leaves, its standbys go first. They can follow it only while the store answers.
    let mut could_follow_since = begun;
    while leaves.is_some() && could_follow_since.elapsed() < plan.lease + FOLLOWED_WITHIN {
        if let Some(heard) = signals.beyond_handover() {
            return Ok(Stood::Asked(heard));
        }
        let looked = lane.run("look", move || {
            let leader = candidate.leader();
            (candidate, leader)
        });
        let leader;
        (candidate, leader) = looked.await.failed("this driver cannot stand by")?;
        match leader {
            Ok(Some(card)) => {
                tracing::info!(%store, "{} acts now", card.address);
                return Ok(Stood::Followed);
            }
            Ok(None) => {}
            Err(error) if begun.elapsed() > FIRST_ANSWER_WITHIN => {
                return Err(unreachable(store, error));
            }
            Err(_) => could_follow_since = Instant::now(),
        }
        sleep(LOOK_EVERY).await;
    }
    loop {
        // To win without the descriptors that a driver needs would cost a term for nothing.
        if standing.since.is_some()
            && let Err(error) = has_descriptors()
        {
            standing.lacks(&error.to_string());
            match asked_within(signals, LOOK_EVERY).await {
                Some(heard) => return Ok(Stood::Asked(heard)),
                None => continue,
            }
        }
        let campaigned = lane.run("campaign", move || {
            let campaign = candidate.campaign(&boot_time);
            (candidate, campaign)
        });
        let campaign;
        (candidate, campaign) = campaigned.await.failed("this driver cannot stand by")?;
        standing.since = candidate.since().or(standing.since);
        let now = match campaign {
            Ok(Campaign::Won(leadership)) => {
                standing.led = Some(leadership.sign());
                let journal = leadership.journal();
                let (tell, told) = mpsc::channel(TOLD_MAX);
                let pulse = Pulse::new(boot_time() + BEGINS_WITHIN);
                let of_keeper = pulse.clone();
                let ticked_at = move || of_keeper.last();
                let keeper = Keeper::start(*leadership, boot_time, ticked_at, move |what| {
                    tell.try_send(what).is_ok()
                });
                let keeper = keeper.failed("the lease cannot be kept")?;
                standing.lacks_descriptors = false;
                return Ok(Stood::Acts(Box::new(LeaderSeat { journal, keeper, told, pulse })));
            }
            Ok(Campaign::Over(last_words)) => {
                let result = serde_json::from_slice(&last_words);
                let result = result.failed("the job is over, and its result cannot be read")?;
                return Ok(Stood::Over(result));
            }
            Ok(Campaign::StandsBy(Some(card)))
                if let Some(refusal) = refusal(store, &card, &program, plan.sealing()) =>
            {
                // It counts as a standby no more: the acting driver would hand over to it.
                drop(lane.run("withdrawal", move || candidate.withdraw()).await);
                return Err(refusal);
            }
            Ok(Campaign::Vanished) => {
                return Ok(Stood::Lost(vanished(store, standing.job.as_deref())));
            }
            Ok(Campaign::Outdated { ends_with, seen }) => {
                let reason = format!(
                    "its journal is older than the job: it ends with record {ends_with}, and {seen} were stored"
                );
                return Ok(Stood::Lost(outdated(plan, reason)));
            }
            Ok(Campaign::StandsBy(Some(card))) if !standing.follows(&card) => {
                return Ok(Stood::Lost(replaced(store, standing.job.as_deref(), &card.job)));
            }
            Ok(Campaign::StandsBy(Some(card))) if leaves.is_some() => {
                tracing::info!(%store, "{} acts now", card.address);
                drop(lane.run("withdrawal", move || candidate.withdraw()).await);
                return Ok(Stood::Followed);
            }
            Ok(Campaign::StandsBy(Some(card))) => {
                tell_acting(&card.address)?;
                // Its card names the job as soon as its journal is open: from then on this driver would miss it.
                match card.job.is_empty() {
                    true => format!("stands by: {} acts", card.address),
                    false => {
                        format!(
                            "stands by: {} acts, with the job {}",
                            card.address,
                            short_id(&card.job)
                        )
                    }
                }
            }
            Ok(Campaign::StandsBy(None)) => {
                "stands by: there is no job to take over yet".to_owned()
            }
            Err(error) if standing.since.is_none() && begun.elapsed() > FIRST_ANSWER_WITHIN => {
                return Err(unreachable(store, error));
            }
            Err(error) => {
                let reason = with_cause(&error);
                if failing.as_ref() != Some(&reason) {
                    let gives_up_in = standing.since.is_none().then_some(FIRST_ANSWER_WITHIN);
                    tracing::warn!(%store, reason, ?gives_up_in, "the store does not answer");
                    failing = Some(reason);
                }
                String::new()
            }
        };
        if !now.is_empty() {
            failing = None;
            if said.as_ref() != Some(&now) {
                tracing::info!(%store, "{now}");
                said = Some(now);
            }
        }
        if let Some(heard) = asked_within(signals, LOOK_EVERY).await {
            let withdrawn = lane.run("withdrawal", move || candidate.withdraw()).await;
            // A failure is harmless: the candidate's own lease then expires by itself.
            drop(withdrawn);
            return Ok(Stood::Asked(heard));
        }
    }
}

/// The card of this driver, as long as it leads no job.
fn own_card(plan: &DriverPlan, reached_at: &str) -> DriverCard {
    DriverCard {
        address: reached_at.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: plan.config.program.argv.join(" "),
        job: String::new(),
        sealed_with: String::new(),
    }
}

/// The reason why this driver can never follow the acting one: their programs differ, or it has another secret than the one
/// that seals the job's secrets. A card without either says nothing of it.
fn refusal(
    store: &EtcdAddress,
    acting: &DriverCard,
    program: &str,
    secret: Option<&SharedSecret>,
) -> Option<CommandFailure> {
    if !acting.program.is_empty() && acting.program != program {
        return Some(of_another_job(store, acting));
    }
    let differs = match secret.map(SharedSecret::digest) {
        _ if acting.sealed_with.is_empty() => return None,
        Some(own) if own == acting.sealed_with => return None,
        Some(_) => "has sealed its secrets with another one than this driver's",
        None => "has sealed its secrets, and this driver is given no secret",
    };
    let acts_at = &acting.address;
    let message = format!("this driver cannot stand by: the job at {acts_at} in {store} {differs}");
    Some(CommandFailure::usage(message).hint(SAME_SECRET))
}

/// The signal that asks the driver to end within this time.
async fn asked_within(signals: &Signals, within: Duration) -> Option<Heard> {
    let heard = std::pin::pin!(signals.next());
    let waited = std::pin::pin!(sleep(within));
    match select(heard, waited).await {
        Either::Left((heard, _)) => Some(heard),
        Either::Right(_) => None,
    }
}

pub(super) fn with_cause(error: &JournalError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

fn unreachable(store: &EtcdAddress, error: JournalError) -> CommandFailure {
    CommandFailure::new(format!("the store {store} cannot be used"))
        .source(error)
        .hint(
            "is etcd running there, and does it let this machine in? Over TLS it takes --store-ca, and where it asks for \
             a certificate --store-cert with --store-key",
        )
}

fn of_another_job(store: &EtcdAddress, card: &DriverCard) -> CommandFailure {
    let message = format!(
        "{store} is the place of another job: the driver at {} runs `{}` there",
        card.address, card.program
    );
    CommandFailure::usage(message)
        .hint("give this job a place of its own: --store etcd://HOST:PORT/NAME")
}

impl LeaderSeat {
    /// The job's journal, which only this driver writes.
    pub(super) fn journal(&self) -> EtcdJournal {
        self.journal.clone()
    }

    /// Tells the standbys the name of the job that this driver leads, and which secret seals it. A failure is not an error
    /// here: the journal's next write tells if the store does not take it.
    pub(super) fn name_job(&mut self, plan: &DriverPlan, reached_at: &str, durable: &Durable) {
        let (job, sealed_with) = (durable.tenure.job.to_string(), durable.sealed_with.clone());
        let card = DriverCard { job, sealed_with, ..own_card(plan, reached_at) };
        if let Err(error) = self.journal.introduce(&card) {
            tracing::debug!(error = with_cause(&error), "the store does not name the job");
        }
    }

    /// Whether this driver may act.
    pub(super) fn permit(&self) -> Permit {
        self.keeper.permit()
    }

    /// The longest stall of the actors after which the lease is still renewed.
    pub(super) const fn stalls_after(&self) -> Duration {
        self.keeper.stalls_after()
    }

    /// Passes the keeper's messages to the driver, until its lease is over or given back.
    pub(super) fn serve(self, driver: actix::Addr<Driver>) -> Keeper {
        let Self { keeper, mut told, pulse, .. } = self;
        tokio::task::spawn_local(tick(pulse));
        tokio::task::spawn_local(async move {
            while let Some(told) = told.recv().await {
                match told {
                    KeeperMessage::Standbys(cards) => {
                        let standbys = cards.into_iter().map(|card| DriverStatus {
                            address: card.address,
                            version: card.version,
                        });
                        driver.do_send(StandbysChanged(standbys.collect()));
                    }
                    KeeperMessage::Ended(end) => {
                        driver.do_send(Abandon { reason: end.to_string() })
                    }
                }
            }
        });
        keeper
    }
}

/// Tells the standbys through the store that the job is over.
pub(super) async fn finish(keeper: Keeper, result: &JobResult, over: OverMark, lane: &OffloadPort) {
    let last_words = serde_json::to_vec(result).expect("a result has no part that can fail");
    let finish = move || {
        over.set();
        keeper.finish(last_words)
    };
    let error = match lane.run("last words", finish).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => with_cause(&error),
        Err(error) => error.to_string(),
    };
    tracing::warn!(
        error,
        "the store does not say that the job is over: who stands by will see to it"
    );
}

/// Gives up the right to act, so that another driver need not wait for the lease to end.
pub(super) async fn resign(keeper: Keeper, lane: &OffloadPort) {
    let resigned = lane.run("resignation", move || drop(keeper)).await;
    if let Err(error) = resigned {
        tracing::warn!(%error, "the lease was not given back, and ends by itself");
    }
}
