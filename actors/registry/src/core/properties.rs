//! Property tests of the registry's core: any interleaving and repetition of votes, of several generations, members
//! and strangers. The model is independent: it computes the verdicts from the whole history.

use elastic_protocol::messages::Ballot;
use elastic_protocol::{GenerationId, HostName, Incarnation, Term};
use proptest::prelude::*;

use super::*;

const WORLD_SIZE: u32 = 4;
const OPEN: u64 = 2;

#[derive(Clone, Debug)]
struct Cast {
    generation: u64,
    slot: u32,
    incarnation: u64,
    ballot: u8,
}

fn casts() -> impl Strategy<Value = Vec<Cast>> {
    // Mostly proper votes, so that the barriers are reached; slot 4 is no member.
    let generation = prop_oneof![20 => Just(OPEN), 1 => Just(1), 1 => Just(3)];
    let incarnation = prop_oneof![20 => Just(1_u64), 1 => Just(0), 1 => Just(2)];
    let slot = prop_oneof![20 => 0..WORLD_SIZE, 1 => Just(WORLD_SIZE)];
    let ballot = prop_oneof![6 => Just(0_u8), 6 => Just(1), 3 => Just(2), 1 => Just(3)];
    let cast = (generation, slot, incarnation, ballot).prop_map(
        |(generation, slot, incarnation, ballot)| Cast { generation, slot, incarnation, ballot },
    );
    prop::collection::vec(cast, 0..60)
}

fn worker(slot: u32, incarnation: u64) -> WorkerId {
    let host = HostName::new("a").expect("a literal");
    WorkerId { host, slot, incarnation: Incarnation(incarnation) }
}

fn stamp(generation: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(generation) }
}

fn vote(cast: &Cast) -> Vote {
    let ballot = match cast.ballot {
        0 => Ballot::Ready,
        1 => Ballot::Synced,
        2 => Ballot::Success,
        _ => Ballot::Failure { status: None, message: "boom".to_owned() },
    };
    Vote { stamp: stamp(cast.generation), worker: worker(cast.slot, cast.incarnation), ballot }
}

fn is_proper(cast: &Cast) -> bool {
    cast.generation == OPEN && cast.incarnation == 1 && cast.slot < WORLD_SIZE
}

fn opened() -> RegistryCore {
    let mut core = RegistryCore::new();
    let members = (0..WORLD_SIZE).map(|slot| worker(slot, 1)).collect();
    core.open(Time::ZERO, stamp(OPEN), members, RestartBudget::default())
        .expect("a first generation");
    core
}

fn drain(core: &mut RegistryCore, into: &mut Vec<GenerationVerdict>) {
    into.extend(std::iter::from_fn(|| core.poll_output()));
}

/// The first result of a member in a history, and how far it came before it failed.
fn fate(history: &[Cast], slot: u32) -> (bool, bool, Option<u8>) {
    let own: Vec<u8> =
        history.iter().filter(|cast| cast.slot == slot).map(|cast| cast.ballot).collect();
    let result = own.iter().copied().find(|ballot| *ballot >= 2);
    let counted = match own.iter().position(|ballot| *ballot >= 2) {
        Some(end) if own[end] == 3 => &own[..end],
        _ => &own[..],
    };
    (counted.iter().any(|ballot| *ballot <= 1), counted.contains(&1), result)
}

/// Whether a condition on all members held after some prefix of the history.
fn ever(history: &[Cast], holds: impl Fn((bool, bool, Option<u8>)) -> bool) -> bool {
    (0..=history.len()).any(|end| (0..WORLD_SIZE).all(|slot| holds(fate(&history[..end], slot))))
}

fn count(verdicts: &[GenerationVerdict], wanted: impl Fn(&GenerationVerdict) -> bool) -> usize {
    verdicts.iter().filter(|verdict| wanted(verdict)).count()
}

proptest! {
    #[test]
    fn x_6_verdicts_are_those_of_the_history(casts in casts()) {
        let mut core = opened();
        let mut verdicts = Vec::new();
        for cast in &casts {
            core.handle_vote(Time::ZERO, &vote(cast));
            drain(&mut core, &mut verdicts);
        }
        let history: Vec<Cast> = casts.iter().filter(|cast| is_proper(cast)).cloned().collect();

        let ready = ever(&history, |(ready, _, result)| ready && result.is_none());
        let all_ready = count(&verdicts, |v| matches!(v, GenerationVerdict::AllReady { .. }));
        prop_assert_eq!(all_ready, usize::from(ready), "at most once, and only when all are READY");

        let synced = ready && ever(&history, |(_, synced, result)| synced && result != Some(3));
        let all_synced = count(&verdicts, |v| matches!(v, GenerationVerdict::AllSynced { .. }));
        prop_assert_eq!(all_synced, usize::from(synced));

        let ended = |code| {
            (0..WORLD_SIZE).filter(|slot| fate(&history, *slot).2 == Some(code)).count()
        };
        let one_failed = count(&verdicts, |v| matches!(v, GenerationVerdict::Failed { .. }));
        let one_succeeded = count(&verdicts, |v| matches!(v, GenerationVerdict::Succeeded { .. }));
        let all_failed = count(&verdicts, |v| matches!(v, GenerationVerdict::AllFailed { .. }));
        let all_succeeded = count(&verdicts, |v| matches!(v, GenerationVerdict::AllSucceeded { .. }));
        let world_size = usize::try_from(WORLD_SIZE).expect("small");
        prop_assert_eq!((one_succeeded, one_failed), (ended(2), ended(3)));
        let left = |code| ended(code) > 0 && ended(2) + ended(3) == world_size;
        prop_assert!(all_succeeded <= 1 && (all_succeeded == 0 || left(2)), "H-21");
        prop_assert!(ended(2) < world_size || all_succeeded == 1);
        let broken = count(&verdicts, |v| matches!(v, GenerationVerdict::Broken { .. }));
        let is_broken = ended(3) > 0 && all_succeeded == 0;
        prop_assert!(broken <= 1 && (broken == 1 || !is_broken), "one-for-all, once");
        prop_assert_eq!(all_failed, usize::from(ended(3) == world_size));
        prop_assert!(verdicts.iter().all(|verdict| verdict.stamp() == stamp(OPEN)));
    }

    #[test]
    fn g_2_no_vote_of_anybody_else_changes_anything(casts in casts()) {
        let mut with = opened();
        let mut without = opened();
        let (mut seen_with, mut seen_without) = (Vec::new(), Vec::new());
        for cast in &casts {
            let decision = with.handle_vote(Time::ZERO, &vote(cast));
            if is_proper(cast) {
                prop_assert_eq!(&without.handle_vote(Time::ZERO, &vote(cast)), &decision);
            } else {
                prop_assert!(matches!(decision, VoteDecision::Dropped(_)));
            }
        }
        drain(&mut with, &mut seen_with);
        drain(&mut without, &mut seen_without);
        prop_assert_eq!(seen_with, seen_without);
        prop_assert_eq!(with.missing(), without.missing());
        let strangers = casts.iter().filter(|cast| !is_proper(cast)).count();
        prop_assert_eq!(with.dropped(), u64::try_from(strangers).expect("small"), "G-2: counted");
    }

    #[test]
    fn x_6_repeating_the_whole_history_gives_nothing_new(casts in casts()) {
        let mut core = opened();
        let mut verdicts = Vec::new();
        for cast in casts.iter().chain(&casts) {
            core.handle_vote(Time::ZERO, &vote(cast));
        }
        drain(&mut core, &mut verdicts);
        let mut seen = Vec::new();
        for verdict in &verdicts {
            prop_assert!(!seen.contains(verdict), "given twice: {:?}", verdict);
            seen.push(verdict.clone());
        }
        let failures = count(&verdicts, |v| matches!(v, GenerationVerdict::Failed { .. }));
        prop_assert_eq!(failures, core.members().filter(|(_, state)| state.is_failed()).count());
    }
}
