//! Requests of the operator to a driver: `stop` ends the job, `drain` takes a host out in order, `readmit` lets it in
//! again. Called by `main`.

use clap::Args;
use elastic_protocol::HostName;
use elastic_protocol::messages::{ClientRequest, ClientResponse, StatusReport};

use super::failure::CommandFailure;
use super::find_job::short_id;
use super::job_source::{DriverAccess, JobSource};
use super::stdout::print_text;
use crate::process::{JobCondition, StatusClient};

/// Flags of `stop`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StopFlags {
    /// The job, by the first letters of its id as `list` shows it [default: the one that runs on this machine]
    #[arg(value_name = "JOB", conflicts_with = "driver")]
    job: Option<String>,
    /// Its driver.
    #[command(flatten)]
    access: DriverAccess,
}

/// Flags of `drain` and `readmit`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HostFlags {
    /// The host, as `status` names it
    #[arg(value_name = "HOST")]
    host: HostName,
    /// The job, by the first letters of its id as `list` shows it [default: the one that runs on this machine]
    #[arg(long, value_name = "JOB", conflicts_with = "driver")]
    job: Option<String>,
    /// Its driver.
    #[command(flatten)]
    access: DriverAccess,
}

/// Asks the driver to end the job.
pub(crate) async fn stop_job(flags: &StopFlags) -> Result<(), CommandFailure> {
    ask(flags.job.as_deref(), &flags.access, ClientRequest::Stop).await?;
    print_text(
        "the job ends: its workers leave at their next step. `elastic-node status` shows how it ended; \
         a second `stop` ends it at once",
    )
}

/// Asks the driver to take a host out.
pub(crate) async fn drain_host(flags: &HostFlags) -> Result<(), CommandFailure> {
    let host = flags.host.clone();
    let request = ClientRequest::Drain { host: host.clone() };
    let text = match ask(flags.job.as_deref(), &flags.access, request).await? {
        ClientResponse::DoneAlready => format!("host {host} is drained already"),
        _ => format!(
            "host {host} is drained: its workers leave at a step, without loss; `elastic-node readmit {host}` \
             lets it in again"
        ),
    };
    print_text(&text)
}

/// Asks the driver to let a host in again.
pub(crate) async fn readmit_host(flags: &HostFlags) -> Result<(), CommandFailure> {
    let host = flags.host.clone();
    let request = ClientRequest::Readmit { host: host.clone() };
    let (job, access) = (flags.job.as_deref(), &flags.access);
    let text = match ask(job, access, request).await? {
        // That is the answer about a host that there is not, too.
        ClientResponse::DoneAlready => {
            let status = ask(job, access, ClientRequest::Status).await?;
            let is_unknown = |status: &StatusReport| status.hosts.iter().all(|it| it.name != host);
            if matches!(&status, ClientResponse::Status(status) if is_unknown(status)) {
                return Err(refused(format!("the job has no host {host}")));
            }
            format!("host {host} is neither drained nor blacklisted")
        }
        _ => format!("host {host} may have workers again"),
    };
    print_text(&text)
}

/// The failure if a request has no driver any more that could take it.
pub(super) fn runs_no_more(job: &str, condition: JobCondition) -> CommandFailure {
    let (id, state) = (short_id(job), condition.as_str());
    CommandFailure::usage(format!("job {id} does not run any more: {state}"))
        .hint("`elastic-node list` shows which jobs run")
}

fn refused(reason: String) -> CommandFailure {
    CommandFailure::new(reason).hint("`elastic-node status` shows the hosts of the job")
}

fn stop_refused(reason: String) -> CommandFailure {
    CommandFailure::new(reason).hint("`elastic-node status` shows whether the job goes on")
}

/// Gives a request to the driver of a job that runs.
async fn ask(
    job: Option<&str>,
    access: &DriverAccess,
    request: ClientRequest,
) -> Result<ClientResponse, CommandFailure> {
    let (driver, token) = match access.source(job)? {
        JobSource::Driver(driver, token) => (driver, token),
        JobSource::Over(ended) => return Err(runs_no_more(&ended.job, ended.end.condition())),
        JobSource::Lost(entry) => return Err(runs_no_more(&entry.job, entry.condition())),
    };
    let is_stop = matches!(request, ClientRequest::Stop);
    let client = StatusClient::connect(&driver, &token).await?;
    let answer = client.request(request).await;
    client.close().await;
    match answer? {
        ClientResponse::Refused { reason } if is_stop => Err(stop_refused(reason)),
        ClientResponse::Refused { reason } => Err(refused(reason)),
        answer => Ok(answer),
    }
}
