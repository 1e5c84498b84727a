//! Groups in which nothing happens go quiet: their engines do not tick, and send no heartbeats.
//!
//! A leader whose members have all that there is says so, for all its groups in one message to each node, a few
//! times a second (the node does that: [`Replica::keep_quiet`]). A member that finds the same agrees, and stops its
//! engine's clock; when all agree the leader stops its own. Such a word counts for [`WORD_MAX`] only, on both
//! sides: whoever does not hear the next one goes on as if there had been none, and so does a leader that
//! hears of a member that does not agree. For most of that time a member votes for nobody else, as after a
//! heartbeat. The word tells how far the leader has counted, too (`clock`).
//!
//! A quiet leader has no lease left: its first entry costs a round trip more, that of [`stir`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::{Elapsed, GroupId, MemberId, NodeId};
use openraft::async_runtime::WatchReceiver;
use openraft::{Instant as _, LogIdOptionExt, ServerState};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::codec::Codec;
use crate::error::Result;
use crate::look::ask_quorum;
use crate::propose::{Raft, is_alone};
use crate::replica::Replica;
use crate::shared::Shared;
use crate::start::ELECTION_MS_MAX;

/// How often the node looks at its groups, and tells others of those that are quiet.
pub const WORD_EVERY: Duration = Duration::from_millis(200);
/// How long a word counts: a few of them may be late or lost.
pub const WORD_MAX: Duration = Duration::from_millis(700);
/// How long whoever heard a word votes for nobody else: less than it waits for the next one, so that those who
/// wait in vain find each other free.
const PROMISE_MAX: Duration = Duration::from_millis(500);
/// How long nothing must have happened before a group goes quiet.
const QUIET_AFTER: Duration = Duration::from_secs(2);
/// A lease that is older is made anew before an entry: the engine refuses to write without one.
const LEASE_OLD: Duration = Duration::from_millis(ELECTION_MS_MAX * 3 / 4);

/// What a leader says of a group in which nothing happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Which group.
    pub group: GroupId,
    /// The term in which it leads.
    pub term: u64,
    /// The last entry: everybody has it, and the leader has applied it.
    pub last: u64,
    /// How far it has counted.
    pub elapsed: Elapsed,
}

/// What the members of a quiet group agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Calm {
    leader: MemberId,
    term: u64,
    last: u64,
}

/// Whether a group is quiet, as one member sees it.
pub(crate) struct Quiet {
    group: GroupId,
    /// Something happened, or is about to, since the last look.
    is_stirred: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The engine's clock stands still; if not, when it began to go again.
    is_off: bool,
    woke: Option<Instant>,
    /// How the group looks, and since when.
    calm: Option<Calm>,
    since: Option<Instant>,
    /// Whose word counts: for a leader all others', for others the leader's; and when each was last said.
    words: BTreeMap<MemberId, Option<Instant>>,
    /// In this term: when the leader last said it; on the leader, when the oldest of the words was said at a moment when
    /// all counted.
    agreed: Option<(u64, Instant)>,
    /// The term in which this leader asked another to lead: it takes no entries any more, whatever became of that.
    handed_over: Option<u64>,
}

impl State {
    /// So it looks now.
    fn see(&mut self, calm: Option<Calm>, others: impl IntoIterator<Item = MemberId>, now: Instant) {
        if calm.is_none() || calm != self.calm {
            self.calm = calm;
            self.since = Some(now);
            self.words = others.into_iter().map(|member| (member, None)).collect();
        }
    }

    /// Something happened.
    fn disturb(&mut self, now: Instant) {
        self.since = Some(now);
        self.words.values_mut().for_each(|said| *said = None);
    }

    /// A member agrees to what is so still, or the leader said it.
    fn hear(&mut self, calm: Calm, member: MemberId, said: Instant) -> bool {
        let is_so = self.calm == Some(calm);
        if let (true, Some(last)) = (is_so, self.words.get_mut(&member)) {
            *last = (*last).max(Some(said));
            return true;
        }
        false
    }

    /// Nothing has happened for long enough.
    fn is_still(&self, now: Instant) -> bool {
        self.calm.is_some() && self.since.is_some_and(|since| now.duration_since(since) >= QUIET_AFTER)
    }

    /// Whether everybody's word counts.
    fn is_promised(&self, now: Instant) -> bool {
        let counts = |said: &Option<Instant>| said.is_some_and(|said| now.duration_since(said) <= WORD_MAX);
        self.calm.is_some() && self.words.values().all(counts)
    }

    fn oldest_word(&self) -> Option<Instant> {
        self.words.values().copied().min()?
    }
}

impl Quiet {
    pub(crate) fn new(group: GroupId) -> Quiet {
        Quiet { group, is_stirred: AtomicBool::new(false), state: Mutex::default() }
    }

    /// How long ago leader and members were of one mind in this term: what it was when it was told.
    pub(crate) fn agreed_age(&self, term: u64) -> Option<Duration> {
        let (of, agreed) = self.state.lock().agreed?;
        (of == term).then(|| agreed.elapsed())
    }

    /// Somebody asks for a vote against the leader of `term`. Whether this member may not give it: it has promised that, or
    /// is that leader. Then it does not agree to the next word, so that the leader is heard by all; else its engine's
    /// clock goes on, as whoever asks may be right.
    pub(crate) fn is_promised<M: Codec>(&self, raft: &Raft<M>, me: MemberId, term: u64) -> bool {
        let mut state = self.state.lock();
        let is_recent = |at: Instant| at.elapsed() <= PROMISE_MAX;
        // One that has just woken has yet to hear from a quorum.
        let is_leader = state.calm.is_some_and(|calm| calm.leader == me)
            && (state.is_off || state.woke.is_some_and(is_recent));
        let has_agreed = state.agreed.is_some_and(|(of, agreed)| of == term && is_recent(agreed));
        if is_leader || has_agreed {
            self.is_stirred.store(true, Ordering::Relaxed);
            return true;
        }
        self.wake(&mut state, raft);
        false
    }

    /// This leader of `term` asks another to lead.
    pub(crate) fn hands_over(&self, term: u64) {
        self.state.lock().handed_over = Some(term);
    }

    /// Something happens that the others must hear of: no word that was said before counts here any more.
    pub(crate) fn disturb<M: Codec>(&self, raft: &Raft<M>) {
        self.wake(&mut self.state.lock(), raft);
    }

    fn wake<M: Codec>(&self, state: &mut State, raft: &Raft<M>) {
        self.is_stirred.store(true, Ordering::Relaxed);
        state.disturb(Instant::now());
        self.set_off(state, raft, false);
    }

    fn set_off<M: Codec>(&self, state: &mut State, raft: &Raft<M>, is_off: bool) {
        if state.is_off == is_off {
            return;
        }
        state.is_off = is_off;
        tracing::debug!(group = %self.group, is_off, "quiet");
        raft.runtime_config().tick(!is_off);
        if !is_off {
            state.woke = Some(Instant::now());
            // If this member leads, the others wait for it from now on. The metrics, which know, have a lock that the engine
            // may be waiting for.
            let raft = raft.clone();
            tokio::spawn(async move { drop(raft.trigger().heartbeat().await) });
        }
    }
}

/// An entry is about to be proposed: it is quiet no more, and a lease that is old is made anew.
pub(crate) async fn stir<M: Codec>(shared: &Shared<M>, raft: &Raft<M>) -> Result<()> {
    shared.quiet.is_stirred.store(true, Ordering::Relaxed);
    let is_old = || Some(raft.as_leader().ok()?.last_quorum_acked()?.elapsed() >= LEASE_OLD);
    if !is_old().unwrap_or(false) || is_alone(raft) {
        return Ok(());
    }
    ask_quorum(shared, raft).await.map(drop)
}

/// How a group looks in which nothing is under way, and who else is in it; nothing when something is, or it stops.
fn look<M: Codec>(replica: &Replica<M>) -> Option<(Calm, Vec<MemberId>)> {
    if *replica.inner.stop.borrow() {
        return None;
    }
    let me = replica.member();
    let metrics = replica.inner.raft.metrics();
    let metrics = metrics.borrow_watched();
    let leader = MemberId::from_bits(metrics.current_leader?);
    let last = metrics.last_log_index?;
    let stored = &metrics.membership_config;
    let others: Vec<_> = stored.nodes().map(|(id, _)| *id).filter(|id| *id != me.bits()).collect();
    let has_all = |matched: &Option<_>| LogIdOptionExt::index(matched) == Some(last);
    let is_led = match metrics.state {
        ServerState::Leader => {
            let all = metrics.replication.as_ref();
            let member = |id: &u64| all.and_then(|all| all.get(id)).is_some_and(has_all);
            leader == me && others.iter().all(member)
        }
        ServerState::Follower | ServerState::Learner => leader != me,
        ServerState::Candidate | ServerState::Shutdown => false,
    };
    let is_settled = metrics.running_state.is_ok()
        && has_all(&metrics.local_committed)
        && has_all(&metrics.last_applied)
        && stored.log_id() == metrics.committed_membership_config.log_id()
        && stored.membership().get_joint_config().len() == 1;
    let calm = Calm { leader, term: metrics.current_term, last };
    (is_led && is_settled).then(|| (calm, others.into_iter().map(MemberId::from_bits).collect()))
}

impl<M: Codec> Replica<M> {
    /// Looks how the group is, and stops or starts the engine's clock as that asks for. Called every [`WORD_EVERY`].
    /// As the leader of a group in which nothing happens: what to say, and to whom.
    pub fn keep_quiet(&self) -> Option<(Word, Vec<MemberId>)> {
        let (shared, raft, me) = (&self.inner.shared, &self.inner.raft, self.member());
        let quiet = &shared.quiet;
        let now = Instant::now();
        let seen = look(self);
        let leads = seen.as_ref().is_some_and(|(calm, _)| calm.leader == me);
        let mut state = quiet.state.lock();
        let seen = seen.filter(|(calm, _)| !leads || state.handed_over != Some(calm.term));
        match seen {
            Some((calm, others)) if leads => state.see(Some(calm), others, now),
            Some((calm, _)) => state.see(Some(calm), [calm.leader], now),
            None => state.see(None, [], now),
        }
        // Others keep it until the leader has heard that they do not agree.
        if leads && quiet.is_stirred.swap(false, Ordering::Relaxed) {
            state.disturb(now);
        }
        let is_still = !leads || state.is_still(now);
        let is_off = is_still && state.is_promised(now);
        if let (true, true, Some(calm)) = (is_off, leads, state.calm) {
            state.agreed = Some((calm.term, state.oldest_word().unwrap_or(now)));
        }
        quiet.set_off(&mut state, raft, is_off);
        let calm = state.calm.filter(|_| leads && is_still)?;
        let elapsed = shared.stamper.counted(calm.term);
        let word = Word { group: shared.group, term: calm.term, last: calm.last, elapsed };
        Some((word, state.words.keys().copied().collect()))
    }

    /// The leader's node said this. Whether it is so here too: then this member waits for the next word, and hears
    /// none of its engine's clock.
    pub fn hear_word(&self, from: NodeId, word: &Word) -> bool {
        let (shared, raft, me) = (&self.inner.shared, &self.inner.raft, self.member());
        let quiet = &shared.quiet;
        let now = Instant::now();
        let Some((calm, _)) = look(self) else { return false };
        let is_so = calm.leader.node() == from && (calm.term, calm.last) == (word.term, word.last);
        if !is_so || calm.leader == me {
            return false;
        }
        let mut state = quiet.state.lock();
        if quiet.is_stirred.swap(false, Ordering::Relaxed) {
            state.disturb(now);
            return false;
        }
        state.see(Some(calm), [calm.leader], now);
        state.hear(calm, calm.leader, now);
        state.agreed = Some((calm.term, now));
        quiet.set_off(&mut state, raft, true);
        drop(state);
        shared.hear();
        shared.stamper.heard(word.term, word.elapsed);
        true
    }

    /// A member agreed to a word that was said at this moment.
    pub fn word_agreed(&self, member: MemberId, word: &Word, said: Instant) {
        let shared = &self.inner.shared;
        let calm = Calm { leader: self.member(), term: word.term, last: word.last };
        if shared.quiet.state.lock().hear(calm, member, said) {
            // It followed this far, as after an append.
            shared.stamper.heard(word.term, word.elapsed);
        }
    }

    /// A member did not agree to a word: it must hear from its leader.
    pub fn word_refused(&self) {
        self.inner.shared.quiet.disturb(&self.inner.raft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u64) -> MemberId {
        MemberId::new(NodeId(node), 0)
    }

    fn calm(last: u64) -> Calm {
        Calm { leader: member(1), term: 3, last }
    }

    /// At this many milliseconds.
    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    #[test]
    fn a_leader_is_promised_something_when_all_agree_to_what_is_so_still() {
        let begin = Instant::now();
        let at = |ms| at(begin, ms);
        let others = [member(2), member(3)];
        let mut state = State::default();
        state.see(Some(calm(7)), others, at(0));
        assert!(!state.is_still(at(1_999)) && state.is_still(at(2_000)));
        assert!(state.hear(calm(7), member(2), at(2_000)));
        assert!(!state.is_promised(at(2_010)), "one of two");
        assert!(!state.hear(calm(6), member(3), at(2_000)), "an answer to an older word");
        assert!(!state.hear(calm(7), member(4), at(2_000)), "it is no member");
        assert!(!state.is_promised(at(2_010)));
        assert!(state.hear(calm(7), member(3), at(2_100)));
        assert!(state.is_promised(at(2_700)));
        assert_eq!(state.oldest_word(), Some(at(2_000)));
        assert!(!state.is_promised(at(2_701)), "one has not said it again");
        assert!(state.hear(calm(7), member(2), at(2_600)) && state.is_promised(at(2_800)));
        state.see(Some(calm(7)), others, at(2_800));
        assert!(state.is_promised(at(2_800)) && state.is_still(at(2_800)), "it looks as before");
        state.see(Some(calm(8)), others, at(2_900));
        assert!(!state.is_promised(at(2_900)) && !state.is_still(at(2_900)), "something happened");
    }

    #[test]
    fn who_was_disturbed_is_promised_nothing_until_it_is_said_again() {
        let begin = Instant::now();
        let at = |ms| at(begin, ms);
        let mut state = State::default();
        state.see(Some(calm(7)), [member(1)], at(0));
        assert!(state.hear(calm(7), member(1), at(100)) && state.is_promised(at(200)));
        state.disturb(at(200));
        assert!(!state.is_promised(at(200)) && !state.is_still(at(2_100)) && state.is_still(at(2_200)));
        assert!(state.hear(calm(7), member(1), at(300)) && state.is_promised(at(300)));
        state.see(None, [], at(400));
        assert!(!state.is_promised(at(400)), "nothing to agree on, so nothing is promised");
    }

    #[test]
    fn who_is_alone_needs_nobodys_word() {
        let begin = Instant::now();
        let mut state = State::default();
        state.see(Some(calm(7)), [], begin);
        assert!(state.is_promised(begin) && !state.is_still(begin));
    }
}
