//! Tests of calls by name over a real group: out of order, with different arguments, with ranks that have joined.

use super::{LONG, Path, launchable, world};
use crate::clock::now;
use crate::negotiation::{CALLS_MAX, CallTicket, NegotiatedCall, Negotiation, Settled};
use crate::{
    AsyncCommunicator, Communicator, CommunicatorExt, DataType, Launched, ReduceOp,
    SoloCommunicator,
};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

type Sums = Arc<Mutex<Vec<(String, f32)>>>;

/// An all-reduce of one number that records its result.
fn sum(name: &str, what: &str, value: f32, sums: &Sums) -> NegotiatedCall {
    let (sums, own_name) = (Arc::clone(sums), name.to_owned());
    NegotiatedCall {
        kind: "allreduce".to_owned(),
        name: Some(name.to_owned()),
        what: what.to_owned(),
        reduces: Some((ReduceOp::Sum, vec![(DataType::F32, 1)])),
        work: Box::new(move |group: &mut dyn Communicator| {
            let mut data = [value];
            group.all_reduce(&mut data, ReduceOp::Sum)?;
            sums.lock().unwrap().push((own_name, data[0]));
            Ok(())
        }),
    }
}

/// Waits for tickets as the training thread does; the thread of launched operations runs them in order.
fn run_all(
    negotiation: &Negotiation,
    tickets: &[CallTicket],
    group: &mut dyn Communicator,
) -> Vec<Settled> {
    negotiation.close();
    tickets.iter().map(|ticket| negotiation.run(*ticket, group).unwrap()).collect()
}

#[test]
fn calls_meet_by_name_and_run_in_one_order() {
    let results = world(Path::SharedMemory, 2, LONG, |group, _abort| {
        let (negotiation, sums) = (Negotiation::new(2), Sums::default());
        let names = if group.rank() == 0 { ["a", "b", "c"] } else { ["c", "a", "b"] };
        let tickets = names.map(|name| negotiation.submit(sum(name, "", 1.0, &sums)).unwrap());
        assert_eq!(run_all(&negotiation, &tickets, group), vec![Settled::Done; 3]);
        sums.lock().unwrap().clone()
    });
    assert_eq!(results[0], results[1], "in the same order on both");
    assert!(results[0].iter().all(|(_, sum)| *sum == 2.0));
}

#[test]
fn what_differs_is_refused_with_every_ranks_words_and_the_group_goes_on() {
    let results = world(Path::Tcp, 2, LONG, |group, _abort| {
        let (negotiation, sums) = (Negotiation::new(2), Sums::default());
        let shape = if group.rank() == 0 { "(17,)" } else { "(18,)" };
        let tickets = [("bad", shape), ("good", "(1,)")]
            .map(|(name, what)| negotiation.submit(sum(name, what, 1.0, &sums)).unwrap());
        run_all(&negotiation, &tickets, group)
    });
    let why = "ranks differ in allreduce.bad: rank 0: (17,); rank 1: (18,)";
    assert_eq!(results, vec![vec![Settled::Refused(why.to_owned()), Settled::Done]; 2]);
}

#[test]
fn ranks_that_would_wait_for_each_other_for_ever_are_told() {
    let results = world(Path::SharedMemory, 2, LONG, |group, _abort| {
        let (negotiation, sums) = (Negotiation::new(2), Sums::default());
        let name = if group.rank() == 0 { "a" } else { "b" };
        let ticket = negotiation.submit(sum(name, "", 1.0, &sums)).unwrap();
        run_all(&negotiation, &[ticket], group)
    });
    let why = "ranks wait for each other's calls: rank 0: allreduce.a; rank 1: allreduce.b";
    assert_eq!(results, vec![vec![Settled::Refused(why.to_owned())]; 2]);
}

#[test]
fn a_rank_that_has_joined_adds_zeros() {
    let results = world(Path::SharedMemory, 3, LONG, |group, _abort| {
        let (negotiation, sums) = (Negotiation::new(3), Sums::default());
        let mut tickets = Vec::new();
        if group.rank() != 1 {
            // The call has no name, so that this rank counts one more than rank 1.
            let call = NegotiatedCall { name: None, ..sum("a", "", 1.0, &sums) };
            tickets.push(negotiation.submit(call).unwrap());
            assert_eq!(negotiation.run(tickets[0], group).unwrap(), Settled::Done);
        }
        let settled = negotiation.run(negotiation.join(), group).unwrap();
        let nameless = NegotiatedCall { name: None, ..sum("nameless", "", 0.5, &sums) };
        let ticket = negotiation.submit(nameless).unwrap();
        assert_eq!(negotiation.run(ticket, group).unwrap(), Settled::Done);
        let sums = sums.lock().unwrap().clone();
        (settled, sums)
    });
    let after = ("nameless".to_owned(), 1.5);
    let both = vec![("a".to_owned(), 2.0), after.clone()];
    let sums: Vec<_> = results.iter().map(|(_, sums)| sums.clone()).collect();
    assert_eq!(sums, [both.clone(), vec![after], both]);
    assert!(results.iter().all(|(settled, _)| *settled == Settled::Joined { last: 2 }));
}

#[test]
fn a_name_in_use_is_refused() {
    let (negotiation, sums) = (Negotiation::new(2), Sums::default());
    negotiation.submit(sum("a", "", 1.0, &sums)).unwrap();
    let error = negotiation.submit(sum("a", "", 1.0, &sums)).unwrap_err();
    assert!(error.to_string().starts_with("allreduce.a is in progress"), "{error}");
}

/// A rank that launches calls beside its thread, as the bindings of other languages do.
struct Caller {
    group: AsyncCommunicator,
    negotiation: Arc<Negotiation>,
    sums: Sums,
}

impl Caller {
    fn new(group: AsyncCommunicator) -> Caller {
        let negotiation = Arc::new(Negotiation::new(group.world_size()));
        Caller { group, negotiation, sums: Sums::default() }
    }

    fn launch(&self, name: &str) -> (CallTicket, Launched<Settled>) {
        let ticket = self.negotiation.submit(sum(name, "", 1.0, &self.sums)).unwrap();
        let negotiation = Arc::clone(&self.negotiation);
        let launched = self.group.launch_unbounded(move |group| negotiation.run(ticket, group));
        let early = launched.early();
        self.negotiation.observe(ticket, Box::new(move |settled| early.set(settled)));
        (ticket, launched)
    }

    fn wait(&self, (ticket, launched): (CallTicket, Launched<Settled>)) -> Settled {
        self.negotiation.wait_begins(ticket);
        launched.wait().unwrap()
    }

    fn call(&self, name: &str) -> Settled {
        self.wait(self.launch(name))
    }
}

#[test]
fn a_rank_goes_on_with_calls_that_all_ranks_have_made_while_an_earlier_one_is_open() {
    let results = world(Path::SharedMemory, 2, LONG, |group, abort| {
        let rank = Caller::new(launchable(group, abort));
        if rank.group.rank() == 0 {
            let early = rank.launch("x");
            let others = ["a", "b"].map(|name| rank.call(name));
            (others, rank.wait(early))
        } else {
            (["a", "b"].map(|name| rank.call(name)), rank.call("x"))
        }
    });
    assert_eq!(results, vec![([Settled::Done, Settled::Done], Settled::Done); 2]);
}

#[test]
fn calls_in_reverse_order_meet_beyond_the_bound_of_launched_operations() {
    world(Path::SharedMemory, 2, LONG, |group, abort| {
        let rank = Caller::new(launchable(group, abort));
        let mut names: Vec<String> = (0..crate::LAUNCHED_MAX + 50).map(|n| n.to_string()).collect();
        if rank.group.rank() == 0 {
            names.reverse();
        }
        let launched: Vec<_> = names.iter().map(|name| rank.launch(name)).collect();
        assert!(launched.into_iter().all(|launched| rank.wait(launched) == Settled::Done));
    });
}

#[test]
fn ranks_that_wait_for_each_other_are_told_within_seconds_though_they_have_made_a_call_together() {
    let results = world(Path::SharedMemory, 2, LONG, |group, abort| {
        let rank = Caller::new(launchable(group, abort));
        let early = rank.launch(if rank.group.rank() == 0 { "x" } else { "y" });
        assert_eq!(rank.call("common"), Settled::Done);
        let begin = now();
        let settled = rank.wait(early);
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        settled
    });
    let why = "ranks wait for each other's calls: rank 0: allreduce.x; rank 1: allreduce.y";
    assert_eq!(results, vec![Settled::Refused(why.to_owned()); 2]);
}

/// Takes longer than the rounds after which stuck ranks are told.
#[expect(clippy::disallowed_methods, reason = "the ranks of a test are threads")]
fn compute() {
    thread::sleep(Duration::from_secs(2));
}

#[test]
fn a_rank_that_has_waited_for_a_call_that_was_done_is_not_stuck_while_it_computes() {
    let results = world(Path::SharedMemory, 2, LONG, |group, abort| {
        let rank = Caller::new(launchable(group, abort));
        let warm = rank.launch("warm");
        assert!(warm.1.wait_for(LONG), "it is done before the wait for it begins");
        assert_eq!(rank.wait(warm), Settled::Done);
        let names = if rank.group.rank() == 0 { ["x", "y"] } else { ["y", "x"] };
        let first = rank.launch(names[0]);
        compute();
        let second = rank.launch(names[1]);
        [rank.wait(first), rank.wait(second)]
    });
    assert_eq!(results, vec![[Settled::Done, Settled::Done]; 2]);
}

#[test]
fn a_call_that_the_rounds_of_another_settle_is_told_at_once_and_its_own_run_returns_the_same() {
    let (negotiation, sums, told) = (Negotiation::new(1), Sums::default(), Arc::default());
    let [first, second] =
        ["a", "b"].map(|name| negotiation.submit(sum(name, "", 1.0, &sums)).unwrap());
    for (ticket, name) in [(first, "a"), (second, "b")] {
        let told: Arc<Mutex<Vec<(&str, Settled)>>> = Arc::clone(&told);
        let observer = move |settled: Result<Settled, _>| {
            told.lock().unwrap().push((name, settled.unwrap()));
        };
        negotiation.observe(ticket, Box::new(observer));
    }
    let mut alone = SoloCommunicator::new();
    assert_eq!(negotiation.run(second, &mut alone).unwrap(), Settled::Done);
    assert_eq!(*told.lock().unwrap(), [("a", Settled::Done)], "its own result comes from run");
    assert_eq!(negotiation.run(first, &mut alone).unwrap(), Settled::Done);
    assert_eq!(sums.lock().unwrap().len(), 2, "each ran once");
}

#[test]
fn there_is_room_again_once_a_call_is_settled() {
    let (negotiation, sums) = (Negotiation::new(1), Sums::default());
    let submit = |number: usize| negotiation.submit(sum(&number.to_string(), "", 1.0, &sums));
    let tickets: Vec<_> = (0..CALLS_MAX).map(|number| submit(number).unwrap()).collect();
    assert!(!negotiation.has_room());
    negotiation.wait_for_room(Duration::from_millis(1));
    negotiation.run(tickets[0], &mut SoloCommunicator::new()).unwrap();
    assert!(negotiation.has_room());
}
