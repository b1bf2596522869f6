//! Tests of the screen, drawn into memory.

use std::time::Duration;

use elastic_protocol::messages::StatusReport;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::draw::{Palette, draw};
use super::view::WatchView;

fn status(world_size: u32, step: u64, changed: Value) -> StatusReport {
    let worker = |rank: u32| {
        json!({ "rank": rank, "host": if rank < 2 { "a" } else { "b" }, "slot": rank % 2, "pid": 100 + rank,
            "state": "running", "step": step, "note": "epoch 3" })
    };
    let host = |name: &str| json!({ "name": name, "slots": 2, "state": "active", "until": null });
    let mut status = json!({
        "job": "8c2294e4-bcfa-47d0-ac77-d9dac43fa755", "term": 1, "generation": 7, "phase": "run",
        "world_size": world_size, "min_np": 1, "max_np": null, "resets": 0,
        "hosts": [host("a"), host("b")], "workers": (0..world_size).map(worker).collect::<Vec<_>>(),
        "last_reset": null, "waiting_for": null, "warnings": [], "dropped_messages": 0,
    });
    for (name, value) in changed.as_object().expect("an object") {
        status[name] = value.clone();
    }
    serde_json::from_value(status).expect("a status")
}

fn reset(at: &str, worker: &str) -> Value {
    let cause = format!("{worker} ended: signal 9 (SIGKILL)");
    let ms = json!({ "detect": 1.0, "form": 12.0, "sync": 2.0, "total": 15.0 });
    json!({ "generation": 7, "cause": cause, "at": at, "ms": ms, "steps_lost": 1 })
}

fn screen(view: &WatchView, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
    let palette = Palette { shows_colours: true };
    terminal.draw(|frame| draw(frame, view, palette)).expect("memory");
    terminal.backend().to_string()
}

#[test]
fn the_job_is_on_one_screen_with_its_steps_a_second_and_the_resets_that_were_seen() {
    let mut view = WatchView::default();
    let first = json!({ "resets": 1, "last_reset": reset("2026-01-01T10:20:30.000Z", "b[1]#4") });
    let second = json!({ "resets": 2, "steps_lost": 2, "last_reset": reset("2026-01-01T10:21:30.000Z", "a[0]#1") });
    view.handle_status(Duration::from_secs(10), &status(4, 100, first));
    view.handle_status(Duration::from_secs(15), &status(3, 150, second.clone()));
    view.handle_status(Duration::from_secs(20), &status(4, 200, second));
    let screen = screen(&view, 100, 24);
    for wanted in [
        "job 8c2294e4 · run · 4 workers · step 200 · 10.0 steps/s · 2 resets, 2 steps lost · generation 7",
        "hosts: 2",
        "■■",
        "world size: 4, at most 4 so far",
        "10:21:30  a:0 ended: signal 9 (SIGKILL)",
        "10:20:30  b:1 ended",
        "slots: 4",
        "epoch 3",
    ] {
        assert!(screen.contains(wanted), "{wanted}: {screen}");
    }
}

#[test]
fn eighty_columns_cut_no_fact_off() {
    let mut view = WatchView::default();
    let changed = json!({
        "resets": 12, "steps_lost": 2, "last_reset": reset("2026-01-01T10:20:30.000Z", "b[1]#4"),
        "goodput": { "since_start": 0.97, "last_10_min": 0.5, "slot_seconds": 100.0,
            "buckets": { "training": 97.0, "importing": 1.6, "starting": 0.9, "gathering": 0.5 } },
        "dashboard": "http://127.0.0.1:39691/",
        "waiting_for": "hosts that the job had before and that have not come back within the time that they have",
    });
    view.handle_status(Duration::from_secs(10), &status(4, 100, changed.clone()));
    let mut changed = status(4, 150, changed);
    for worker in &mut changed.workers {
        worker.note = "epoch 3 of 24, learning rate 0.001, 1,234.5 images/s".to_owned();
    }
    view.handle_status(Duration::from_secs(15), &changed);
    let screen = screen(&view, 80, 24);
    for wanted in [
        "12 resets, 2 steps lost",
        "generation 7",
        "50.0 % in the last 10 minutes (importing 1.6 %)",
        "page http://127.0.0.1:39691/",
        "time that they have",
        "b:1 ended: signal 9 (SIGKILL) (15.0 ms; 1 step lost)",
        "epoch 3 of 24, learning rate 0.001, 1,234.5 images",
    ] {
        assert!(screen.contains(wanted), "{wanted}: {screen}");
    }
}

#[test]
fn what_needs_attention_is_shown_and_nothing_of_it_is_obeyed() {
    let mut view = WatchView::default();
    let changed = json!({
        "phase": "gather", "world_size": 0, "waiting_for": "b[0]#2 (starting)",
        "gather": { "there": 1, "needed": 4 }, "warnings": ["a line\nwith \u{1b}[31mescapes"],
    });
    view.handle_status(Duration::ZERO, &status(0, 0, changed));
    let screen = screen(&view, 80, 24);
    assert!(screen.contains("waiting: b:0 (starting)"), "{screen}");
    assert!(screen.contains("workers: 1 of 4 [████░░░░░░░░░░░░]"), "{screen}");
    assert!(screen.contains("warning: a line"), "{screen}");
    assert!(!screen.contains('\u{1b}'), "{screen}");
}

#[test]
fn a_small_terminal_shows_what_fits_and_a_large_job_says_what_does_not() {
    let mut view = WatchView::default();
    let worker = |rank: u32| json!({ "rank": rank, "host": "a", "slot": rank, "pid": rank, "state": "running", "step": 1, "note": "" });
    let workers: Vec<Value> = (0..4_000).map(worker).collect();
    view.handle_status(Duration::ZERO, &status(4_000, 1, json!({ "workers": workers })));
    let large = screen(&view, 80, 24);
    assert!(large.contains("■■■■■■■■ +3992") && large.contains("not shown"), "{large}");
    for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
        assert_eq!(screen(&view, width, height).lines().count(), usize::from(height));
    }
}

#[test]
fn a_reset_that_is_followed_by_another_between_two_looks_is_not_missed() {
    let mut view = WatchView::default();
    let (first, second) =
        (reset("2026-01-01T10:20:30.000Z", "b[1]#4"), reset("2026-01-01T10:20:31.000Z", "a[0]#1"));
    let changed = json!({ "resets": 2, "last_reset": second, "resets_recent": [first, second] });
    view.handle_status(Duration::ZERO, &status(4, 100, changed.clone()));
    view.handle_status(Duration::from_secs(1), &status(4, 110, changed));
    let causes: Vec<&str> = view.resets().map(|reset| &reset.at[11..19]).collect();
    assert_eq!(causes, ["10:20:31", "10:20:30"]);
}

#[test]
fn a_driver_that_does_not_answer_is_shown_until_it_answers_again() {
    let mut view = WatchView::default();
    let answered = status(4, 100, json!({}));
    view.handle_status(Duration::from_secs(10), &answered);
    view.handle_silence();
    let silent = screen(&view, 80, 24);
    assert!(silent.contains("the driver does not answer"), "{silent}");
    assert!(silent.contains("step 100"), "{silent}");
    view.handle_status(Duration::from_secs(11), &answered);
    let screen = screen(&view, 80, 24);
    assert!(!screen.contains("does not answer"), "{screen}");
}
