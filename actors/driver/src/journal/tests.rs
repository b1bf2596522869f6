//! Tests of records and images: encoding round trips, and a snapshot equals its records.

use std::convert::Infallible;
use std::sync::Arc;

use elastic_journal::{Journal, JournalBatch, JournalError, JournalIdentity, LoadedJournal};
use elastic_protocol::messages::{Formation, FormationTable, GroupKey, JobShards, SyncPlan};
use elastic_protocol::{
    Assignment, CommitId, DataPlane, GenerationId, HostName, Incarnation, JobId, ProgramSpec,
    Stamp, Step, Term, WorkerId,
};
use uuid::Uuid;

use super::image::FIELDS_ADDED;
use super::{Founding, HostImage, Image, JobSecretsBytes, JournalRecord, Tenure, TenureError};

/// A journal in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryJournal(pub(crate) LoadedJournal);

impl Journal for MemoryJournal {
    fn load(&mut self) -> Result<LoadedJournal, JournalError> {
        Ok(self.0.clone())
    }

    fn append(&mut self, batch: &JournalBatch) -> Result<(), JournalError> {
        let last = self.0.last();
        assert!(batch.first <= last + 1, "a gap");
        let known = usize::try_from(last + 1 - batch.first).expect("few");
        self.0.records.extend(batch.records.iter().skip(known).cloned());
        if let Some(snapshot) = &batch.snapshot {
            let kept = usize::try_from(self.0.last() - snapshot.upto).expect("few");
            let count = self.0.records.len();
            self.0.records.drain(..count - kept);
            self.0.snapshot = Some(snapshot.clone());
        }
        Ok(())
    }
}

pub(crate) fn program() -> ProgramSpec {
    ProgramSpec { argv: vec!["train".to_owned()], environment: Vec::new() }
}

pub(crate) fn begin(journal: &mut MemoryJournal) -> Tenure {
    let founding = || {
        let secrets = JobSecretsBytes(vec![1, 2, 3]);
        Ok::<_, Infallible>(Founding { job: JobId(Uuid::from_u128(7)), secrets })
    };
    Tenure::begin(journal, &program(), founding).expect("a journal")
}

fn worker(incarnation: u64) -> WorkerId {
    let host = HostName::new("a").expect("a literal");
    WorkerId { host, slot: 0, incarnation: Incarnation(incarnation) }
}

#[test]
fn d_1_every_incarnation_has_a_term_of_its_own_and_the_same_secrets() {
    let mut journal = MemoryJournal::default();
    let first = begin(&mut journal);
    assert_eq!((first.image.term, first.is_takeover()), (Term(1), false));
    let second = begin(&mut journal);
    assert_eq!((second.image.term, second.is_takeover()), (Term(2), true));
    assert_eq!((second.job, &second.image.secrets), (first.job, &first.image.secrets));
    assert!(!format!("{second:?}").contains("[1, 2, 3]"), "secrets are not printed");
    let other = ProgramSpec { argv: vec!["other".to_owned()], environment: Vec::new() };
    let founding = || -> Result<Founding, Infallible> { unreachable!("a job is there") };
    let error = Tenure::begin(&mut journal, &other, founding).expect_err("not that job");
    assert!(matches!(error, TenureError::OtherProgram { .. }));
    assert!(error.to_string().contains("`train`, not `other`"), "{error}");
    let environment = vec![("ELASTIC_BACKEND".to_owned(), "cpu".to_owned())];
    let same = ProgramSpec { argv: vec!["train".to_owned()], environment };
    let error = Tenure::begin(&mut journal, &same, founding).expect_err("not that program");
    assert!(error.to_string().contains("`train`, not `ELASTIC_BACKEND=cpu train`"), "{error}");
}

#[test]
fn s_12_a_journal_says_whose_it_is_and_of_which_term() {
    let mut journal = MemoryJournal::default();
    assert_eq!(Image::identity_of(&journal.0).expect("empty"), None);
    for term in 1..=2 {
        begin(&mut journal);
        let job = Uuid::from_u128(7).to_string();
        let identity = Image::identity_of(&journal.0).expect("whole");
        assert_eq!(identity, Some(JournalIdentity { job, term }));
    }
    journal.0.records.push(vec![0xff; 9]);
    Image::identity_of(&journal.0).expect_err("damaged");
}

#[test]
fn a_snapshot_says_what_its_records_said() {
    let commit = CommitId { generation: GenerationId(1), step: Step(4), digest: 9 };
    let records = [
        JournalRecord::WorkerStarted { worker: worker(1) },
        JournalRecord::WorkerAttached {
            worker: worker(1),
            data_address: ([127, 0, 0, 1], 9).into(),
        },
        JournalRecord::CommitHeld { worker: worker(1), commit },
        JournalRecord::WorkerStarted { worker: worker(2) },
        JournalRecord::WorkerGone { worker: worker(1) },
    ];
    let mut image = Image::default();
    for record in &records {
        let read = JournalRecord::decode(&record.encode()).expect("just written");
        assert_eq!(read, *record);
        image.apply(&read);
        assert_eq!(Image::decode(&image.encode()).as_ref(), Ok(&image));
    }
    assert_eq!(image.incarnation, Incarnation(2));
    assert_eq!(image.workers.keys().collect::<Vec<_>>(), [&worker(2)]);
}

#[test]
fn d_4_hosts_off_the_list_that_may_have_no_workers_are_known() {
    let image_of = |name: &str, slots, is_drained: bool| HostImage {
        name: HostName::new(name).expect("a literal"),
        slots,
        is_blacklisted: !is_drained,
        comes_back: false,
        is_drained,
    };
    let (listed, drained) = (image_of("a", 2, true), image_of("b", 0, true));
    let failed = image_of("c", 0, false);
    let hosts = vec![listed];
    let unlisted = vec![drained, failed];
    let record = JournalRecord::HostsAndUnlisted { hosts: hosts.clone(), unlisted };
    let mut image = Image::default();
    image.apply(&JournalRecord::decode(&record.encode()).expect("just written"));
    let image_read = Image::decode(&image.encode()).expect("just written");
    let known: Vec<_> = image_read
        .known_hosts()
        .into_iter()
        .map(|known| (known.host.name.to_string(), known.is_listed, known.is_drained))
        .collect();
    let expected = [("a", true, true), ("b", false, true), ("c", false, false)];
    assert_eq!(known, expected.map(|(name, listed, out)| (name.to_owned(), listed, out)));
    image.apply(&JournalRecord::Hosts { hosts: hosts.clone() });
    assert_eq!((image.hosts, image.unlisted), (hosts, vec![]), "as an older version wrote it");
}

#[test]
fn l_1_progress_that_an_older_version_has_recorded_is_known() {
    let record = JournalRecord::Trained { committed: Some(Step(4)), trained_ms: 9, steps_lost: 2 };
    let mut image = Image::default();
    image.apply(&JournalRecord::decode(&record.encode()).expect("just written"));
    assert_eq!((image.committed, image.trained_ms, image.steps_lost), (Some(Step(4)), 9, 2));
    assert_eq!(image.trained_until_ms, None, "it did not say when");
}

#[test]
fn an_image_lacks_the_fields_that_were_added_and_no_more() {
    let image = Image::default();
    let bytes = image.encode();
    let of_first_version = &bytes[..bytes.len() - FIELDS_ADDED];
    assert_eq!(Image::decode(of_first_version).as_ref(), Ok(&image));
    Image::decode(&of_first_version[..of_first_version.len() - 1]).expect_err("it was cut off");
}

#[test]
fn g_5_a_member_that_came_to_rest_before_its_generation_is_known_to_train_keeps_its_later_commit() {
    let mut image = Image::default();
    let member = worker(1);
    let table = Assignment::new([(member.clone(), ([127, 0, 0, 1], 9).into())]);
    let stamp = Stamp { term: Term(1), generation: GenerationId(1) };
    let formation = Formation {
        stamp,
        table: FormationTable::Full(Arc::new(table)),
        sync: SyncPlan::FromRoot { root: 0 },
        step: Step(4),
        key: GroupKey([0; 32]),
        encrypts: false,
        data_plane: DataPlane::Auto,
        shards: JobShards::Unsaid,
    };
    let later = CommitId { generation: GenerationId(1), step: Step(7), digest: 9 };
    for record in [
        JournalRecord::WorkerStarted { worker: member.clone() },
        JournalRecord::GenerationOpened { formation },
        JournalRecord::CommitHeld { worker: member.clone(), commit: later },
        JournalRecord::GenerationRunning { stamp },
    ] {
        image.apply(&record);
    }
    assert_eq!(image.workers[&member].commit, Some(later));
}

#[test]
fn a_journal_that_makes_no_sense_is_told_and_not_taken_for_another() {
    let mut journal = MemoryJournal::default();
    begin(&mut journal);
    journal.0.records.push(vec![0xff; 9]);
    let founding = || -> Result<Founding, Infallible> { unreachable!("a job is there") };
    let error = Tenure::begin(&mut journal, &program(), founding).expect_err("damaged");
    assert!(matches!(error, TenureError::Journal(JournalError::Corrupt(_))), "{error}");
    let only = vec![JournalRecord::Term { term: Term(3) }.encode()];
    let mut journal = MemoryJournal(LoadedJournal { snapshot: None, records: only });
    let error = Tenure::begin(&mut journal, &program(), founding).expect_err("no job");
    assert!(error.to_string().contains("first record is missing"), "{error}");
}

#[test]
fn a_journal_as_json_has_neither_secrets_nor_keys_nor_arguments() {
    let mut journal = MemoryJournal::default();
    let secret = b"the job's private key";
    let program = ProgramSpec {
        argv: vec!["train".to_owned(), "--password=x".to_owned()],
        environment: vec![("PASSWORD".to_owned(), "x".to_owned())],
    };
    let founding = || {
        let secrets = JobSecretsBytes(secret.to_vec());
        Ok::<_, Infallible>(Founding { job: JobId(Uuid::from_u128(7)), secrets })
    };
    Tenure::begin(&mut journal, &program, founding).expect("a journal");
    let formation = Formation {
        stamp: Stamp { term: Term(1), generation: GenerationId(1) },
        table: FormationTable::Full(Arc::new(Assignment::new([(
            worker(1),
            ([127, 0, 0, 1], 9).into(),
        )]))),
        sync: SyncPlan::Skip,
        step: Step(0),
        key: GroupKey([0xab; 32]),
        encrypts: false,
        data_plane: DataPlane::default(),
        shards: JobShards::Unsaid,
    };
    journal.0.records.push(JournalRecord::GenerationOpened { formation }.encode());
    let image = Image::of(&journal.0).expect("sound");
    assert_eq!(image.secrets.0, secret);
    let json = serde_json::to_value(&image).expect("JSON");
    assert_eq!(json["program"], serde_json::json!({ "argv": ["train"], "environment": [] }));
    assert_eq!(json["secrets"], serde_json::json!([]));
    assert!(json["current"]["formation"].get("key").is_none(), "{json}");
    assert!(!json.to_string().contains("171,171"), "{json}");
}

#[test]
fn once_the_program_attaches_all_its_processes_are_kept() {
    let mut image = Image::default();
    for record in [
        JournalRecord::ProcessStarted { worker: worker(1) },
        JournalRecord::ProcessStarted { worker: worker(2) },
        JournalRecord::ProcessDone { worker: worker(2) },
        JournalRecord::WorkerStarted { worker: worker(3) },
        JournalRecord::WorkerAttached {
            worker: worker(3),
            data_address: "127.0.0.1:1".parse().expect("an address"),
        },
    ] {
        image.apply(&record);
    }
    let kept: Vec<_> = image.workers.iter().map(|(id, it)| (id.clone(), it.process)).collect();
    assert_eq!(kept, [(worker(1), None), (worker(3), None)], "the second one had ended");
}
