//! Who hears what a member keeps, so that a simulation can hold it to its word.

use std::fmt;
use std::sync::Arc;

use model::{GroupId, MemberId};
use parking_lot::Mutex;

/// Hears what members of groups have on their disks and in their states. It only listens: nothing waits for it.
pub trait Witness: fmt::Debug + Send + Sync + 'static {
    /// `who` has this vote on its disk: it was read at a start, or has just been synced.
    fn voted(&self, who: Who, vote: KeptVote);

    /// The state of `who` has this hash after the entry at `index`.
    fn hashed(&self, who: Who, index: u64, hash: u128);
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Which group.
    pub group: GroupId,
    /// Which member of it.
    pub member: MemberId,
}

/// A vote as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptVote {
    /// The newest term that the member knows.
    pub term: u64,
    /// For whom it voted in that term; if it leads, who leads.
    pub member: MemberId,
    /// Whether that member was elected, whoever got this member's own vote.
    pub leads: bool,
}

/// Tells a witness, if there is one, of one member.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    who: Who,
    witness: Option<Arc<dyn Witness>>,
    /// The last term in which the member is known to have voted, and for whom.
    own_vote: Arc<Mutex<Option<(u64, MemberId)>>>,
}

impl Teller {
    pub(crate) fn new(who: Who, witness: Option<Arc<dyn Witness>>) -> Teller {
        Teller { who, witness, own_vote: Arc::default() }
    }

    pub(crate) fn voted(&self, term: u64, member: u64, leads: bool) {
        let member = MemberId::from_bits(member);
        // A leader has voted for itself. Those who follow it are known to have followed, no more.
        if !leads || member == self.who.member {
            *self.own_vote.lock() = Some((term, member));
        }
        if let Some(witness) = &self.witness {
            witness.voted(self.who, KeptVote { term, member, leads });
        }
    }

    /// For whom the member voted in this term, if that is known.
    pub(crate) fn own_vote(&self, term: u64) -> Option<MemberId> {
        self.own_vote.lock().filter(|(voted, _)| *voted == term).map(|(_, member)| member)
    }

    pub(crate) fn hashed(&self, index: u64, hash: u128) {
        if let Some(witness) = &self.witness {
            witness.hashed(self.who, index, hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::NodeId;

    use super::*;

    #[test]
    fn a_vote_is_told_as_it_was_given_whoever_leads() {
        let member = |node| MemberId::new(NodeId(node), 0);
        let (me, they, others) = (member(1), member(2), member(3));
        for (what, votes, expected) in [
            ("nothing yet", &[][..], None),
            ("voted, and nobody leads yet", &[(they, false)], Some(they)),
            ("voted for the one that leads", &[(they, false), (they, true)], Some(they)),
            ("voted for one that lost", &[(they, false), (others, true)], Some(they)),
            ("follows, and was not asked", &[(others, true)], None),
            ("leads", &[(me, false), (me, true)], Some(me)),
            ("led before a restart", &[(me, true)], Some(me)),
        ] {
            let teller = Teller::new(Who { group: GroupId(1), member: me }, None);
            for (member, leads) in votes {
                teller.voted(7, member.bits(), *leads);
            }
            assert_eq!(teller.own_vote(7), expected, "{what}");
            assert_eq!(teller.own_vote(8), None, "{what}: another term");
        }
    }
}
