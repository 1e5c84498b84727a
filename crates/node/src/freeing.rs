//! Frees the claims of sessions that are over or lost, in the shards that this node leads.
//!
//! The leader of a shard decides about the claims in it: a session that is over is ended there, one whose
//! stream broke at once, one that nobody has heard for 2.5 s as silent. What it does not know counts from when
//! it first led. Before it calls a session silent it asks the other nodes, which may hear a worker that it
//! cannot. A session is called lost only with a quorum's consent: an end that was committed or, when it holds
//! nothing, the word of the leader of its home shard. So a node that is cut off ends nobody.
//!
//! Next: `state-machine/src/shard/session.rs`, where claims are freed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use model::{Command, Fence, FreedReason, Millis, Mutant, Reply, SessionId, ShardId, limits, mutant};
use parking_lot::Mutex;

use crate::inner::Inner;
use crate::session::{Session, is_loss};
use crate::session_news::About;
use crate::vouching::Voucher;

/// How often silence is looked for. With 2.5 s of silence and a commit, well within 3 s.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// When a look comes this late, it was the node that was silent.
const STOOD_STILL: Millis = Millis(1_000);
/// How often the shards are asked which sessions hold claims. A session that nobody told of counts from when it is found
/// here, and its 2.5 s of silence after that shall end within 3 s: hardly less often.
const LOOK_AT_ALL_EVERY: Millis = Millis(500);
/// A session that was not heard for this long is asked for: beats come every second, and are told every half.
const ASK_AFTER: Millis = Millis(1_750);
/// How often the other nodes are asked.
const ASK_EVERY: Millis = Millis(500);
/// Who ends a session on purpose frees its claims himself; after this the leader does.
const HEAD_START: Millis = Millis(300);
/// A worker that is heard this long after its stream broke has not gone with it: we learned of it late.
const STILL_BEATS: Millis = Millis(1_000);
/// How often it is looked for sessions that can be forgotten.
const PRUNE_EVERY: Millis = Millis::secs(10);
/// Sessions looked up in a shard at a time.
const STEP: usize = 2_000;
/// Ends proposed at once.
const ENDS_IN_PROPOSAL: usize = 1_000;

/// What is known of a session when it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    /// Why it is over and since when, if it is.
    over: Option<(FreedReason, Millis)>,
    /// How long ago its stream broke.
    closed_for: Option<Millis>,
    /// How long nobody has heard it.
    silent_for: Millis,
    /// How long we have listened, as leader.
    listened_for: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    /// Soon to be called silent: ask the others.
    Ask,
    End(FreedReason),
}

fn judge(case: Case) -> Verdict {
    if let Some((reason, over_for)) = case.over {
        let is_due = is_loss(reason) || over_for >= HEAD_START;
        return if is_due { Verdict::End(reason) } else { Verdict::Wait };
    }
    if let Some(closed_for) = case.closed_for
        && closed_for.0.saturating_sub(case.silent_for.0) <= STILL_BEATS.0
    {
        return Verdict::End(FreedReason::Closed);
    }
    match case.silent_for.min(case.listened_for) {
        silent if silent >= limits::SILENCE => Verdict::End(FreedReason::Silent),
        silent if silent >= ASK_AFTER => Verdict::Ask,
        _ => Verdict::Wait,
    }
}

/// Since when this node leads a shard, in which term.
#[derive(Clone, Copy)]
struct Led {
    term: u64,
    since: Millis,
}

/// A session that shall end.
struct Ending {
    session: Arc<Session>,
    reason: FreedReason,
    /// The shards that we lead and that have claims of it, each with its newest.
    shards: Vec<(ShardId, Fence)>,
    /// Whose leader may say so when there are none.
    home: Option<ShardId>,
}

/// What need not be done again.
#[derive(Default)]
struct Work {
    /// Up to which claim a session was ended in a shard, and why. What it still holds waits for a person.
    settled: HashMap<(ShardId, SessionId), (Fence, FreedReason)>,
}

impl Work {
    /// Whether this end would free nothing more.
    fn is_settled(&self, shard: ShardId, session: SessionId, fence: Fence, reason: FreedReason) -> bool {
        self.settled
            .get(&(shard, session))
            .is_some_and(|(upto, by)| *upto >= fence && (!by.uses_attempt() || reason.uses_attempt()))
    }
}

/// Looks for lost sessions until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut watch = Watch::new(inner.now());
    loop {
        tokio::select! {
            _ = ticks.tick() => watch.tick(&inner),
            () = inner.sessions.alarms.rung() => watch.alarm(&inner),
            () = inner.stopping.cancelled() => return,
        }
    }
}

/// What one leader has seen so far.
struct Watch {
    /// When it last looked.
    last: Millis,
    /// Since when it could hear beats.
    listening_since: Millis,
    led: BTreeMap<ShardId, Led>,
    looked_at_all: Option<Millis>,
    pruned: Millis,
    asked: Millis,
    work: Arc<Mutex<Work>>,
    voucher: Voucher,
    /// Those that hold claims in our shards: for them nobody else speaks.
    holders: HashMap<SessionId, Arc<Session>>,
}

impl Watch {
    fn new(now: Millis) -> Watch {
        Watch {
            last: now,
            listening_since: now,
            led: BTreeMap::new(),
            looked_at_all: None,
            pruned: now,
            asked: Millis(0),
            work: Arc::default(),
            voucher: Voucher::default(),
            holders: HashMap::new(),
        }
    }

    /// Looks at all sessions.
    fn tick(&mut self, inner: &Arc<Inner>) {
        let now = inner.now();
        if self.stood_still(now) {
            return;
        }
        self.last = now;
        self.voucher.vouch(inner, now);
        let leads_more = self.note_led(inner, now);
        let is_time = self.looked_at_all.is_none_or(|at| now.0.saturating_sub(at.0) >= LOOK_AT_ALL_EVERY.0);
        let looks_at_all = leads_more || is_time;
        // A stream that breaks is rung for: what is found here was not decided then.
        let is_suspect = |session: &Session| {
            session.silent_for(now) >= ASK_AFTER || (looks_at_all && session.closed_for(now).is_some())
        };
        let mut suspects = inner.sessions.pick(is_suspect);
        if looks_at_all {
            self.looked_at_all = Some(now);
            suspects.extend(self.look_at_all(inner));
        }
        if now.0.saturating_sub(self.pruned.0) >= PRUNE_EVERY.0 {
            self.pruned = now;
            inner.sessions.prune(now, |session| inner.holds_claims(session));
        }
        self.decide(inner, suspects, now);
    }

    /// Looks at those who were rung for.
    fn alarm(&mut self, inner: &Arc<Inner>) {
        let now = inner.now();
        if self.stood_still(now) {
            return;
        }
        self.note_led(inner, now);
        let rung = inner.sessions.alarms.take();
        let suspects = rung.into_keys().filter_map(|id| inner.sessions.known(id)).collect();
        self.decide(inner, suspects, now);
    }

    /// Whether this node, not its workers, was silent. Beats may wait unread: the count begins anew, as after
    /// a restart.
    fn stood_still(&mut self, now: Millis) -> bool {
        let late = now.0.saturating_sub(self.last.0);
        if late < STOOD_STILL.0 {
            return false;
        }
        tracing::warn!(for_ms = late, "this node stood still: workers get time to be heard");
        self.last = now;
        self.listening_since = now;
        true
    }

    /// Notes which shards this node leads. Whether there are new ones.
    fn note_led(&mut self, inner: &Inner, now: Millis) -> bool {
        let mut leads_more = false;
        for shard in inner.groups.all() {
            let term = inner.leads(shard);
            if self.led.get(&shard).map(|led| led.term) == term {
                continue;
            }
            self.work.lock().settled.retain(|(of, _), _| *of != shard);
            match term {
                Some(term) => {
                    self.led.insert(shard, Led { term, since: now });
                    leads_more = true;
                }
                None => drop(self.led.remove(&shard)),
            }
        }
        leads_more
    }

    /// The sessions that hold claims in our shards and are over. Those that nobody told us of count from
    /// now on.
    fn look_at_all(&mut self, inner: &Inner) -> Vec<Arc<Session>> {
        let mut over = Vec::new();
        let mut speakers = HashMap::new();
        for shard in self.led.keys() {
            let mut holders = HashSet::new();
            let mut from = Some(SessionId(0));
            while let Some(first) = from {
                let step = inner.groups.look(*shard, |state| state.sessions_from(first, STEP));
                from = step.last().and_then(|(id, _)| id.0.checked_add(1)).map(SessionId);
                for (id, worker) in step {
                    holders.insert(id);
                    match inner.sessions.known(id) {
                        Some(session) if session.is_over() => over.push(session),
                        Some(session) => drop(speakers.insert(id, session)),
                        None => {
                            // Without room its claims wait for their deadline.
                            if let Err(error) = inner.add_session(id, worker, limits::SESSIONS_TOLD_MAX) {
                                tracing::debug!(session = %id, %error, "session not taken up");
                            }
                        }
                    }
                }
            }
            let mut work = self.work.lock();
            work.settled.retain(|(of, session), _| of != shard || holders.contains(session));
        }
        let before = self.holders.values().filter(|session| !speakers.contains_key(&session.id));
        before.for_each(|session| session.set_must_speak(false));
        speakers.values().for_each(|session| session.set_must_speak(true));
        self.holders = speakers;
        over
    }

    /// Judges these sessions, and sees to it that what was decided happens.
    fn decide(&mut self, inner: &Arc<Inner>, mut suspects: Vec<Arc<Session>>, now: Millis) {
        if self.led.is_empty() {
            return;
        }
        suspects.sort_unstable_by_key(|session| session.id);
        suspects.dedup_by_key(|session| session.id);
        suspects.retain(|session| !inner.sessions.endings.is_under_way(session.id));
        if suspects.is_empty() {
            return;
        }
        let held = self.claims(inner, &suspects);
        let (mut endings, mut asks) = (Vec::new(), Vec::new());
        for (session, shards) in suspects.into_iter().zip(held) {
            let (ending, is_doubtful) = self.judge(inner, session.clone(), shards, now);
            endings.extend(ending);
            if is_doubtful {
                asks.push(session.id);
            }
        }
        if !asks.is_empty() && now.0.saturating_sub(self.asked.0) >= ASK_EVERY.0 {
            self.asked = now;
            let inner = inner.clone();
            inner.tasks.clone().spawn(async move {
                inner.ask_all(About::Silent, &asks, || false).await;
            });
        }
        if !endings.is_empty() {
            inner.sessions.endings.begin(endings.iter().map(|ending| ending.session.id));
            inner.tasks.spawn(end_all(inner.clone(), endings, self.work.clone()));
        }
    }

    /// For each session, in which of our shards it holds claims, and the newest of them.
    fn claims(&self, inner: &Inner, sessions: &[Arc<Session>]) -> Vec<Vec<(ShardId, Fence)>> {
        let mut held = vec![Vec::new(); sessions.len()];
        let shards_max = if mutant::planted(Mutant::SessionInOneShard) { 1 } else { usize::MAX };
        for shard in self.led.keys().take(shards_max) {
            for (sessions, held) in sessions.chunks(STEP).zip(held.chunks_mut(STEP)) {
                inner.groups.look(*shard, |state| {
                    for (session, held) in sessions.iter().zip(held) {
                        held.extend(state.session_last(session.id).map(|fence| (*shard, fence)));
                    }
                });
            }
        }
        held
    }

    /// What shall happen to a session, and whether to ask for it.
    fn judge(
        &self,
        inner: &Inner,
        session: Arc<Session>,
        held: Vec<(ShardId, Fence)>,
        now: Millis,
    ) -> (Option<Ending>, bool) {
        let age = |at: Millis| Millis(now.0.saturating_sub(at.0));
        let over = session.over();
        let verdict = |led: &Led| {
            judge(Case {
                over: over.map(|over| (over.reason, age(over.at))),
                closed_for: session.closed_for(now),
                silent_for: session.silent_for(now),
                listened_for: age(led.since.max(self.listening_since)),
            })
        };
        let home = inner.home(session.id);
        let mut ending = None;
        let mut is_doubtful = false;
        // At home it is judged even without claims, unless it is over already.
        let at_home = (held.is_empty() && over.is_none()).then_some((home, None));
        let held = held.into_iter().map(|(shard, fence)| (shard, Some(fence)));
        let work = self.work.lock();
        for (shard, fence) in held.chain(at_home) {
            let Some(led) = self.led.get(&shard) else { continue };
            let reason = match verdict(led) {
                Verdict::Wait => continue,
                Verdict::Ask => {
                    is_doubtful = true;
                    continue;
                }
                Verdict::End(reason) => reason,
            };
            if fence.is_some_and(|fence| work.is_settled(shard, session.id, fence, reason)) {
                continue;
            }
            let ending = ending.get_or_insert_with(|| Ending {
                session: session.clone(),
                reason,
                shards: Vec::new(),
                home: fence.is_none().then_some(shard),
            });
            ending.shards.extend(fence.map(|fence| (shard, fence)));
        }
        (ending, is_doubtful)
    }
}

/// Ends these sessions in their shards, all at once, and makes known which of them are over by that.
async fn end_all(inner: Arc<Inner>, endings: Vec<Ending>, work: Arc<Mutex<Work>>) {
    let mut by_shard: BTreeMap<ShardId, Vec<usize>> = BTreeMap::new();
    let mut homes: BTreeSet<ShardId> = BTreeSet::new();
    for (n, ending) in endings.iter().enumerate() {
        for (shard, _) in &ending.shards {
            by_shard.entry(*shard).or_default().push(n);
        }
        homes.extend(ending.home);
    }
    let in_shards = by_shard.iter().flat_map(|(shard, which)| {
        let (inner, endings) = (&inner, &endings);
        which.chunks(ENDS_IN_PROPOSAL).map(move |which| end_in(inner, *shard, which, endings))
    });
    let at_homes = homes.iter().map(|home| {
        let inner = &inner;
        async move { inner.groups.shard(*home).read(|_| ()).await.is_ok().then_some(*home) }
    });
    let (ended, consenting) =
        tokio::join!(futures::future::join_all(in_shards), futures::future::join_all(at_homes));
    let consenting: BTreeSet<ShardId> = consenting.into_iter().flatten().collect();
    // How many claims of each were freed; nothing where nobody consented.
    let mut freed: Vec<Option<u64>> = endings
        .iter()
        .map(|ending| ending.home.is_some_and(|home| consenting.contains(&home)).then_some(0))
        .collect();
    {
        let mut work = work.lock();
        for (shard, n, count) in ended.into_iter().flatten() {
            let ending = &endings[n];
            *freed[n].get_or_insert(0) += count;
            if let Some((_, fence)) = ending.shards.iter().find(|(of, _)| *of == shard) {
                work.settled.insert((shard, ending.session.id), (*fence, ending.reason));
            }
        }
    }
    for (ending, freed) in endings.iter().zip(freed) {
        if let Some(freed) = freed {
            inner.is_over(&ending.session, ending.reason, freed);
        }
        inner.sessions.endings.decide(ending.session.id);
    }
}

/// Ends sessions in one shard, as its leader. Which of them, and how many claims that freed. When another leads
/// now, it decides anew.
async fn end_in(
    inner: &Inner,
    shard: ShardId,
    which: &[usize],
    endings: &[Ending],
) -> Vec<(ShardId, usize, u64)> {
    let end = |n: &usize| {
        let Ending { session, reason, .. } = &endings[*n];
        Command::EndSession { worker: session.name.clone(), session: session.id, reason: *reason }
    };
    match inner.groups.shard(shard).propose(which.iter().map(end).collect()).await {
        Ok(applied) => {
            let count = |outcome| if let Ok(Reply::Count(freed)) = outcome { freed } else { 0 };
            which.iter().zip(applied).map(|(n, applied)| (shard, *n, count(applied.outcome))).collect()
        }
        Err(error) => {
            tracing::debug!(%shard, %error, sessions = which.len(), "claims not freed yet");
            Vec::new()
        }
    }
}

impl Inner {
    /// The term in which this node leads a shard, if it does.
    pub(crate) fn leads(&self, shard: ShardId) -> Option<u64> {
        let replica = self.groups.shard(shard);
        replica.leads().then(|| replica.leader().map_or(0, |(_, term)| term))
    }

    /// The shard whose leader decides about a session that holds nothing.
    pub(crate) fn home(&self, session: SessionId) -> ShardId {
        ShardId::of_hash(session.0 as u64, self.groups.count())
    }

    /// Whether a session has claims, as far as our copies know.
    pub(crate) fn holds_claims(&self, session: SessionId) -> bool {
        self.groups.all().any(|shard| self.groups.look(shard, |state| state.session_last(session)).is_some())
    }

    /// A session is over, with a quorum's consent.
    fn is_over(&self, session: &Arc<Session>, reason: FreedReason, freed: u64) {
        if self.sessions.end(session, reason, freed, self.now()) {
            self.sessions.changed.add(session.id, false);
            self.tell_end(session);
        } else if freed > 0 {
            let (worker, reason) = (&session.name, reason.as_str());
            tracing::info!(%worker, reason, tasks_freed = freed, "claims of a session that is over were freed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_leader_decides() {
        let fine =
            Case { over: None, closed_for: None, silent_for: Millis(400), listened_for: Millis::secs(60) };
        let over = |reason, ms| Case { over: Some((reason, Millis(ms))), ..fine };
        let silent =
            |silent, listened| Case { silent_for: Millis(silent), listened_for: Millis(listened), ..fine };
        let closed =
            |closed, silent| Case { closed_for: Some(Millis(closed)), silent_for: Millis(silent), ..fine };
        for (what, case, expected) in [
            ("heard just now", fine, Verdict::Wait),
            ("told late, still fine", silent(1_749, 60_000), Verdict::Wait),
            ("not heard for long: the others may have", silent(1_750, 60_000), Verdict::Ask),
            ("not quite silent", silent(2_499, 60_000), Verdict::Ask),
            ("silent", silent(2_500, 60_000), Verdict::End(FreedReason::Silent)),
            ("silent, but we lead only now", silent(60_000, 0), Verdict::Wait),
            ("silent, and we have listened a while", silent(60_000, 2_000), Verdict::Ask),
            ("silent as long as we lead", silent(60_000, 2_500), Verdict::End(FreedReason::Silent)),
            ("its stream broke", closed(0, 700), Verdict::End(FreedReason::Closed)),
            (
                "it broke, and we lead only now",
                Case { listened_for: Millis(0), ..closed(0, 700) },
                Verdict::End(FreedReason::Closed),
            ),
            ("a beat crossed the end", closed(900, 100), Verdict::End(FreedReason::Closed)),
            ("we learn late, it still beats", closed(5_000, 300), Verdict::Wait),
            ("it beat on, then fell silent", closed(9_000, 2_500), Verdict::End(FreedReason::Silent)),
            ("we learn late, no beat since", closed(5_000, 5_100), Verdict::End(FreedReason::Closed)),
            ("lost elsewhere", over(FreedReason::Silent, 0), Verdict::End(FreedReason::Silent)),
            ("closed elsewhere", over(FreedReason::Closed, 0), Verdict::End(FreedReason::Closed)),
            ("who removed it frees it", over(FreedReason::PutBack, 0), Verdict::Wait),
            ("who removed it did not", over(FreedReason::PutBack, 300), Verdict::End(FreedReason::PutBack)),
            ("it left in order", over(FreedReason::Drained, 299), Verdict::Wait),
            (
                "it left, something is left",
                over(FreedReason::Drained, 300),
                Verdict::End(FreedReason::Drained),
            ),
        ] {
            assert_eq!(judge(case), expected, "{what}");
        }
    }

    #[test]
    fn an_end_is_not_proposed_again_for_what_waits_for_a_person() {
        let (shard, session) = (ShardId::new(1).unwrap(), SessionId(1));
        let mut work = Work::default();
        work.settled.insert((shard, session), (Fence(5), FreedReason::Silent));
        for (what, fence, reason, expected) in [
            ("the same again", 5, FreedReason::Silent, true),
            ("closed is no more than silent", 5, FreedReason::Closed, true),
            ("a claim came after", 6, FreedReason::Silent, false),
            ("a person frees all", 5, FreedReason::PutBack, false),
        ] {
            assert_eq!(work.is_settled(shard, session, Fence(fence), reason), expected, "{what}");
        }
    }
}
