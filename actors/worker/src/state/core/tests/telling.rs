//! Tests of a State's reports to the driver while its thread trains.

use super::*;

#[test]
fn reported_values_are_told_with_the_progress_and_the_last_ones_count() {
    let mut core = running(1);
    let beat = Deadlines::default().beat;
    let at = |value| TrainingProgress { reported: loss(value), ..TrainingProgress::default() };
    let told = |core: &mut StateCore| -> Vec<ReportedValues> {
        let said = outputs(core).into_iter().filter_map(|output| match output {
            StateOutput::ToDriver(WorkerToDriver::Progress { reported, .. }) => Some(reported),
            _ => None,
        });
        said.collect()
    };
    for number in 0..50 {
        core.handle_progress(NOW, at(f64::from(number)));
    }
    assert_eq!(told(&mut core), [loss(0.0)], "no message for each of them");
    core.handle_progress(NOW + beat, at(50.0));
    core.handle_progress(NOW + beat + beat, at(50.0));
    assert_eq!(told(&mut core), [loss(50.0)], "nor for what the driver knows");
}

#[test]
fn bytes_that_are_moved_are_told_once_a_beat_while_the_state_is_taken_and_while_training_goes_on() {
    let moved = |work, done| Some(MovedBytes { work, done, total: 100 });
    let progress = |moved| TrainingProgress { moved, ..TrainingProgress::default() };
    let told = |core: &mut StateCore| -> Vec<u64> {
        let said = outputs(core).into_iter().filter_map(|output| match output {
            StateOutput::ToDriver(WorkerToDriver::Moves { bytes, .. }) => Some(bytes.done),
            _ => None,
        });
        said.collect()
    };
    let mut core = attached();
    let root = SyncPlan::FromRoot { root: 0 };
    core.handle_driver(NOW, DriverToWorker::Assign(formation(1, root, 0)));
    core.handle_training(NOW, TrainingEvent::Formed { stamp: stamp(1) });
    core.handle_driver(NOW, DriverToWorker::Go { stamp: stamp(1), source: None });
    outputs(&mut core);
    let beat = NOW + Deadlines::default().beat;
    assert_eq!(core.poll_timeout(), Some(beat), "it is looked at before training begins");
    core.handle_timeout(beat);
    assert_eq!(outputs(&mut core), [StateOutput::SampleProgress]);
    core.handle_progress(beat, progress(moved(BulkWork::TakesState, 10)));
    core.handle_progress(beat, progress(moved(BulkWork::TakesState, 10)));
    core.handle_progress(beat, progress(None));
    assert_eq!(told(&mut core), [10], "what has not changed, or is over, is not told");
    core.handle_training(beat, TrainingEvent::Synced { stamp: stamp(1), commit: commit(1, 0) });
    core.handle_progress(beat, progress(moved(BulkWork::SavesCheckpoint, 7)));
    assert_eq!(told(&mut core), [7]);
}

#[test]
fn step_times_are_told_with_progress_that_is_sent_anyway_and_once_a_second() {
    let mut core = running(1);
    let times = StepTimes {
        step_us: 10,
        compute_us: 8,
        waiting_us: 2,
        data_us: 1,
        commit_us: 1,
        shards: 0,
    };
    let from = HostName::new("b").expect("a name");
    let links = vec![LinkPace { from, rate: 1_000, load: 10 }];
    let at = |step| TrainingProgress {
        step: Step(step),
        steps: Some(times),
        links: links.clone(),
        ..TrainingProgress::default()
    };
    let told = |core: &mut StateCore| -> Vec<Option<StepTimes>> {
        let said = outputs(core).into_iter().filter_map(|output| match output {
            StateOutput::ToDriver(WorkerToDriver::Progress { steps, links: told, .. }) => {
                let expected = if steps.is_some() { &links[..] } else { &[] };
                assert_eq!(told, expected, "rates of links go with step times");
                Some(steps)
            }
            _ => None,
        });
        said.collect()
    };
    let beat = Deadlines::default().beat;
    for beats in 0..20 {
        core.handle_progress(NOW + beat * beats, at(u64::from(beats)));
    }
    let said = told(&mut core);
    assert_eq!(said.len(), 20);
    let with_times = (0..20).filter(|number| said[*number].is_some());
    assert_eq!(with_times.collect::<Vec<_>>(), [0, 10]);
    assert_eq!(said[10], Some(times));
    for beats in 20..40 {
        core.handle_progress(NOW + beat * beats, at(19));
    }
    assert_eq!(told(&mut core), [], "no message for them alone");
}

#[test]
fn progress_is_told_once_a_beat_and_when_it_changed() {
    let mut core = running(1);
    let beat = Deadlines::default().beat;
    let note = "é".repeat(200);
    let at = |step| TrainingProgress {
        step: Step(step),
        note: note.clone(),
        ..TrainingProgress::default()
    };
    core.handle_progress(NOW, at(1));
    core.handle_progress(NOW, at(2));
    let said = outputs(&mut core);
    assert!(matches!(
        &said[..],
        [StateOutput::ToDriver(WorkerToDriver::Progress { step: Step(1), note, .. })] if note.len() == 256
    ));
    core.handle_progress(NOW + beat, at(2));
    core.handle_progress(NOW + beat + beat, at(2));
    assert_eq!(outputs(&mut core).len(), 1);
}

#[test]
fn x_2_a_thread_that_stands_still_is_told_of_once_to_each_driver_and_again_when_it_goes_on() {
    let mut core = running(1);
    let beat = Deadlines::default().beat;
    let at = |entered| TrainingProgress {
        position: CollectivePosition { entered, inside: None, section: None },
        ..TrainingProgress::default()
    };
    let standstills = |core: &mut StateCore| -> Vec<(Option<u64>, u64)> {
        let said = outputs(core).into_iter().filter_map(|output| match output {
            StateOutput::ToDriver(WorkerToDriver::Standstill { position, for_ms, .. }) => {
                Some((position.map(|position| position.entered), for_ms))
            }
            _ => None,
        });
        said.collect()
    };
    for beats in 0..20 {
        core.handle_progress(NOW + beat * beats, at(7));
    }
    assert_eq!(standstills(&mut core), [(Some(7), 500)], "after five beats, once");
    core.handle_link(NOW, &lost());
    core.handle_link(NOW, &LinkEvent::Up);
    core.handle_driver(NOW, welcome());
    core.handle_progress(NOW + beat * 20, at(7));
    assert_eq!(standstills(&mut core), [(Some(7), 2_000)], "the next driver is told, too");
    core.handle_progress(NOW + beat * 21, at(8));
    assert_eq!(standstills(&mut core), [(None, 2_100)]);
    for beats in 22..26 {
        core.handle_progress(NOW + beat * beats, at(u64::from(beats)));
    }
    assert_eq!(standstills(&mut core), [], "a thread that moves costs no message");
}
