//! How a job looks on a terminal: its head, what needs attention, hosts with a sign for each slot, the world size over
//! time, resets with their causes, and as many workers as there is room for. Called by `watch`.

use std::borrow::Cow;

use elastic_observe::{describe_phases, with_short_names};
use elastic_protocol::counted;
use elastic_protocol::messages::{HostCondition, StatusReport, WorkerCondition, WorkerStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

use super::super::find_job::short_id;
use super::super::printable::printable;
use super::super::status_text::{describe_goodput, program_words};
use super::view::WatchView;
use crate::process::{gather_text, moved_text};

/// Most lines of what needs attention.
const ATTENTION_MAX: usize = 5;
/// Most resets that are shown.
const RESETS_SHOWN_MAX: usize = 4;
/// Most hosts that are shown beside the world size; the rest is counted.
const HOSTS_SHOWN_MAX: usize = 8;
/// Most slots of a host that have a sign of their own; the rest is counted.
const SIGNS_MAX: usize = 8;

/// The colours; none where the person wants none (`NO_COLOR`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    pub(super) shows_colours: bool,
}

impl Palette {
    fn colour(self, colour: Color) -> Style {
        if self.shows_colours { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Draws what is known of a job.
pub(super) fn draw(frame: &mut Frame<'_>, view: &WatchView, palette: Palette) {
    let Some(status) = view.status() else { return };
    let attention = attention(status);
    let resets: Vec<Line<'_>> = view.resets().take(RESETS_SHOWN_MAX).map(reset_line).collect();
    let hosts = status.hosts.len().clamp(1, HOSTS_SHOWN_MAX);
    let lines = |count: usize| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
    let [head, needs, fleet, past, workers] = Layout::vertical([
        lines(2),
        lines(attention.len()),
        lines(hosts + 2),
        lines(if resets.is_empty() { 0 } else { resets.len() + 1 }),
        Constraint::Min(0),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(view, status)), head);
    let attention = attention.into_iter().map(Line::from).collect::<Vec<_>>();
    frame.render_widget(Paragraph::new(attention).style(palette.colour(Color::Yellow)), needs);
    let [of_hosts, of_sizes] =
        Layout::horizontal([Constraint::Percentage(55), Constraint::Percentage(45)]).areas(fleet);
    draw_hosts(frame, of_hosts, status, palette);
    draw_sizes(frame, of_sizes, view, status, palette);
    if !resets.is_empty() {
        let block = Block::new().title(title("resets, the last first".to_owned()));
        frame.render_widget(Paragraph::new(resets).block(block), past);
    }
    draw_workers(frame, workers, status);
}

fn head_lines<'a>(view: &WatchView, status: &StatusReport) -> Vec<Line<'a>> {
    let rate = view.steps_per_second();
    let rate = rate.map_or_else(String::new, |rate| format!(" · {rate:.1} steps/s"));
    let lost = match status.steps_lost {
        0 => String::new(),
        steps => format!(", {} lost", counted(steps, "step")),
    };
    let head = format!(
        "job {} · {} · {} · step {}{rate} · {}{lost} · generation {}",
        short_id(&status.job.to_string()),
        status.phase,
        counted(status.world_size, "worker"),
        view.step(),
        counted(status.resets, "reset"),
        status.generation,
    );
    let goodput = status.goodput.as_ref().map(describe_goodput).unwrap_or_default();
    let page = status.dashboard.as_ref().map_or_else(String::new, |url| format!(" · page {url}"));
    let second = format!("{}{page}", goodput.trim_end());
    vec![Line::from(clean(&head)).style(Modifier::BOLD), Line::from(clean(&second))]
}

/// What a person should know of, the most urgent first.
fn attention(status: &StatusReport) -> Vec<String> {
    let moved = status.moved.iter().map(|moved| format!("moves: {}", moved_text(moved)));
    let result = status.result.iter().map(|result| format!("result: {}", result.reason));
    let gather = status.gather.iter().map(|gather| format!("workers: {}", gather_text(gather)));
    let waiting = status.waiting_for.iter().map(|waiting| format!("waiting: {waiting}"));
    let hangs = status.stalled.iter().map(|stalled| format!("hangs: {stalled}"));
    let slow = status.stragglers.iter().map(|straggler| format!("slow: {straggler}"));
    let unreachable = status.unreachable.iter().map(|pair| format!("unreachable: {pair}"));
    let warnings = status.warnings.iter().map(|warning| format!("warning: {warning}"));
    let all = result
        .chain(moved)
        .chain(gather)
        .chain(waiting)
        .chain(hangs)
        .chain(slow)
        .chain(unreachable)
        .chain(warnings);
    all.take(ATTENTION_MAX).map(|line| clean(&line)).collect()
}

fn draw_hosts(frame: &mut Frame<'_>, area: Rect, status: &StatusReport, palette: Palette) {
    let more = status.hosts.len().saturating_sub(HOSTS_SHOWN_MAX);
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    let rows = status.hosts.iter().take(HOSTS_SHOWN_MAX).map(|host| {
        let mut workers: Vec<&WorkerStatus> =
            status.workers.iter().filter(|worker| worker.host == host.name).collect();
        // Where not all have room, those that do not train are seen.
        workers.sort_by_key(|worker| worker.state == WorkerCondition::Running);
        let mut signs: Vec<Span<'_>> =
            workers.iter().take(SIGNS_MAX).map(|worker| sign(worker.state, palette)).collect();
        if workers.len() > SIGNS_MAX {
            signs.push(Span::raw(format!(" +{}", workers.len() - SIGNS_MAX)));
        }
        let state = match host.state {
            HostCondition::Active => Span::raw(""),
            state => Span::styled(state.name(), palette.colour(Color::Red)),
        };
        Row::new([Line::from(clean(&host.name.to_string())), Line::from(signs), Line::from(state)])
    });
    let widths = [Constraint::Percentage(40), Constraint::Percentage(35), Constraint::Fill(1)];
    let block = Block::bordered().title(title(format!("hosts: {}{more}", status.hosts.len())));
    frame.render_widget(Table::new(rows, widths).block(block), area);
}

/// One character for a slot, also readable without colours.
fn sign(state: WorkerCondition, palette: Palette) -> Span<'static> {
    let (text, colour) = match state {
        WorkerCondition::Running => ("■", Color::Green),
        WorkerCondition::Succeeded => ("✓", Color::Green),
        WorkerCondition::Starting
        | WorkerCondition::Attached
        | WorkerCondition::Forming
        | WorkerCondition::Syncing
        | WorkerCondition::Arriving => ("▫", Color::Yellow),
        WorkerCondition::Silent | WorkerCondition::Leaving | WorkerCondition::Lost => {
            ("!", Color::Red)
        }
        WorkerCondition::Backoff | WorkerCondition::Resting => ("×", Color::Red),
        WorkerCondition::Spare => ("·", Color::Gray),
    };
    Span::styled(text, palette.colour(colour))
}

fn draw_sizes(
    frame: &mut Frame<'_>,
    area: Rect,
    view: &WatchView,
    status: &StatusReport,
    palette: Palette,
) {
    let sizes = view.sizes(usize::from(area.width.saturating_sub(2)));
    let most = sizes.iter().max().copied().unwrap_or_default();
    let block = Block::bordered()
        .title(title(format!("world size: {}, at most {most} so far", status.world_size)));
    let line = Sparkline::default().data(sizes).max(most.max(1)).style(palette.colour(Color::Cyan));
    frame.render_widget(line.block(block), area);
}

fn reset_line<'a>(reset: &elastic_protocol::messages::ResetStatus) -> Line<'a> {
    let lost = match reset.steps_lost {
        0 => String::new(),
        steps => format!("; {} lost", counted(steps, "step")),
    };
    let phases = describe_phases(&reset.ms);
    let at = reset.at.get(11..19).unwrap_or(&reset.at);
    Line::from(clean(&format!("{at}  {} ({phases}{lost})", reset.cause)))
}

fn draw_workers(frame: &mut Frame<'_>, area: Rect, status: &StatusReport) {
    // Its title and the header take a line each.
    let room = usize::from(area.height.saturating_sub(2));
    let hidden = status.workers.len().saturating_sub(room);
    let hidden = if hidden > 0 { format!(", {hidden} not shown") } else { String::new() };
    let rows = status.workers.iter().take(room).map(|worker| {
        Row::new([
            worker.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
            clean(&format!("{}:{}", worker.host, worker.slot)),
            worker.pid.map_or_else(String::new, |pid| pid.to_string()),
            worker.state.to_string(),
            worker.step.to_string(),
            clean(&program_words(worker)),
        ])
    });
    let widths = [
        Constraint::Length(5),
        Constraint::Percentage(25),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Fill(1),
    ];
    let header = Row::new(["RANK", "WORKER", "PID", "STATE", "STEP", ""]);
    let block = Block::new().title(title(format!("slots: {}{hidden}", status.workers.len())));
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

fn title<'a>(text: String) -> Line<'a> {
    Line::from(text).style(Modifier::BOLD)
}

/// Other people's text, on one line and without escapes.
fn clean(text: &str) -> String {
    let text: Cow<'_, str> = printable(text);
    with_short_names(&text).replace('\n', " ")
}
