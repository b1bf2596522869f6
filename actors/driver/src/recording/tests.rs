//! Tests of recordings: facts that they never have, and the cost of lost lines.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::SystemTime;

use elastic_protocol::messages::{
    DriverToAgent, DriverToWorker, Formation, FormationTable, GroupKey, JobShards, SyncPlan,
    WorkerToDriver,
};
use elastic_protocol::{
    Assignment, DataPlane, Deadlines, GenerationId, HostName, Incarnation, NodeId, NodeName,
    ProgramSpec, Stamp, Step, Term, Time, WorkerId,
};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::replay::{ReplayError, replay};
use super::{DriverRecorder, DriverStart, HEAD_PREFIX, RecordedDriver, RecordingSink, said};
use crate::core::{DriverConfig, DriverInput, DriverOutput};
use crate::journal::tests::MemoryJournal;
use crate::journal::{Founding, JobSecretsBytes, JournalRecord, Tenure};

/// A number that would not stand in a recording by chance.
const SECRET: [u8; 32] = [173; 32];
const SECRET_TEXT: &str = "hunter2";

fn worker() -> WorkerId {
    let host = HostName::new("a").expect("a literal");
    WorkerId { host, slot: 0, incarnation: Incarnation(1) }
}

fn formation() -> Formation {
    let table = Assignment::new([(worker(), ([127, 0, 0, 1], 9).into())]);
    Formation {
        stamp: Stamp { term: Term(1), generation: GenerationId(1) },
        table: FormationTable::Full(table.into()),
        sync: SyncPlan::Skip,
        step: Step(0),
        key: GroupKey(SECRET),
        encrypts: true,
        data_plane: DataPlane::Auto,
        shards: JobShards::Unsaid,
    }
}

fn program() -> ProgramSpec {
    let argv = ["train", "--api-key", SECRET_TEXT].map(ToOwned::to_owned).to_vec();
    let environment = vec![("TOKEN".to_owned(), SECRET_TEXT.to_owned())];
    ProgramSpec { argv, environment }
}

fn has_secret(text: &str) -> bool {
    text.contains(SECRET_TEXT) || text.contains("173,173")
}

#[test]
fn neither_keys_nor_the_jobs_secrets_nor_the_programs_arguments_are_recorded() {
    let secrets = JobSecretsBytes(SECRET.to_vec());
    let job = elastic_protocol::JobId(uuid::Uuid::from_u128(7));
    let records = [
        JournalRecord::Job { job, program: program(), secrets },
        JournalRecord::GenerationOpened { formation: formation() },
    ];
    let mut image = crate::journal::Image::default();
    for record in &records {
        image.apply(record);
        assert!(!has_secret(&said(record)), "{record:?}");
        let journaled = JournalRecord::decode(&record.encode()).expect("just written");
        assert_eq!(journaled, *record, "the journal itself has them");
    }
    assert_eq!(crate::journal::Image::decode(&image.encode()).as_ref(), Ok(&image));
    let node = NodeId { name: NodeName::Agent(worker().host), incarnation: Incarnation(1) };
    let assign = || DriverToWorker::Assign(formation());
    let outputs = [
        DriverOutput::ToWorker { to: worker(), message: assign() },
        DriverOutput::ToWorkers { to: vec![worker()], message: assign() },
        DriverOutput::ToAgent {
            to: node.clone(),
            message: DriverToAgent::Welcome {
                job,
                term: Term(1),
                program: program(),
                deadlines: Deadlines::default(),
                output: Box::default(),
            },
        },
        DriverOutput::ToAgent {
            to: node,
            message: DriverToAgent::Start {
                worker: worker(),
                environment: Vec::new(),
                place: None,
                credential: SECRET_TEXT.to_owned(),
            },
        },
    ];
    for output in &outputs {
        assert!(!has_secret(&said(output)), "{output:?}");
    }
    // A driver that takes over this journal, from its first line to a state in the middle.
    let tape = Tape::default();
    let config = DriverConfig::new(program());
    let start = DriverStart::Journal {
        config,
        tenure: Box::new(Tenure { job, image, last: 2, begins_at_ms: None }),
    };
    let recorder = DriverRecorder::new(Box::new(tape.clone()), "m").segments_of(1);
    let mut driver = begin(start, Some(recorder));
    settle(&mut driver, Time::ZERO);
    let text = tape.0.borrow().segments.concat();
    assert!(text.matches("{\"head\":").count() == 2, "{text}");
    assert!(!has_secret(&text), "{text}");
    assert!(text.contains("\"train\""), "the program's name is there: {text}");
}

/// Lines of a recording, and whether the next ones are lost.
#[derive(Clone, Debug, Default)]
struct Tape(Rc<RefCell<TapeState>>);

#[derive(Debug, Default)]
struct TapeState {
    segments: Vec<String>,
    loses: bool,
}

impl RecordingSink for Tape {
    fn keep(&mut self, line: &str) -> bool {
        let mut state = self.0.borrow_mut();
        if state.loses {
            return false;
        }
        if line.as_bytes().starts_with(HEAD_PREFIX) {
            state.segments.push(String::new());
        }
        let segment = state.segments.last_mut().expect("a head came first");
        segment.push_str(line);
        segment.push('\n');
        true
    }
}

fn begin(start: DriverStart, recorder: Option<DriverRecorder>) -> RecordedDriver {
    let rng = ChaCha8Rng::seed_from_u64(1);
    RecordedDriver::begin(start, rng, Time::ZERO, SystemTime::UNIX_EPOCH, recorder)
}

fn settle(driver: &mut RecordedDriver, now: Time) {
    while driver.poll_output().is_some() {}
    driver.poll_batch();
    driver.end_step(now, || SystemTime::UNIX_EPOCH);
}

fn new_job(tape: &Tape) -> RecordedDriver {
    let mut journal = MemoryJournal::default();
    let founding = || {
        let job = elastic_protocol::JobId(uuid::Uuid::from_u128(7));
        Ok::<_, std::convert::Infallible>(Founding { job, secrets: JobSecretsBytes::default() })
    };
    let tenure = Tenure::begin(&mut journal, &program(), founding).expect("a new journal");
    let start =
        DriverStart::Journal { config: DriverConfig::new(program()), tenure: Box::new(tenure) };
    begin(start, Some(DriverRecorder::new(Box::new(tape.clone()), "m")))
}

fn hear(driver: &mut RecordedDriver, now: Time) {
    let message = WorkerToDriver::Leaving { reason: "it wants to".to_owned() };
    driver.handle(now, DriverInput::Worker { from: NodeId::worker(&worker()), message });
    settle(driver, now);
}

#[test]
fn lost_lines_are_a_gap_that_is_counted_and_the_recording_begins_anew() {
    let tape = Tape::default();
    let mut driver = new_job(&tape);
    hear(&mut driver, Time::from_ms(1));
    tape.0.borrow_mut().loses = true;
    hear(&mut driver, Time::from_ms(2));
    tape.0.borrow_mut().loses = false;
    hear(&mut driver, Time::from_ms(3));
    hear(&mut driver, Time::from_ms(20_000));
    hear(&mut driver, Time::from_ms(20_001));
    let segments = tape.0.borrow().segments.clone();
    assert_eq!(segments.len(), 2, "{segments:?}");
    let report = replay(&segments, "m").expect("recorded");
    assert!(report.is_same, "{:?}", report.difference);
    assert_eq!((report.inputs, report.steps_missing, report.lives), (2, 3, 1));
}

#[test]
fn steps_behind_a_line_that_was_taken_out_are_counted_as_missing() {
    let tape = Tape::default();
    let mut driver = new_job(&tape);
    for ms in 1..=6 {
        hear(&mut driver, Time::from_ms(ms));
    }
    let segments = tape.0.borrow().segments.clone();
    let lines: Vec<&str> = segments[0].lines().collect();
    let whole = replay(&segments, "m").expect("recorded");
    // The head, and a step, come before it.
    let without = [&lines[..2], &lines[3..]].concat().join("\n") + "\n";
    let report = replay(&[without], "m").expect("recorded");
    assert_eq!((whole.steps_missing, report.steps), (0, 1));
    assert_eq!(report.steps + report.steps_missing, whole.steps);
}

#[test]
fn a_number_of_a_program_is_read_back_to_its_last_bit() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..10_000 {
        let number: f64 = rng.random();
        let read: f64 = serde_json::from_str(&number.to_string()).expect("a number");
        assert_eq!(read.to_bits(), number.to_bits(), "{number}");
    }
}

#[test]
fn a_recording_of_other_messages_is_refused_by_name_and_a_torn_line_is_left_out() {
    let tape = Tape::default();
    let mut driver = new_job(&tape);
    hear(&mut driver, Time::from_ms(1));
    hear(&mut driver, Time::from_ms(2));
    let mut segments = tape.0.borrow().segments.clone();
    let error = replay(&segments, "n").expect_err("of another program");
    assert!(matches!(error, ReplayError::OtherMessages { .. }));
    assert!(error.to_string().contains("the messages m; this program has the messages n"));
    let whole = segments[0].len();
    segments[0].truncate(whole - 5);
    assert_eq!(replay(&segments, "m").expect("but for its end").inputs, 1);
    segments[0].push('\n');
    let error = replay(&segments, "m").expect_err("damaged");
    assert!(error.to_string().contains("line 3 of segment 1"), "{error}");
    assert!(matches!(replay(&[], "m"), Err(ReplayError::Empty)));
}
