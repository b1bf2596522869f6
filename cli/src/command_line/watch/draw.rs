//! A job's screen on a terminal: its head, problems, hosts with a sign for each slot, the world size over time, resets
//! with their causes, and as many workers as there is room for. Called by `watch`.

use std::borrow::Cow;

use elastic_observe::{describe_phases, with_short_names};
use elastic_protocol::counted;
use elastic_protocol::messages::{
    HostCondition, ResetStatus, StatusReport, WorkerCondition, WorkerStatus,
};
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

/// Most lines about problems and waits.
const ATTENTION_MAX: usize = 5;
/// Most resets that are shown.
const RESETS_SHOWN_MAX: usize = 4;
/// Most hosts that are shown beside the world size; the rest is counted.
const HOSTS_SHOWN_MAX: usize = 8;
/// Most slots of a host that have a sign of their own; the rest is counted.
const SIGNS_MAX: usize = 8;

/// Line while the driver does not answer.
const SILENT: &str = "the driver does not answer: this is its last answer, and it is asked again";

/// The colours; `None` if the person wants none (`NO_COLOR`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    pub(super) shows_colours: bool,
}

impl Palette {
    fn colour(self, colour: Color) -> Style {
        if self.shows_colours { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Draws the view of a job.
pub(super) fn draw(frame: &mut Frame<'_>, view: &WatchView, palette: Palette) {
    let Some(status) = view.status() else { return };
    let width = usize::from(frame.area().width);
    let heading = head_lines(view, status, width);
    let attention = attention(view, status, width);
    let resets = view.resets().take(RESETS_SHOWN_MAX).map(|reset| reset_line(reset, width));
    let resets: Vec<Line<'_>> = resets.collect();
    let hosts = status.hosts.len().clamp(1, HOSTS_SHOWN_MAX);
    let lines = |count: usize| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
    let [head, needs, fleet, past, workers] = Layout::vertical([
        lines(heading.len()),
        lines(attention.len()),
        lines(hosts + 2),
        lines(if resets.is_empty() { 0 } else { resets.len() + 1 }),
        Constraint::Min(0),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading), head);
    let attention: Vec<Line<'_>> = attention.into_iter().map(Line::from).collect();
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

fn head_lines<'a>(view: &WatchView, status: &StatusReport, width: usize) -> Vec<Line<'a>> {
    let lost = match status.steps_lost {
        0 => String::new(),
        steps => format!(", {} lost", counted(steps, "step")),
    };
    let mut head = vec![
        format!("job {}", short_id(&status.job.to_string())),
        status.phase.to_string(),
        counted(status.world_size, "worker"),
        format!("step {}", view.step()),
    ];
    head.extend(view.steps_per_second().map(|rate| format!("{rate:.1} steps/s")));
    head.push(format!("{}{lost}", counted(status.resets, "reset")));
    head.push(format!("generation {}", status.generation));
    let goodput = status.goodput.as_ref().and_then(|it| describe_goodput(it, width));
    let page = status.dashboard.as_ref().map(|url| format!("page {url}"));
    let second = goodput.into_iter().chain(page);
    let (head, second) = (join_to_width(head, " · ", width), join_to_width(second, " · ", width));
    let bold = head.into_iter().map(|line| Line::from(line).style(Modifier::BOLD));
    bold.chain(second.into_iter().map(Line::from)).collect()
}

/// Joins parts with as many on a line as fit in `width` characters; a longer part has a line of its own.
fn join_to_width(
    parts: impl IntoIterator<Item = String>,
    separator: &str,
    width: usize,
) -> Vec<String> {
    let length = |text: &str| text.chars().count();
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let part = clean(&part);
        match lines.last_mut() {
            Some(line) if length(line) + length(separator) + length(&part) <= width => {
                line.push_str(separator);
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines
}

/// Problems and waits, the most urgent first, in lines of at most `width` characters.
fn attention(view: &WatchView, status: &StatusReport, width: usize) -> Vec<String> {
    let moved = status.moved.iter().map(|moved| format!("moves: {}", moved_text(moved)));
    let result = status.result.iter().map(|result| format!("result: {}", result.reason));
    let gather = status.gather.iter().map(|gather| format!("workers: {}", gather_text(gather)));
    let waiting = status.waiting_for.iter().map(|waiting| format!("waiting: {waiting}"));
    let hangs = status.stalled.iter().map(|stalled| format!("hangs: {stalled}"));
    let slow = status.stragglers.iter().map(|straggler| format!("slow: {straggler}"));
    let links = status.slow_links.iter().map(|link| format!("slow: {link}"));
    let unreachable = status.unreachable.iter().map(|pair| format!("unreachable: {pair}"));
    let warnings = status.warnings.iter().map(|warning| format!("warning: {warning}"));
    let silent = view.is_silent().then(|| SILENT.to_owned());
    let all = result
        .chain(silent)
        .chain(moved)
        .chain(gather)
        .chain(waiting)
        .chain(hangs)
        .chain(slow)
        .chain(links)
        .chain(unreachable)
        .chain(warnings);
    let words = |text: String| clean(&text).split(' ').map(str::to_owned).collect::<Vec<_>>();
    all.flat_map(|text| join_to_width(words(text), " ", width)).take(ATTENTION_MAX).collect()
}

fn draw_hosts(frame: &mut Frame<'_>, area: Rect, status: &StatusReport, palette: Palette) {
    let more = status.hosts.len().saturating_sub(HOSTS_SHOWN_MAX);
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    let rows = status.hosts.iter().take(HOSTS_SHOWN_MAX).map(|host| {
        let mut workers: Vec<&WorkerStatus> =
            status.workers.iter().filter(|worker| worker.host == host.name).collect();
        // If there is no room for all, those that do not train are shown.
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

/// A reset in a line. If there is no room for all its times, only the total is shown.
fn reset_line<'a>(reset: &ResetStatus, width: usize) -> Line<'a> {
    let lost = match reset.steps_lost {
        0 => String::new(),
        steps => format!("; {} lost", counted(steps, "step")),
    };
    let at = reset.at.get(11..19).unwrap_or(&reset.at);
    let with = |times: String| clean(&format!("{at}  {} ({times}{lost})", reset.cause));
    let all = with(describe_phases(&reset.ms));
    let total = reset.ms.total.filter(|_| all.chars().count() > width);
    Line::from(total.map_or(all, |total| with(format!("{total:.1} ms"))))
}

fn draw_workers(frame: &mut Frame<'_>, area: Rect, status: &StatusReport) {
    // Its title and the header take a line each.
    let room = usize::from(area.height.saturating_sub(2));
    let hidden = status.workers.len().saturating_sub(room);
    let hidden = if hidden > 0 { format!(", {hidden} not shown") } else { String::new() };
    let header = ["RANK", "WORKER", "PID", "STATE", "STEP", ""];
    let rows: Vec<[String; 6]> = status
        .workers
        .iter()
        .take(room)
        .map(|worker| {
            [
                worker.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
                clean(&format!("{}:{}", worker.host, worker.slot)),
                worker.pid.map_or_else(String::new, |pid| pid.to_string()),
                worker.state.to_string(),
                worker.step.to_string(),
                clean(&program_words(worker)),
            ]
        })
        .collect();
    // As narrow as their longest text, so that the program's words keep the room.
    let widths: Vec<Constraint> = (0..header.len())
        .map(|column| {
            let texts = rows.iter().map(|row| row[column].as_str());
            let longest = texts.chain([header[column]]).map(|text| text.chars().count()).max();
            let longest = u16::try_from(longest.unwrap_or_default()).unwrap_or(u16::MAX);
            if column + 1 == header.len() {
                Constraint::Fill(1)
            } else {
                Constraint::Length(longest.min(area.width / 4))
            }
        })
        .collect();
    let rows = rows.into_iter().map(Row::new);
    let header = Row::new(header);
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
