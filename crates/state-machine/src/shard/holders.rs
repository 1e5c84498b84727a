//! Which claims each session holds.
//!
//! Fences grow, so a session's claims come in their order and go in about the same: they lie in a line, and one that goes from
//! its middle leaves a gap until its neighbours have gone.

use std::collections::{BTreeMap, VecDeque};

use model::{Fence, SessionId};

use super::execution::{NONE, Slot};

/// Gaps in a line, beside as many claims, before it is closed up.
const GAPS_MAX: usize = 64;

/// The claims of all sessions that hold any.
#[derive(Default)]
pub(super) struct Holders {
    by_session: BTreeMap<SessionId, Line>,
}

/// The claims of a session by fence; [`NONE`] is a gap. Neither its first nor its last is one.
#[derive(Default)]
struct Line {
    claims: VecDeque<(Fence, Slot)>,
    gaps: usize,
}

impl Line {
    fn add(&mut self, fence: Fence, slot: Slot) {
        if self.claims.back().is_none_or(|&(last, _)| last <= fence) {
            self.claims.push_back((fence, slot));
        } else {
            // A checkpoint brings them by task.
            let place = self.claims.partition_point(|&(before, _)| before <= fence);
            self.claims.insert(place, (fence, slot));
        }
    }

    fn remove(&mut self, fence: Fence, slot: Slot) {
        let from = self.place(fence);
        let found =
            self.claims.range_mut(from..).take_while(|(of, _)| *of == fence).find(|(_, at)| *at == slot);
        let Some((_, place)) = found else { return };
        *place = NONE;
        self.gaps += 1;
        while self.claims.pop_front_if(|&mut (_, slot)| slot == NONE).is_some() {
            self.gaps -= 1;
        }
        while self.claims.pop_back_if(|&mut (_, slot)| slot == NONE).is_some() {
            self.gaps -= 1;
        }
        if self.gaps > self.claims.len() / 2 + GAPS_MAX {
            self.claims.retain(|&(_, slot)| slot != NONE);
            self.gaps = 0;
        }
    }

    /// Where the claims of this fence are, or would be. A session that claims alone has the fences in a row.
    fn place(&self, fence: Fence) -> usize {
        let guess = self.claims.front().map_or(0, |&(first, _)| fence.0.wrapping_sub(first.0) as usize);
        let is_here = |place: usize| self.claims.get(place).is_some_and(|&(of, _)| of == fence);
        if is_here(guess) && (guess == 0 || !is_here(guess - 1)) {
            return guess;
        }
        self.claims.partition_point(|&(before, _)| before < fence)
    }

    fn iter(&self) -> impl Iterator<Item = (Fence, Slot)> + '_ {
        self.claims.iter().copied().filter(|&(_, slot)| slot != NONE)
    }
}

impl Holders {
    pub(super) fn add(&mut self, session: SessionId, fence: Fence, slot: Slot) {
        self.by_session.entry(session).or_default().add(fence, slot);
    }

    pub(super) fn remove(&mut self, session: SessionId, fence: Fence, slot: Slot) {
        let Some(line) = self.by_session.get_mut(&session) else { return };
        line.remove(fence, slot);
        if line.claims.is_empty() {
            self.by_session.remove(&session);
        }
    }

    /// What a session holds, by fence.
    pub(super) fn claims_of(&self, session: SessionId) -> impl Iterator<Item = (Fence, Slot)> + '_ {
        self.by_session.get(&session).into_iter().flat_map(Line::iter)
    }

    /// The fence of a session's newest claim.
    pub(super) fn last_of(&self, session: SessionId) -> Option<Fence> {
        self.by_session.get(&session).and_then(|line| line.claims.back()).map(|&(fence, _)| fence)
    }

    /// The sessions with ids of `from` on, each with one that it holds.
    pub(super) fn sessions_from(&self, from: SessionId) -> impl Iterator<Item = (SessionId, Slot)> + '_ {
        self.by_session.range(from..).map(|(&session, line)| {
            let (_, slot) = line.claims.front().expect("a session that holds nothing is not here");
            (session, *slot)
        })
    }

    /// All claims by session and fence, from `from` on.
    pub(super) fn claims_from(
        &self,
        from: (SessionId, Fence),
    ) -> impl Iterator<Item = (SessionId, Fence)> + '_ {
        let lines = self.by_session.range(from.0..);
        lines.flat_map(move |(&session, line)| {
            let least = if session == from.0 { from.1 } else { Fence(0) };
            let first = line.claims.partition_point(|&(fence, _)| fence < least);
            let held = line.claims.range(first..).filter(|&&(_, slot)| slot != NONE);
            held.map(move |&(fence, _)| (session, fence))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(7);

    fn fences(holders: &Holders) -> Vec<u64> {
        holders.claims_of(SESSION).map(|(fence, _)| fence.0).collect()
    }

    #[test]
    fn claims_go_in_any_order_and_leave_nothing_behind() {
        let mut holders = Holders::default();
        let count = 1_000;
        for n in 1..=count {
            holders.add(SESSION, Fence(n), n as Slot);
        }
        // Every second one first: half of the line is gaps for a while.
        for n in (1..=count).filter(|n| n % 2 == 0) {
            holders.remove(SESSION, Fence(n), n as Slot);
        }
        assert_eq!(fences(&holders), (1..=count).filter(|n| n % 2 == 1).collect::<Vec<_>>());
        assert_eq!(holders.last_of(SESSION), Some(Fence(count - 1)));
        for n in (1..=count).rev().filter(|n| n % 2 == 1) {
            let line = &holders.by_session[&SESSION];
            assert!(line.gaps <= line.claims.len() / 2 + GAPS_MAX);
            holders.remove(SESSION, Fence(n), n as Slot);
        }
        assert!(holders.by_session.is_empty());
    }

    #[test]
    fn a_checkpoint_may_bring_them_in_any_order() {
        let mut holders = Holders::default();
        for fence in [5, 2, 9, 7] {
            holders.add(SESSION, Fence(fence), fence as Slot);
        }
        holders.add(SessionId(3), Fence(8), 8);
        assert_eq!(fences(&holders), [2, 5, 7, 9]);
        let from = holders.claims_from((SESSION, Fence(6))).map(|(_, fence)| fence.0);
        assert_eq!(from.collect::<Vec<_>>(), [7, 9]);
        let all = holders.claims_from((SessionId(0), Fence(6))).map(|(_, fence)| fence.0);
        assert_eq!(all.collect::<Vec<_>>(), [8, 2, 5, 7, 9]);
    }

    #[test]
    fn only_the_claim_that_is_there_goes() {
        let mut holders = Holders::default();
        holders.add(SESSION, Fence(1), 1);
        holders.remove(SESSION, Fence(2), 1);
        holders.remove(SESSION, Fence(1), 2);
        holders.remove(SessionId(8), Fence(1), 1);
        assert_eq!(fences(&holders), [1]);
    }
}
