//! The store in etcd: one journal for several drivers, of which at most one leads. Opened by the driver's process for
//! `--store etcd://…`.
//!
//! The holder of the leader key acts. The key is bound to a lease that its holder renews. Every write of the journal
//! checks in the same transaction that the key is still the one that the writer made. A driver that has lost its lease
//! therefore cannot write any more, even if it has not noticed the loss. The write fails with [`JournalError::Fenced`]
//! if another driver has the key, and with [`JournalError::NotLeading`] if none has it.
//!
//! The store uses etcd's JSON interface (`/v3/…`, served by every member since 3.4) with blocking calls, since
//! gRPC clients need a protocol compiler on every machine that builds this project.
//!
//! Keys, below `<prefix>/`, the job's place:
//!
//! | key | value |
//! | --- | --- |
//! | `leader` | the card of the driver that acts, under its lease |
//! | `standby/<id>` | the card of a driver that stands by, under its lease |
//! | `over` | the last words of the driver that ended the job here last |
//! | `head` | the numbers of the valid records and snapshot: others were never acknowledged |
//! | `record/<number>/<part>`, `snapshot/<number>/<part>` | sealed, in parts that a request may carry |

mod address;
mod election;
mod gateway;
mod head;
mod journal;
mod keeper;
mod lease;
mod tls;
mod wire;

pub use self::address::{EtcdAddress, InvalidAddress};
pub use self::election::{Campaign, Candidate, DriverCard, LeaderSign, Leadership, StoreRevision};
pub use self::gateway::Gateway;
pub use self::head::SeenRecords;
pub use self::journal::EtcdJournal;
pub use self::keeper::{Keeper, KeeperMessage, Permit};
pub use self::lease::{Lease, LeaseEnd};
pub use self::tls::{EtcdTls, InvalidEtcdTls};

#[cfg(doc)]
use crate::JournalError;
