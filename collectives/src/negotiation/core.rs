//! The core of a negotiation: the ranks' announcements of calls, and the verdicts that follow. Every rank receives
//! the same words in the same order, so every rank comes to the same verdicts. No I/O; the module around it calls
//! it.

/// Most consecutive rounds without any new word before pending calls fail. A rank that is not stuck takes up to 10
/// ms for a round, so this is at least ten minutes.
pub(super) const IDLE_ROUNDS_MAX: u32 = 60_000;

/// Consecutive rounds in which every rank waits for calls of others, and makes none, before the calls fail. Another thread
/// of a rank may make one meanwhile. The rounds take up to 10 ms each, so this is about half a second.
pub(super) const STUCK_ROUNDS_MAX: u32 = 50;

/// One rank's word in a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RankWord {
    /// The rank makes the call with this key; `digest` covers all that must be the same on all ranks.
    Call { key: u64, digest: u64, takes_absent: bool },
    /// The rank has nothing new to say. `is_stuck`: it will have nothing before a call of its own is done.
    Nothing { is_stuck: bool },
    /// The rank has no more data: the others' reductions count it as zeros, until all ranks have joined.
    Joined,
}

/// Consequences of a round, in the order in which they are carried out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum RoundVerdict {
    /// Every rank has announced the call: it runs now. `lead` is the first rank that has data; the `absent` have
    /// joined.
    Run { key: u64, lead: u32, absent: Vec<u32> },
    /// The ranks make the call with different arguments.
    Differs { key: u64 },
    /// The call needs all ranks, and the `absent` have joined.
    NeedsAll { key: u64, absent: Vec<u32> },
    /// All ranks have joined; `last` was the last one.
    AllJoined { last: u32 },
    /// Every rank waits for a call that another one does not make.
    Stuck,
}

/// A call that not all ranks have announced.
#[derive(Debug)]
struct Known {
    key: u64,
    takes_absent: bool,
    /// The digest that each rank has announced.
    digests: Vec<Option<u64>>,
}

/// The state of one negotiation: pending calls and joined ranks.
#[derive(Debug)]
pub(super) struct NegotiationCore {
    /// Pending calls, in the order of their first announcement.
    known: Vec<Known>,
    joined: Vec<bool>,
    idle_rounds: u32,
    /// Number of the last rounds in which every rank was stuck.
    stuck_rounds: u32,
}

impl NegotiationCore {
    pub(super) fn new(world_size: u32) -> NegotiationCore {
        let joined = vec![false; world_size as usize];
        NegotiationCore { known: Vec::new(), joined, idle_rounds: 0, stuck_rounds: 0 }
    }

    /// Handles the words of a round, by rank.
    pub(super) fn handle_round(&mut self, words: &[RankWord]) -> Vec<RoundVerdict> {
        let (mut is_new, mut are_all_stuck, mut last_joined) = (false, true, None);
        for (rank, word) in (0_u32..).zip(words) {
            match *word {
                RankWord::Call { key, digest, takes_absent } => {
                    is_new = true;
                    are_all_stuck = false;
                    self.known_of(key, takes_absent).digests[rank as usize] = Some(digest);
                }
                RankWord::Nothing { is_stuck } => are_all_stuck &= is_stuck,
                RankWord::Joined => {
                    let before = std::mem::replace(&mut self.joined[rank as usize], true);
                    is_new |= !before;
                    last_joined = Some(rank).filter(|_| !before).or(last_joined);
                }
            }
        }
        let mut verdicts = self.complete();
        if self.joined.iter().all(|joined| *joined)
            && let Some(last) = last_joined
        {
            self.joined.fill(false);
            verdicts.push(RoundVerdict::AllJoined { last });
        }
        self.idle_rounds = if is_new { 0 } else { self.idle_rounds + 1 };
        self.stuck_rounds = if are_all_stuck && !is_new { self.stuck_rounds + 1 } else { 0 };
        let is_over = self.stuck_rounds > STUCK_ROUNDS_MAX || self.idle_rounds > IDLE_ROUNDS_MAX;
        if verdicts.is_empty() && is_over && !is_new {
            self.known.clear();
            self.joined.fill(false);
            (self.idle_rounds, self.stuck_rounds) = (0, 0);
            verdicts.push(RoundVerdict::Stuck);
        }
        verdicts
    }

    /// Number of the last rounds in which every rank was stuck.
    pub(super) const fn stuck_rounds(&self) -> u32 {
        self.stuck_rounds
    }

    fn known_of(&mut self, key: u64, takes_absent: bool) -> &mut Known {
        let position = self.known.iter().position(|known| known.key == key).unwrap_or_else(|| {
            let digests = vec![None; self.joined.len()];
            self.known.push(Known { key, takes_absent, digests });
            self.known.len() - 1
        });
        &mut self.known[position]
    }

    /// Removes the calls that every rank with data has announced, and returns their verdicts.
    fn complete(&mut self) -> Vec<RoundVerdict> {
        let joined = &self.joined;
        let is_complete = |known: &mut Known| {
            known.digests.iter().zip(joined).all(|(digest, joined)| digest.is_some() || *joined)
        };
        let complete: Vec<Known> = self.known.extract_if(.., is_complete).collect();
        complete.iter().map(verdict_of).collect()
    }
}

fn verdict_of(known: &Known) -> RoundVerdict {
    let (key, mut said) = (known.key, known.digests.iter().flatten());
    let first = said.next();
    if said.any(|digest| Some(digest) != first) {
        return RoundVerdict::Differs { key };
    }
    let absent: Vec<u32> = (0_u32..)
        .zip(&known.digests)
        .filter(|(_, digest)| digest.is_none())
        .map(|(rank, _)| rank)
        .collect();
    if !absent.is_empty() && !known.takes_absent {
        return RoundVerdict::NeedsAll { key, absent };
    }
    let lead = (0_u32..).zip(&known.digests).find(|(_, digest)| digest.is_some());
    RoundVerdict::Run { key, lead: lead.map_or(0, |(rank, _)| rank), absent }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: RankWord = RankWord::Nothing { is_stuck: false };
    const STUCK: RankWord = RankWord::Nothing { is_stuck: true };

    fn call(key: u64) -> RankWord {
        RankWord::Call { key, digest: 7, takes_absent: key < 10 }
    }

    fn run(key: u64) -> RoundVerdict {
        RoundVerdict::Run { key, lead: 0, absent: Vec::new() }
    }

    #[test]
    fn calls_run_when_all_ranks_have_said_them_whatever_the_order() {
        let mut core = NegotiationCore::new(2);
        assert_eq!(core.handle_round(&[call(1), call(1)]), [run(1)]);
        assert_eq!(core.handle_round(&[call(1), call(2)]), []);
        assert_eq!(core.handle_round(&[call(2), STUCK]), [run(2)]);
        assert_eq!(core.handle_round(&[NOTHING, call(1)]), [run(1)]);
    }

    #[test]
    fn the_same_call_with_other_arguments_is_refused_and_forgotten() {
        let mut core = NegotiationCore::new(2);
        let other = RankWord::Call { key: 1, digest: 8, takes_absent: true };
        assert_eq!(core.handle_round(&[call(1), other]), [RoundVerdict::Differs { key: 1 }]);
        assert_eq!(core.handle_round(&[call(1), call(1)]), [run(1)]);
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_told() {
        let mut core = NegotiationCore::new(2);
        assert_eq!(core.handle_round(&[call(1), call(2)]), []);
        assert_eq!(core.handle_round(&[STUCK, NOTHING]), [], "rank 1 may still call");
        for _ in 0..STUCK_ROUNDS_MAX {
            assert_eq!(core.handle_round(&[STUCK, STUCK]), [], "another thread may still call");
        }
        assert_eq!(core.handle_round(&[STUCK, STUCK]), [RoundVerdict::Stuck]);
        assert_eq!(core.handle_round(&[call(1), call(1)]), [run(1)]);
    }

    #[test]
    fn a_call_of_another_thread_begins_the_wait_anew() {
        let mut core = NegotiationCore::new(2);
        core.handle_round(&[call(1), call(2)]);
        for _ in 0..STUCK_ROUNDS_MAX {
            assert_eq!(core.handle_round(&[STUCK, STUCK]), []);
        }
        assert_eq!(core.handle_round(&[call(2), STUCK]), [run(2)]);
        assert_eq!(core.stuck_rounds(), 0);
        assert_eq!(core.handle_round(&[STUCK, STUCK]), []);
        assert_eq!(core.handle_round(&[NOTHING, call(1)]), [run(1)]);
    }

    #[test]
    fn rounds_without_a_word_end() {
        let mut core = NegotiationCore::new(2);
        core.handle_round(&[call(1), NOTHING]);
        let verdicts = (0..=IDLE_ROUNDS_MAX).map(|_| core.handle_round(&[STUCK, NOTHING]));
        assert_eq!(verdicts.filter(|verdicts| *verdicts == [RoundVerdict::Stuck]).count(), 1);
    }

    #[test]
    fn who_has_joined_is_left_out_until_all_have() {
        let mut core = NegotiationCore::new(3);
        let absent = vec![0];
        assert_eq!(
            core.handle_round(&[RankWord::Joined, call(1), call(1)]),
            [RoundVerdict::Run { key: 1, lead: 1, absent }]
        );
        let absent = vec![0];
        assert_eq!(
            core.handle_round(&[RankWord::Joined, call(10), call(10)]),
            [RoundVerdict::NeedsAll { key: 10, absent }]
        );
        assert_eq!(core.handle_round(&[RankWord::Joined, NOTHING, RankWord::Joined]), []);
        assert_eq!(
            core.handle_round(&[RankWord::Joined; 3]),
            [RoundVerdict::AllJoined { last: 1 }]
        );
        assert_eq!(core.handle_round(&[call(1); 3]), [run(1)]);
    }
}
