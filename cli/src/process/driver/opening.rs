//! Opens a driver before its actors begin: its state directory, its address, its journal and the right to act. Called
//! by `drive`, for each life of a driver.

use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;

use elastic_journal::etcd::EtcdAddress;
use elastic_protocol::Term;
use elastic_transport::ReservedAddress;

use super::super::signals::{Heard, Signals};
use super::super::state_dir::{DriverStateDir, default_state_dir};
use super::super::watch::Lanes;
use super::DriverLifeEnd;
use super::durable::{Durable, Unusable};
use super::listening::{Listening, not_listening, reserved_when_free};
use super::lost_job::replaced;
use super::patience::StartPatience;
use super::reach::reached_at;
use super::standing::{LeaderSeat, Standing, Stood, stand};
use super::threads::has_threads;
use crate::command_line::{CommandFailure, DriverPlan, LauncherKind, ResultExt};

/// The parts of a driver that exist before its actors.
pub(super) struct OpenedDriver {
    pub(super) state: DriverStateDir,
    pub(super) listening: Listening,
    /// The journal; `None` if no successor could find it.
    pub(super) durable: Option<Durable>,
    /// The right to act, where other drivers compete for it.
    pub(super) seat: Option<LeaderSeat>,
}

/// Opens a driver that no other one competes with. Returns the signal that asked it to end meanwhile.
pub(super) async fn open(
    plan: &mut DriverPlan,
    lanes: &Lanes,
    socket: Option<UdpSocket>,
    signals: &Signals,
) -> Result<Result<OpenedDriver, Heard>, CommandFailure> {
    if !plan.keeps_journal {
        let secrets =
            Listening::new_job(plan.shared.as_ref()).failed("the job's secrets cannot be made")?;
        let listening = Listening::start(plan, socket.map(Rc::new), secrets, Term(1))?;
        let state = open_state_dir(plan, listening.address)?;
        // No successor will come for orphaned workers, so training ones get the same timeout as idle ones. Agents that are
        // this driver's own processes end when it does: a driver that is silent stands still (Ctrl-Z), and goes on.
        if plan.launcher != LauncherKind::Local {
            plan.config.deadlines.orphan_training.get_or_insert(plan.config.deadlines.orphan);
        }
        return Ok(Ok(OpenedDriver { state, listening, durable: None, seat: None }));
    }
    let mut patience = StartPatience::new(!plan.begins_job());
    if let Err(heard) = patience.until_granted(signals, has_threads).await? {
        return Ok(Err(heard));
    }
    let state = match patience.until_granted(signals, || open_state_dir(plan, plan.bind)).await? {
        Ok(state) => state,
        Err(heard) => return Ok(Err(heard)),
    };
    // The journal's thread is had before any that a driver can do without.
    drop(lanes.journal.run("beginning", || ()).await);
    let open = || Durable::open(state.path(), plan, &lanes.journal);
    let durable = match patience.until_granted(signals, open).await? {
        Ok(durable) => durable,
        Err(heard) => return Ok(Err(heard)),
    };
    let mut socket = socket.map(Rc::new);
    if durable.tenure.is_takeover() {
        listen_where_it_did(plan, &state);
        if socket.is_none() {
            match reserved_when_free(plan.bind, signals).await? {
                Ok(reserved) => socket = Some(reserved.into_socket()),
                Err(heard) => return Ok(Err(heard)),
            }
        }
    }
    let listening = listen(plan, socket, &durable)?;
    Ok(Ok(OpenedDriver { state, listening, durable: Some(durable), seat: None }))
}

/// Opens a driver with a store that several drivers share: returns when this one may act, or its end.
pub(super) async fn open_store(
    plan: &mut DriverPlan,
    store: &EtcdAddress,
    standing: &mut Standing,
    signals: &Signals,
    lanes: &Lanes,
    start_beside: &dyn Fn(&str) -> Result<(), CommandFailure>,
) -> Result<Result<OpenedDriver, DriverLifeEnd>, CommandFailure> {
    let goes_on = !plan.begins_job() || standing.since.is_some();
    let mut patience = StartPatience::new(goes_on);
    if let Err(heard) = patience.until_granted(signals, has_threads).await? {
        return Ok(Err(DriverLifeEnd::Asked(heard)));
    }
    let state = match patience.until_granted(signals, || open_state_dir(plan, plan.bind)).await? {
        Ok(state) => state,
        Err(heard) => return Ok(Err(DriverLifeEnd::Asked(heard))),
    };
    listen_where_it_did(plan, &state);
    let reserved = match state.address() {
        Some(_) => match reserved_when_free(plan.bind, signals).await? {
            Ok(reserved) => reserved,
            Err(heard) => return Ok(Err(DriverLifeEnd::Asked(heard))),
        },
        None => ReservedAddress::bind(plan.bind).map_err(not_listening)?,
    };
    let address = reserved.local_address().failed("the driver cannot listen")?;
    // The driver's next life must be reachable at the same address.
    plan.bind = address;
    let reached_at = reached_at(plan, address);
    let tell_acting = |acting: &str| start_beside(&format!("{acting},{reached_at}"));
    let mut seat =
        match stand(store, plan, &reached_at, standing, signals, &lanes.journal, &tell_acting)
            .await?
        {
            Stood::Acts(seat) => *seat,
            Stood::Over(result) => return Ok(Err(DriverLifeEnd::Over(result))),
            Stood::Asked(heard) => return Ok(Err(DriverLifeEnd::Asked(heard))),
            Stood::Followed => return Ok(Err(DriverLifeEnd::Followed)),
            Stood::Lost(failure) => return Ok(Err(DriverLifeEnd::Lost(failure))),
        };
    let way_out = format!(
        "give this job a place of its own (--store etcd://HOST:PORT/NAME); or delete the keys below \
         {store} to give that one up"
    );
    let journal = Box::new(seat.journal());
    let name = store.to_string();
    let durable = match Durable::begin(journal, &name, plan, way_out, &lanes.journal) {
        Ok(durable) => durable,
        Err(Unusable::Now(error)) => return Ok(Err(DriverLifeEnd::Deposed(error.to_string()))),
        Err(Unusable::Lasting(failure)) => return Err(failure),
    };
    let job = durable.tenure.job.to_string();
    if let Err(own) = standing.leads(job.clone()) {
        return Ok(Err(DriverLifeEnd::Lost(replaced(store, Some(&own), &job))));
    }
    seat.name_job(plan, &reached_at, &durable);
    let listening = listen(plan, Some(reserved.into_socket()), &durable)?;
    Ok(Ok(OpenedDriver { state, listening, durable: Some(durable), seat: Some(seat) }))
}

/// With any free port allowed, a driver takes the port at which its agents and workers look for it.
fn listen_where_it_did(plan: &mut DriverPlan, state: &DriverStateDir) {
    if let Some(former) = state.address().filter(|_| plan.bind.port() == 0) {
        plan.bind.set_port(former.port());
    }
}

fn listen(
    plan: &mut DriverPlan,
    socket: Option<Rc<UdpSocket>>,
    durable: &Durable,
) -> Result<Listening, CommandFailure> {
    plan.hosts.known = durable.tenure.image.known_hosts();
    let term = durable.tenure.image.term;
    let listening = Listening::start(plan, socket, durable.secrets.clone(), term)?;
    for worker in durable.expected_workers() {
        listening.credentials.borrow_mut().issue_worker(worker);
    }
    Ok(listening)
}

/// Opens the given state directory, or else the default one of the driver's address.
fn open_state_dir(
    plan: &DriverPlan,
    address: SocketAddr,
) -> Result<DriverStateDir, CommandFailure> {
    let folder =
        plan.state_dir.clone().or_else(|| default_state_dir(address)).ok_or_else(|| {
            CommandFailure::new("there is no folder for the driver's state: HOME is not set")
                .hint("give one with --state-dir")
        })?;
    let state = DriverStateDir::open(&folder, plan.config.output.umask)?;
    if plan.begins_job() {
        state.refuse_folders()?;
    }
    Ok(state)
}
