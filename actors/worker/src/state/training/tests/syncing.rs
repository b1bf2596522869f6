//! Tests of syncs from several holders of a commit, over real sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use elastic_checkpoint::{LocalFiles, StateFields};
use elastic_collectives::{AbortHandle, GroupSpec, TcpFabric};
use elastic_protocol::messages::{BulkWork, MovedBytes, SyncPlan};
use elastic_protocol::{CommitId, GenerationId};
use serde::{Deserialize, Serialize};

use super::super::State;
use super::super::checkpoint::ResumePorts;
use super::super::error::Error;
use super::super::sync::{SyncError, sync};
use super::super::transfer::ROUND_BYTES;

const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Weights {
    #[serde(with = "crate::state::training::bulk")]
    pub(super) numbers: Vec<u64>,
}

/// Weights whose transfer takes several rounds.
pub(super) fn weights() -> Vec<u64> {
    (0..(2 * ROUND_BYTES / 8 + 1000) as u64).map(|index| index.wrapping_mul(0x9E37_79B9)).collect()
}

/// The group of a generation over TCP.
pub(super) fn group_spec(generation: u64, rank: u32, peers: Vec<SocketAddr>) -> GroupSpec {
    GroupSpec {
        term: 1,
        generation,
        rank,
        peers,
        hosts: Vec::new(),
        host_names: Vec::new(),
        key: [3; 32],
        data_plane: elastic_collectives::DataPlane::Auto,
        encrypts: false,
        streams: elastic_collectives::DEFAULT_STREAMS,
        form_deadline: DEADLINE,
        operation_deadline: DEADLINE,
        path_deadline: elastic_collectives::DEFAULT_PATH_DEADLINE,
    }
}

/// The part of a worker in a test: its generations, each with its rank.
struct Part {
    holds: bool,
    generations: Vec<(u64, u32)>,
    /// The names of its state's fields.
    fields: Option<[&'static str; 2]>,
}

/// The outcome of a worker: the result of each sync, and the commit that it holds at the end.
struct Outcome {
    syncs: Vec<Result<bool, SyncError>>,
    commit: Option<CommitId>,
    is_right: bool,
}

/// Runs workers, each in a thread. `show` is told the progress of takers, and may abort their generation.
fn run(
    parts: Vec<Part>,
    show: impl Fn(MovedBytes, &AbortHandle) + Clone + Send + 'static,
) -> Vec<Outcome> {
    let bind = |_| TcpFabric::bind(([127, 0, 0, 1], 0).into()).expect("a port is free");
    let fabrics: Vec<TcpFabric> = parts.iter().map(bind).collect();
    let mut worlds: BTreeMap<u64, BTreeMap<u32, SocketAddr>> = BTreeMap::new();
    for (part, fabric) in parts.iter().zip(&fabrics) {
        for (generation, rank) in &part.generations {
            let world = worlds.entry(*generation).or_default();
            world.insert(*rank, fabric.local_address());
        }
    }
    let threads = parts.into_iter().zip(fabrics).map(|(part, fabric)| {
        let (worlds, show) = (worlds.clone(), show.clone());
        let body = move || part.run(fabric, &worlds, &show);
        std::thread::Builder::new().spawn(body).expect("a thread")
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

impl Part {
    fn run(
        self,
        mut fabric: TcpFabric,
        worlds: &BTreeMap<u64, BTreeMap<u32, SocketAddr>>,
        show: &impl Fn(MovedBytes, &AbortHandle),
    ) -> Outcome {
        let abort = AbortHandle::new().expect("a descriptor");
        let mut state = State::new(Weights::default());
        if self.holds {
            state.numbers = weights();
            state.save().expect("it encodes");
        }
        let sync = |(generation, rank)| {
            let peers = worlds[&generation].values().copied().collect();
            let mut group =
                fabric.form(&group_spec(generation, rank, peers), &abort).expect("all are there");
            let plan = SyncPlan::FromRoot { root: 0 };
            let show = |moved: MovedBytes| show(moved, &abort);
            let (files, resumed, show) = (&LocalFiles, &|_, _, _| {}, &show);
            let (warn, pause) = (&|_| {}, &|_| {});
            let names = self.fields.map(|names| names.map(str::to_owned).to_vec());
            let fields = names.map(|names| StateFields { names, ..StateFields::default() });
            let fields = fields.as_ref();
            let ports =
                ResumePorts { files, resumed, warn, pause, show, is_one_host: true, fields };
            sync(&mut state, &mut group, plan, None, ports, GenerationId(generation))
        };
        let syncs = self.generations.into_iter().map(sync).collect();
        let (commit, is_right) = (state.commit_id(), state.numbers == weights());
        Outcome { syncs, commit, is_right }
    }
}

fn check(outcomes: &[Outcome]) {
    let commit = outcomes[0].commit;
    assert!(commit.is_some());
    for outcome in outcomes {
        assert!(matches!(outcome.syncs.last(), Some(Ok(true))), "training goes on");
        assert!(outcome.is_right);
        assert_eq!(outcome.commit, commit, "G-6: one step, one digest");
    }
}

#[test]
fn newcomers_take_the_state_from_all_who_hold_it() {
    for (holders, newcomers) in [(2, 1), (1, 2), (2, 3)] {
        let part =
            |rank| Part { holds: rank < holders, generations: vec![(1, rank)], fields: None };
        check(&run((0..holders + newcomers).map(part).collect(), |_, _| {}));
    }
}

#[test]
fn c_1_a_newcomer_whose_state_has_other_fields_takes_no_commit_over_and_one_without_a_list_does() {
    let part = |rank, fields| Part { holds: rank == 0, generations: vec![(1, rank)], fields };
    let fields = Some(["rate", "decay"]);
    check(&run(vec![part(0, fields), part(1, fields), part(2, None)], |_, _| {}));
    let swapped = Some(["decay", "rate"]);
    let outcomes = run(vec![part(0, fields), part(1, swapped)], |_, _| {});
    let [Err(SyncError::Fatal(refused))] = &outcomes[1].syncs[..] else {
        panic!("the newcomer refuses")
    };
    assert!(matches!(refused, Error::OtherFields { root: 0 }), "{refused}");
    assert_eq!(outcomes[1].commit, None);
}

#[test]
fn a_transfer_goes_on_where_its_lost_source_left_it() {
    let parts = vec![
        Part { holds: true, generations: vec![(1, 0), (2, 0)], fields: None },
        Part { holds: true, generations: vec![(1, 1)], fields: None },
        Part { holds: false, generations: vec![(1, 2), (2, 1)], fields: None },
    ];
    let (shown, seen) = mpsc::channel();
    // The newcomer's first generation is aborted once the first round has arrived.
    let show = move |moved: MovedBytes, abort: &AbortHandle| {
        abort.abort(1, 1, "a source was lost");
        let _ = shown.send(moved);
    };
    let mut outcomes = run(parts, show);
    assert!(outcomes[2].syncs[0].is_err());
    outcomes.remove(1);
    check(&outcomes);
    let shown: Vec<MovedBytes> = seen.iter().collect();
    assert!(shown.iter().all(|moved| moved.work == BulkWork::TakesState), "{shown:?}");
    let done: Vec<u64> = shown.iter().map(|moved| moved.done * 100 / moved.total).collect();
    assert_eq!(done, [49, 99, 100], "percent");
}
