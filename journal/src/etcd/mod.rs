//! The store in etcd: one journal for several drivers, of which exactly one acts. Opened by the driver's process for
//! `--store etcd://…`.
//!
//! Whoever holds the leader key acts. The key lies under a lease that its holder renews; every write of the journal
//! compares the key with what its holder won, in the same transaction, so that a driver whose lease has gone to another
//! writes nothing any more, whatever it believes ([`JournalError::Fenced`]).
//!
//! It speaks etcd's JSON interface (`/v3/…`, served by every member since 3.4) with blocking calls: the gRPC clients
//! need a protocol compiler on every machine that builds this one.
//!
//! Keys, below `<prefix>/`, the job's place:
//!
//! | key | value |
//! | --- | --- |
//! | `leader` | the card of the driver that acts, under its lease |
//! | `standby/<id>` | the card of a driver that stands by, under its lease |
//! | `over` | the last words of the driver that ended the job here last |
//! | `head` | which records and snapshot count: what is not in it was never acknowledged |
//! | `record/<number>/<part>`, `snapshot/<number>/<part>` | sealed, in parts that a request may carry |

mod address;
mod election;
mod gateway;
mod head;
mod journal;
mod keeper;
mod lease;
mod wire;

pub use self::address::{EtcdAddress, InvalidAddress};
pub use self::election::{Campaign, Candidate, DriverCard, Leadership, Moment};
pub use self::gateway::Gateway;
pub use self::journal::EtcdJournal;
pub use self::keeper::{Keeper, Permit, Told};
pub use self::lease::{Lease, LeaseEnd};

#[cfg(doc)]
use crate::JournalError;
