//! `explain`: the reason for the end of a generation, or for the job's wait, from the event log of a state directory.
//! Called by `main`.

use std::str::FromStr;

use clap::Args;
use elastic_observe::{ExplainRequest, LoggedJob, explain, with_short_names};
use elastic_protocol::messages::StatusReport;
use elastic_runtime::system;

use super::event_log::{OLDER_LOGS, read_event_log};
use super::failure::{CommandFailure, ResultExt};
use super::find_job::{JobLog, StateDirFlags};
use super::printable::printable;
use super::stdout::{print_line, print_text};
use super::values::{address, hosts_and_ports};
use crate::process::{StatusClient, TokenSource, address_on_this_machine, default_state_dir};

/// Flags of `explain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExplainFlags {
    /// Subject: `last`, the last incident; `now`, what the job waits for; or the number of a generation that
    /// ended
    #[arg(default_value = "last", value_name = "last|now|GENERATION")]
    question: AskedQuestion,
    /// The driver's state directory.
    #[command(flatten)]
    folder: StateDirFlags,
    /// The job, by the first letters of its id as `list` shows it [default: the one that runs on this machine, else
    /// the last]
    #[arg(long, value_name = "JOB", conflicts_with_all = ["driver", "state_dir"])]
    job: Option<String>,
    /// The driver, as HOST:PORT
    #[arg(long, env = "ELASTIC_DRIVER", value_name = "ADDR")]
    driver: Option<String>,
    /// Print one JSON object instead of sentences
    #[arg(long)]
    json: bool,
}

/// The subject of the explanation, as the command line names it.
#[derive(Clone, Copy, Debug)]
struct AskedQuestion(ExplainRequest);

impl FromStr for AskedQuestion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let question = match text {
            "last" => ExplainRequest::Last,
            "now" => ExplainRequest::Now,
            number => ExplainRequest::Generation(number.parse().map_err(|_| {
                format!("{number:?} is neither `last` nor `now` nor the number of a generation")
            })?),
        };
        Ok(Self(question))
    }
}

/// Explains, and prints the explanation.
pub(crate) fn print_explanation(flags: &ExplainFlags) -> Result<(), CommandFailure> {
    let log = job_log(flags)?;
    let record = read_event_log(&log, "explain last", |lines| LoggedJob::of_lines(lines))?;
    // The driver itself knows best what it waits for, if it still runs.
    let status = match flags.question.0 {
        ExplainRequest::Now => {
            system::run(ask_driver(&log)).failed("the system refuses a client")?
        }
        _ => None,
    };
    let explanation = explain(&record, status.as_ref(), flags.question.0)
        .failed("there is no explanation")
        .map_err(|failure| match record.missing_before {
            Some(_) => failure.hint(OLDER_LOGS),
            None => failure,
        })?;
    if flags.json {
        let text = serde_json::to_string(&explanation)
            .failed("the explanation cannot be written as JSON")?;
        return print_line(&text);
    }
    print_text(&with_short_names(&printable(&explanation.to_string())))
}

fn job_log(flags: &ExplainFlags) -> Result<JobLog, CommandFailure> {
    let given = flags.folder.given();
    let Some(driver) = flags.driver.as_ref().filter(|_| given.is_none()) else {
        return JobLog::find(given, flags.job.as_deref());
    };
    let hint = "give the driver's state directory: elastic-node explain last STATE_DIR";
    let driver = hosts_and_ports(driver)
        .and_then(|driver| address(driver.split(',').next().unwrap_or_default()))
        .map_err(|reason| CommandFailure::usage(format!("--driver: {reason}")).hint(hint))?;
    let folder = default_state_dir(driver).ok_or_else(|| {
        CommandFailure::usage("this user has no folder for state directories").hint(hint)
    })?;
    Ok(JobLog::of_last(&folder))
}

/// The status of a job, by the driver that uses its state directory; none if that does not answer, or is another job's.
pub(super) async fn ask_driver(log: &JobLog) -> Option<StatusReport> {
    let address = address_on_this_machine(&log.folder)?.to_string();
    let token = TokenSource::new(&address, None, None, Some(&log.folder)).ok()?;
    let client = StatusClient::connect(&address, &token).await.ok()?;
    let status = client.ask().await.ok();
    client.close().await;
    status.filter(|status| log.is_of(&status.job.to_string()))
}
