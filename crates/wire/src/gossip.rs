//! News of workers' sessions, as nodes tell them to each other.
//!
//! Word of mouth: news may be lost, doubled or late. Each field has its own order (`node/src/session.rs`), so
//! that whoever heard the same, in whatever order, knows the same. Fields that a version does not know are
//! passed by.

use bytes::Bytes;
use model::{FreedReason, Millis, NodeId, QueueName, SessionId, WorkerName, limits};
use prost::Message;

use crate::command::{freed_reason, worker_name};
use crate::entry::Malformed;
use crate::new_task::{Bits128, queue_name};

/// A count that several nodes raise: the greater number is newer, and the node decides between equals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edition {
    /// The count; 0 is before the first.
    pub number: u64,
    /// Who raised it to that.
    pub node: u64,
}

impl Edition {
    /// The next one, raised by `node`.
    pub fn next(self, node: NodeId) -> Edition {
        Edition { number: self.number + 1, node: node.0 }
    }
}

/// What a worker is asked to do; it only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Go on.
    #[default]
    Run,
    /// Claim nothing more, finish what runs.
    Drain,
    /// Stop now, releasing what runs.
    Stop,
}

/// What a worker said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where it runs.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// A random number of its own.
    pub instance: Option<u64>,
    /// How many tasks it runs at once.
    pub slots: u32,
    /// Which queues it claims from.
    pub queues: Vec<QueueName>,
    /// What people want to know of it.
    pub labels: Vec<(String, String)>,
    /// Which version it is.
    pub version: Option<String>,
    /// How often it beats.
    pub beat: Millis,
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// Why.
    pub reason: FreedReason,
    /// How long ago.
    pub age: Millis,
    /// How many claims its end freed, as far as the teller knows.
    pub freed: u64,
}

/// A stream that broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Which.
    pub stream: Edition,
    /// How long ago.
    pub age: Millis,
}

/// All that a node knows of one session; or all but the facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionNews {
    /// Which.
    pub session: SessionId,
    /// Whose.
    pub worker: WorkerName,
    /// How long ago it was heard or spoken for, wherever.
    pub age: Millis,
    /// How old its last beat is, wherever that was heard; never less than `age`.
    pub spoken_age: Millis,
    /// Which edition of the facts the teller has; 0 when it knows no more than the name.
    pub facts_edition: Edition,
    /// What the worker said of itself. Left out where the other side should know.
    pub facts: Option<Facts>,
    /// What it is asked to do.
    pub wish: Wish,
    /// Its newest stream.
    pub stream: Edition,
    /// The newest of its streams that broke.
    pub closed: Option<Closed>,
    /// Its end, if it is over.
    pub over: Option<Over>,
}

/// What one node tells another, and what it answers when asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Sessions, as far as the teller knows them.
    pub sessions: Vec<SessionNews>,
    /// Sessions whose workers it heard since it told last, and how long ago that was.
    pub heard: Vec<(SessionId, Millis)>,
    /// The teller has just started, or has missed something: it wants to be told everything.
    pub wants_all: bool,
    /// For whom it speaks.
    pub vouched: Option<Vouched>,
}

/// For which sessions a node speaks, since they held nothing and had an open stream there `age` ago: they count as
/// heard then. Told as changes of what was told before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vouched {
    /// Grows by one with every change; who did not hear the one before wants all.
    pub edition: u64,
    /// `added` is all of them, whatever was told before.
    pub is_whole: bool,
    /// Those who were not among them.
    pub added: Vec<SessionId>,
    /// Those who are not any more.
    pub removed: Vec<SessionId>,
    /// How long ago the node looked.
    pub age: Millis,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct EditionMessage {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(uint64, tag = "2")]
    node: u64,
}

#[derive(Clone, PartialEq, Message)]
struct LabelMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct FactsMessage {
    #[prost(string, optional, tag = "1")]
    host: Option<String>,
    #[prost(uint32, optional, tag = "2")]
    pid: Option<u32>,
    #[prost(uint32, tag = "3")]
    slots: u32,
    #[prost(bytes = "bytes", repeated, tag = "4")]
    queues: Vec<Bytes>,
    #[prost(message, repeated, tag = "5")]
    labels: Vec<LabelMessage>,
    #[prost(string, optional, tag = "6")]
    version: Option<String>,
    #[prost(uint64, tag = "7")]
    beat_ms: u64,
    #[prost(fixed64, optional, tag = "8")]
    instance: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct OverMessage {
    #[prost(uint32, tag = "1")]
    reason: u32,
    #[prost(uint64, tag = "2")]
    age_ms: u64,
    #[prost(uint64, tag = "3")]
    freed: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ClosedMessage {
    #[prost(message, optional, tag = "1")]
    stream: Option<EditionMessage>,
    #[prost(uint64, tag = "2")]
    age_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
struct SessionMessage {
    #[prost(message, optional, tag = "1")]
    session: Option<Bits128>,
    #[prost(bytes = "bytes", tag = "2")]
    worker: Bytes,
    #[prost(uint64, tag = "3")]
    age_ms: u64,
    #[prost(message, optional, tag = "4")]
    facts_edition: Option<EditionMessage>,
    #[prost(message, optional, tag = "5")]
    facts: Option<FactsMessage>,
    #[prost(uint32, tag = "6")]
    wish: u32,
    #[prost(message, optional, tag = "7")]
    stream: Option<EditionMessage>,
    #[prost(message, optional, tag = "8")]
    closed: Option<ClosedMessage>,
    #[prost(message, optional, tag = "9")]
    over: Option<OverMessage>,
    /// How much older than `age_ms` its last beat is; 0 by those that do not tell the two apart.
    #[prost(uint64, tag = "10")]
    spoken_before_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
struct NewsMessage {
    #[prost(message, repeated, tag = "1")]
    sessions: Vec<SessionMessage>,
    /// Upper half, lower half, of each session that was heard.
    #[prost(fixed64, repeated, tag = "2")]
    heard: Vec<u64>,
    /// How long ago, in the same order.
    #[prost(uint64, repeated, tag = "3")]
    heard_ages_ms: Vec<u64>,
    #[prost(bool, tag = "4")]
    wants_all: bool,
    #[prost(message, optional, tag = "5")]
    vouched: Option<VouchedMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct VouchedMessage {
    #[prost(fixed64, tag = "1")]
    edition: u64,
    #[prost(bool, tag = "2")]
    is_whole: bool,
    /// Upper half, lower half, of each session.
    #[prost(fixed64, repeated, tag = "3")]
    added: Vec<u64>,
    #[prost(fixed64, repeated, tag = "4")]
    removed: Vec<u64>,
    #[prost(uint64, tag = "5")]
    age_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
struct AskMessage {
    /// Upper half, lower half, of each session.
    #[prost(fixed64, repeated, tag = "1")]
    sessions: Vec<u64>,
}

const RUN: u32 = 0;
const DRAIN: u32 = 1;
const STOP: u32 = 2;

/// News as bytes.
pub fn encode(news: &News) -> Bytes {
    let message = NewsMessage {
        sessions: news.sessions.iter().map(SessionMessage::from).collect(),
        heard: halves(news.heard.iter().map(|(session, _)| *session)),
        heard_ages_ms: news.heard.iter().map(|(_, age)| age.0).collect(),
        wants_all: news.wants_all,
        vouched: news.vouched.as_ref().map(|vouched| VouchedMessage {
            edition: vouched.edition,
            is_whole: vouched.is_whole,
            added: halves(vouched.added.iter().copied()),
            removed: halves(vouched.removed.iter().copied()),
            age_ms: vouched.age.0,
        }),
    };
    message.encode_to_vec().into()
}

/// News from their bytes. A session that cannot be read is passed over: it says nothing of the others.
pub fn decode(bytes: Bytes) -> Result<News, Malformed> {
    let message = NewsMessage::decode(bytes)?;
    let heard = sessions(&message.heard)?;
    if heard.len() != message.heard_ages_ms.len() {
        return Err(Malformed::Value("ages of beats"));
    }
    let ages = message.heard_ages_ms.into_iter().map(Millis);
    let vouched = |vouched: VouchedMessage| {
        Ok::<_, Malformed>(Vouched {
            edition: vouched.edition,
            is_whole: vouched.is_whole,
            added: sessions(&vouched.added)?,
            removed: sessions(&vouched.removed)?,
            age: Millis(vouched.age_ms),
        })
    };
    Ok(News {
        sessions: message.sessions.into_iter().filter_map(|session| session.try_into().ok()).collect(),
        heard: heard.into_iter().zip(ages).collect(),
        wants_all: message.wants_all,
        vouched: message.vouched.map(vouched).transpose()?,
    })
}

/// A question about sessions as bytes. [`News`] answer it.
pub fn encode_ask(sessions: &[SessionId]) -> Bytes {
    AskMessage { sessions: halves(sessions.iter().copied()) }.encode_to_vec().into()
}

/// A question about sessions from its bytes.
pub fn decode_ask(bytes: Bytes) -> Result<Vec<SessionId>, Malformed> {
    sessions(&AskMessage::decode(bytes)?.sessions)
}

fn halves(sessions: impl Iterator<Item = SessionId>) -> Vec<u64> {
    sessions.flat_map(|session| [(session.0 >> 64) as u64, session.0 as u64]).collect()
}

fn sessions(halves: &[u64]) -> Result<Vec<SessionId>, Malformed> {
    let (pairs, rest) = halves.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Malformed::Value("half a session"));
    }
    Ok(pairs.iter().map(|&[high, low]| SessionId(u128::from(high) << 64 | u128::from(low))).collect())
}

impl From<Edition> for EditionMessage {
    fn from(edition: Edition) -> EditionMessage {
        EditionMessage { number: edition.number, node: edition.node }
    }
}

/// One that is left out is the one before the first.
fn edition(message: Option<EditionMessage>) -> Edition {
    message.map_or_else(Edition::default, |message| Edition { number: message.number, node: message.node })
}

fn told(edition: Edition) -> Option<EditionMessage> {
    (edition != Edition::default()).then(|| edition.into())
}

impl From<&SessionNews> for SessionMessage {
    fn from(news: &SessionNews) -> SessionMessage {
        SessionMessage {
            session: Some(news.session.0.into()),
            worker: Bytes::copy_from_slice(news.worker.as_str().as_bytes()),
            age_ms: news.age.0,
            facts_edition: told(news.facts_edition),
            facts: news.facts.as_ref().map(FactsMessage::from),
            wish: match news.wish {
                Wish::Run => RUN,
                Wish::Drain => DRAIN,
                Wish::Stop => STOP,
            },
            stream: told(news.stream),
            closed: news
                .closed
                .map(|closed| ClosedMessage { stream: told(closed.stream), age_ms: closed.age.0 }),
            over: news.over.map(|over| OverMessage {
                reason: over.reason as u32,
                age_ms: over.age.0,
                freed: over.freed,
            }),
            spoken_before_ms: news.spoken_age.0.saturating_sub(news.age.0),
        }
    }
}

impl TryFrom<SessionMessage> for SessionNews {
    type Error = Malformed;

    fn try_from(message: SessionMessage) -> Result<SessionNews, Malformed> {
        let over = message.over.map(|over| {
            let reason = freed_reason(over.reason)?;
            Ok::<_, Malformed>(Over { reason, age: Millis(over.age_ms), freed: over.freed })
        });
        let closed = message.closed;
        Ok(SessionNews {
            session: SessionId(message.session.ok_or(Malformed::Missing("session"))?.into()),
            worker: worker_name(&message.worker)?,
            age: Millis(message.age_ms),
            spoken_age: Millis(message.age_ms.saturating_add(message.spoken_before_ms)),
            facts_edition: edition(message.facts_edition),
            facts: message.facts.map(Facts::try_from).transpose()?,
            wish: match message.wish {
                RUN => Wish::Run,
                DRAIN => Wish::Drain,
                STOP => Wish::Stop,
                _ => return Err(Malformed::Value("wish to a worker")),
            },
            stream: edition(message.stream),
            closed: closed
                .map(|closed| Closed { stream: edition(closed.stream), age: Millis(closed.age_ms) }),
            over: over.transpose()?,
        })
    }
}

impl From<&Facts> for FactsMessage {
    fn from(facts: &Facts) -> FactsMessage {
        let label =
            |(name, value): &(String, String)| LabelMessage { name: name.clone(), value: value.clone() };
        FactsMessage {
            host: facts.host.clone(),
            pid: facts.pid,
            instance: facts.instance,
            slots: facts.slots,
            queues: facts
                .queues
                .iter()
                .map(|queue| Bytes::copy_from_slice(queue.as_str().as_bytes()))
                .collect(),
            labels: facts.labels.iter().map(label).collect(),
            version: facts.version.clone(),
            beat_ms: facts.beat.0,
        }
    }
}

impl TryFrom<FactsMessage> for Facts {
    type Error = Malformed;

    fn try_from(message: FactsMessage) -> Result<Facts, Malformed> {
        if message.queues.len() > limits::CLAIM_QUEUES_MAX || message.labels.len() > limits::LABELS_MAX {
            return Err(Malformed::Value("number of queues or labels of a worker"));
        }
        Ok(Facts {
            host: message.host,
            pid: message.pid,
            instance: message.instance,
            slots: message.slots,
            queues: message.queues.iter().map(|queue| queue_name(queue)).collect::<Result<_, _>>()?,
            labels: message.labels.into_iter().map(|label| (label.name, label.value)).collect(),
            version: message.version,
            beat: Millis(message.beat_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> SessionNews {
        SessionNews {
            session: SessionId(u128::MAX - 5),
            worker: WorkerName::new("host-1:4711").unwrap(),
            age: Millis(420),
            spoken_age: Millis(20_420),
            facts_edition: Edition { number: 2, node: 3 },
            facts: Some(Facts {
                host: Some("host-1".to_owned()),
                pid: Some(4711),
                instance: Some(u64::MAX),
                slots: 8,
                queues: vec![QueueName::new("mail").unwrap()],
                labels: vec![("zone".to_owned(), "b".to_owned())],
                version: Some("1.0".to_owned()),
                beat: Millis(800),
            }),
            wish: Wish::Drain,
            stream: Edition { number: 7, node: 2 },
            closed: Some(Closed { stream: Edition { number: 6, node: 1 }, age: Millis(9) }),
            over: Some(Over { reason: FreedReason::Silent, age: Millis(5), freed: 3 }),
        }
    }

    fn bare() -> SessionNews {
        SessionNews {
            session: SessionId(1),
            worker: WorkerName::new("w").unwrap(),
            age: Millis(0),
            spoken_age: Millis(0),
            facts_edition: Edition::default(),
            facts: None,
            wish: Wish::Run,
            stream: Edition::default(),
            closed: None,
            over: None,
        }
    }

    #[test]
    fn news_come_back_as_they_were() {
        let stop = SessionNews { wish: Wish::Stop, ..bare() };
        let news = News {
            sessions: vec![full(), bare(), stop],
            heard: vec![(SessionId(9), Millis(17)), (SessionId(1 << 70), Millis(0))],
            wants_all: true,
            vouched: Some(Vouched {
                edition: u64::MAX,
                is_whole: true,
                added: vec![SessionId(5), SessionId(u128::MAX)],
                removed: vec![SessionId(6)],
                age: Millis(400),
            }),
        };
        assert_eq!(decode(encode(&news)).unwrap(), news);
        assert_eq!(decode(Bytes::new()).unwrap(), News::default());
        let asked = [SessionId(3), SessionId(u128::MAX)];
        assert_eq!(decode_ask(encode_ask(&asked)).unwrap(), asked);
    }

    /// What was once said stays understood: the bytes of a small message, by hand.
    #[test]
    fn the_bytes_are_these() {
        let news = News { heard: vec![(SessionId(1 << 64 | 2), Millis(300))], ..News::default() };
        let expected =
            [&[0x12, 16][..], &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], &[0x1a, 2, 0xac, 0x02]];
        assert_eq!(encode(&news), expected.concat());
        let news = News { sessions: vec![SessionNews { wish: Wish::Drain, ..bare() }], ..News::default() };
        let expected = [&[0x0a, 16, 0x0a, 9, 0x11][..], &[1, 0, 0, 0, 0, 0, 0, 0], &[0x12, 1, b'w', 0x30, 1]];
        assert_eq!(encode(&news), expected.concat());
    }

    #[test]
    fn what_a_later_version_adds_is_passed_by() {
        let news = News { heard: vec![(SessionId(4), Millis(1))], ..News::default() };
        let bytes = [encode(&news), Bytes::from_static(&[0xf8, 0x7f, 1])].concat();
        assert_eq!(decode(bytes.into()).unwrap(), news);
    }

    #[test]
    fn what_cannot_be_is_malformed() {
        let bytes = |message: NewsMessage| Bytes::from(message.encode_to_vec());
        for (what, bytes) in [
            ("half a session", bytes(NewsMessage { heard: vec![1], ..Default::default() })),
            (
                "half a session that is spoken for",
                bytes(NewsMessage {
                    vouched: Some(VouchedMessage { added: vec![1], ..Default::default() }),
                    ..Default::default()
                }),
            ),
            ("a beat without an age", bytes(NewsMessage { heard: vec![1, 2], ..Default::default() })),
            ("bytes that are none", Bytes::from_static(&[0x0a, 0xff])),
        ] {
            assert!(decode(bytes).is_err(), "{what}");
        }
    }

    #[test]
    fn a_session_that_cannot_be_read_takes_no_other_with_it() {
        let good = || SessionMessage::from(&bare());
        let many = FactsMessage { queues: vec![Bytes::from_static(b"q"); 65], ..Default::default() };
        for (what, session) in [
            ("no session", SessionMessage { session: None, ..good() }),
            ("no worker", SessionMessage { worker: Bytes::new(), ..good() }),
            ("a wish that is none", SessionMessage { wish: 3, ..good() }),
            ("an end without reason", SessionMessage { over: Some(OverMessage::default()), ..good() }),
            ("too many queues", SessionMessage { facts: Some(many), ..good() }),
        ] {
            let sessions = vec![SessionMessage::from(&full()), session, good()];
            let message = NewsMessage {
                sessions,
                heard: vec![1, 2],
                heard_ages_ms: vec![3],
                wants_all: true,
                vouched: None,
            };
            let expected = News {
                sessions: vec![full(), bare()],
                heard: vec![(SessionId(1 << 64 | 2), Millis(3))],
                wants_all: true,
                vouched: None,
            };
            assert_eq!(decode(message.encode_to_vec().into()).unwrap(), expected, "{what}");
        }
    }
}
