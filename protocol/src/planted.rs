//! Planted bugs: the proof that the simulation can fail. A core asks [`is_planted`] at the place of the
//! mistake. Without the feature `planted-bugs` the answer is a constant `false`, and the compiler removes the
//! place. With the feature, `sim bugs` plants one bug at a time, on a thread of its own.

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

            /// The room in which it is planted.
            pub const fn room(self) -> &'static str {
                match self {
                    $(Self::$bug => $room,)*
                }
            }

            /// Whether the bug is in the training thread, which mode `training` runs alone.
            pub const fn is_of_training(self) -> bool {
                matches!(
                    self,
                    Self::LedgerNotRestored
                        | Self::ScribblesKept
                        | Self::StepsComparedAlone
                        | Self::UndoneStepsNotCounted
                        | Self::UnbegunGenerationCounts
                        | Self::UnwrapAtTheEndFails
                        | Self::UnlistedAtOnceFatal
                        | Self::BlameForgotten
                        | Self::HalfACommit
                        | Self::VainPartWritten
                )
            }

            /// Whether the bug is in the key-value store or its relays, which mode `store` runs alone.
            pub const fn is_of_store(self) -> bool {
                matches!(
                    self,
                    Self::FormerAnswerTaken
                        | Self::WaitersForgotten
                        | Self::DeferredOvertaken
                        | Self::TurnNotTaken
                        | Self::FormerKeysRead
                        | Self::NewcomerCountsAsOld
                        | Self::RequestsNotSentAgain
                        | Self::ClosedClientKept
                )
            }

            /// Whether the bug shows only in a job that restarts its processes for each generation.
            pub const fn is_by_restart(self) -> bool {
                matches!(
                    self,
                    Self::ProcessesOutliveGeneration
                        | Self::InactivityAssumed
                        | Self::InactivityForgotten
                        | Self::RecorderIgnored
                        | Self::ProcessesNotTakenOver
                        | Self::RankOfAnother
                )
            }
        }
    };
}

bugs! {
    /// The driver still waits for a worker that was lost with its host.
    LostStillWaitedFor = "who is lost is still waited for", "driver";
    /// The root is rank 0, even if another member holds a higher commit (G-8).
    RootIsRankZero = "the root is rank 0 whatever it holds", "driver";
    /// Sync is skipped although a newcomer proved nothing (G-6; Horovod #3494).
    SkipWithoutProof = "sync is skipped although a newcomer has no commit", "driver";
    /// A change of hosts is forgotten if it comes while a generation forms (G-7).
    ChangeWhileFormingIsLost = "a change of hosts while a generation forms is lost", "driver";
    /// A slot in back-off is never looked at again.
    BackOffNeverEnds = "a slot's back-off never ends", "driver";
    /// The end of a member's process does not end its generation (G-12).
    DeathIgnored = "the death of a member does not end its generation", "driver";
    /// A member for which others wait for ever is never named.
    HangNeverNamed = "a hang is never named", "driver";
    /// A look at a member has no end where more members than are shown come before it: the driver's timer fires without end.
    LookBehindOthersForgotten = "a look at a member is forgotten behind others, and stays due", "driver";
    /// The driver names the waiting members, as watchdogs of single ranks do.
    WaiterNamed = "those who wait are named, not those who are awaited", "driver";
    /// Every member in any collective counts as waiting for the others, even in different groups.
    OtherCollectiveIgnored = "a rank in another collective counts as one that waits", "driver";
    /// Every wait is held to the limit of one for a stopped process, regardless of the process's activity and of the
    /// usual time.
    EveryWaitIsAHang = "a wait of a second is a hang, whatever the process does", "driver";
    /// A member is replaced although fewer workers than `--min-np` are left, spare slots counted.
    ReplacedBelowMin = "a member is replaced although too few are left", "driver";
    /// However many members were replaced in the last hour, the next one is.
    ReplacementsUnbounded = "any number of members is replaced in an hour", "driver";
    /// Another member than the one that was named is replaced.
    NeighbourReplaced = "a neighbour is replaced for the one that is slow", "driver";
    /// Another member than the one that is slow carries fewer shards.
    NeighbourCarriesLess = "a neighbour of the slow rank carries fewer shards", "driver";
    /// Shards are dealt anew as often as paces change, without a pause.
    RebalancedWithoutCoolDown = "shards are dealt anew without a cool-down", "driver";
    /// The first rank deals the shards evenly, regardless of the driver's deal.
    RankDealsByItself = "one rank does not take the driver's deal of shards", "program";
    /// A host whose health check fails is used again once its cool-down is over.
    FailedCheckIgnored = "a host whose health check fails is used again", "driver";
    /// The slots of replaced members are at rest for ever.
    RestNeverEnds = "a slot's cool-down never ends", "driver";
    /// By restart, every member counts as inactive, regardless of its process's activity.
    InactivityAssumed = "by restart, a process that works counts as inactive", "driver";
    /// By restart, every look at a process forgets for how long it has been inactive: a hang is never named.
    InactivityForgotten = "by restart, each look forgets how long a process has been inactive", "driver";
    /// By restart, the counts of torch's flight recorder are not compared: if two processes wait alike, nobody is named.
    RecorderIgnored = "by restart, what the flight recorder counts is ignored", "driver";
    /// A holder of an old commit is the root, although a checkpoint is of a later generation.
    OldCommitPreferred = "an old commit is preferred to a later checkpoint", "driver";
    /// A wait for a worker in a section of its program is held to the limit of waits outside of sections.
    SectionsIgnored = "a wait for a worker in a section is held to the limit of the others", "driver";
    /// The driver compares how long members wait, not how long they compute: it finds the victims of a slow member.
    StragglerByWaiting = "members are compared by how long they wait, not compute", "driver";
    /// One slow look at a member names it: a moment's load is taken for a slow host.
    StragglerAtOnce = "a member that is slow once is named as a straggler", "driver";
    /// One slow look at a link names it: a moment's load is taken for a slow link.
    LinkSlowAtOnce = "a link that is slow once is named", "driver";
    /// The links of a host are judged although its members compute slowly, and so send and receive slowly.
    LinksOfSlowHostNamed = "the links of a host that computes slowly are named", "driver";
    /// The driver takes the sender of a link for its receiver.
    LinkTurnedAround = "a slow link is named in the opposite direction", "driver";
    /// Of replicas that differ, the driver takes the minority's for the right ones.
    MajorityIsWrong = "of replicas that differ, the majority is accused", "driver";
    /// The driver accuses ranks of arrays that were never alike: each rank's own averages are taken for a difference.
    PerRankStateAccused = "arrays that each rank has of its own are taken for replicas that differ", "driver";
    /// The driver compares the members' arrays, and not the passes that their batches come from.
    PassesNotCompared = "members that go through a pass of their data apart are not told from others", "driver";
    /// A member that goes through a pass in a further way of its own is taken for one that goes apart.
    FurtherWayIsApart = "a pass in which one member goes a further way ends the job", "driver";
    /// After replicas differed, the next generation may begin from the one that differed.
    DistrustForgotten = "a repair takes the content of the replica that differed", "driver";
    /// A driver that takes over does not know which replicas its predecessor found to differ.
    DistrustNotRecorded = "whom a majority disagrees with is not journalled", "driver";
    /// A death that is known before the exit status counts as two failures of the slot.
    DeathCountsTwice = "a death counts twice, before and with its exit status", "driver";
    /// A death whose reset is over when the exit status comes keeps its provisional cause.
    DeathStaysUnexplained = "the exit status of a death does not reach its reset", "driver";
    /// A death keeps its provisional cause if the exit status comes before the verdict upon it.
    ExitBeforeVerdictForgotten = "an exit status before the verdict upon its death is forgotten", "driver";
    /// A worker that attaches again is still looked for at its first address.
    FirstAddressKept = "a worker's new address is not taken", "driver";
    /// A lane that answers again is still said to hang.
    LaneNeverAnswers = "a lane that answers again is still said to hang", "driver";
    /// The driver waits without end for a process that never comes to the library (G-9, X-14).
    StartHasNoDeadline = "a start has no deadline", "driver";
    /// The elastic timeout passes unnoticed (G-9).
    ElasticTimeoutIgnored = "the elastic timeout ends nothing", "driver";
    /// One member is not asked to pause, so the others wait for it.
    PauseNotToldToAll = "one member is not asked to pause", "driver";
    /// One more reset than the limit allows.
    ResetLimitOneMore = "one reset more than the limit is allowed", "registry";
    /// A process that the driver has refused for its library's release counts against its host.
    OtherReleaseBlamed = "a library of another release counts against its host", "driver";
    /// A host is blacklisted one failure too early.
    BlamedTooEarly = "a host is blamed one failure too early", "driver";
    /// All members are told to stop at a boundary that some have passed.
    StopsInThePast = "the agreed boundary is one that was passed", "driver";
    /// A newcomer is sent the delta of a table that it never got.
    DeltaToNewcomer = "a newcomer is told the change of a table that it does not have", "driver";
    /// A new generation has the number of the one before (G-2).
    GenerationNumberReused = "a generation's number is used again", "driver";
    /// The journal does not reserve the next generation's number before it may be told (D-1).
    NextNumberNotReserved = "the number that is told next is not in the journal", "driver";
    /// After a takeover, the number after the one that a former driver reserved is told before it is on record (D-1).
    SkippedNumberTakenForReserved = "a number is told after a takeover that is not reserved", "driver";
    /// Training begins again before the last checkpoint, and nobody is told (C-1).
    GoneCheckpointNotTold = "a checkpoint that is gone is not told", "driver";
    /// Steps that are in a checkpoint of which no driver had heard stay counted as lost (L-1).
    RegainedStepsStayLost = "steps of a checkpoint that is later than known stay lost", "driver";
    /// A member that hangs is not named once its generation ends: the next one waits for it for the elastic timeout (G-9).
    HangForgottenAtEnd = "a hang is not named once its generation ends", "driver";
    /// Members are told in the order of a hash map, which differs in each run.
    RandomOrder = "members are told in the order of a hash map", "driver";
    /// Members stay paused after the change that asked for the pause was undone.
    ResumeNotSent = "nobody is told to go on when a change is undone", "driver";
    /// By restart, the processes of a generation are not stopped when it ends.
    ProcessesOutliveGeneration = "by restart, a generation's processes are not stopped", "driver";
    /// By restart, a new driver waits for processes to attach (D-3).
    ProcessesNotTakenOver = "by restart, a new driver waits for processes to attach", "driver";
    /// By restart, a process is started with the rank of the one after it (G-3).
    RankOfAnother = "by restart, a process has the rank of another", "driver";
    /// In mode auto, nobody waits for the processes that are kept to attach, too (G-9).
    KeptNotAwaited = "a process that is kept in mode auto may take for ever to attach", "driver";
    /// In mode auto, a process that left its job counts as one that has done its part (G-10).
    LeftCountsAsDone = "a worker that left before its driver knew it counts as done", "driver";
    /// A job whose program ends without training is not over when all its processes have ended (G-10).
    UntrainedJobGoesOn = "a program that does not train never ends its job", "driver";
    /// A driver that takes over counts the program as missing everywhere, though it has run (G-10).
    ProgramForgotten = "a new driver does not know that the program has run", "driver";
    /// SIGTERM ends the job although another driver stands by (D-3).
    StandbyNotUsed = "SIGTERM ends a job for which another driver stands by", "driver";
    /// A node that joins is not told the standbys.
    StandbysUntold = "who joins does not learn which drivers stand by", "driver";
    /// A worker that comes back with its host, and is not at rest yet, is not waited for (G-5).
    HolderBackForgotten = "a holder that is just back is not waited for", "driver";
    /// A worker that comes back with its host is stopped because its slot is unused, even if it holds a commit (G-5).
    HolderBackStopped = "a holder that is just back is stopped with its slot", "driver";
    /// A driver that takes over gives workers incarnations that its predecessor has given out (D-1).
    IncarnationsBeginAnew = "a new driver gives incarnations out from the beginning", "driver";
    /// A driver that takes over acts under its predecessor's term (D-1).
    TermKept = "a new driver keeps its predecessor's term", "driver";
    /// A driver that takes over leaves agents and workers no time to come back (D-3).
    TakeoverDoesNotWait = "a new driver does not wait for those who were there", "driver";
    /// A driver that takes over ends the generation that it finds (D-3).
    TakeoverResets = "a new driver ends the generation that it finds", "driver";
    /// A message that depends on a record leaves before the record is stored (D-4).
    RecordNotWaitedFor = "what depends on a record does not wait for it", "driver";
    /// A batch of records that could not be stored counts as stored (D-4).
    FailedBatchCountsAsStored = "a batch that could not be stored counts as stored", "driver";
    /// The commit with which a worker rests is not journalled (D-4).
    CommitNotRecorded = "a commit at rest is not journalled", "driver";
    /// A timer that comes early has the driver compare the present state with the wanted one at once.
    EarlyTimerObeyed = "a timer that comes early is taken for the one that was set", "driver";
    /// The deadline of a phase counts while the phase's orders wait for the journal (G-9).
    LateForHeldOrders = "who has not been told is late", "driver";
    /// A driver that was paused evicts members whose answers it has not read (G-5).
    LateForOwnPause = "a driver that was paused finds members late as it goes on", "driver";
    /// The welcome of a node waits for the journal, as other words do (G-9).
    WelcomeHeld = "who is back is not welcomed while the disk stores nothing", "driver";
    /// The end of a job that cannot be stored is not told, however long that lasts (G-9).
    UnstoredEndNotTold = "an end that cannot be stored is never told", "driver";
    /// A job that is ended at once waits for a disk that does not answer.
    UnstoredStopWaits = "a job that is stopped twice waits for a disk that stores nothing", "driver";
    /// If the end of a job is not stored, outputs that wait for the journal leave all the same, even those with numbers
    /// that are not stored (D-4).
    UnstoredNumbersLeave = "an end that is not stored lets out what begins a generation", "driver";
    /// A driver tries to write on in the place where another journal stands (D-2).
    DisplacedGoesOn = "a driver goes on where another journal stands in the place of its own", "driver";
    /// One member is not told the agreed boundary, and trains on (G-9).
    StopNotToldToAll = "one member is not told where to stop", "driver";
    /// A driver that takes over counts resets from zero (D-4).
    ResetsCountedAnew = "a new driver counts resets from zero", "driver";
    /// A driver that takes over counts on a process that its predecessor has had stopped (G-5).
    StopOfAnotherUnknown = "a driver counts on processes that are being stopped", "driver";
    /// The host manager is not told that a host is lost, and keeps it (G-7).
    LostHostNotTold = "the host manager is not told that a host is lost", "driver";
    /// A batch of records is given while another is being stored (D-4).
    TwoBatchesAtOnce = "a batch is given while another is being stored", "driver";
    /// The status names the process of a worker only until the worker attaches.
    ProcessNotNamed = "the status does not name the process of a worker", "driver";
    /// Generations that break again and again are formed without a pause between them.
    NoPauseBetweenResets = "resets without progress follow each other without a pause", "driver";
    /// Hosts between which generations break again and again are never parted (G-9).
    QuarrelNeverEnds = "hosts that do not reach each other are never parted", "driver";
    /// A member that passes on another one's report of a broken link counts as a witness of it (G-9).
    HearsayCounts = "who passes a report of a broken link on counts as its witness", "driver";
    /// A host is parted from another one although only it holds the highest commit (G-5).
    PartedWithTheCommit = "a host is parted from others with the only commit", "driver";
    /// A worker to which its own system refuses a resource for forming is not replaced (G-9).
    RefusedIsKept = "who is refused by its own system is not replaced", "driver";
    /// A checkpoint is made whole before all its parts are safe.
    SealedTooEarly = "a checkpoint is made whole before all its parts are safe", "driver";
    /// Training begins again from the start, and no message says so (G-10).
    LossNotTold = "the loss of the training state is not told", "driver";
    /// A job that must fail at the loss of its training state begins again from the start.
    TotalLossTolerated = "a job begins again from the start although it may not", "driver";
    /// A slot whose worker was told to leave from outside is filled again.
    NoticedSlotRefilled = "a slot whose worker was told to leave is filled again", "driver";
    /// A worker that is ready is left out of the next generation (G-7).
    ReadyLeftOut = "one ready worker is left out of a generation", "driver";
    /// A slot that is not listed any more is still counted in its bucket.
    GoneSlotCounted = "the time of a slot that is gone is still counted", "observe";
    /// The slots of a generation stay in the bucket of a hang that has ended.
    HangStaysBooked = "the time after a hang is still counted as hung", "observe";
    /// A node that was paused counts the pause as its peers' silence (D-3).
    PauseNotExcused = "a node judges its peers by time in which it stood still", "transport";
    /// An agent that gets no processor is lost as one that is gone.
    StarvedGivenUp = "a starved agent of the driver's own machine is lost", "transport";
    /// The session with a silent driver is given up as soon as any other session (D-3).
    SilentDriverForgotten = "the session with a driver that is paused is given up", "transport";
    /// A message that a peer's port is closed ends its session, regardless of its sender.
    RefusalBelieved = "a peer is lost as soon as a port is said to be closed", "transport";
    /// A frame that was delivered is never acknowledged to its sender (TR-6).
    NothingAcknowledged = "what was delivered is not acknowledged", "session";
    /// Frames in flight when a connection broke are not sent again (TR-1).
    InFlightForgotten = "what was on its way is not sent again over the next connection", "session";
    /// A READY is lost.
    LostVote = "a READY of rank 1 is lost", "registry";
    /// The barrier opens when all but one are READY.
    BarrierOneShort = "the barrier opens one short", "registry";
    /// Members that have voted are named among those whose votes are missing.
    VotersEvicted = "who has voted is evicted with the late ones", "registry";
    /// A blacklisted host never comes back.
    BlacklistNeverEnds = "a blacklisting never ends", "host manager";
    /// A failed discovery empties the list of hosts (H-15).
    FailedDiscoveryEmptiesList = "a failed discovery empties the list", "host manager";
    /// After a failed discovery there is no further one.
    PollingStops = "polling stops at the first failure", "host manager";
    /// A host whose slots cannot be read leaves the list (H-15).
    UnclearHostLeaves = "a host whose slots cannot be read leaves the list", "host manager";
    /// Every cooldown of a blacklisted host is as long as its first.
    CooldownNotDoubled = "a cooldown does not double", "host manager";
    /// A host that returns keeps its old place (H-17).
    AbsentHostKept = "a host that left the list is kept", "host manager";
    /// Two workers take one rank (G-3).
    RankGivenTwice = "a rank is taken twice", "state";
    /// A delta is applied, unchecked, to the table of the last generation that passed its barrier.
    ChangeOfWrongTable = "the change of a table is applied to another one", "state";
    /// On arrival the worker does not tell the commit that it holds (G-8).
    CommitNotTold = "the commit is not told on arrival", "state";
    /// A step whose save a new driver orders again, as its predecessor did, is never reported as safe (C-1).
    RepeatedSaveUnanswered = "an order to save that a new driver repeats is not answered", "state";
    /// A part is written to its end although its generation has ended, or another save was ordered (C-4).
    VainPartWritten = "the part of a save that is in vain is not given up", "state";
    /// The pause of one generation goes on in the next.
    PauseOutlivesGeneration = "a pause outlives its generation", "state";
    /// On a new connection the worker does not repeat the messages that the driver missed.
    NothingAnnounced = "nothing is announced on a new connection", "state";
    /// A worker listens to a driver that has a successor (D-2).
    FormerDriverHeeded = "a driver that was succeeded is heeded", "state";
    /// A worker passes a boundary in spite of its promise.
    PromiseBroken = "a boundary is passed in spite of the promise", "state";
    /// On arrival the worker tells its first commit.
    OldCommitTold = "an old commit is told on arrival", "state";
    /// On arrival the worker says that it has lost no steps.
    LostStepsNotTold = "lost steps are not told on arrival", "state";
    /// A worker does not tell that its training thread goes on after a standstill.
    GoingOnNotTold = "a standstill that has ended is not told", "state";
    /// An agent looks at a process once, and never again.
    InspectedOnce = "a process is looked at only once", "agent";
    /// The driver is not told of processes that were killed by a signal.
    DeathNotReported = "a death by signal is not reported", "agent";
    /// The end of a process is not reported where its death was.
    ExitOmittedAfterDeath = "the exit of a process whose death was told is not reported", "agent";
    /// An agent obeys a driver that has a successor (D-2).
    FormerDriverObeyed = "a driver that was succeeded is obeyed", "agent";
    /// A process that ignores SIGTERM is never killed.
    NeverKills = "SIGKILL is never sent", "agent";
    /// A driver that takes over is not told which processes are being stopped (G-5).
    StopNotToldAtJoin = "an agent does not tell which processes it is stopping", "agent";
    /// SIGKILL comes in the middle of the grace period.
    GraceHalved = "SIGKILL is sent in the middle of the grace", "agent";
    /// An agent without a driver stays for ever.
    NeverAlone = "an agent outlives its driver without end", "agent";
    /// Data of a generation that has ended is delivered (G-4).
    LateDataDelivered = "late data of an ended generation is delivered", "collectives";
    /// A contribution that was delayed counts twice.
    ContributionTwice = "a contribution that was delayed counts twice", "collectives";
    /// A collective does not watch the abort word.
    AbortWordIgnored = "a blocked collective ignores the abort word", "collectives";
    /// A rollback restores the counters and not the weights (H-22).
    RollbackKeepsWeights = "a rollback keeps the weights", "program";
    /// A checkpoint is written with the sampler's ledger of the commit before (H-22).
    LedgerOfAnotherStep = "a checkpoint has the ledger of another step", "program";
    /// A generation saves one checkpoint, and the next one waits for the generation after (C-1).
    OneSaveAGeneration = "a generation saves one checkpoint and no more", "driver";
    /// A job ends without a save of the commit with which training has ended (C-1).
    EndNotSaved = "the commit with which training ends is not saved", "driver";
    /// Nothing is saved when the operator ends the job (C-1).
    StopNotSaved = "a job that is stopped saves nothing before", "driver";
    /// Members on notice, without which no generation can go on, leave before their commit is saved (C-1).
    LeaversNotSaved = "members on notice leave before their commit is saved", "driver";
    /// A checkpoint's manifest gets its name before the data that it names is safe (C-1).
    ManifestBeforeData = "a manifest gets its name before its data is safe", "checkpoint";
    /// The directories of checkpoints are not synced (C-1).
    CheckpointNotSynced = "directories of checkpoints are not synced", "checkpoint";
    /// Old checkpoints are removed before the new one is whole (C-1).
    OldCheckpointRemovedFirst = "old checkpoints are removed before the new one is whole", "checkpoint";
    /// The data of an old checkpoint is removed before its manifest (C-1).
    DataRemovedBeforeManifest = "an old checkpoint loses its data before its manifest", "checkpoint";
    /// A rank writes the arrays of another rank into its part of a checkpoint (C-1).
    PartOfAnotherRank = "a rank writes the part of another rank", "checkpoint";
    /// Parts of commits that differ are made one checkpoint (C-1).
    PartsNotCompared = "parts of commits that differ are made one checkpoint", "checkpoint";
    /// The sampler uses the world size of the previous generation (H-23).
    SamplerKeepsWorldSize = "the sampler keeps the old world size", "program";
    /// The partial results of ranks are folded in the order in which they arrive, and not over the tree of shards.
    ShardsFoldedByArrival = "shards are folded in the order in which ranks arrive", "collectives";
    /// A program deals shards by the world size of the generation in which it began.
    ShardsOfFormerWorld = "a rank carries the shards of a former world", "program";
    /// The random streams of shards count the steps of the process, and not those of the state.
    StreamOfAnotherStep = "a shard's random stream is that of another step", "program";
    /// A restored state keeps the sampler's place of the moment.
    LedgerNotRestored = "a rollback keeps the place in the data", "training";
    /// Changes that a training function makes after its last commit, on its way out, are not thrown away.
    ScribblesKept = "changes behind the last commit survive an interrupt", "training";
    /// The digest of a commit is not looked at when a sync looks for the holders of the root's commit.
    StepsComparedAlone = "a commit of the root's step counts as the root's", "training";
    /// The steps that an abort undid are not counted at the training thread.
    UndoneStepsNotCounted = "steps that an abort undid are not counted", "training";
    /// A commit that a thread held when it trained ahead of a generation that never began counts as one of that generation (G-6).
    UnbegunGenerationCounts = "a commit counts as one of a generation that never began", "training";
    /// A training function that panics as its generation has ended here fails its worker.
    UnwrapAtTheEndFails = "a panic by the error that tells of a generation's end ends its worker", "training";
    /// A root that cannot list the directory of checkpoints fails, although it is listed again a moment later (C-4).
    UnlistedAtOnceFatal = "a directory of checkpoints that cannot be listed once ends its root", "training";
    /// The rank that a failed collective names is not passed on.
    BlameForgotten = "the rank that a failed collective names is forgotten", "training";
    /// A commit whose copy of memory beside the state has failed counts.
    HalfACommit = "a commit without its memory on the GPU counts", "training";
    /// A relay takes an answer of a driver's former life.
    FormerAnswerTaken = "a relay takes an answer of a driver's former life", "store";
    /// A value in a queue ends no wait for the queue.
    WaitersForgotten = "a value in a queue ends no wait for it", "store";
    /// A request is carried out before an earlier one of its client that waits for room.
    DeferredOvertaken = "a request overtakes a deferred one of its client", "store";
    /// The connection that has the turn of one that is gone is not read.
    TurnNotTaken = "the turn of a connection that is gone is not taken", "store";
    /// In mode auto, a process that is started in the place of one that was kept does not see the keys of the others.
    NewcomerCountsAsOld = "a newcomer in process counts as one of an older generation", "store";
    /// A generation begins with the keys of the former one.
    FormerKeysRead = "a generation reads the keys of the former one", "store";
    /// Requests that a driver's former life has not answered are not sent to the next one.
    RequestsNotSentAgain = "requests are not sent to the driver's next life", "store";
    /// The store keeps a client that it has disconnected, if more of its requests were on their way.
    ClosedClientKept = "a disconnected client stays in the store", "store";
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

    /// Plants a bug on this thread in place of the previous one; `None` removes it.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// The bug that is planted on this thread, for the threads that it starts.
    pub fn planted() -> Option<Bug> {
        PLANTED.get()
    }
}

#[cfg(feature = "planted-bugs")]
pub use selected::{is_planted, plant, planted};

/// Whether this bug is planted on this thread: always false without the feature.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}
