use model::{FreedReason, WallTime, WorkerName};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use wire::gossip::Wish;

use super::*;
use crate::call::WorkerFacts;

const WALL: WallTime = WallTime::MAX;

/// A node, as far as its sessions go, and how it would be reached.
struct Peer {
    node: NodeId,
    registry: Registry,
}

fn peers() -> [Peer; 3] {
    [1, 2, 3].map(|node| Peer { node: NodeId(node), registry: Registry::default() })
}

fn facts(slots: u32) -> WorkerFacts {
    WorkerFacts { slots, ..WorkerFacts::named(WorkerName::new("w1").unwrap()) }
}

impl Peer {
    fn register(&self, id: u128, slots: u32, now: Millis) -> Arc<Session> {
        let session = self.registry.add(Session::new(SessionId(id), facts(0), now, WALL), 9).unwrap();
        session.set_facts(facts(slots), self.node);
        session.heard(now, WALL);
        self.registry.changed.add(session.id, true);
        session
    }

    /// What it would tell now, as bytes.
    fn changes(&self, now: Millis) -> Bytes {
        let changed = self.registry.changed.take().into_iter();
        let news = changed
            .filter_map(|(id, with_facts)| Some(self.registry.known(id)?.news(with_facts, now)))
            .collect();
        gossip::encode(&News { sessions: news, ..News::default() })
    }

    fn everything(&self, now: Millis) -> Bytes {
        gossip::encode(&News { sessions: self.registry.everything(now), ..News::default() })
    }

    fn hear(&self, bytes: Bytes, now: Millis) -> Heard {
        self.registry.hear(&gossip::decode(bytes).unwrap(), now, WALL)
    }

    /// All that it knows, without ages.
    fn knows(&self) -> Vec<SessionNews> {
        let mut sessions = self.registry.pick(|_| true);
        sessions.extend(self.registry.ended());
        let mut news: Vec<SessionNews> =
            sessions.iter().map(|session| session.news(true, Millis(0))).collect();
        for news in &mut news {
            (news.age, news.spoken_age) = (Millis(0), Millis(0));
            if let Some(closed) = &mut news.closed {
                closed.age = Millis(0);
            }
            if let Some(over) = &mut news.over {
                over.age = Millis(0);
            }
        }
        news.sort_by_key(|news| news.session);
        news
    }
}

/// Does something to a session at this node.
fn happen(peer: &Peer, random: &mut StdRng, now: Millis) {
    let id = SessionId(random.random_range(1..=3));
    let Some(session) = peer.registry.known(id) else {
        peer.register(id.0, random.random_range(1..9), now);
        return;
    };
    match random.random_range(0..8) {
        0 => drop(session.ask(Wish::Drain)),
        1 => drop(session.ask(Wish::Stop)),
        2 if !session.is_over() => drop(session.next_stream(peer.node)),
        3 if !session.is_over() => {
            let stream = session.next_stream(peer.node);
            session.close(stream, now);
        }
        4 => session.set_facts(facts(random.random_range(1..9)), peer.node),
        5 => {
            let reasons =
                [FreedReason::Silent, FreedReason::Closed, FreedReason::Drained, FreedReason::PutBack];
            let reason = reasons[random.random_range(0..4)];
            peer.registry.end(&session, reason, random.random_range(0..3), now);
        }
        _ => session.heard(now, WALL),
    }
    peer.registry.changed.add(id, random.random());
}

#[test]
fn whoever_heard_the_same_knows_the_same_in_any_order_and_however_often() {
    for seed in 0..300 {
        let random = &mut StdRng::seed_from_u64(seed);
        let peers = peers();
        let mut told: Vec<Bytes> = Vec::new();
        for step in 0..30 {
            let (peer, now) = (&peers[random.random_range(0..3)], Millis(1_000 + step * 10));
            happen(peer, random, now);
            told.push(peer.changes(now));
            // Now and then one of them hears of something early.
            if random.random_range(0..3) == 0 {
                let bytes = told[random.random_range(0..told.len())].clone();
                peers[random.random_range(0..3)].hear(bytes, now);
            }
        }
        // What was told without facts is asked for; here everybody tells everything once.
        told.extend(peers.iter().map(|peer| peer.everything(Millis(2_000))));
        for peer in &peers {
            let mut told = [told.clone(), told.clone()].concat();
            told.shuffle(random);
            for bytes in told {
                peer.hear(bytes, Millis(2_000));
            }
        }
        let fresh = Peer { node: NodeId(4), registry: Registry::default() };
        fresh.hear(peers[0].everything(Millis(2_000)), Millis(2_000));
        for other in [&peers[1], &peers[2], &fresh] {
            assert_eq!(peers[0].knows(), other.knows(), "seed {seed}");
        }
        // Then nobody has anything to ask or to tell.
        let heard = peers[1].hear(peers[2].everything(Millis(2_000)), Millis(2_000));
        assert!(heard.ask.is_empty() && heard.tell.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_worker_that_registers_at_one_node_is_known_to_all_with_its_beats_and_its_end() {
    let [a, b, c] = peers();
    let now = Millis(10_000);
    let session = a.register(1, 8, now);
    let news = a.changes(now);
    for peer in [&b, &c] {
        assert_eq!(peer.hear(news.clone(), now).new.len(), 1);
        assert_eq!(peer.registry.by_id(session.id).unwrap().slots(), 8);
    }
    // Heard at b two seconds later; a and c learn of it.
    let later = Millis(12_000);
    let there = b.registry.by_id(session.id).unwrap();
    there.heard(later, WALL);
    let tick = Millis(12_400);
    assert!(a.registry.heard_since(Millis(12_000), tick).is_empty(), "only whom it heard itself");
    let heard = b.registry.heard_since(Millis(12_000), tick);
    assert_eq!(heard, [(session.id, Millis(400))]);
    let bytes = gossip::encode(&News { heard, ..News::default() });
    for peer in [&a, &c] {
        peer.hear(bytes.clone(), tick);
        assert_eq!(peer.registry.by_id(session.id).unwrap().silent_for(tick), Millis(400));
    }
    // Removed at c.
    c.registry.end(&c.registry.by_id(session.id).unwrap(), FreedReason::PutBack, 2, tick);
    c.registry.changed.add(session.id, false);
    let bytes = c.changes(tick);
    for peer in [&a, &b] {
        let heard = peer.hear(bytes.clone(), tick);
        assert_eq!(heard.ended.len(), 1);
        assert!(peer.registry.by_id(session.id).is_none() && peer.registry.all().is_empty());
        assert!(peer.registry.alarms.take().contains_key(&session.id), "whoever leads looks at it");
        assert!(peer.hear(bytes.clone(), tick).ended.is_empty(), "it ended once");
    }
}

#[test]
fn a_beat_of_a_session_that_nobody_told_of_is_asked_for() {
    let [a, b, _] = peers();
    let now = Millis(10_000);
    let session = a.register(1, 8, now);
    let heard = News { heard: a.registry.heard_since(Millis(0), now), ..News::default() };
    let heard = b.hear(gossip::encode(&heard), now);
    assert_eq!(heard.ask, [session.id]);
    b.hear(gossip::encode(&a.registry.answer(&heard.ask, now)), now);
    assert_eq!(b.registry.by_id(session.id).unwrap().slots(), 8);
}

#[test]
fn a_node_that_missed_an_end_is_told_when_it_hears_the_worker() {
    let [a, b, _] = peers();
    let now = Millis(10_000);
    let session = a.register(1, 8, now);
    b.hear(a.changes(now), now);
    let there = b.registry.by_id(session.id).unwrap();
    b.registry.end(&there, FreedReason::Silent, 1, now);
    let heard = News { heard: a.registry.heard_since(Millis(0), now), ..News::default() };
    assert_eq!(b.hear(gossip::encode(&heard), now).tell, [session.id]);
    let back = News { sessions: vec![there.news(true, now)], ..News::default() };
    assert_eq!(a.hear(gossip::encode(&back), now).ended.len(), 1);
    assert!(session.is_over());
}

#[test]
fn a_node_that_starts_learns_the_live_and_the_lost() {
    let [a, b, _] = peers();
    let now = Millis(700_000);
    a.register(1, 8, now);
    let lost = a.registry.add(Session::new(SessionId(2), facts(4), now, WALL), 9).unwrap();
    a.registry.end(&lost, FreedReason::Closed, 1, now);
    a.registry.add(Session::new(SessionId(3), facts(4), Millis(0), WALL), 9).unwrap();
    let heard = b.hear(a.everything(now), now);
    assert_eq!(heard.new.len(), 1, "the lost one is nobody new");
    assert!(heard.ended.is_empty());
    assert!(b.registry.has_ended(SessionId(2)));
    assert!(b.registry.known(SessionId(3)).is_none(), "it was not heard for ten minutes");
    let workers = b.registry.all();
    assert_eq!((workers.len(), workers[0].id), (1, SessionId(1)), "one worker, known by what lives");
}

#[test]
fn a_burst_of_unknown_sessions_leaves_room_to_ask_about_silent_ones() {
    let asks = Asks::default();
    let unknown: Vec<_> = std::iter::from_fn(|| asks.turn(About::Unknown)).take(2 * ASKS_MAX).collect();
    assert_eq!(unknown.len(), ASKS_MAX);
    assert!(asks.turn(About::Silent).is_some());
    drop(unknown);
    assert!(asks.turn(About::Unknown).is_some());
}

#[test]
fn of_many_unknown_sessions_all_are_asked_for_sooner_or_later() {
    let unknown: Vec<SessionId> = (0..1_200).map(SessionId).collect();
    let asked = |begin| some_of(unknown.clone(), begin);
    assert!([0, 700, u64::MAX].iter().all(|begin| asked(*begin).len() == SESSIONS_IN_MESSAGE));
    let all: BTreeSet<SessionId> = [0, 500, 1_000].into_iter().flat_map(asked).collect();
    assert_eq!(all.len(), unknown.len());
    assert_eq!(some_of(unknown[..3].to_vec(), 2), unknown[..3], "few are asked for as they are");
}
