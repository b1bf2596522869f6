//! Offers of the members of a new generation, and the plan that follows from them. Every member has the same offers,
//! told over the CPU collectives, and works out the same [`FormPlan`]: no I/O, no clock, no choice of its own.

use elastic_protocol::{GenerationId, Stamp, Term};
use thiserror::Error;

use crate::nccl::Features;

/// State of a communicator that a member still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// No operation is under way.
    Healthy = 1,
    /// The operation under way was ended by a revocation.
    Revoked = 2,
}

/// A communicator that a member has from an earlier generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The generation that it was formed in; with it all members know which one is meant.
    pub stamp: Stamp,
    /// The member's rank in it, as NCCL counts.
    pub rank: u32,
    /// Its number of ranks.
    pub world: u32,
    /// Its state.
    pub health: Health,
}

/// A communicator of exactly these members, formed ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    /// The generation in which it was formed.
    pub stamp: Stamp,
    /// Its number among those of that generation.
    pub number: u32,
    /// The member's rank in it, as NCCL counts.
    pub rank: u32,
}

/// The offer of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Whether it has a GPU and NCCL, and may use them.
    pub usable: bool,
    /// The capabilities of its NCCL.
    pub features: Features,
    /// Its NCCL's version, by NCCL's way of counting.
    pub version: u32,
    /// The communicator that it still has.
    pub parent: Option<Parent>,
    /// The spare that it has for these members.
    pub spare: Option<Spare>,
}

/// Bytes are no offer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a rank's offer is malformed: its {0} means nothing")]
pub struct MalformedOffer(&'static str);

impl Offer {
    /// Its length on the wire, in bytes.
    pub const BYTES: usize = 64;
    const FORMAT: u8 = 1;

    /// As it goes to the other members.
    pub fn encode(&self) -> [u8; Offer::BYTES] {
        let mut bytes = [0; Offer::BYTES];
        let Features { split, shrink, revoke, grow, several_ranks_per_gpu } = self.features;
        let features = [split, shrink, revoke, grow, several_ranks_per_gpu];
        let bits = features.iter().enumerate().map(|(bit, has)| u8::from(*has) << bit).sum();
        let health = self.parent.map_or(0, |parent| parent.health as u8);
        bytes[..5].copy_from_slice(&[
            Offer::FORMAT,
            self.usable.into(),
            bits,
            health,
            self.spare.is_some().into(),
        ]);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        if let Some(Parent { stamp, rank, world, .. }) = self.parent {
            write(&mut bytes[12..36], stamp, rank, world);
        }
        if let Some(Spare { stamp, number, rank }) = self.spare {
            write(&mut bytes[36..60], stamp, number, rank);
        }
        bytes
    }

    /// The reverse.
    ///
    /// # Errors
    ///
    /// A field means nothing: another version of this program wrote it.
    pub fn decode(bytes: &[u8; Offer::BYTES]) -> Result<Offer, MalformedOffer> {
        let [format, usable, features, health, spare, ..] = *bytes;
        if format != Offer::FORMAT {
            return Err(MalformedOffer("format"));
        }
        if usable > 1 || spare > 1 || features >= 1 << 5 {
            return Err(MalformedOffer("flags"));
        }
        let has = |bit: u8| features >> bit & 1 == 1;
        let (stamp, rank, world) = read(&bytes[12..36]);
        let parent = |health| Parent { stamp, rank, world, health };
        let parent = match health {
            0 => None,
            1 => Some(parent(Health::Healthy)),
            2 => Some(parent(Health::Revoked)),
            _ => return Err(MalformedOffer("health")),
        };
        if parent.is_some_and(|parent| parent.rank >= parent.world) {
            return Err(MalformedOffer("rank"));
        }
        let (stamp, number, rank) = read(&bytes[36..60]);
        let mut version = [0; 4];
        version.copy_from_slice(&bytes[8..12]);
        Ok(Offer {
            usable: usable == 1,
            features: Features {
                split: has(0),
                shrink: has(1),
                revoke: has(2),
                grow: has(3),
                several_ranks_per_gpu: has(4),
            },
            version: u32::from_le_bytes(version),
            parent,
            spare: (spare == 1).then_some(Spare { stamp, number, rank }),
        })
    }
}

fn write(bytes: &mut [u8], stamp: Stamp, first: u32, second: u32) {
    bytes[..8].copy_from_slice(&stamp.term.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&stamp.generation.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&first.to_le_bytes());
    bytes[20..].copy_from_slice(&second.to_le_bytes());
}

fn read(bytes: &[u8]) -> (Stamp, u32, u32) {
    let long = |at: usize| {
        let mut value = [0; 8];
        value.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(value)
    };
    let (both, term, generation) = (long(16), Term(long(0)), GenerationId(long(8)));
    (Stamp { term, generation }, both as u32, (both >> 32) as u32)
}

/// A way to form a generation's communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// The members are those of the parent, and nothing is under way in it.
    Keep,
    /// It was formed ahead.
    Spare,
    /// Some are gone from the parent.
    Shrink {
        /// NCCL's ranks of the departed members.
        excluded: Vec<u32>,
    },
    /// Some come to those of the parent.
    Grow,
    /// From nothing.
    Init,
}

/// The plan that all members follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormPlan {
    /// The way to form the communicator.
    pub how: How,
    /// By rank in the generation: the rank in the communicator.
    pub ranks: Vec<u32>,
    /// The reason for this way and not a cheaper one, for people.
    pub reason: &'static str,
}

impl FormPlan {
    /// From nothing, with NCCL's ranks as in the generation.
    pub fn init(world: usize, reason: &'static str) -> FormPlan {
        FormPlan { how: How::Init, ranks: (0..world as u32).collect(), reason }
    }

    /// The member, by rank in the generation, that serves the meeting point, if one is needed.
    pub fn host_of_id(&self) -> Option<u32> {
        match self.how {
            How::Keep | How::Spare | How::Shrink { .. } => None,
            How::Grow | How::Init => {
                self.ranks.iter().position(|rank| *rank == 0).map(|rank| rank as u32)
            }
        }
    }
}

/// Members that at most start from nothing after an abort, although NCCL could shrink. An aborted communicator can be shrunk once
/// NCCL's proxy threads have ended, which look at the abort every 500 ms (`poll` in NCCL 2.31's src/proxy.cc); a new one takes a tenth
/// of that, and more the more ranks there are: some 2 s at 1,024.
const ANEW_MAX: usize = 64;

/// The plan for these offers, by rank in the generation. `Err` names the first member without a GPU.
///
/// # Errors
///
/// A member's rank in the generation.
pub fn plan(offers: &[Offer]) -> Result<FormPlan, u32> {
    if let Some(rank) = offers.iter().position(|offer| !offer.usable) {
        return Err(rank as u32);
    }
    let world = offers.len();
    if let Some(ranks) = common_spare(offers) {
        return Ok(FormPlan { how: How::Spare, ranks, reason: "it was formed ahead" });
    }
    let parents: Vec<Parent> = offers.iter().filter_map(|offer| offer.parent).collect();
    let Some(first) = parents.first() else {
        return Ok(FormPlan::init(world, "nobody has an earlier one"));
    };
    if parents.iter().any(|parent| (parent.stamp, parent.world) != (first.stamp, first.world)) {
        return Ok(FormPlan::init(world, "members come from different ones"));
    }
    if !are_distinct(parents.iter().map(|parent| parent.rank)) {
        return Ok(FormPlan::init(world, "two members claim one place"));
    }
    let all = |health| parents.iter().all(|parent| parent.health == health);
    let is_whole = parents.len() == first.world as usize;
    let has_newcomers = parents.len() < world;
    match (has_newcomers, is_whole) {
        (false, true) if all(Health::Healthy) => {
            let ranks = parents.iter().map(|parent| parent.rank).collect();
            Ok(FormPlan { how: How::Keep, ranks, reason: "nobody came or went" })
        }
        (false, true) => Ok(FormPlan::init(world, "it was aborted, and nobody is gone")),
        (false, false) if world <= ANEW_MAX && !all(Health::Healthy) => {
            Ok(FormPlan::init(world, "so few start anew before the aborted one can be shrunk"))
        }
        (false, false) if offers.iter().all(|offer| offer.features.shrink) => {
            let staying: Vec<u32> = parents.iter().map(|parent| parent.rank).collect();
            let excluded: Vec<u32> =
                (0..first.world).filter(|rank| !staying.contains(rank)).collect();
            let below = |rank: u32| excluded.iter().filter(|gone| **gone < rank).count() as u32;
            let ranks = staying.iter().map(|rank| rank - below(*rank)).collect();
            Ok(FormPlan { how: How::Shrink { excluded }, ranks, reason: "some are gone" })
        }
        (false, false) => Ok(FormPlan::init(world, "this NCCL cannot shrink")),
        (true, true) if !all(Health::Healthy) => Ok(FormPlan::init(world, "it was aborted")),
        (true, true) if offers.iter().all(|offer| offer.features.grow) => {
            let mut next = first.world;
            let place = |offer: &Offer| {
                offer.parent.map_or_else(
                    || {
                        next += 1;
                        next - 1
                    },
                    |parent| parent.rank,
                )
            };
            let ranks = offers.iter().map(place).collect();
            Ok(FormPlan { how: How::Grow, ranks, reason: "some have come" })
        }
        (true, true) => Ok(FormPlan::init(world, "this NCCL cannot grow")),
        (true, false) => Ok(FormPlan::init(world, "some have come, and some are gone")),
    }
}

/// The ranks in a spare that all have.
fn common_spare(offers: &[Offer]) -> Option<Vec<u32>> {
    let first = offers.first()?.spare?;
    let ranks: Option<Vec<u32>> = offers
        .iter()
        .map(|offer| {
            let same = |spare: &Spare| (spare.stamp, spare.number) == (first.stamp, first.number);
            offer.spare.filter(same).map(|spare| spare.rank)
        })
        .collect();
    ranks.filter(|ranks| {
        are_distinct(ranks.iter().copied())
            && ranks.iter().all(|rank| (*rank as usize) < ranks.len())
    })
}

fn are_distinct(ranks: impl Iterator<Item = u32>) -> bool {
    let mut ranks: Vec<u32> = ranks.collect();
    ranks.sort_unstable();
    ranks.windows(2).all(|pair| pair[0] != pair[1])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Features = Features {
        split: true,
        shrink: true,
        revoke: true,
        grow: true,
        several_ranks_per_gpu: true,
    };

    fn stamp(generation: u64) -> Stamp {
        Stamp { term: Term(1), generation: GenerationId(generation) }
    }

    fn newcomer() -> Offer {
        Offer { usable: true, features: ALL, version: 23_003, ..Offer::default() }
    }

    fn member(rank: u32, world: u32, health: Health) -> Offer {
        let parent = Parent { stamp: stamp(3), rank, world, health };
        Offer { parent: Some(parent), ..newcomer() }
    }

    #[test]
    fn the_first_generation_is_made_from_nothing() {
        let plan = plan(&[newcomer(), newcomer()]).expect("all have GPUs");
        assert_eq!((plan.how.clone(), plan.ranks.clone()), (How::Init, vec![0, 1]));
        assert_eq!(plan.host_of_id(), Some(0));
    }

    #[test]
    fn survivors_of_a_loss_shrink_and_their_ranks_close_up() {
        let offers = [0, 1, 3].map(|rank| member(rank, 4, Health::Healthy));
        let plan = plan(&offers).expect("all have GPUs");
        assert_eq!(plan.how, How::Shrink { excluded: vec![2] });
        assert_eq!(plan.ranks, [0, 1, 2]);
    }

    #[test]
    fn after_an_abort_few_start_anew_and_many_shrink() {
        let world = u32::try_from(ANEW_MAX).expect("it is small") + 1;
        let survivors =
            |world: u32| (1..world).map(move |rank| member(rank, world, Health::Revoked));
        let few = plan(&survivors(world).collect::<Vec<_>>()).expect("all have GPUs");
        assert_eq!(few.how, How::Init);
        let many = plan(&survivors(world + 1).collect::<Vec<_>>()).expect("all have GPUs");
        assert_eq!(many.how, How::Shrink { excluded: vec![0] });
    }

    #[test]
    fn newcomers_get_the_places_behind_the_others_whatever_their_rank() {
        let offers = [member(1, 2, Health::Healthy), newcomer(), member(0, 2, Health::Healthy)];
        let plan = plan(&offers).expect("all have GPUs");
        assert_eq!((plan.how.clone(), plan.ranks.clone()), (How::Grow, vec![1, 2, 0]));
        assert_eq!(plan.host_of_id(), Some(2), "the one that is NCCL's rank 0");
    }

    #[test]
    fn without_the_feature_or_after_an_abort_it_is_made_from_nothing() {
        let old = Features { shrink: false, grow: false, ..ALL };
        let without = |offer: Offer| Offer { features: old, ..offer };
        let cases: [Vec<Offer>; 4] = [
            vec![without(member(0, 2, Health::Revoked))],
            vec![without(member(0, 1, Health::Healthy)), newcomer()],
            vec![member(0, 1, Health::Revoked), newcomer()],
            vec![member(0, 2, Health::Healthy), newcomer()],
        ];
        for offers in cases {
            let plan = plan(&offers).expect("all have GPUs");
            assert_eq!(plan.how, How::Init, "{}", plan.reason);
        }
    }

    #[test]
    fn a_member_without_a_gpu_is_named() {
        assert_eq!(plan(&[newcomer(), Offer::default()]), Err(1));
    }

    #[test]
    fn a_spare_that_all_have_goes_before_everything() {
        let with = |offer: Offer, number, rank| {
            let spare = Spare { stamp: stamp(3), number, rank };
            Offer { spare: Some(spare), ..offer }
        };
        let (a, b) = (member(0, 3, Health::Healthy), member(2, 3, Health::Healthy));
        let same = plan(&[with(a, 1, 0), with(b, 1, 1)]).expect("all have GPUs");
        assert_eq!((same.how, same.ranks), (How::Spare, vec![0, 1]));
        let other = plan(&[with(a, 1, 0), with(b, 2, 1)]).expect("all have GPUs");
        assert!(matches!(other.how, How::Shrink { .. }), "each has another one");
        let half = plan(&[with(a, 1, 0), b]).expect("all have GPUs");
        assert!(matches!(half.how, How::Shrink { .. }), "it did not form everywhere");
    }

    fn any_offer() -> impl Strategy<Value = Offer> {
        let parent = (1..3_u64, 0..4_u32, 1..3_u8).prop_map(|(generation, rank, health)| Parent {
            stamp: stamp(generation),
            rank,
            world: 4,
            health: if health == 1 { Health::Healthy } else { Health::Revoked },
        });
        let spare =
            (0..2_u32, 0..4_u32).prop_map(|(number, rank)| Spare { stamp: stamp(1), number, rank });
        (proptest::option::of(parent), proptest::option::of(spare), any::<bool>()).prop_map(
            |(parent, spare, capable)| {
                let features = if capable { ALL } else { Features::default() };
                Offer { parent, spare, features, ..newcomer() }
            },
        )
    }

    proptest! {
        #[test]
        fn whatever_is_offered_each_member_gets_a_place_of_its_own(
            offers in proptest::collection::vec(any_offer(), 1..7)
        ) {
            let plan = plan(&offers).expect("all have GPUs");
            let mut places = plan.ranks.clone();
            places.sort_unstable();
            let due: Vec<u32> = (0..offers.len() as u32).collect();
            prop_assert_eq!(places, due, "{:?}", plan);
        }

        #[test]
        fn an_offer_comes_back_as_it_was(offer in any_offer()) {
            prop_assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        }

        #[test]
        fn any_bytes_are_an_offer_or_refused(bytes in any::<[u8; 64]>()) {
            if let Ok(offer) = Offer::decode(&bytes) {
                prop_assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
            }
        }
    }
}
