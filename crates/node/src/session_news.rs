//! What nodes tell each other of sessions, and how it is heard.
//!
//! A change is told to all other nodes at once; twice a second, which workers were heard here since, and that this
//! node still speaks for its idle ones (`vouching.rs`); and all that is known, to a node that was not reached before
//! or had no room. A node that is told of a session it
//! does not know asks the teller; one that knows more tells it back. Merging is `session.rs`'s.
//!
//! Next: `freeing.rs`, what follows for the claims.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use model::{GroupId, Millis, NodeId, SessionId, limits};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, SemaphorePermit};
use wire::gossip::{self, News, SessionNews};
use wire::peer::PeerKind;

use crate::events::NodeEvent;
use crate::inner::Inner;
use crate::link::LinkEvent;
use crate::registry::{HeardThere, LOST_LISTED, Learned, Registry};
use crate::session::Session;
use crate::vouching::VouchedTold;

/// How often it is told which workers were heard.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// A session that nobody heard for this long and nobody ended is told as a whole, this often: somebody may
/// know of its end, and whoever decides may not know of it.
const STALE: Millis = Millis::secs(5);
/// How often it is said that there are too many sessions.
const SAY_FULL_EVERY: Millis = Millis::mins(1);
/// How long an answer about sessions is waited for.
const ASK_TIMEOUT: Duration = Duration::from_millis(300);
/// Sessions in one message.
const SESSIONS_IN_MESSAGE: usize = 500;
/// Beats in one message.
const BEATS_IN_MESSAGE: usize = 5_000;
/// Questions under way about each; over it nothing more is asked.
const ASKS_MAX: usize = 256;

/// What other nodes are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Sessions that are not known here. Whoever names one causes a question.
    Unknown,
    /// Sessions that are about to be called silent.
    Silent,
}

/// Whose turn it is to ask. However many ask about what is unknown, there is room to ask about who is silent: an
/// unasked question would end a worker that another node hears.
pub(crate) struct Asks {
    unknown: Semaphore,
    silent: Semaphore,
}

impl Default for Asks {
    fn default() -> Asks {
        Asks { unknown: Semaphore::new(ASKS_MAX), silent: Semaphore::new(ASKS_MAX) }
    }
}

impl Asks {
    /// A place among those who ask, if there is one.
    fn turn(&self, about: About) -> Option<SemaphorePermit<'_>> {
        let places = match about {
            About::Unknown => &self.unknown,
            About::Silent => &self.silent,
        };
        places.try_acquire().ok()
    }
}

/// Another node told us something.
pub(crate) fn on_news(inner: &Arc<Inner>, from: NodeId, body: Bytes) {
    match gossip::decode(body) {
        Ok(news) => inner.hear(from, &news),
        Err(error) => tracing::warn!(node = %from, %error, "news of sessions that cannot be read"),
    }
}

/// Another node asks what we know. What cannot be read is answered by nothing.
pub(crate) fn on_ask(inner: &Inner, body: Bytes) -> Bytes {
    let asked = gossip::decode_ask(body).unwrap_or_default();
    gossip::encode(&inner.sessions.answer(&asked, inner.now()))
}

/// What the hearing of news asks for.
#[derive(Default)]
pub(crate) struct Heard {
    /// Sessions that were not known.
    pub(crate) new: Vec<Arc<Session>>,
    /// Sessions that ended by them.
    pub(crate) ended: Vec<Arc<Session>>,
    /// What the teller shall be asked for.
    pub(crate) ask: Vec<SessionId>,
    /// What the teller does not know.
    pub(crate) tell: Vec<SessionId>,
    /// How many had no room.
    pub(crate) refused: usize,
}

impl Registry {
    /// All that is known of these sessions.
    pub(crate) fn answer(&self, asked: &[SessionId], now: Millis) -> News {
        let asked = asked.iter().take(SESSIONS_IN_MESSAGE);
        let known = asked.filter_map(|id| self.known(*id));
        News { sessions: known.map(|session| session.news(true, now)).collect(), ..News::default() }
    }

    /// Learns what another node tells.
    pub(crate) fn hear(&self, news: &News, now: Millis, wall: model::WallTime) -> Heard {
        let mut heard = Heard::default();
        for told in &news.sessions {
            let (session, merged) = match self.merge(told, now, wall) {
                Learned::New(session, merged) => {
                    if !session.is_over() {
                        heard.new.push(session.clone());
                    }
                    (session, merged)
                }
                Learned::Known(session, merged) => (session, merged),
                Learned::TooOld => continue,
                Learned::Full => {
                    heard.refused += 1;
                    continue;
                }
            };
            if merged.lacks_facts {
                heard.ask.push(session.id);
            }
            if merged.knows_more {
                heard.tell.push(session.id);
            }
            if merged.is_alarm {
                self.alarms.add(session.id, false);
            }
            if merged.ended {
                heard.ended.push(session);
            }
        }
        for &(session, age) in &news.heard {
            match self.heard_there(session, age, now, wall) {
                HeardThere::Live => {}
                HeardThere::Over => heard.tell.push(session),
                HeardThere::Unknown => heard.ask.push(session),
            }
        }
        heard
    }

    /// Which workers were heard here since.
    pub(crate) fn heard_since(&self, since: Millis, now: Millis) -> Vec<(SessionId, Millis)> {
        let heard = self.pick(|session| session.heard_here_since(since, now).is_some());
        let age = |session: Arc<Session>| Some((session.id, session.heard_here_since(since, now)?));
        heard.into_iter().filter_map(age).collect()
    }

    /// All that matters to a node that knows nothing.
    pub(crate) fn everything(&self, now: Millis) -> Vec<SessionNews> {
        let mut sessions = self.pick(|session| session.silent_for(now) < LOST_LISTED);
        sessions.extend(self.ended());
        sessions.iter().map(|session| session.news(true, now)).collect()
    }
}

impl Inner {
    /// Learns what another node tells, and acts on it.
    pub(crate) fn hear(self: &Arc<Inner>, from: NodeId, news: &News) {
        let (now, wall) = (self.now(), self.clock.wall());
        if news.wants_all {
            self.sessions.newcomers.lock().insert(from);
            self.sessions.changed.ring();
        }
        let mut heard = self.sessions.hear(news, now, wall);
        if let Some(vouched) = &news.vouched
            && !self.sessions.hear_vouched(from, vouched, now, wall, &mut heard)
        {
            // It says so again in half a second, should this be lost.
            self.tell_news(from, gossip::encode(&News { wants_all: true, ..News::default() }));
        }
        if heard.refused > 0 {
            self.say_full(from, heard.refused, now);
        }
        let registered = heard.new.iter().map(|session| {
            let mut event = NodeEvent::new(wall, "worker_registered");
            event.worker = Some(session.name.clone());
            event
        });
        let registered: Vec<NodeEvent> = registered.collect();
        if !registered.is_empty() {
            self.events.publish(registered);
        }
        for session in &heard.ended {
            self.tell_end(session);
        }
        if !heard.tell.is_empty() {
            let known = heard.tell.iter().filter_map(|id| self.sessions.known(*id));
            let known: Vec<SessionNews> = known.map(|session| session.news(true, now)).collect();
            self.tell_sessions(from, known);
        }
        if !heard.ask.is_empty() {
            // What is left out is heard of again in half a second.
            let (inner, asked) = (self.clone(), some_of(heard.ask, rand::random()));
            self.tasks.spawn(async move {
                inner.ask_node(from, About::Unknown, gossip::encode_ask(&asked)).await;
            });
        }
    }

    /// Says now and then that there are more sessions than this node can know.
    fn say_full(&self, from: NodeId, sessions: usize, now: Millis) {
        let mut said = self.sessions.full_said.lock();
        if said.is_none_or(|at| now.0.saturating_sub(at.0) >= SAY_FULL_EVERY.0) {
            *said = Some(now);
            let max = limits::SESSIONS_TOLD_MAX;
            tracing::warn!(node = %from, sessions, max, "too many sessions: some that others know are not known here");
        }
    }

    /// Asks all other nodes what they know of these sessions, until `is_enough`. Whether one of them
    /// answered.
    pub(crate) async fn ask_all(
        self: &Arc<Inner>,
        about: About,
        sessions: &[SessionId],
        is_enough: impl Fn() -> bool,
    ) -> bool {
        let mut is_answered = false;
        for asked in sessions.chunks(SESSIONS_IN_MESSAGE) {
            let body = gossip::encode_ask(asked);
            let calls = self.links.up().into_iter().map(|node| self.ask_node(node, about, body.clone()));
            let mut answers: FuturesUnordered<_> = calls.collect();
            while let Some(answered) = answers.next().await {
                is_answered |= answered;
                if is_enough() {
                    return is_answered;
                }
            }
        }
        is_answered
    }

    /// Asks one node, and learns what it answers. Whether it did.
    async fn ask_node(self: &Arc<Inner>, node: NodeId, about: About, body: Bytes) -> bool {
        let Some(_turn) = self.sessions.asks.turn(about) else { return false };
        let call = self.links.call(node, PeerKind::SessionAsk, GroupId::CATALOG, body, ASK_TIMEOUT);
        let answer = match call.await {
            Ok(answer) => gossip::decode(answer).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok(news) => {
                self.hear(node, &news);
                true
            }
            Err(error) => {
                tracing::debug!(%node, error, "no answer about sessions");
                false
            }
        }
    }

    /// Tells one node about these sessions. False when it was not reached or had no room.
    fn tell_sessions(&self, to: NodeId, mut sessions: Vec<SessionNews>) -> bool {
        while !sessions.is_empty() {
            let rest = sessions.split_off(sessions.len().min(SESSIONS_IN_MESSAGE));
            if !self.tell_news(to, gossip::encode(&News { sessions, ..News::default() })) {
                return false;
            }
            sessions = rest;
        }
        true
    }

    fn tell_news(&self, to: NodeId, body: Bytes) -> bool {
        self.links.tell(to, PeerKind::SessionNews, GroupId::CATALOG, body)
    }
}

/// As many sessions as a message takes, from anywhere on: those that nobody can tell of do not keep the others from
/// being asked for.
fn some_of(mut sessions: Vec<SessionId>, begin: u64) -> Vec<SessionId> {
    if sessions.len() > SESSIONS_IN_MESSAGE {
        let begin = begin % sessions.len() as u64;
        sessions.rotate_left(begin as usize);
        sessions.truncate(SESSIONS_IN_MESSAGE);
    }
    sessions
}

/// Tells the other nodes until this one stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(TELL_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut events = inner.links.events();
    let mut teller = Teller { to_sync: inner.links.up().into_iter().collect(), ..Teller::default() };
    // What was told before this node listened is lost.
    teller.tell_bytes(&inner, &gossip::encode(&News { wants_all: true, ..News::default() }));
    loop {
        let mut is_tick = false;
        tokio::select! {
            () = inner.sessions.changed.rung() => {}
            _ = ticks.tick() => is_tick = true,
            event = events.recv() => match event {
                Ok(LinkEvent::Up(node)) => {
                    teller.to_sync.insert(node);
                    teller.sync(&inner);
                }
                Ok(LinkEvent::Down(node)) => {
                    teller.to_sync.remove(&node);
                    inner.sessions.vouching.forget(node);
                }
                Ok(LinkEvent::Gone(_)) => {}
                Err(RecvError::Lagged(_)) => teller.to_sync.extend(inner.links.up()),
                // The links end with the node.
                Err(RecvError::Closed) => return,
            },
            () = inner.stopping.cancelled() => {
                teller.tell_changes(&inner);
                return;
            }
        }
        teller.tell_changes(&inner);
        let newcomers = std::mem::take(&mut *inner.sessions.newcomers.lock());
        if !newcomers.is_empty() {
            teller.to_sync.extend(newcomers);
            teller.sync(&inner);
        }
        if is_tick {
            teller.tell_heard(&inner);
            teller.tell_vouched(&inner);
            teller.tell_stale(&inner);
            teller.sync(&inner);
        }
    }
}

/// What was told to whom.
#[derive(Default)]
struct Teller {
    /// To be told everything: they were not reached before, or missed something.
    to_sync: BTreeSet<NodeId>,
    heard_at: Millis,
    stale_at: Millis,
    vouched: VouchedTold,
}

impl Teller {
    /// Tells what changed.
    fn tell_changes(&mut self, inner: &Inner) {
        let changed: HashMap<SessionId, bool> = inner.sessions.changed.take();
        if changed.is_empty() || inner.links.up().is_empty() {
            return;
        }
        let now = inner.now();
        let news = changed.into_iter().filter_map(|(id, with_facts)| {
            inner.sessions.known(id).map(|session| session.news(with_facts, now))
        });
        self.tell_all(inner, news.collect());
    }

    /// Tells which workers were heard here since the last time.
    fn tell_heard(&mut self, inner: &Inner) {
        let now = inner.now();
        let since = std::mem::replace(&mut self.heard_at, now);
        if inner.links.up().is_empty() {
            return;
        }
        let heard = inner.sessions.heard_since(since, now);
        for heard in heard.chunks(BEATS_IN_MESSAGE) {
            self.tell_bytes(inner, &gossip::encode(&News { heard: heard.to_vec(), ..News::default() }));
        }
    }

    /// Tells for which idle workers this node speaks.
    fn tell_vouched(&mut self, inner: &Inner) {
        if let Some(vouched) = self.vouched.next(&inner.sessions.vouching, inner.now()) {
            let news = News { vouched: Some(vouched), ..News::default() };
            self.tell_bytes(inner, &gossip::encode(&news));
        }
    }

    /// Tells of sessions that nobody hears and nobody ends.
    fn tell_stale(&mut self, inner: &Inner) {
        let now = inner.now();
        if now.0.saturating_sub(self.stale_at.0) < STALE.0 {
            return;
        }
        self.stale_at = now;
        if inner.links.up().is_empty() {
            return;
        }
        let stale = inner.sessions.pick(|session| (STALE..LOST_LISTED).contains(&session.silent_for(now)));
        self.tell_all(inner, stale.iter().map(|session| session.news(true, now)).collect());
    }

    fn tell_all(&mut self, inner: &Inner, news: Vec<SessionNews>) {
        for sessions in news.chunks(SESSIONS_IN_MESSAGE) {
            let news = News { sessions: sessions.to_vec(), ..News::default() };
            self.tell_bytes(inner, &gossip::encode(&news));
        }
    }

    fn tell_bytes(&mut self, inner: &Inner, body: &Bytes) {
        for node in inner.links.up() {
            if !inner.tell_news(node, body.clone()) {
                self.to_sync.insert(node);
            }
        }
    }

    /// Tells everything to those who need it.
    fn sync(&mut self, inner: &Inner) {
        let up: Vec<NodeId> =
            inner.links.up().into_iter().filter(|node| self.to_sync.contains(node)).collect();
        if up.is_empty() {
            return;
        }
        let everything = inner.sessions.everything(inner.now());
        let vouched = News { vouched: Some(self.vouched.whole(inner.now())), ..News::default() };
        let vouched = gossip::encode(&vouched);
        let tell =
            |node| inner.tell_sessions(node, everything.clone()) && inner.tell_news(node, vouched.clone());
        self.to_sync.retain(|node| !(up.contains(node) && tell(*node)));
    }
}

#[cfg(test)]
mod tests;
