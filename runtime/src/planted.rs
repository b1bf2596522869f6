//! Planted bugs: the proof that the simulation can fail. A core asks [`is_planted`] at the place where it
//! would be wrong; without the feature `planted-bugs` the answer is a constant `false`, and the place is gone.
//! With it, `sim bugs` plants one bug at a time on its own thread.

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal, $room:literal;)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum Bug {
            $($(#[$doc])* $bug,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }

            /// Where it is planted.
            pub const fn room(self) -> &'static str {
                match self {
                    $(Self::$bug => $room,)*
                }
            }

            /// Whether only a job by restart can meet it.
            pub const fn is_by_restart(self) -> bool {
                matches!(
                    self,
                    Self::ProcessesOutliveGeneration
                        | Self::ProcessesNotTakenOver
                        | Self::RankOfAnother
                )
            }
        }
    };
}

bugs! {
    /// Who is lost with its host is still waited for.
    LostStillWaitedFor = "who is lost is still waited for", "driver";
    /// The root is rank 0, whatever it holds (G-8).
    RootIsRankZero = "the root is rank 0 whatever it holds", "driver";
    /// Sync is skipped although a newcomer has proved nothing (G-6; Horovod #3494).
    SkipWithoutProof = "sync is skipped although a newcomer has no commit", "driver";
    /// A change of hosts is forgotten that comes while a generation forms (G-7).
    ChangeWhileFormingIsLost = "a change of hosts while a generation forms is lost", "driver";
    /// A slot in back-off is not looked at again.
    BackOffNeverEnds = "a slot's back-off never ends", "driver";
    /// The end of a member's process does not end its generation (G-12).
    DeathIgnored = "the death of a member does not end its generation", "driver";
    /// A process that never comes to the library is waited for without end (G-9, X-14).
    StartHasNoDeadline = "a start has no deadline", "driver";
    /// All are told to stop at a boundary that some have passed.
    StopsInThePast = "the agreed boundary is one that was passed", "driver";
    /// A newcomer is told a change of a table that it was never told of.
    DeltaToNewcomer = "a newcomer is told the change of a table that it does not have", "driver";
    /// A new generation has the number of the one before (G-2).
    GenerationNumberReused = "a generation's number is used again", "driver";
    /// The hosts of a driver that has been told twice are in another order in each run.
    RandomOrder = "members are told in the order of a hash map", "driver";
    /// A change that is undone leaves the members paused.
    ResumeNotSent = "nobody is told to go on when a change is undone", "driver";
    /// By restart, the processes of a generation are not stopped when it ends.
    ProcessesOutliveGeneration = "by restart, a generation's processes are not stopped", "driver";
    /// By restart, a new driver waits for processes to attach (D-3).
    ProcessesNotTakenOver = "by restart, a new driver waits for processes to attach", "driver";
    /// By restart, a process is started with the rank of the one after it (G-3).
    RankOfAnother = "by restart, a process has the rank of another", "driver";
    /// Who comes back with its host, and has not come to rest yet, is not waited for (G-5).
    HolderBackForgotten = "a holder that is just back is not waited for", "driver";
    /// Who comes back with its host is stopped because its slot is not used, whatever it holds (G-5).
    HolderBackStopped = "a holder that is just back is stopped with its slot", "driver";
    /// A driver that takes over gives workers the numbers that its predecessor gave (D-1).
    IncarnationsBeginAnew = "a new driver gives incarnations out from the beginning", "driver";
    /// A driver that takes over acts under its predecessor's term (D-1).
    TermKept = "a new driver keeps its predecessor's term", "driver";
    /// A driver that takes over gives nobody the time to come back (D-3).
    TakeoverDoesNotWait = "a new driver does not wait for those who were there", "driver";
    /// A driver that takes over ends the generation that it finds (D-3).
    TakeoverResets = "a new driver ends the generation that it finds", "driver";
    /// What depends on a record leaves before that is stored (D-4).
    RecordNotWaitedFor = "what depends on a record does not wait for it", "driver";
    /// A batch that could not be stored counts as stored (D-4).
    FailedBatchCountsAsStored = "a batch that could not be stored counts as stored", "driver";
    /// A READY is lost.
    LostVote = "a READY of rank 1 is lost", "registry";
    /// The barrier opens when all but one are READY.
    BarrierOneShort = "the barrier opens one short", "registry";
    /// A vote that is repeated counts for somebody else.
    RepeatedVoteCountsTwice = "a repeated vote counts twice", "registry";
    /// A blacklisted host never comes back.
    BlacklistNeverEnds = "a blacklisting never ends", "host manager";
    /// A discovery that fails empties the list (H-15).
    FailedDiscoveryEmptiesList = "a failed discovery empties the list", "host manager";
    /// After a discovery that fails there is no other.
    PollingStops = "polling stops at the first failure", "host manager";
    /// A host that returns keeps its old place (H-17).
    AbsentHostKept = "a host that left the list is kept", "host manager";
    /// Two workers take one rank (G-3).
    RankGivenTwice = "a rank is taken twice", "state";
    /// A change is applied, unchecked, to the table of the last generation that has passed its barrier.
    ChangeOfWrongTable = "the change of a table is applied to another one", "state";
    /// On arrival nothing is said of the commit that is held (G-8).
    CommitNotTold = "the commit is not told on arrival", "state";
    /// The pause of one generation goes on in the next.
    PauseOutlivesGeneration = "a pause outlives its generation", "state";
    /// What the driver missed is not told on a new connection.
    NothingAnnounced = "nothing is announced on a new connection", "state";
    /// A driver that was succeeded is listened to (D-2).
    FormerDriverHeeded = "a driver that was succeeded is heeded", "state";
    /// A boundary is passed in spite of the promise.
    PromiseBroken = "a boundary is passed in spite of the promise", "state";
    /// The commit that is told is the first one.
    OldCommitTold = "an old commit is told on arrival", "state";
    /// The driver is not told of processes that died by a signal.
    DeathNotReported = "a death by signal is not reported", "agent";
    /// A driver that was succeeded is obeyed (D-2).
    FormerDriverObeyed = "a driver that was succeeded is obeyed", "agent";
    /// A process that ignores SIGTERM is left alone.
    NeverKills = "SIGKILL is never sent", "agent";
    /// An agent stays for ever when the driver is gone.
    NeverAlone = "an agent outlives its driver without end", "agent";
    /// Data of a generation that has ended is delivered (G-4).
    LateDataDelivered = "late data of an ended generation is delivered", "collectives";
    /// A contribution that had to wait counts twice.
    ContributionTwice = "a contribution that was delayed counts twice", "collectives";
    /// A collective does not watch the abort word.
    AbortWordIgnored = "a blocked collective ignores the abort word", "collectives";
    /// A rollback restores the counters and not the weights (H-22).
    RollbackKeepsWeights = "a rollback keeps the weights", "program";
    /// The sampler goes on with the world size of the generation before (H-23).
    SamplerKeepsWorldSize = "the sampler keeps the old world size", "program";
}

#[cfg(feature = "planted-bugs")]
mod selected {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether this bug is planted on this thread.
    #[inline]
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants a bug on this thread in place of the one before, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }
}

#[cfg(feature = "planted-bugs")]
pub use selected::{is_planted, plant};

/// Whether this bug is planted on this thread: never, without the feature.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}
