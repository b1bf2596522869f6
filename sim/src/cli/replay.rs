//! `sim replay`: prints a trace for people, with steps and filters.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::say;

#[derive(Args, Debug)]
pub(crate) struct ReplayArguments {
    /// The trace.
    file: PathBuf,
    /// From this event on.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Up to this event.
    #[arg(long, default_value_t = u64::MAX)]
    to: u64,
    /// Only of this place, such as `driver`, `h3` or `h3[1]`.
    #[arg(long)]
    place: Option<String>,
    /// Only of these kinds, such as `link,fault,reset`.
    #[arg(long, value_delimiter = ',')]
    kind: Vec<String>,
    /// Events at a time on a terminal; Enter gives the next ones.
    #[arg(long, default_value_t = 40)]
    step: usize,
}

pub(crate) fn replay(arguments: &ReplayArguments) -> anyhow::Result<ExitCode> {
    let path = arguments.file.display();
    let file = File::open(&arguments.file).with_context(|| format!("{path} cannot be read"))?;
    let steps = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let mut shown = 0;
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| format!("{path} cannot be read"))?;
        let event: Value = serde_json::from_str(&line)
            .with_context(|| format!("{path}: line {} is no event", number + 1))?;
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let index = event["number"].as_u64().unwrap_or_default();
        let is_wanted = (arguments.from..=arguments.to).contains(&index)
            && arguments.place.as_ref().is_none_or(|place| *place == text("place"))
            && (arguments.kind.is_empty() || arguments.kind.contains(&text("kind")));
        if !is_wanted {
            continue;
        }
        say(format!(
            "{index:>8} {:>14.3} ms  {:<10} {:<10} {} {} {}",
            event["ms"].as_f64().unwrap_or_default(),
            text("place"),
            text("kind"),
            event["a"],
            event["b"],
            text("text"),
        ));
        shown += 1;
        if steps && shown % arguments.step.max(1) == 0 {
            let mut answer = String::new();
            std::io::stdin().lock().read_line(&mut answer)?;
            if answer.trim() == "q" {
                break;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
