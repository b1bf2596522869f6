//! The possible uses of a second of a slot. Used by the ledger and its readers.

use std::fmt;

macro_rules! buckets {
    ($($(#[$doc:meta])* $bucket:ident = $name:literal;)*) => {
        /// A use of slot-time. Every second of every listed slot is in exactly one bucket.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub enum TimeBucket {
            $($(#[$doc])* $bucket,)*
        }

        impl TimeBucket {
            /// All of them.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$bucket,)*];

            /// Number of buckets.
            pub const COUNT: usize = [$($name,)*].len();

            /// Name in `status --json`, metrics and the event log.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bucket => $name,)*
                }
            }
        }
    };
}

buckets! {
    /// Training that was kept.
    Training = "training";
    /// Training that an abort undid: the steps after the last commit, or committed ones that nobody holds any more.
    Lost = "lost";
    /// Training threads waited for their data.
    Data = "data";
    /// Training threads made the copies of their commits, from which checkpoints are saved and resets restored.
    CheckpointStall = "checkpoint_stall";
    /// Members waited for one that computes for longer than the others.
    Straggler = "straggler";
    /// A member hung, and the others waited for it.
    Hung = "hung";
    /// From the first sign of a failure to the decision to reset.
    Detecting = "detecting";
    /// From the decision of a planned end to the next generation: its members train up to the agreed step, and arrive.
    Pausing = "pausing";
    /// From the end of a generation to the next one: members arrive, and enough workers are waited for.
    Gathering = "gathering";
    /// The same, while the hosts that are there have fewer slots than the job needs.
    Idle = "idle";
    /// The members make their communicators.
    Forming = "forming";
    /// The members take the root's state over.
    Syncing = "syncing";
    /// The worker's process was ordered, and does not run yet.
    Starting = "starting";
    /// The worker's process runs, and has not called the library yet.
    Importing = "importing";
    /// The worker is there, and the generation that trains does without it until the next one.
    Waiting = "waiting";
    /// The worker is there, and a generation was formed without it.
    Spare = "spare";
    /// No process: the last one failed.
    Backoff = "backoff";
    /// No process, and none has failed: none was needed, or it is about to be started.
    Vacant = "vacant";
    /// The host is listed, and has no agent.
    Absent = "absent";
    /// The host is blacklisted.
    Blacklisted = "blacklisted";
    /// The operator has taken the host out.
    Drained = "drained";
    /// The worker was told to end, and its process has not ended yet.
    Leaving = "leaving";
    /// The worker's process ended with success while others still train.
    Finished = "finished";
    /// The job is over, and its processes leave.
    Ending = "ending";
    /// There was no driver that could see the slot's activity.
    DriverAway = "driver_away";
}

impl fmt::Display for TimeBucket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
