//! One session: what its worker said last, what it is asked to do, and how news of it are merged.
//!
//! What nodes tell each other of a session only ever grows, each field in its own order: a wish from run over
//! drain to stop, an end from none to the most deliberate one, streams and facts by their edition. So news may
//! be lost, doubled or late, and whoever heard the same knows the same. Next: `registry.rs`, all of them.

use std::collections::HashMap;

use model::{Fence, FreedReason, Millis, NodeId, QueueName, SessionId, TaskId, WallTime, WorkerName, limits};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use wire::gossip::{self, Edition, Facts, SessionNews, Wish};

use crate::call::{WorkerFacts, WorkerState};
use crate::last_heard::LastHeard;

/// A claim that a beat did not list is given back at the second such beat, but not sooner than this:
/// the answer to the claim may still be on its way.
const UNLISTED_FOR: Millis = Millis(500);
/// A claim that a worker lists and that our copy does not have is looked into after this: our copy may lag.
const ABSENT_FOR: Millis = Millis::secs(5);

/// What a worker is asked to do, and what its streams are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    wish: Wish,
    /// How the session ended, if it did.
    pub(crate) over: Option<Over>,
    /// Grows when a claim of it is to be cancelled.
    cancels: u64,
    /// Which of its streams counts, over all nodes.
    pub(crate) stream: Edition,
    /// The newest of its streams that broke.
    closed: Option<Closed>,
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) reason: FreedReason,
    /// When it was learned here.
    pub(crate) at: Millis,
    /// How many claims were freed, as far as we know.
    pub(crate) freed: u64,
}

/// A stream that broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed {
    stream: Edition,
    at: Millis,
}

impl Asked {
    pub(crate) fn state(&self) -> WorkerState {
        match (self.over, self.wish) {
            (Some(over), _) if is_loss(over.reason) => WorkerState::Lost,
            (_, Wish::Run) => WorkerState::Running,
            (_, Wish::Drain) => WorkerState::Draining,
            (_, Wish::Stop) => WorkerState::Stopping,
        }
    }

    /// What somebody waits for.
    fn awaited(&self) -> (Wish, Option<FreedReason>, u64, Edition) {
        (self.wish, self.over.map(|over| over.reason), self.cancels, self.stream)
    }
}

/// Whether this end means that the worker is lost.
pub(crate) fn is_loss(reason: FreedReason) -> bool {
    matches!(reason, FreedReason::Silent | FreedReason::Closed)
}

/// Of two ends of one session the greater counts: what somebody wanted before what somebody saw, what was
/// seen before what was not heard.
fn rank(reason: FreedReason) -> u8 {
    match reason {
        FreedReason::PutBack => 3,
        FreedReason::Drained => 2,
        FreedReason::Closed => 1,
        FreedReason::Silent | FreedReason::Deadline | FreedReason::Released => 0,
    }
}

/// What merging news into a session did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// It ended by them.
    pub(crate) ended: bool,
    /// They say that a stream broke, or that it is over.
    pub(crate) is_alarm: bool,
    /// The teller knows facts that we do not, and did not tell them.
    pub(crate) lacks_facts: bool,
    /// We know something that the teller does not.
    pub(crate) knows_more: bool,
}

/// One life of a worker.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) name: WorkerName,
    facts: RwLock<(Edition, WorkerFacts)>,
    asked: watch::Sender<Asked>,
    pub(crate) last_heard: LastHeard,
    unlisted: Mutex<HashMap<(TaskId, Fence), Millis>>,
    absent: Mutex<HashMap<(TaskId, Fence), Millis>>,
}

impl Session {
    /// A session of which no more is known than that it may live: its silence counts from now on.
    pub(crate) fn new(id: SessionId, facts: WorkerFacts, now: Millis, wall: WallTime) -> Session {
        let asked =
            Asked { wish: Wish::Run, over: None, cancels: 0, stream: Edition::default(), closed: None };
        Session {
            id,
            name: facts.name.clone(),
            facts: RwLock::new((Edition::default(), facts)),
            asked: watch::Sender::new(asked),
            last_heard: LastHeard::new(now, wall),
            unlisted: Mutex::default(),
            absent: Mutex::default(),
        }
    }

    /// A session that another node told us of.
    pub(crate) fn told(news: &SessionNews, now: Millis, wall: WallTime) -> Session {
        let then = WallTime::from_millis(wall.millis().saturating_sub(news.spoken_age.0));
        let heard = Millis(now.0.saturating_sub(news.spoken_age.0));
        let session = Session::new(news.session, WorkerFacts::named(news.worker.clone()), heard, then);
        session.merge(news, now, wall);
        session
    }

    /// What its worker said of itself.
    pub(crate) fn facts(&self) -> WorkerFacts {
        self.facts.read().1.clone()
    }

    /// How many tasks its worker runs at once.
    pub(crate) fn slots(&self) -> u32 {
        self.facts.read().1.slots
    }

    /// Whether its worker said that it works on `queue`.
    pub(crate) fn serves(&self, queue: &QueueName) -> bool {
        self.facts.read().1.queues.contains(queue)
    }

    /// The worker said this of itself, to `node`.
    pub(crate) fn set_facts(&self, facts: WorkerFacts, node: NodeId) {
        let mut known = self.facts.write();
        *known = (known.0.next(node), facts);
    }

    /// What it is asked to do.
    pub(crate) fn state(&self) -> WorkerState {
        self.asked.borrow().state()
    }

    /// How it ended, if it did.
    pub(crate) fn over(&self) -> Option<Over> {
        self.asked.borrow().over
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over().is_some()
    }

    /// Whether it may have more tasks.
    pub(crate) fn may_claim(&self) -> bool {
        let asked = *self.asked.borrow();
        asked.over.is_none() && asked.wish == Wish::Run
    }

    /// Asks it to drain or to stop. A worker that was asked to stop is not asked to drain. Whether that is
    /// news.
    pub(crate) fn ask(&self, wish: Wish) -> bool {
        self.asked.send_if_modified(|asked| {
            let is_news = asked.over.is_none() && asked.wish < wish;
            if is_news {
                asked.wish = wish;
            }
            is_news
        })
    }

    /// Tells its streams that a claim of it is to be cancelled.
    pub(crate) fn tell_cancel(&self) {
        self.asked.send_modify(|asked| asked.cancels += 1);
    }

    /// Ends it. Whether it had not ended before; one that had may get a more deliberate end.
    pub(crate) fn end(&self, reason: FreedReason, freed: u64, now: Millis) -> bool {
        let mut is_first = false;
        self.asked.send_if_modified(|asked| {
            let before = asked.awaited();
            is_first = asked.over.is_none();
            merge_over(&mut asked.over, Over { reason, at: now, freed });
            before != asked.awaited()
        });
        is_first
    }

    /// Takes the place of the stream before, wherever that is. The edition of the new one.
    pub(crate) fn next_stream(&self, node: NodeId) -> Edition {
        let mut stream = Edition::default();
        self.asked.send_modify(|asked| {
            asked.stream = asked.stream.next(node);
            stream = asked.stream;
        });
        stream
    }

    /// Whether `stream` still counts.
    pub(crate) fn is_stream(&self, stream: Edition) -> bool {
        self.asked.borrow().stream == stream
    }

    /// Notes that `stream` broke. Whether that is news: it counted, and the session is not over.
    pub(crate) fn close(&self, stream: Edition, now: Millis) -> bool {
        let mut is_news = false;
        self.asked.send_if_modified(|asked| {
            is_news = asked.over.is_none() && asked.stream == stream;
            if is_news {
                asked.closed = Some(Closed { stream, at: now });
                self.last_heard.stream_broke();
            }
            false
        });
        is_news
    }

    /// Whether it has an open stream, at whichever node, and was heard not long ago.
    pub(crate) fn is_at_work(&self, now: Millis) -> bool {
        let asked = *self.asked.borrow();
        let is_open = asked.closed.is_none_or(|closed| closed.stream != asked.stream);
        asked.over.is_none()
            && asked.stream != Edition::default()
            && is_open
            && self.silent_for(now) < limits::SILENCE
    }

    /// Whether a worker with these facts is the same. Containers may share a host's name and all be process 1, so its
    /// own number decides where both have one.
    pub(crate) fn is_of(&self, facts: &WorkerFacts) -> bool {
        let known = self.facts.read();
        match (known.1.instance, facts.instance) {
            (Some(known), Some(instance)) => known == instance,
            _ => (&known.1.host, known.1.pid) == (&facts.host, facts.pid),
        }
    }

    /// How long ago its stream broke, unless a newer one took its place.
    pub(crate) fn closed_for(&self, now: Millis) -> Option<Millis> {
        // All sessions are asked this twice a second, and of most no stream ever broke.
        if !self.last_heard.did_a_stream_break() {
            return None;
        }
        let asked = *self.asked.borrow();
        let closed = asked.closed.filter(|closed| closed.stream == asked.stream)?;
        Some(Millis(now.0.saturating_sub(closed.at.0)))
    }

    /// Told of every change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Asked> {
        self.asked.subscribe()
    }

    /// Returns when the worker may have no more tasks. Never for one without a session.
    pub(crate) async fn until_no_claims(session: Option<&Session>) {
        let Some(session) = session else { return std::future::pending().await };
        let mut asked = session.subscribe();
        // The sender lives as long as the session, which is borrowed here.
        let _ = asked.wait_for(|asked| asked.over.is_some() || asked.wish != Wish::Run).await;
    }

    /// Returns when it has ended.
    pub(crate) async fn until_over(&self) {
        // The sender lives as long as the session, which is borrowed here.
        let _ = self.subscribe().wait_for(|asked| asked.over.is_some()).await;
    }

    /// All that is known of it, for another node.
    pub(crate) fn news(&self, with_facts: bool, now: Millis) -> SessionNews {
        let age = |at: Millis| Millis(now.0.saturating_sub(at.0));
        let asked = *self.asked.borrow();
        let known = self.facts.read();
        SessionNews {
            session: self.id,
            worker: self.name.clone(),
            age: self.silent_for(now),
            spoken_age: self.spoken_age(now),
            facts_edition: known.0,
            facts: (with_facts && known.0 != Edition::default()).then(|| facts_for_others(&known.1)),
            wish: asked.wish,
            stream: asked.stream,
            closed: asked.closed.map(|closed| gossip::Closed { stream: closed.stream, age: age(closed.at) }),
            over: asked.over.map(|over| gossip::Over {
                reason: over.reason,
                age: age(over.at),
                freed: over.freed,
            }),
        }
    }

    /// Learns what another node says of it.
    pub(crate) fn merge(&self, news: &SessionNews, now: Millis, wall: WallTime) -> Merged {
        self.merge_heard(news, now, wall);
        let lacks_facts = self.merge_facts(news);
        let mut merged =
            Merged { lacks_facts, knows_more: self.facts.read().0 > news.facts_edition, ..Merged::default() };
        let then = |age: Millis| Millis(now.0.saturating_sub(age.0));
        self.asked.send_if_modified(|asked| {
            let before = *asked;
            asked.wish = asked.wish.max(news.wish);
            asked.stream = asked.stream.max(news.stream);
            if let Some(closed) = news.closed {
                asked.stream = asked.stream.max(closed.stream);
                if asked.closed.is_none_or(|known| known.stream < closed.stream) {
                    asked.closed = Some(Closed { stream: closed.stream, at: then(closed.age) });
                    self.last_heard.stream_broke();
                }
            }
            if let Some(over) = news.over {
                let over = Over { reason: over.reason, at: then(over.age), freed: over.freed };
                merge_over(&mut asked.over, over);
            }
            merged.ended = before.over.is_none() && asked.over.is_some();
            merged.is_alarm = merged.ended || before.closed != asked.closed;
            merged.knows_more |= asked.wish > news.wish
                || asked.stream > news.stream
                || asked.closed.map(|closed| closed.stream) != news.closed.map(|closed| closed.stream)
                || asked.over.map(|over| rank(over.reason)) != news.over.map(|over| rank(over.reason));
            before.awaited() != asked.awaited()
        });
        merged
    }

    /// Whether the teller has newer facts and did not tell them.
    fn merge_facts(&self, news: &SessionNews) -> bool {
        if self.facts.read().0 >= news.facts_edition {
            return false;
        }
        let Some(facts) = &news.facts else { return true };
        let mut known = self.facts.write();
        if known.0 < news.facts_edition {
            *known = (news.facts_edition, facts_from_others(self.name.clone(), facts));
        }
        false
    }

    /// Notes which of its claims a beat did not list. Those to be given back: the beat before did not
    /// list them either.
    pub(crate) fn unlisted(&self, missing: Vec<(TaskId, Fence)>, now: Millis) -> Vec<(TaskId, Fence)> {
        twice(&mut self.unlisted.lock(), missing, UNLISTED_FOR, now)
    }

    /// Notes which claims a beat listed that our copy does not have. Those that it does not get any more.
    pub(crate) fn absent(&self, absent: Vec<(TaskId, Fence)>, now: Millis) -> Vec<(TaskId, Fence)> {
        twice(&mut self.absent.lock(), absent, ABSENT_FOR, now)
    }
}

/// Notes what was seen `now`. What was seen at each time since, at least for `long`, which is noted no more.
fn twice(
    noted: &mut HashMap<(TaskId, Fence), Millis>,
    seen: Vec<(TaskId, Fence)>,
    long: Millis,
    now: Millis,
) -> Vec<(TaskId, Fence)> {
    let before = std::mem::take(noted);
    let mut sure = Vec::new();
    for claim in seen {
        match before.get(&claim) {
            Some(since) if now.0.saturating_sub(since.0) >= long.0 => sure.push(claim),
            Some(since) => drop(noted.insert(claim, *since)),
            None => drop(noted.insert(claim, now)),
        }
    }
    sure
}

fn merge_over(known: &mut Option<Over>, told: Over) {
    match known {
        None => *known = Some(told),
        Some(known) => {
            if rank(told.reason) > rank(known.reason) {
                known.reason = told.reason;
            }
            known.freed = known.freed.max(told.freed);
        }
    }
}

fn facts_for_others(facts: &WorkerFacts) -> Facts {
    Facts {
        host: facts.host.clone(),
        pid: facts.pid,
        instance: facts.instance,
        slots: facts.slots,
        queues: facts.queues.clone(),
        labels: facts.labels.clone(),
        version: facts.version.clone(),
        beat: facts.beat,
    }
}

fn facts_from_others(name: WorkerName, facts: &Facts) -> WorkerFacts {
    WorkerFacts {
        name,
        host: facts.host.clone(),
        pid: facts.pid,
        instance: facts.instance,
        slots: facts.slots,
        queues: facts.queues.clone(),
        labels: facts.labels.clone(),
        version: facts.version.clone(),
        beat: facts.beat,
        session: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ShardId;

    fn session() -> Session {
        let facts = WorkerFacts::named(WorkerName::new("w1").unwrap());
        Session::new(SessionId(1), facts, Millis(0), WallTime::from_millis(0))
    }

    fn claim(n: u64) -> (TaskId, Fence) {
        (TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1), n), Fence(n))
    }

    #[test]
    fn a_claim_is_given_back_only_when_two_beats_in_a_row_do_not_list_it() {
        let session = session();
        assert!(session.unlisted(vec![claim(1)], Millis(1_000)).is_empty());
        assert!(session.unlisted(vec![], Millis(2_000)).is_empty(), "listed in between");
        assert!(session.unlisted(vec![claim(1), claim(2)], Millis(3_000)).is_empty());
        assert!(session.unlisted(vec![claim(2)], Millis(3_100)).is_empty(), "too soon after");
        assert_eq!(session.unlisted(vec![claim(1), claim(2)], Millis(4_000)), [claim(2)]);
    }

    #[test]
    fn a_session_ends_once_and_a_person_has_the_last_word() {
        let session = session();
        assert!(session.end(FreedReason::Silent, 2, Millis(1)));
        assert!(!session.end(FreedReason::Closed, 0, Millis(2)));
        assert_eq!(session.state(), WorkerState::Lost);
        assert!(!session.may_claim());
        assert!(!session.end(FreedReason::PutBack, 0, Millis(3)));
        let over = Over { reason: FreedReason::PutBack, at: Millis(1), freed: 2 };
        assert_eq!(session.over(), Some(over), "removed from the list of the lost");
    }

    #[test]
    fn who_shall_stop_is_not_asked_to_drain() {
        let session = session();
        assert!(session.ask(Wish::Stop));
        assert!(!session.ask(Wish::Drain));
        assert_eq!(session.state(), WorkerState::Stopping);
    }

    #[test]
    fn a_stream_at_another_node_takes_the_place_of_the_one_here() {
        let (here, there) = (session(), session());
        let first = here.next_stream(NodeId(1));
        there.merge(&here.news(true, Millis(5)), Millis(5), WallTime::from_millis(5));
        let second = there.next_stream(NodeId(2));
        here.merge(&there.news(true, Millis(6)), Millis(6), WallTime::from_millis(6));
        assert!(!here.is_stream(first));
        assert!(!here.close(first, Millis(7)), "the old holder's end ends nothing");
        assert!(there.close(second, Millis(7)));
        let merged = here.merge(&there.news(true, Millis(9)), Millis(9), WallTime::from_millis(9));
        assert!(merged.is_alarm && !merged.ended);
        assert_eq!(here.closed_for(Millis(9)), Some(Millis(2)));
    }

    #[test]
    fn only_a_session_with_an_open_stream_is_at_work() {
        let (now, wall) = (Millis(100), WallTime::from_millis(100));
        let session = session();
        session.heard(now, wall);
        assert!(!session.is_at_work(now), "it has no stream");
        let stream = session.next_stream(NodeId(1));
        assert!(session.is_at_work(now));
        let there = Session::told(&session.news(true, now), now, wall);
        assert!(there.is_at_work(now), "also at another node");
        assert!(!session.is_at_work(Millis(100 + limits::SILENCE.0)), "silent");
        session.close(stream, now);
        assert!(!session.is_at_work(now), "its stream broke");
        session.next_stream(NodeId(2));
        assert!(session.is_at_work(now), "and was opened anew");
        session.end(FreedReason::Closed, 0, now);
        assert!(!session.is_at_work(now), "it is over");
    }

    #[test]
    fn a_worker_is_known_by_its_own_number_else_by_its_host_and_process() {
        let session = session();
        let facts =
            |host: Option<&str>, pid| WorkerFacts { host: host.map(Into::into), pid, ..session.facts() };
        assert!(session.is_of(&facts(None, None)), "who says nothing is the same");
        session.set_facts(facts(Some("a"), Some(1)), NodeId(1));
        for (what, host, pid, expected) in [
            ("the same", Some("a"), Some(1), true),
            ("another host", Some("b"), Some(1), false),
            ("another process", Some("a"), Some(2), false),
            ("one who says nothing", None, None, false),
        ] {
            assert_eq!(session.is_of(&facts(host, pid)), expected, "{what}");
        }
        let numbered = |instance, pid| WorkerFacts { instance: Some(instance), ..facts(Some("a"), pid) };
        assert!(session.is_of(&numbered(7, Some(1))), "one that had no number before");
        session.set_facts(numbered(7, Some(1)), NodeId(1));
        for (what, facts, expected) in [
            ("the same number", numbered(7, Some(1)), true),
            ("the same after a fork", numbered(7, Some(2)), true),
            ("another container", numbered(8, Some(1)), false),
            ("an older client", facts(Some("a"), Some(1)), true),
        ] {
            assert_eq!(session.is_of(&facts), expected, "{what}");
            let there = Session::told(&session.news(true, Millis(1)), Millis(1), WallTime::from_millis(1));
            assert_eq!(there.is_of(&facts), expected, "{what}, at another node");
        }
    }

    #[test]
    fn a_stream_that_broke_late_does_not_close_a_session_that_was_opened_anew() {
        let session = session();
        let newer = Edition { number: 2, node: 2 };
        let opened = SessionNews { stream: newer, ..session.news(true, Millis(1)) };
        let first = Edition { number: 1, node: 1 };
        let closed = gossip::Closed { stream: first, age: Millis(0) };
        let broken = SessionNews { stream: first, closed: Some(closed), ..session.news(true, Millis(1)) };
        for news in [opened, broken] {
            session.merge(&news, Millis(2), WallTime::from_millis(2));
        }
        assert_eq!(session.closed_for(Millis(2)), None);
    }

    #[test]
    fn news_without_facts_show_who_knows_more() {
        let (here, there) = (session(), session());
        there.set_facts(WorkerFacts { slots: 8, ..here.facts() }, NodeId(2));
        let (now, wall) = (Millis(1), WallTime::from_millis(1));
        let told = here.merge(&there.news(false, now), now, wall);
        assert!(told.lacks_facts && !told.knows_more);
        let told = there.merge(&here.news(false, now), now, wall);
        assert!(told.knows_more && !told.lacks_facts);
        here.merge(&there.news(true, now), now, wall);
        assert_eq!(here.slots(), 8);
        assert_eq!(there.merge(&here.news(false, now), now, wall), Merged::default());
    }
}
