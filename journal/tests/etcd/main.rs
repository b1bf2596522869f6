//! Tests of the store in etcd, against a real etcd. Without etcd on this machine the tests say so and pass,
//! unless `ELASTIC_REQUIRE_ETCD` is set, as it is in the project's checks.

mod server;
mod tls;

use std::sync::atomic::Ordering;
use std::time::Duration;

use elastic_journal::etcd::{
    Campaign, Candidate, DriverCard, EtcdJournal, Keeper, KeeperMessage, Leadership, LeaseEnd,
    SeenRecords,
};
use elastic_journal::{Journal, JournalBatch, JournalError, JournalSnapshot, LoadedJournal};

use server::{Etcd, clock, within};

/// Duration of a lease whose end a test waits for.
const TTL: Duration = Duration::from_secs(5);

/// Duration of a lease, or timeout, that no test outlasts, even on a slow machine.
const LONG: Duration = Duration::from_secs(120);

fn card(name: &str) -> DriverCard {
    DriverCard {
        address: format!("{name}:7070"),
        version: "1".to_owned(),
        program: "train".to_owned(),
        job: String::new(),
        sealed_with: String::new(),
    }
}

fn candidate(etcd: &Etcd, name: &str) -> Candidate {
    Candidate::new(etcd.address(), card(name), LONG, false)
}

fn short_lived(etcd: &Etcd, name: &str) -> Candidate {
    Candidate::new(etcd.address(), card(name), TTL, false)
}

fn won(campaign: Campaign) -> Leadership {
    match campaign {
        Campaign::Won(leadership) => *leadership,
        other => panic!("not won: {other:?}"),
    }
}

fn wins(candidate: &mut Candidate) -> Leadership {
    won(candidate.campaign(&clock).expect("etcd answers"))
}

fn batch(first: u64, records: &[&[u8]]) -> JournalBatch {
    let records = records.iter().map(|record| record.to_vec()).collect();
    JournalBatch { first, records, snapshot: None }
}

/// Stores a batch as a driver does: after an error the same batch is given again.
fn append(journal: &mut EtcdJournal, batch: &JournalBatch) {
    within(LONG, "the batch is stored", || match journal.append(batch) {
        Ok(()) => Some(()),
        Err(error) if error.may_pass() => None,
        Err(error) => panic!("not stored: {error}"),
    });
}

#[test]
fn d_4_what_was_appended_is_loaded() {
    let Some(etcd) = Etcd::start() else { return };
    let mut journal = wins(&mut candidate(&etcd, "a")).journal();
    assert_eq!(journal.load().expect("it is new"), LoadedJournal::default());
    // One record is larger than an etcd request, and one is empty.
    let large: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    append(&mut journal, &batch(1, &[b"one", &large, b""]));
    // The same batch again, with one more record: as after an error of unknown cause.
    append(&mut journal, &batch(1, &[b"one", &large, b"", b"four"]));
    let loaded = journal.load().expect("it is whole");
    assert_eq!(loaded.records, [b"one".to_vec(), large, Vec::new(), b"four".to_vec()]);
    assert!(matches!(journal.append(&batch(6, &[b"six"])), Err(JournalError::Corrupt(_))));
    assert_eq!(journal.load().expect("it is whole").last(), 4);
}

#[test]
fn a_snapshot_stands_for_the_records_before_it() {
    let Some(etcd) = Etcd::start() else { return };
    let mut journal = wins(&mut candidate(&etcd, "a")).journal();
    let hundred: Vec<&[u8]> = vec![b"record"; 100];
    append(&mut journal, &batch(1, &hundred));
    for upto in [50, 101] {
        let snapshot = Some(JournalSnapshot { upto, bytes: vec![upto as u8; 700_000] });
        let first = journal.load().expect("it is whole").last() + 1;
        append(&mut journal, &JournalBatch { snapshot, ..batch(first, &[b"more"]) });
    }
    let loaded = journal.load().expect("it is whole");
    assert_eq!(loaded.snapshot, Some(JournalSnapshot { upto: 101, bytes: vec![101; 700_000] }));
    assert_eq!(loaded.records, [b"more"]);
    assert_eq!(etcd.keys_below("elastic-node/record/"), 1, "what it stands for is deleted");
    assert_eq!(etcd.keys_below("elastic-node/snapshot/"), 2, "two parts of one snapshot");
}

#[test]
fn d_2_one_acts_and_who_stands_by_is_known() {
    let Some(etcd) = Etcd::start() else { return };
    let (mut first, mut second) = (candidate(&etcd, "a"), candidate(&etcd, "b"));
    let mut leadership = wins(&mut first);
    for _ in 0..3 {
        match second.campaign(&clock).expect("etcd answers") {
            Campaign::StandsBy(leader) => assert_eq!(leader, Some(card("a"))),
            other => panic!("two act at once: {other:?}"),
        }
    }
    assert_eq!(leadership.standbys(LONG).expect("etcd answers"), [card("b")]);
    let mut journal = leadership.journal();
    journal.append(&batch(1, &[b"one"])).expect("it acts");
    leadership.resign().expect("etcd answers");
    let mut next = wins(&mut second);
    assert_eq!(next.standbys(LONG).expect("etcd answers"), []);
    let error = journal.append(&batch(2, &[b"two"])).expect_err("it was told");
    assert!(matches!(&error, JournalError::Fenced(by) if by.contains("b:7070")), "{error}");
    assert_eq!(next.journal().load().expect("it is whole").records, [b"one"]);
}

#[test]
fn d_2_a_driver_whose_resignation_failed_does_not_take_itself_for_its_successor() {
    let Some(etcd) = Etcd::start() else { return };
    let leadership = wins(&mut candidate(&etcd, "a"));
    let mut leaver = candidate(&etcd, "a").having_led(Some(leadership.sign()));
    assert_eq!(leaver.leader().expect("etcd answers"), None, "only its own key was there");
    let mut next = wins(&mut candidate(&etcd, "b"));
    assert_eq!(leaver.leader().expect("etcd answers"), Some(card("b")));
    assert_eq!(next.standbys(LONG).expect("it still leads"), []);
}

#[test]
fn d_2_a_driver_that_vanished_is_followed_when_its_lease_is_over() {
    let Some(etcd) = Etcd::start() else { return };
    let mut gone = wins(&mut short_lived(&etcd, "a"));
    let mut second = candidate(&etcd, "b");
    let next =
        within(LONG, "the lease ends", || match second.campaign(&clock).expect("etcd answers") {
            Campaign::Won(leadership) => Some(leadership),
            Campaign::StandsBy(_) => None,
            other => panic!("nobody has touched the job: {other:?}"),
        });
    assert!(!gone.lease().is_valid(clock()), "it has stopped before the other began");
    assert_eq!(gone.renew(&clock, TTL), Err(LeaseEnd::Gone));
    next.journal().append(&batch(1, &[b"one"])).expect("it acts");
    assert!(matches!(gone.journal().append(&batch(1, &[b"other"])), Err(JournalError::Fenced(_))));
    assert_eq!(next.journal().load().expect("it is whole").records, [b"one"]);
}

#[test]
fn d_4_a_job_whose_keys_vanish_is_followed_by_no_other_in_its_place() {
    let Some(etcd) = Etcd::start() else { return };
    let seen = SeenRecords::default();
    let mut first = candidate(&etcd, "a").having_seen(seen.clone());
    let mut second = candidate(&etcd, "b");
    let mut journal = wins(&mut first).journal();
    journal.append(&batch(1, &[b"one"])).expect("it acts");
    assert!(matches!(second.campaign(&clock), Ok(Campaign::StandsBy(Some(_)))));
    etcd.delete_keys();
    assert!(matches!(second.campaign(&clock), Ok(Campaign::Vanished)));
    let error = journal.append(&batch(2, &[b"two"])).expect_err("the leader key is gone");
    assert!(matches!(&error, JournalError::NotLeading(_)), "{error}");
    assert!(!error.to_string().contains("another driver"), "{error}");
    let mut former = candidate(&etcd, "a").having_seen(seen);
    assert!(matches!(former.campaign(&clock), Ok(Campaign::Vanished)));
    assert_eq!(etcd.keys_below("elastic-node/leader"), 0);
    // A driver that is started now begins a job, which is not that of the others.
    let mut begun = wins(&mut candidate(&etcd, "c"));
    assert!(matches!(second.campaign(&clock), Ok(Campaign::StandsBy(Some(_)))));
    begun.resign().expect("etcd answers");
}

#[test]
fn d_4_a_driver_whose_leader_key_is_gone_is_told_although_its_lease_is_not() {
    let Some(etcd) = Etcd::start() else { return };
    for (end, is_followed) in [(LeaseEnd::KeyGone, false), (LeaseEnd::KeyTaken, true)] {
        let leadership = wins(&mut short_lived(&etcd, "a"));
        let (tell, told) = std::sync::mpsc::channel();
        let tell = move |what| tell.send(what).is_ok();
        etcd.delete_keys();
        if is_followed {
            wins(&mut candidate(&etcd, "b"));
        }
        let keeper = Keeper::start(leadership, clock, clock, tell).expect("a thread is to be had");
        let ended = told.recv_timeout(LONG).expect("it must stop acting");
        assert_eq!(ended, KeeperMessage::Ended(end));
        assert!(!keeper.permit().is_valid(clock()), "it must not act");
    }
}

#[test]
fn d_4_a_driver_writes_into_no_journal_but_the_one_that_it_wrote_last() {
    let Some(mut etcd) = Etcd::start() else { return };
    let seen = SeenRecords::default();
    let mut leadership = wins(&mut short_lived(&etcd, "a").having_seen(seen.clone()));
    let mut journal = leadership.journal();
    append(&mut journal, &batch(1, &[b"one"]));
    let copy = etcd.copy();
    append(&mut journal, &batch(2, &[b"two"]));
    let mut second = candidate(&etcd, "b");
    assert!(matches!(second.campaign(&clock), Ok(Campaign::StandsBy(Some(_)))));
    etcd.put_back(&copy);
    // Its lease and its key are in the copy.
    let error = within(LONG, "etcd answers", || match journal.append(&batch(3, &[b"three"])) {
        Err(error) if error.may_pass() => None,
        answer => Some(answer.expect_err("the second record is not there")),
    });
    assert!(matches!(&error, JournalError::Corrupt(_)), "{error}");
    leadership.resign().expect("etcd answers");
    let mut former = candidate(&etcd, "a").having_seen(seen);
    for candidate in [&mut former, &mut second] {
        let campaign = candidate.campaign(&clock).expect("etcd answers");
        assert!(matches!(campaign, Campaign::Outdated { ends_with: 1, seen: 2 }), "{campaign:?}");
    }
    // A driver that is started now has seen no other journal. The nodes tell it if theirs is newer.
    let mut next = wins(&mut candidate(&etcd, "c")).journal();
    assert_eq!(next.load().expect("it is whole").records, [b"one"], "as it was put back");
}

#[test]
fn the_job_of_the_acting_driver_is_known_to_those_who_stand_by() {
    let Some(etcd) = Etcd::start() else { return };
    let mut leadership = wins(&mut candidate(&etcd, "a"));
    let sealed_with = "a digest".to_owned();
    let named = DriverCard { job: "4711".to_owned(), sealed_with, ..card("a") };
    leadership.journal().introduce(&named).expect("it acts");
    match candidate(&etcd, "b").campaign(&clock).expect("etcd answers") {
        Campaign::StandsBy(leader) => assert_eq!(leader, Some(named)),
        other => panic!("two act at once: {other:?}"),
    }
    leadership.resign().expect("etcd answers");
    assert_eq!(etcd.keys_below("elastic-node/leader"), 0, "the key is still bound to the lease");
}

#[test]
fn a_campaign_whose_answer_was_lost_is_won_all_the_same() {
    let Some(etcd) = Etcd::start() else { return };
    // The first member carries out every call, but swallows the answer to the campaign.
    let members = vec![etcd.deaf_member("request_put"), etcd.member()];
    let address = elastic_journal::etcd::EtcdAddress { members, ..etcd.address() };
    let mut candidate = Candidate::new(address, card("a"), LONG, false);
    let mut journal = wins(&mut candidate).journal();
    journal.append(&batch(1, &[b"one"])).expect("it acts");
    assert_eq!(journal.load().expect("it is whole").records, [b"one"]);
}

#[test]
fn a_driver_stops_when_etcd_is_silent_and_acts_again_when_it_is_back() {
    let Some(etcd) = Etcd::start() else { return };
    let leadership = wins(&mut short_lived(&etcd, "a"));
    let (tell, told) = std::sync::mpsc::channel();
    let tell = move |what| tell.send(what).is_ok();
    let keeper = Keeper::start(leadership, clock, clock, tell).expect("a thread is to be had");
    let mut second = candidate(&etcd, "b");
    assert!(matches!(second.campaign(&clock), Ok(Campaign::StandsBy(Some(_)))));
    let standbys = told.recv_timeout(LONG).expect("they are told of");
    assert_eq!(standbys, KeeperMessage::Standbys(vec![card("b")]));
    let permit = keeper.permit();
    etcd.stop();
    let ended = told.recv_timeout(LONG).expect("it must stop acting");
    assert_eq!(ended, KeeperMessage::Ended(LeaseEnd::Unheard));
    assert!(!permit.is_valid(clock()), "it must not act");
    drop(keeper);
    assert!(matches!(second.campaign(&clock), Err(JournalError::Io(_))), "nobody acts");
    etcd.go_on();
    within(LONG, "somebody acts again", || match second.campaign(&clock) {
        Ok(Campaign::Won(leadership)) => Some(leadership),
        _ => None,
    });
}

/// A driver that has won is given until then to begin, as if its actors had run at that time.
#[test]
fn g_9_a_driver_that_has_won_and_never_begins_loses_its_lease() {
    let Some(etcd) = Etcd::start() else { return };
    let leadership = wins(&mut short_lived(&etcd, "a"));
    let (tell, told) = std::sync::mpsc::channel();
    let begins_until = clock() + Duration::from_secs(1);
    let tell = move |what| tell.send((clock(), what)).is_ok();
    let keeper = Keeper::start(leadership, clock, move || begins_until, tell)
        .expect("a thread is to be had");
    let (ended_at, ended) = told.recv_timeout(LONG).expect("it must stop acting");
    assert_eq!(ended, KeeperMessage::Ended(LeaseEnd::Stalled));
    assert!(ended_at > begins_until + keeper.stalls_after(), "it had its time");
    assert!(!keeper.permit().is_valid(clock()), "it must not act");
}

#[test]
fn d_2_a_driver_that_is_cut_off_stops_before_another_acts() {
    let Some(etcd) = Etcd::start() else { return };
    let (member, is_cut) = etcd.member_that_can_be_cut_off();
    let address = elastic_journal::etcd::EtcdAddress { members: vec![member], ..etcd.address() };
    let leadership = wins(&mut Candidate::new(address, card("a"), TTL, false));
    let mut journal = leadership.journal();
    let keeper = Keeper::start(leadership, clock, clock, |_| true).expect("a thread is to be had");
    let (permit, mut second) = (keeper.permit(), candidate(&etcd, "b"));
    assert!(matches!(second.campaign(&clock), Ok(Campaign::StandsBy(Some(_)))));
    is_cut.store(true, Ordering::SeqCst);
    let mut next = within(LONG, "another acts", || match second.campaign(&clock) {
        Ok(Campaign::Won(leadership)) => Some(leadership.journal()),
        _ => None,
    });
    assert!(!permit.is_valid(clock()));
    is_cut.store(false, Ordering::SeqCst);
    assert!(matches!(journal.append(&batch(1, &[b"one"])), Err(JournalError::Fenced(_))));
    assert_eq!(next.load().expect("it is new"), LoadedJournal::default());
}

#[test]
fn d_2_a_driver_keeps_its_lease_by_an_etcd_that_is_slow() {
    let Some(etcd) = Etcd::start() else { return };
    let member = etcd.member_that_is_slow(Duration::from_millis(700));
    let address = elastic_journal::etcd::EtcdAddress { members: vec![member], ..etcd.address() };
    let leadership = wins(&mut Candidate::new(address, card("a"), TTL, false));
    let until = clock() + TTL + Duration::from_secs(2);
    let keeper = Keeper::start(leadership, clock, clock, |_| true).expect("a thread is to be had");
    within(LONG, "more than a lease has passed", || {
        assert!(keeper.permit().is_valid(clock()), "it is renewed");
        (clock() > until).then_some(())
    });
}

#[test]
fn a_driver_that_only_stands_by_begins_no_job() {
    let Some(etcd) = Etcd::start() else { return };
    let mut standby = Candidate::new(etcd.address(), card("b"), LONG, true);
    for _ in 0..2 {
        assert!(matches!(standby.campaign(&clock), Ok(Campaign::StandsBy(None))));
    }
    let mut leadership = wins(&mut candidate(&etcd, "a"));
    leadership.journal().append(&batch(1, &[b"one"])).expect("it acts");
    leadership.resign().expect("etcd answers");
    assert_eq!(wins(&mut standby).journal().load().expect("it is whole").records, [b"one"]);
}

#[test]
fn who_stood_by_hears_that_the_job_is_over_and_who_comes_later_begins_another() {
    let Some(etcd) = Etcd::start() else { return };
    let (mut first, mut second) = (candidate(&etcd, "a"), candidate(&etcd, "b"));
    let leadership = wins(&mut first);
    assert!(matches!(second.campaign(&clock), Ok(Campaign::StandsBy(Some(_)))));
    leadership.journal().append(&batch(1, &[b"one"])).expect("it acts");
    let keeper = Keeper::start(leadership, clock, clock, |_| true).expect("a thread is to be had");
    keeper.finish(b"well done".to_vec()).expect("etcd answers");
    let over = second.campaign(&clock).expect("etcd answers");
    assert!(matches!(&over, Campaign::Over(words) if words == b"well done"), "{over:?}");
    let mut journal = wins(&mut candidate(&etcd, "c")).journal();
    assert_eq!(journal.load().expect("it is new"), LoadedJournal::default());
    assert!(matches!(second.campaign(&clock), Ok(Campaign::Over(_))), "its own job is over still");
}
