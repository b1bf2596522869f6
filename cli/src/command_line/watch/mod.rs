//! `status --watch` on a terminal: the job on one screen, drawn anew twice a second. `view` is the knowledge of the
//! job, `draw` its picture. Called by `status`.

mod draw;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, Stdout};
use std::time::Duration;

use elastic_protocol::messages::StatusReport;
use ratatui::Terminal;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::prelude::CrosstermBackend;

use self::draw::{Palette, draw};
use self::view::WatchView;

/// The terminal's other screen. Dropping it shows the former content again.
pub(super) struct WatchScreen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    view: WatchView,
    palette: Palette,
}

impl WatchScreen {
    /// Takes the terminal on stdout.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn open() -> io::Result<Self> {
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        let shows_colours = std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(Self { terminal, view: WatchView::default(), palette: Palette { shows_colours } })
    }

    /// Shows a status. `at` is the time since any moment that is the same in all calls.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn show(&mut self, at: Duration, status: &StatusReport) -> io::Result<()> {
        self.view.handle_status(at, status);
        self.draw()
    }

    /// Shows that the driver does not answer.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn show_silence(&mut self) -> io::Result<()> {
        self.view.handle_silence();
        self.draw()
    }

    fn draw(&mut self) -> io::Result<()> {
        let (view, palette) = (&self.view, self.palette);
        self.terminal.draw(|frame| draw(frame, view, palette)).map(|_| ())
    }
}

impl Drop for WatchScreen {
    fn drop(&mut self) {
        // A terminal that is gone needs no other screen.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    }
}
