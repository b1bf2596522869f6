//! The poison word: the rank that ended the generation within a segment, and the cause, in 64 bits. It carries at
//! once what the farewell over the connections carries a little later.

use crate::wire::ByeCause;

/// Bits of a rank in the word.
const RANK_BITS: u32 = 28;
const RANK_MASK: u64 = (1 << RANK_BITS) - 1;

/// The word for rank `by` and its cause. Never zero.
pub(super) fn encode(by: u32, cause: ByeCause) -> u64 {
    let (code, rank): (u64, u32) = match cause {
        ByeCause::Left => (1, 0),
        ByeCause::Aborted => (2, 0),
        ByeCause::PeerLost(rank) => (3, rank),
        ByeCause::DeadlinePassed(rank) => (4, rank),
        ByeCause::Mismatch(rank) => (5, rank),
        ByeCause::Failed => (6, 0),
    };
    code << (2 * RANK_BITS) | (u64::from(by) & RANK_MASK) << RANK_BITS | u64::from(rank) & RANK_MASK
}

/// Decodes rank and cause; `None` where the word is not set. An unknown word counts as a failure.
pub(super) fn decode(word: u64) -> Option<(u32, ByeCause)> {
    let rank = (word & RANK_MASK) as u32;
    let by = (word >> RANK_BITS & RANK_MASK) as u32;
    let cause = match word >> (2 * RANK_BITS) {
        0 if word == 0 => return None,
        1 => ByeCause::Left,
        2 => ByeCause::Aborted,
        3 => ByeCause::PeerLost(rank),
        4 => ByeCause::DeadlinePassed(rank),
        5 => ByeCause::Mismatch(rank),
        _ => ByeCause::Failed,
    };
    Some((by, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_survive() {
        let last = super::super::layout::WORLD_MAX - 1;
        let causes = [
            ByeCause::Left,
            ByeCause::Aborted,
            ByeCause::PeerLost(last),
            ByeCause::DeadlinePassed(0),
            ByeCause::Mismatch(7),
            ByeCause::Failed,
        ];
        for cause in causes {
            for by in [0, 5, last] {
                assert_eq!(decode(encode(by, cause)), Some((by, cause)));
            }
        }
        assert_eq!(decode(0), None);
    }
}
