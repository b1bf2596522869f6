//! Tests and properties of restart decisions.

use std::time::Duration;

use elastic_protocol::Time;
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;

fn policy(strategy: RestartStrategy, restarts_max: u32, window_ms: u64) -> RestartPolicy {
    RestartPolicy {
        strategy,
        restarts_max,
        window: Duration::from_millis(window_ms),
        backoff: RestartBackoff {
            base: Duration::from_millis(10),
            cap: Duration::from_millis(160),
        },
    }
}

fn rng() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(3)
}

fn panicked() -> ChildExit {
    ChildExit::Panicked("x".to_owned())
}

#[test]
fn lifetimes_say_which_ends_are_mended() {
    use Lifetime::{Permanent, Temporary, Transient};
    let failed = ChildExit::Failed("y".to_owned());
    for (lifetime, exit, mended) in [
        (Permanent, ChildExit::Stopped, true),
        (Permanent, panicked(), true),
        (Transient, ChildExit::Stopped, false),
        (Transient, ChildExit::Terminated, false),
        (Transient, failed, true),
        (Temporary, panicked(), false),
    ] {
        let mut core = RestartCore::new(policy(RestartStrategy::OneForOne, 3, 1000));
        let child = core.add_child(lifetime);
        let decision = core.handle_exit(Time::ZERO, child, &exit, &mut rng());
        assert_eq!(
            matches!(decision, RestartDecision::RestartAt { .. }),
            mended,
            "{lifetime:?} {exit}"
        );
        assert_eq!(
            core.children().count(),
            usize::from(mended),
            "who is done is no child any more"
        );
    }
}

#[test]
fn a_spent_budget_escalates_with_the_reason_and_comes_back_with_time() {
    let mut core = RestartCore::new(policy(RestartStrategy::OneForOne, 1, 1000));
    let child = core.add_child(Lifetime::Permanent);
    let mut exit = |ms| core.handle_exit(Time::from_ms(ms), child, &panicked(), &mut rng());
    assert!(matches!(exit(0), RestartDecision::RestartAt { .. }));
    let RestartDecision::Escalate { reason } = exit(999) else { panic!("the budget is spent") };
    assert_eq!(reason, "panicked: x; 1 restarts within 1000 ms are spent");
    assert!(matches!(exit(1000), RestartDecision::RestartAt { .. }));
}

#[test]
fn who_is_not_supervised_is_ignored() {
    let mut core = RestartCore::new(RestartPolicy::default());
    let child = core.add_child(Lifetime::Permanent);
    core.remove_child(child);
    let decision = core.handle_exit(Time::ZERO, child, &panicked(), &mut rng());
    assert!(matches!(decision, RestartDecision::Ignore { .. }));
}

fn strategies() -> impl Strategy<Value = RestartStrategy> {
    prop_oneof![
        Just(RestartStrategy::OneForOne),
        Just(RestartStrategy::OneForAll),
        Just(RestartStrategy::RestForOne)
    ]
}

proptest! {
    #[test]
    fn never_more_restarts_than_the_budget_in_any_window(
        strategy in strategies(),
        restarts_max in 0_u32..5,
        window_ms in 1_u64..500,
        exits in proptest::collection::vec((0_u64..200, 0_u32..4), 1..60),
    ) {
        let mut core = RestartCore::new(policy(strategy, restarts_max, window_ms));
        let children: Vec<_> = (0..4).map(|_| core.add_child(Lifetime::Permanent)).collect();
        let (mut now, mut rng) = (Time::ZERO, rng());
        let mut restarts = Vec::new();
        for (after_ms, child) in exits {
            now = now + Duration::from_millis(after_ms);
            let child = ChildNumber(child);
            match core.handle_exit(now, child, &panicked(), &mut rng) {
                RestartDecision::RestartAt { children: named, at, .. } => {
                    restarts.push(now);
                    prop_assert!(at > now);
                    let wanted: Vec<_> = match strategy {
                        RestartStrategy::OneForOne => vec![child],
                        RestartStrategy::OneForAll => children.clone(),
                        RestartStrategy::RestForOne => children[child.0 as usize..].to_vec(),
                    };
                    prop_assert_eq!(named, wanted);
                }
                RestartDecision::Escalate { .. } => {}
                RestartDecision::Ignore { reason } => prop_assert!(false, "{}", reason),
            }
        }
        for (index, first) in restarts.iter().enumerate() {
            let window = Duration::from_millis(window_ms);
            let within = restarts[index..].iter().filter(|at| at.since(*first) < window).count();
            prop_assert!(within <= restarts_max as usize);
        }
    }

    #[test]
    fn waits_never_shrink_up_to_the_cap(base_ms in 1_u64..100, cap_ms in 1_u64..5000, seed: u64) {
        let backoff =
            RestartBackoff { base: Duration::from_millis(base_ms), cap: Duration::from_millis(cap_ms) };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut before = Duration::ZERO;
        for attempt in 0..40 {
            let wait = backoff.wait(attempt, &mut rng);
            prop_assert!(wait <= backoff.cap && wait <= backoff.longest(attempt));
            prop_assert!(2 * wait >= backoff.longest(attempt));
            // Up to the last attempt whose wait the cap does not touch.
            if backoff.base * 2_u32.pow(attempt.min(20)) <= backoff.cap {
                prop_assert!(wait >= before, "attempt {} waits {:?} after {:?}", attempt, wait, before);
            }
            before = wait;
        }
    }
}
