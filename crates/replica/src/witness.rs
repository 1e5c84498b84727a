//! Who hears what a member keeps, so that a simulation can hold it to its word.

use std::fmt;
use std::sync::Arc;

use model::{GroupId, MemberId};

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
    pub(crate) who: Who,
    pub(crate) witness: Option<Arc<dyn Witness>>,
}

impl Teller {
    pub(crate) fn voted(&self, term: u64, member: u64, leads: bool) {
        if let Some(witness) = &self.witness {
            witness.voted(self.who, KeptVote { term, member: MemberId::from_bits(member), leads });
        }
    }

    pub(crate) fn hashed(&self, index: u64, hash: u128) {
        if let Some(witness) = &self.witness {
            witness.hashed(self.who, index, hash);
        }
    }
}
