//! The store that several drivers share: `--store` with its certificates and the secret that seals the job's key there.
//! Called by `driver_plan`.

use std::path::Path;
use std::time::Duration;

use elastic_journal::etcd::{EtcdAddress, EtcdTls};
use elastic_transport::SharedSecret;

use super::driver_flags::DriverFlags;
use super::failure::CommandFailure;
use crate::process::{plain_file, read_secret_file};

/// Shortest leader lease.
const LEAST_LEASE: Duration = Duration::from_secs(1);

/// Most bytes of a file in PEM: all authorities of a distribution take a quarter of it.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// The store, and the secret with which the job's private key is sealed there.
#[derive(Clone, Debug)]
pub(crate) struct StorePlan {
    /// The address of etcd.
    pub(crate) address: EtcdAddress,
    /// The secret of the drivers, if they were given one.
    pub(crate) secret: Option<SharedSecret>,
}

/// The store that several drivers share, if one is given.
pub(super) fn store(flags: &DriverFlags) -> Result<Option<StorePlan>, CommandFailure> {
    let needs_store = [
        ("--standby", flags.standby),
        ("--lease-timeout", flags.lease_timeout.is_some()),
        ("--store-ca", flags.store_ca.is_some()),
        ("--store-cert", flags.store_cert.is_some()),
        ("--store-key", flags.store_key.is_some()),
        ("--store-secret", flags.store_secret.is_some()),
    ];
    let Some(address) = &flags.store else {
        return match needs_store.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => {
                Err(CommandFailure::usage(format!("{flag} is given, but no --store"))
                    .hint("drivers that stand by share a store: --store etcd://HOST:PORT/NAME"))
            }
            None => Ok(None),
        };
    };
    if flags.lease_timeout.is_some_and(|lease| lease < LEAST_LEASE) {
        return Err(CommandFailure::usage("--lease-timeout is less than a second")
            .hint("etcd's leases last whole seconds, two at least with its default settings"));
    }
    let address = EtcdAddress { tls: tls(flags)?, ..address.clone() };
    let secret = flags.store_secret.as_deref().map(secret).transpose()?;
    Ok(Some(StorePlan { address, secret }))
}

fn tls(flags: &DriverFlags) -> Result<Option<EtcdTls>, CommandFailure> {
    let client = match (&flags.store_cert, &flags.store_key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (given, _) => {
            let (given, missing) = match given {
                Some(_) => ("--store-cert", "--store-key"),
                None => ("--store-key", "--store-cert"),
            };
            return Err(CommandFailure::usage(format!("{given} is given, but no {missing}"))
                .hint("a certificate and its key belong together: give both, or neither"));
        }
    };
    let Some(authority) = &flags.store_ca else {
        return match client {
            Some(_) => Err(CommandFailure::usage("--store-cert is given, but no --store-ca").hint(
                "give the authority that etcd's own certificate comes from: --store-ca FILE",
            )),
            None => Ok(None),
        };
    };
    let authority = read("--store-ca", authority)?;
    let client = match client {
        Some((certificate, key)) => {
            Some((read("--store-cert", certificate)?, read("--store-key", key)?))
        }
        None => None,
    };
    let client = client.as_ref().map(|(chain, key)| (chain.as_slice(), key.as_slice()));
    EtcdTls::from_pem(&authority, client).map(Some).map_err(|error| {
        CommandFailure::usage("the certificates for --store cannot be used")
            .source(error)
            .hint("--store-ca, --store-cert and --store-key take files in PEM, as etcdctl's do")
    })
}

fn read(flag: &str, file: &Path) -> Result<Vec<u8>, CommandFailure> {
    plain_file::read(file, PEM_BYTES_MAX).map_err(|error| {
        CommandFailure::usage(format!("{flag} {} cannot be read", file.display()))
            .source(error)
            .hint("give a file in PEM that this user may read")
    })
}

fn secret(file: &Path) -> Result<SharedSecret, CommandFailure> {
    let text = read_secret_file(file).map_err(|error| {
        CommandFailure::usage(format!("--store-secret {} cannot be used", file.display()))
            .source(error)
            .hint("give a file of mode 0600 with a long text, the same for every driver of the job")
    })?;
    Ok(SharedSecret::of(&text))
}
