//! The store in etcd, against the real one. Without etcd on this machine the tests say so and pass, unless
//! `ELASTIC_REQUIRE_ETCD` is set, as the project's checks do.

mod server;

use std::time::Duration;

use elastic_journal::etcd::{Campaign, Candidate, DriverCard, Keeper, Leadership, LeaseEnd, Told};
use elastic_journal::{Batch, Journal, JournalError, Loaded, Snapshot};

use server::{Etcd, clock, within};

const TTL: Duration = Duration::from_secs(2);

fn card(name: &str) -> DriverCard {
    DriverCard { address: format!("{name}:7070"), version: "1".to_owned() }
}

fn candidate(etcd: &Etcd, name: &str) -> Candidate {
    Candidate::new(etcd.address(), "job", card(name), TTL)
}

fn won(campaign: Campaign) -> Leadership {
    match campaign {
        Campaign::Won(leadership) => *leadership,
        Campaign::Leads(card) => panic!("{card:?} leads"),
    }
}

fn wins(candidate: &mut Candidate) -> Leadership {
    won(candidate.campaign(&clock).expect("etcd answers"))
}

fn batch(first: u64, records: &[&[u8]]) -> Batch {
    let records = records.iter().map(|record| record.to_vec()).collect();
    Batch { first, records, snapshot: None }
}

#[test]
fn d_4_what_was_appended_is_loaded() {
    let Some(etcd) = Etcd::start() else { return };
    let mut journal = wins(&mut candidate(&etcd, "a")).journal;
    assert_eq!(journal.load().expect("it is new"), Loaded::default());
    // Larger than a request of etcd's, and empty.
    let large: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    journal.append(&batch(1, &[b"one", &large, b""])).expect("it has room");
    // The same again, with one more: as after an error whose cause nobody knows.
    journal.append(&batch(1, &[b"one", &large, b"", b"four"])).expect("it has room");
    let loaded = journal.load().expect("it is whole");
    assert_eq!(loaded.records, [b"one".to_vec(), large, Vec::new(), b"four".to_vec()]);
    assert!(matches!(journal.append(&batch(6, &[b"six"])), Err(JournalError::Corrupt(_))));
    assert_eq!(journal.load().expect("it is whole").last(), 4);
}

#[test]
fn a_snapshot_stands_for_the_records_before_it() {
    let Some(etcd) = Etcd::start() else { return };
    let mut journal = wins(&mut candidate(&etcd, "a")).journal;
    let hundred: Vec<&[u8]> = vec![b"record"; 100];
    journal.append(&batch(1, &hundred)).expect("it has room");
    for upto in [50, 101] {
        let snapshot = Some(Snapshot { upto, bytes: vec![upto as u8; 700_000] });
        let first = journal.load().expect("it is whole").last() + 1;
        journal.append(&Batch { snapshot, ..batch(first, &[b"more"]) }).expect("it has room");
    }
    let loaded = journal.load().expect("it is whole");
    assert_eq!(loaded.snapshot, Some(Snapshot { upto: 101, bytes: vec![101; 700_000] }));
    assert_eq!(loaded.records, [b"more"]);
    assert_eq!(etcd.keys_below("elastic-node/job/record/"), 1, "what it stands for is deleted");
    assert_eq!(etcd.keys_below("elastic-node/job/snapshot/"), 2, "two parts of one snapshot");
}

#[test]
fn d_2_one_acts_and_who_stands_by_is_known() {
    let Some(etcd) = Etcd::start() else { return };
    let (mut first, mut second) = (candidate(&etcd, "a"), candidate(&etcd, "b"));
    let mut leadership = wins(&mut first);
    for _ in 0..3 {
        match second.campaign(&clock).expect("etcd answers") {
            Campaign::Leads(leader) => assert_eq!(leader, card("a")),
            Campaign::Won(_) => panic!("two act at once"),
        }
    }
    assert_eq!(leadership.standbys(TTL).expect("etcd answers"), [card("b")]);
    leadership.journal.append(&batch(1, &[b"one"])).expect("it acts");
    leadership.resign().expect("etcd answers");
    let mut next = wins(&mut second);
    assert_eq!(next.standbys(TTL).expect("etcd answers"), []);
    let error = leadership.journal.append(&batch(2, &[b"two"])).expect_err("it was told");
    assert!(matches!(&error, JournalError::Fenced(by) if by.contains("b:7070")), "{error}");
    assert_eq!(next.journal.load().expect("it is whole").records, [b"one"]);
}

#[test]
fn d_2_a_driver_that_vanished_is_followed_when_its_lease_is_over() {
    let Some(etcd) = Etcd::start() else { return };
    let mut gone = wins(&mut candidate(&etcd, "a"));
    let mut second = candidate(&etcd, "b");
    let mut next = within(TTL + Duration::from_secs(2), "the lease ends", || {
        match second.campaign(&clock).expect("etcd answers") {
            Campaign::Won(leadership) => Some(leadership),
            Campaign::Leads(_) => {
                assert!(gone.lease().valid_until() + TTL > clock(), "the lease lasts for ever");
                None
            }
        }
    });
    assert!(!gone.lease().is_valid(clock()), "it has stopped before the other began");
    assert_eq!(gone.renew(&clock, TTL), Err(LeaseEnd::Gone));
    next.journal.append(&batch(1, &[b"one"])).expect("it acts");
    assert!(matches!(gone.journal.append(&batch(1, &[b"other"])), Err(JournalError::Fenced(_))));
    assert_eq!(next.journal.load().expect("it is whole").records, [b"one"]);
}

#[test]
fn a_campaign_whose_answer_was_lost_is_won_all_the_same() {
    let Some(etcd) = Etcd::start() else { return };
    // The first member carries everything out and swallows the answer to the campaign.
    let members = vec![etcd.deaf_member("/v3/kv/txn"), etcd.member()];
    let address = elastic_journal::etcd::EtcdAddress { members, ..etcd.address() };
    let mut candidate = Candidate::new(address, "job", card("a"), TTL);
    let mut leadership = wins(&mut candidate);
    leadership.journal.append(&batch(1, &[b"one"])).expect("it acts");
    assert_eq!(leadership.journal.load().expect("it is whole").records, [b"one"]);
}

#[test]
fn a_driver_stops_when_etcd_is_silent_and_acts_again_when_it_is_back() {
    let Some(etcd) = Etcd::start() else { return };
    let mut first = candidate(&etcd, "a");
    let leadership = wins(&mut first);
    let (tell, told) = std::sync::mpsc::channel();
    let tell = move |what| tell.send((clock(), what)).expect("the test listens");
    let keeper = Keeper::start(leadership, clock, tell).expect("a thread is to be had");
    let mut second = candidate(&etcd, "b");
    assert!(matches!(second.campaign(&clock), Ok(Campaign::Leads(_))));
    let (_, standbys) = told.recv_timeout(TTL * 2).expect("they are told of");
    assert_eq!(standbys, Told::Standbys(vec![card("b")]));
    let stopped_at = clock();
    etcd.stop();
    let (ended_at, ended) = told.recv_timeout(TTL * 2).expect("it must stop acting");
    assert_eq!(ended, Told::Ended(LeaseEnd::Unheard));
    assert!(ended_at < stopped_at + TTL, "before anybody else could act");
    drop(keeper);
    assert!(matches!(second.campaign(&clock), Err(JournalError::Io(_))), "nobody acts");
    etcd.go_on();
    within(TTL * 3, "somebody acts again", || match second.campaign(&clock) {
        Ok(Campaign::Won(leadership)) => Some(leadership),
        _ => None,
    });
}
