//! Tests of calls by name over a real group: out of order, with different arguments, with ranks that have joined.

use super::{LONG, Path, world};
use crate::negotiation::{CallTicket, NegotiatedCall, Negotiation, Settled};
use crate::{Communicator, CommunicatorExt, DataType, ReduceOp};
use std::sync::{Arc, Mutex};

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
