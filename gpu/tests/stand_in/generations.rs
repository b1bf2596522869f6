//! Communicators that go from one generation to the next: shrunk, grown, kept, or formed ahead.

use std::time::Instant;

use elastic_collectives::CollectiveError;

use crate::support::{Faults, LONG, Options, World, communicators, faults, sum};

/// Versions of NCCL: without anything, with shrink, with revoke too, with grow too.
const VERSIONS: [u32; 4] = [22_304, 22_703, 22_809, 23_003];

#[test]
fn survivors_of_a_loss_train_on_with_every_version() {
    let faults = faults();
    for version in VERSIONS {
        faults.set(&format!("version={version}"));
        let mut world = World::new(0..3, Options::default());
        world.form_and_check();
        // Two are in a collective that the third never enters, because it is gone.
        let blocked: Vec<_> =
            [0, 1].iter().map(|number| world.seats[number].with_group(sum)).collect();
        world.seats.remove(&2);
        for seat in world.seats.values() {
            seat.end(world.generation());
        }
        for result in blocked {
            let result = result.recv_timeout(LONG).expect("it returns");
            assert!(matches!(result, Err(CollectiveError::Aborted { .. })), "{result:?}");
        }
        world.form_and_check();
    }
}

#[test]
fn newcomers_are_taken_in_with_every_version() {
    let faults = faults();
    for version in VERSIONS {
        faults.set(&format!("version={version}"));
        let mut world = World::new(0..2, Options::default());
        world.form_and_check();
        world.collective(|group| group.close());
        world.join(2);
        world.form_and_check();
        world.collective(|group| group.close());
        world.seats.remove(&0);
        world.form_and_check();
    }
}

#[test]
fn a_generation_of_the_same_members_needs_no_new_communicator() {
    let _turn = faults();
    let mut world = World::new(0..2, Options::default());
    for _ in 0..3 {
        world.form_and_check();
        world.collective(|group| group.close());
    }
}

#[test]
fn after_an_abort_without_a_loss_it_is_formed_from_nothing() {
    let _turn = faults();
    let mut world = World::new(0..2, Options::default());
    for _ in 0..3 {
        world.form_and_check();
        world.abort();
    }
}

#[test]
fn where_the_cheaper_way_fails_for_one_all_start_from_nothing() {
    let faults = faults();
    let mut world = World::new(0..3, Options::default());
    world.form_and_check();
    world.abort();
    world.seats.remove(&1);
    faults.set("call=ncclCommShrink rank=2 do=fail:3");
    world.form_and_check();
}

#[test]
fn a_world_that_was_formed_ahead_is_there_at_once() {
    let faults = faults();
    let begun = Instant::now();
    // A spare counts once the actor has heard of it, which is not visible outside: a test that was quicker tries again.
    while !forms_from_a_spare(&faults) {
        assert!(begun.elapsed() < LONG, "never was a spare there");
    }
}

/// Whether the survivors of a loss form where nothing can be formed, because their world was formed ahead.
fn forms_from_a_spare(faults: &Faults) -> bool {
    faults.set("");
    let mut world = World::new(0..3, Options { spares: 3, ..Options::default() });
    world.form();
    // Three worlds of two form while the generation works; forming anything from then on fails.
    let due = Instant::now() + LONG;
    while communicators() < 3 + 3 * 2 {
        assert!(Instant::now() < due, "the spares form");
        world.check();
    }
    (0..100).for_each(|_| world.check());
    faults.set("call=ncclCommInitRankConfig do=fail:3\ncall=ncclCommShrink do=fail:3");
    world.abort();
    world.seats.remove(&1);
    // The spares of the next generation fail, which harms no group.
    let formed = world.try_form().into_iter().all(|formed| formed.is_ok());
    if formed {
        world.check();
    }
    formed
}
