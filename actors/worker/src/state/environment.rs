//! Environment variables of a worker process: made by the driver, extended by the agent, read by the State when
//! the program calls `run`.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

pub use elastic_protocol::environment::{CREDENTIAL, DRIVER, JOB, WORKER};
use elastic_protocol::{HostName, Incarnation, JobId, WorkerId};

/// The job, the driver and the identity of a worker process, from its environment.
#[derive(Clone, Eq, PartialEq)]
pub struct WorkerEnvironment {
    /// `HOST:PORT` of the driver; several, separated by commas, if others may take over.
    pub driver: String,
    /// The job.
    pub job: JobId,
    /// The identity of the worker.
    pub worker: WorkerId,
    /// The secret with which the worker joins.
    pub credential: String,
}

impl fmt::Debug for WorkerEnvironment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WorkerEnvironment")
            .field("driver", &self.driver)
            .field("job", &self.job)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

/// Errors in the environment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidEnvironment {
    /// `ELASTIC_DRIVER` is set and this one is not.
    #[error(
        "{DRIVER} is set, but {variable} is not; start workers through `elastic-node`, or unset {DRIVER}"
    )]
    Missing {
        /// Its name.
        variable: &'static str,
    },
    /// The variable does not have the expected form.
    #[error("{variable} is {value:?}, which is not {expected}")]
    Malformed {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
}

impl WorkerEnvironment {
    /// Reads the environment through `lookup`. `None` without [`DRIVER`]: there is no driver.
    ///
    /// # Errors
    /// [`InvalidEnvironment`] names the variable.
    pub fn parse(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, InvalidEnvironment> {
        let Some(driver) = lookup(DRIVER).filter(|driver| !driver.is_empty()) else {
            return Ok(None);
        };
        let need = |variable| lookup(variable).ok_or(InvalidEnvironment::Missing { variable });
        let job = need(JOB)?;
        let job = uuid::Uuid::from_str(&job).map(JobId).map_err(|_| {
            InvalidEnvironment::Malformed { variable: JOB, value: job, expected: "a UUID" }
        })?;
        let worker = need(WORKER)?;
        let worker = parse_worker(&worker).ok_or(InvalidEnvironment::Malformed {
            variable: WORKER,
            value: worker,
            expected: "HOST[SLOT]#INCARNATION",
        })?;
        Ok(Some(Self { driver, job, worker, credential: need(CREDENTIAL)? }))
    }

    /// The address of the driver, of the first name that resolves to one, with that name.
    ///
    /// # Errors
    /// The resolver's error for the last name.
    pub fn driver_address(&self) -> io::Result<(SocketAddr, &str)> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for name in self.driver.split(',') {
            match name.to_socket_addrs().map(|mut addresses| addresses.next()) {
                Ok(Some(address)) => return Ok((address, name)),
                Ok(None) => {
                    let what = format!("{name} has no address");
                    failure = io::Error::new(io::ErrorKind::NotFound, what);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// The reverse of `WorkerId`'s `Display`. A host name may hold brackets itself, so the text is parsed from the
/// end.
pub fn parse_worker(text: &str) -> Option<WorkerId> {
    let (place, incarnation) = text.rsplit_once("]#")?;
    let (host, slot) = place.rsplit_once('[')?;
    Some(WorkerId {
        host: HostName::new(host).ok()?,
        slot: slot.parse().ok()?,
        incarnation: Incarnation(incarnation.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        variables: &[(String, String)],
    ) -> Result<Option<WorkerEnvironment>, InvalidEnvironment> {
        WorkerEnvironment::parse(|name| {
            variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn x_20_what_is_written_is_read_whatever_the_host_is_called() {
        for host in ["a", "with space", "[::1]#4", "ü/../x"] {
            let host = HostName::new(host).expect("a literal");
            let worker = WorkerId { host, slot: 3, incarnation: Incarnation(17) };
            let job = JobId(uuid::Uuid::from_u128(5));
            let mut variables = variables("127.0.0.1:7070", job, &worker);
            variables.push((CREDENTIAL.to_owned(), "secret".to_owned()));
            let read = read(&variables).expect("well formed").expect("there is a driver");
            assert_eq!((read.job, &read.worker), (job, &worker));
            assert!(!format!("{read:?}").contains("secret"));
        }
    }

    fn variables(driver: &str, job: JobId, worker: &WorkerId) -> Vec<(String, String)> {
        let of_driver = elastic_protocol::environment::of_worker(driver, job, worker);
        of_driver.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn the_first_driver_that_has_an_address_is_taken() {
        let worker = parse_worker("a[0]#1").expect("a literal");
        let drivers = "no-port,127.0.0.1:7,127.0.0.1:8";
        let mut variables = variables(drivers, JobId(uuid::Uuid::nil()), &worker);
        variables.push((CREDENTIAL.to_owned(), "secret".to_owned()));
        let read = read(&variables).expect("well formed").expect("there is a driver");
        let (address, name) = read.driver_address().expect("the second has one");
        assert_eq!((address.to_string().as_str(), name), ("127.0.0.1:7", "127.0.0.1:7"));
    }

    #[test]
    fn without_a_driver_nothing_is_demanded() {
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn what_is_missing_or_malformed_is_named() {
        let worker = parse_worker("a[0]#1").expect("a literal");
        let job = JobId(uuid::Uuid::nil());
        let mut variables = variables("d:1", job, &worker);
        assert_eq!(read(&variables), Err(InvalidEnvironment::Missing { variable: CREDENTIAL }));
        variables[2].1 = "a[x]#1".to_owned();
        assert!(matches!(
            read(&variables),
            Err(InvalidEnvironment::Malformed { variable: WORKER, .. })
        ));
    }
}
