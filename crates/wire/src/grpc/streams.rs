//! The messages that streams are full of, as a server has them: read and written by hand, without a string for each text.
//!
//! The bytes are those of the messages in `proto/`, field for field. Whatever is unusual, damaged bytes included, is left
//! to the generated ones.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use model::limits::ENQUEUE_TASKS_MAX;
use model::{KindName, QueueName, TaskId, WallTime};
use prost::encoding::{decode_varint, encoded_len_varint};
use prost::{DecodeError, Message};

use super::{
    EnqueueItem, EnqueueResult, EnqueueResults, OutcomeResult, OutcomeResults, ServerMessage, Task,
    enqueue_result, outcome_result,
};
use crate::append::append;
use crate::envelope::{Envelope, Header};
use crate::quick::{byte, counted, next_key, piece, queue_name};

/// Kinds of fields.
const VARINT: u8 = 0;
const LENGTH: u8 = 2;

const ITEM_SEQ: u8 = 1 << 3 | VARINT;
const ITEM_TASK: u8 = 2 << 3 | LENGTH;
const ITEM_MORE: u8 = 3 << 3 | LENGTH;
const TASK_QUEUE: u8 = 1 << 3 | LENGTH;
const TASK_KIND: u8 = 2 << 3 | LENGTH;
const TASK_PAYLOAD: u8 = 3 << 3 | LENGTH;
/// The only field of all lists here.
const LIST_ITEM: u8 = 1 << 3 | LENGTH;
const SERVER_TASKS: u8 = 2 << 3 | LENGTH;
const SERVER_RESULTS: u8 = 3 << 3 | LENGTH;

/// Length of a task's id as text.
const ID_CHARS: usize = 36;
/// What a result takes, mostly.
const RESULT_BYTES: usize = 72;
/// No task in an item is shorter than a queue, a kind and what they are told apart by.
const TASK_BYTES_MIN: usize = 8;

/// `EnqueueItem`.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The caller's number for the first task.
    pub seq: u64,
    /// The first task.
    pub task: Option<ItemTask>,
    /// Those after it.
    pub more: Vec<ItemTask>,
}

/// A task as it came.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemTask {
    /// One that asks for nothing.
    Plain(Plain),
    /// Any other.
    Any(Box<Task>),
}

/// A task that asks for nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Plain {
    /// Its queue.
    pub queue: QueueName,
    /// Which handler it is for.
    pub kind: KindName,
    /// What is said to be JSON; empty for `null`.
    pub payload: Bytes,
}

impl Item {
    /// The item that these bytes are.
    pub fn from_bytes(bytes: Bytes) -> Result<Item, DecodeError> {
        match item(&bytes) {
            Some(item) => Ok(item),
            None => EnqueueItem::decode(bytes).map(Item::from),
        }
    }
}

impl From<EnqueueItem> for Item {
    fn from(item: EnqueueItem) -> Item {
        let any = |task| ItemTask::Any(Box::new(task));
        Item { seq: item.seq, task: item.task.map(any), more: item.more.into_iter().map(any).collect() }
    }
}

impl From<Item> for EnqueueItem {
    fn from(item: Item) -> EnqueueItem {
        let more = item.more.into_iter().map(Task::from).collect();
        EnqueueItem { seq: item.seq, task: item.task.map(Task::from), more }
    }
}

impl From<ItemTask> for Task {
    fn from(task: ItemTask) -> Task {
        match task {
            ItemTask::Plain(Plain { queue, kind, payload }) => Task {
                queue: queue.as_str().to_owned(),
                kind: kind.as_str().to_owned(),
                payload,
                ..Task::default()
            },
            ItemTask::Any(task) => *task,
        }
    }
}

fn item(whole: &Bytes) -> Option<Item> {
    let mut rest = whole.as_ref();
    let mut item = Item { seq: 0, task: None, more: Vec::new() };
    let mut last = 0;
    while !rest.is_empty() {
        let key = byte(&mut rest).filter(|key| *key > last || *key == ITEM_MORE)?;
        last = key;
        match key {
            ITEM_SEQ => item.seq = decode_varint(&mut rest).ok()?,
            ITEM_TASK => item.task = Some(item_task(whole, piece(&mut rest)?, None)?),
            ITEM_MORE => {
                let body = piece(&mut rest)?;
                if item.more.is_empty() {
                    // They are alike, mostly.
                    let alike = 1 + rest.len() / body.len().max(TASK_BYTES_MIN);
                    item.more.reserve_exact(alike.min(ENQUEUE_TASKS_MAX));
                }
                let like = item.more.last().or(item.task.as_ref());
                let task = item_task(whole, body, like)?;
                item.more.push(task);
            }
            _ => return None,
        }
    }
    Some(item)
}

/// A task that came after one that may be `like` it: then it shares the names.
fn item_task(whole: &Bytes, body: &[u8], like: Option<&ItemTask>) -> Option<ItemTask> {
    let like = match like {
        Some(ItemTask::Plain(like)) => Some(like),
        _ => None,
    };
    match plain(whole, body, like) {
        Some(task) => Some(ItemTask::Plain(task)),
        None => Task::decode(whole.slice_ref(body)).ok().map(Box::new).map(ItemTask::Any),
    }
}

fn plain(whole: &Bytes, mut rest: &[u8], like: Option<&Plain>) -> Option<Plain> {
    let (mut queue, mut kind, mut payload) = (None, None, Bytes::new());
    let mut last = 0;
    while !rest.is_empty() {
        match next_key(&mut rest, &mut last)? {
            TASK_QUEUE => queue = Some(queue_name(piece(&mut rest)?, like.map(|like| &like.queue))?),
            TASK_KIND => kind = Some(kind_name(piece(&mut rest)?, like.map(|like| &like.kind))?),
            TASK_PAYLOAD => payload = whole.slice_ref(piece(&mut rest)?),
            _ => return None,
        }
    }
    Some(Plain { queue: queue?, kind: kind?, payload })
}

fn kind_name(text: &[u8], like: Option<&KindName>) -> Option<KindName> {
    match like.filter(|like| like.as_str().as_bytes() == text) {
        Some(like) => Some(like.clone()),
        None => KindName::new(std::str::from_utf8(text).ok()?).ok(),
    }
}

/// A message that was written already.
#[derive(Debug)]
pub struct Written<M> {
    bytes: BytesMut,
    /// How many things are in its list, if it is one.
    count: usize,
    message: PhantomData<fn() -> M>,
}

/// `EnqueueResults`, written.
pub type WrittenResults = Written<EnqueueResults>;
/// `ServerMessage`, written.
pub type WrittenServerMessage = Written<ServerMessage>;

impl<M> Default for Written<M> {
    fn default() -> Written<M> {
        Written { bytes: BytesMut::new(), count: 0, message: PhantomData }
    }
}

impl<M> Written<M> {
    /// A list, with room for so many results.
    pub fn with_room(results: usize) -> Written<M> {
        Written { bytes: BytesMut::with_capacity(results * RESULT_BYTES), ..Written::default() }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many things are in the list that it is.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Puts another list behind this one.
    pub fn join(&mut self, more: Written<M>) {
        if self.is_empty() {
            *self = more;
        } else {
            self.bytes.extend_from_slice(&more.bytes);
            self.count += more.count;
        }
    }

    /// Room for one thing more in the list, of so many bytes.
    fn add(&mut self, bytes: usize) -> Room<'_> {
        self.count += 1;
        let mut room = Room::new(1 + counted(bytes), &mut self.bytes);
        room.head(LIST_ITEM, bytes);
        room
    }

    fn add_message(&mut self, message: &impl Message) {
        self.count += 1;
        let bytes = message.encoded_len();
        Room::new(1 + encoded_len_varint(bytes as u64), &mut self.bytes).head(LIST_ITEM, bytes);
        append(message, &mut self.bytes);
    }
}

impl Written<EnqueueResults> {
    /// Adds a task that is there, by the words for how and what it is.
    pub fn add_enqueued(&mut self, seq: u64, id: TaskId, status: &str, state: &str) {
        let reply = 2 + ID_CHARS + text_bytes(status) + text_bytes(state);
        let mut room = self.add(number_bytes(seq) + 1 + counted(reply));
        room.number(1, seq);
        room.head(2 << 3 | LENGTH, reply);
        room.id(1, id);
        room.text(2, status);
        room.text(3, state);
        room.end();
    }

    /// Adds a task that was refused.
    pub fn add_error(&mut self, seq: u64, error: super::Error) {
        self.add_message(&EnqueueResult { seq, outcome: Some(enqueue_result::Outcome::Error(error)) });
    }
}

impl Written<OutcomeResults> {
    /// Adds a claim that was settled, by the word for what its task is now.
    pub fn add_settled(
        &mut self,
        seq: u64,
        id: TaskId,
        state: &str,
        attempt: Option<u32>,
        due: Option<WallTime>,
    ) {
        let attempt = attempt.map(u64::from);
        let due = due.map(Moment::from);
        let settled = 2
            + ID_CHARS
            + text_bytes(state)
            + attempt.map_or(0, |attempt| 1 + encoded_len_varint(attempt))
            + due.map_or(0, |due| 2 + due.bytes());
        let mut room = self.add(number_bytes(seq) + 1 + counted(settled));
        room.number(1, seq);
        room.head(2 << 3 | LENGTH, settled);
        room.id(1, id);
        room.text(2, state);
        if let Some(attempt) = attempt {
            room.field(3, attempt);
        }
        if let Some(due) = due {
            room.moment(4, due);
        }
        room.end();
    }

    /// Adds any other result.
    pub fn add_other(&mut self, seq: u64, result: outcome_result::Result) {
        self.add_message(&OutcomeResult { seq, result: Some(result) });
    }
}

/// A task on its way to a worker.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// Which.
    pub id: TaskId,
    /// Its queue.
    pub queue: &'a QueueName,
    /// What it is.
    pub envelope: &'a Envelope,
    /// Its priority.
    pub priority: u8,
    /// Which attempt this is.
    pub attempt: u32,
    /// What the worker acks with.
    pub token: &'a str,
    /// The fence.
    pub fence: u64,
    /// When the claim ends.
    pub deadline: WallTime,
    /// When the task was enqueued.
    pub enqueued_at: WallTime,
    /// How long the claim holds.
    pub hold_ms: u64,
    /// How much of that has passed.
    pub waited_ms: u64,
}

impl Push<'_> {
    fn bytes(&self) -> usize {
        let Envelope { kind, payload, content_type, headers, order_key, dedup_key, .. } = self.envelope;
        2 + ID_CHARS
            + text_bytes(self.queue.as_str())
            + text_bytes(kind)
            + if payload.is_empty() { 0 } else { 1 + counted(payload.len()) }
            + content_type.as_deref().map_or(0, text_bytes)
            + headers.iter().map(|header| 1 + counted(header_bytes(header))).sum::<usize>()
            + number_bytes(self.priority.into())
            + number_bytes(self.attempt.into())
            + text_bytes(self.token)
            + number_bytes(self.fence)
            + 4
            + Moment::from(self.deadline).bytes()
            + Moment::from(self.enqueued_at).bytes()
            + order_key.as_ref().map_or(0, |key| 1 + counted(key.len()))
            + dedup_key.as_ref().map_or(0, |key| 1 + counted(key.len()))
            + number_bytes(self.hold_ms)
            + if self.waited_ms == 0 { 0 } else { 2 + encoded_len_varint(self.waited_ms) }
    }

    fn write(&self, room: &mut Room<'_>) {
        let Envelope { kind, payload, content_type, headers, order_key, dedup_key, .. } = self.envelope;
        room.id(1, self.id);
        room.text(2, self.queue.as_str());
        room.text(3, kind);
        if !payload.is_empty() {
            room.piece(4, payload);
        }
        room.text(5, content_type.as_deref().unwrap_or_default());
        for header in headers {
            room.head(6 << 3 | LENGTH, header_bytes(header));
            room.text(1, &header.name);
            room.text(2, &header.value);
        }
        room.number(7, self.priority.into());
        room.number(8, self.attempt.into());
        room.text(9, self.token);
        room.number(10, self.fence);
        room.moment(11, self.deadline.into());
        room.moment(12, self.enqueued_at.into());
        if let Some(key) = order_key {
            room.piece(13, key.as_bytes());
        }
        if let Some(key) = dedup_key {
            room.piece(14, key.as_bytes());
        }
        room.number(15, self.hold_ms);
        if self.waited_ms != 0 {
            // Number 16, in two bytes.
            room.slice(&[0x80, 1]);
            room.varint(self.waited_ms);
        }
    }
}

impl Written<ServerMessage> {
    /// Tasks that are pushed.
    pub fn tasks<'a>(tasks: impl Iterator<Item = Push<'a>> + Clone) -> Self {
        let bytes: usize = tasks.clone().map(|task| 1 + counted(task.bytes())).sum();
        let mut buffer = BytesMut::new();
        let mut room = Room::new(1 + counted(bytes), &mut buffer);
        room.head(SERVER_TASKS, bytes);
        for task in tasks {
            room.head(LIST_ITEM, task.bytes());
            task.write(&mut room);
        }
        room.end();
        Written { bytes: buffer, count: 1, message: PhantomData }
    }

    /// Results.
    pub fn results(results: &Written<OutcomeResults>) -> Self {
        let mut bytes = BytesMut::new();
        let mut room = Room::new(1 + counted(results.bytes.len()), &mut bytes);
        room.head(SERVER_RESULTS, results.bytes.len());
        room.slice(&results.bytes);
        room.end();
        Written { bytes, count: 1, message: PhantomData }
    }
}

impl<M: Message> From<&M> for Written<M> {
    fn from(message: &M) -> Written<M> {
        let mut bytes = BytesMut::new();
        append(message, &mut bytes);
        Written { bytes, count: 1, message: PhantomData }
    }
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy)]
struct Moment {
    seconds: u64,
    nanos: u64,
}

impl From<WallTime> for Moment {
    fn from(time: WallTime) -> Moment {
        let millis = time.millis();
        Moment { seconds: millis / 1_000, nanos: millis % 1_000 * 1_000_000 }
    }
}

impl Moment {
    /// Fewer than 128.
    fn bytes(self) -> usize {
        number_bytes(self.seconds) + number_bytes(self.nanos)
    }
}

/// A number with its key; 0 is not written.
fn number_bytes(number: u64) -> usize {
    if number == 0 { 0 } else { 1 + encoded_len_varint(number) }
}

/// A text with its key and its length; an empty one is not written.
fn text_bytes(text: &str) -> usize {
    if text.is_empty() { 0 } else { 1 + counted(text.len()) }
}

fn header_bytes(header: &Header) -> usize {
    text_bytes(&header.name) + text_bytes(&header.value)
}

/// Bytes that are there to be written: a buffer that may have to grow is asked for every single one.
struct Room<'a> {
    bytes: &'a mut [u8],
    /// How many of them are written.
    at: usize,
}

impl Room<'_> {
    fn new(bytes: usize, buffer: &mut BytesMut) -> Room<'_> {
        let begin = buffer.len();
        buffer.resize(begin + bytes, 0);
        Room { bytes: &mut buffer[begin..], at: 0 }
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.bytes[self.at] = byte;
        self.at += 1;
    }

    #[inline]
    fn slice(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    #[inline]
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    fn head(&mut self, key: u8, bytes: usize) {
        self.byte(key);
        self.varint(bytes as u64);
    }

    fn field(&mut self, field: u8, number: u64) {
        self.byte(field << 3 | VARINT);
        self.varint(number);
    }

    fn number(&mut self, field: u8, number: u64) {
        if number != 0 {
            self.field(field, number);
        }
    }

    fn piece(&mut self, field: u8, bytes: &[u8]) {
        self.head(field << 3 | LENGTH, bytes.len());
        self.slice(bytes);
    }

    fn text(&mut self, field: u8, text: &str) {
        if !text.is_empty() {
            self.piece(field, text.as_bytes());
        }
    }

    fn id(&mut self, field: u8, id: TaskId) {
        self.piece(field, &id.text());
    }

    fn moment(&mut self, field: u8, moment: Moment) {
        self.head(field << 3 | LENGTH, moment.bytes());
        self.number(1, moment.seconds);
        self.number(2, moment.nanos);
    }

    fn end(self) {
        debug_assert!(self.at == self.bytes.len(), "what is written has the length that was said");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::ShardId;
    use prost_types::Timestamp;

    use super::*;
    use crate::grpc::{Claim, EnqueueReply, Error, Held, Settled, Tasks, server_message};

    fn id(n: u64) -> TaskId {
        TaskId::new(ShardId::new(3).unwrap(), WallTime::from_millis(1_763_208_000_000), n)
    }

    fn timestamp(millis: u64) -> Timestamp {
        Timestamp { seconds: (millis / 1_000) as i64, nanos: (millis % 1_000) as i32 * 1_000_000 }
    }

    fn task(n: u64) -> Task {
        let payload =
            if n.is_multiple_of(4) { Bytes::new() } else { Bytes::from(vec![b'7'; n as usize * 40]) };
        let queue = if n.is_multiple_of(3) { "mail" } else { "reports" }.to_owned();
        Task { queue, kind: format!("kind-{}", n / 2), payload, ..Task::default() }
    }

    #[test]
    fn an_item_of_plain_tasks_is_read_by_hand() {
        let expected = EnqueueItem { seq: 300, task: Some(task(0)), more: (1..30).map(task).collect() };
        let read = item(&expected.encode_to_vec().into()).unwrap();
        let is_plain = |task: &ItemTask| matches!(task, ItemTask::Plain(_));
        assert!(read.task.as_ref().is_some_and(is_plain) && read.more.iter().all(is_plain));
        assert_eq!(EnqueueItem::from(read), expected);
    }

    #[test]
    fn tasks_that_ask_for_something_are_read_as_they_are() {
        let odd = [
            Task { priority: Some(3), ..task(1) },
            Task { order_key: Some(String::new()), ..task(2) },
            Task { headers: BTreeMap::from([("a".to_owned(), "b".to_owned())]), ..task(3) },
            Task { queue: "no such name!".to_owned(), ..task(4) },
            Task { queue: String::new(), ..task(5) },
            Task { kind: String::new(), ..task(6) },
            Task { content_type: "text/plain".to_owned(), ..task(7) },
        ];
        for odd in odd {
            let expected = EnqueueItem { seq: 0, task: None, more: vec![task(8), odd, task(8)] };
            let read = item(&expected.encode_to_vec().into()).unwrap();
            assert!(matches!(read.more[..], [ItemTask::Plain(_), ItemTask::Any(_), ItemTask::Plain(_)]));
            assert_eq!(EnqueueItem::from(read), expected);
        }
    }

    #[test]
    fn whatever_is_read_here_is_what_the_message_says() {
        let more = vec![task(1), Task { priority: Some(3), ..task(1) }, task(2)];
        let whole = EnqueueItem { seq: 300, task: Some(task(3)), more }.encode_to_vec();
        let mut read = 0;
        for (at, flip) in (0..whole.len()).flat_map(|at| (1..=255).map(move |flip| (at, flip))) {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let bytes = Bytes::from(bytes);
            if let Some(item) = item(&bytes) {
                assert_eq!(EnqueueItem::decode(bytes), Ok(item.into()), "byte {at} flipped by {flip}");
                read += 1;
            }
        }
        assert!(read > 10_000, "most flips change a value: {read}");
        for len in 0..whole.len() {
            let bytes = Bytes::copy_from_slice(&whole[..len]);
            let read = Item::from_bytes(bytes.clone()).map(EnqueueItem::from);
            assert_eq!(read.is_ok(), EnqueueItem::decode(bytes).is_ok(), "cut after {len}");
        }
        // What stands there twice is one, as the message says.
        let twice = Bytes::from([&whole[..], &whole].concat());
        assert!(item(&twice).is_none() && EnqueueItem::decode(twice.clone()).is_ok());
        assert_eq!(Item::from_bytes(twice.clone()).map(EnqueueItem::from), EnqueueItem::decode(twice));
    }

    #[test]
    fn results_of_enqueues_are_written_as_their_message_is() {
        let error = Error { code: "queue_full".to_owned(), message: "x".repeat(300), ..Error::default() };
        let (mut written, mut later) = (Written::with_room(1), Written::default());
        let mut results = Vec::new();
        for n in [0, 1, 127, 128, u64::MAX] {
            let part = if n > 1 { &mut later } else { &mut written };
            part.add_enqueued(n, id(n), "enqueued", "ready");
            let (status, state) = ("enqueued".to_owned(), "ready".to_owned());
            let reply = EnqueueReply { id: id(n).to_string(), status, state };
            let outcome = Some(enqueue_result::Outcome::Enqueued(reply));
            results.push(EnqueueResult { seq: n, outcome });
            part.add_error(n, error.clone());
            let outcome = Some(enqueue_result::Outcome::Error(error.clone()));
            results.push(EnqueueResult { seq: n, outcome });
        }
        written.join(later);
        assert_eq!(written.len(), results.len());
        assert_eq!(written.bytes(), EnqueueResults { results }.encode_to_vec());
    }

    #[test]
    fn results_of_outcomes_are_written_as_their_message_is() {
        let mut written = Written::<OutcomeResults>::default();
        let mut results = Vec::new();
        for (seq, attempt, due) in [
            (0, None, None),
            (1, Some(0), Some(1_763_208_000_000)),
            (300, Some(700), Some(1)),
            (7, None, Some(0)),
        ] {
            written.add_settled(seq, id(seq), "retrying", attempt, due.map(WallTime::from_millis));
            let due = due.map(timestamp);
            let settled = Settled { id: id(seq).to_string(), state: "retrying".to_owned(), attempt, due };
            let result = Some(outcome_result::Result::Settled(settled));
            results.push(OutcomeResult { seq, result });
        }
        let held = outcome_result::Result::Held(Held { id: id(9).to_string(), ..Held::default() });
        written.add_other(9, held.clone());
        results.push(OutcomeResult { seq: 9, result: Some(held) });
        let message = Some(server_message::Message::Results(OutcomeResults { results }));
        assert_eq!(Written::results(&written).bytes(), ServerMessage { message }.encode_to_vec());
    }

    #[test]
    fn pushed_tasks_are_written_as_their_message_is() {
        let queue = QueueName::new("mail").unwrap();
        let headers =
            [("a", "b"), ("b", ""), ("", "c")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let (plain, full) = (
            Envelope { kind: "welcome".to_owned(), ..Envelope::default() },
            Envelope {
                kind: "k".repeat(200),
                payload: Bytes::from(vec![b'x'; 20_000]),
                content_type: Some("text/plain".to_owned()),
                headers: BTreeMap::from(headers)
                    .into_iter()
                    .map(|(name, value)| Header { name, value })
                    .collect(),
                order_key: Some("user-7".to_owned()),
                dedup_key: Some(String::new()),
                unique_key: Some("not sent".to_owned()),
            },
        );
        let (tokens, mut claims) = ("t".repeat(250), Vec::new());
        let pushes: Vec<Push<'_>> = (0..6)
            .map(|n: u64| {
                let envelope = if n.is_multiple_of(2) { &plain } else { &full };
                let (deadline, enqueued_at) = (n * 1_763_208_000_123, n * 700);
                claims.push(Claim {
                    id: id(n).to_string(),
                    queue: "mail".to_owned(),
                    kind: envelope.kind.clone(),
                    payload: envelope.payload.clone(),
                    content_type: envelope.content_type.clone().unwrap_or_default(),
                    headers: envelope
                        .headers
                        .iter()
                        .cloned()
                        .map(|header| (header.name, header.value))
                        .collect(),
                    priority: n as u32,
                    attempt: n as u32 * 100,
                    token: tokens[..n as usize * 50].to_owned(),
                    fence: n * 1_000,
                    deadline: Some(timestamp(deadline)),
                    enqueued_at: Some(timestamp(enqueued_at)),
                    order_key: envelope.order_key.clone(),
                    dedup_key: envelope.dedup_key.clone(),
                    hold_ms: n * 30_000,
                    waited_ms: n * 90,
                });
                Push {
                    id: id(n),
                    queue: &queue,
                    envelope,
                    priority: n as u8,
                    attempt: n as u32 * 100,
                    token: &tokens[..n as usize * 50],
                    fence: n * 1_000,
                    deadline: WallTime::from_millis(deadline),
                    enqueued_at: WallTime::from_millis(enqueued_at),
                    hold_ms: n * 30_000,
                    waited_ms: n * 90,
                }
            })
            .collect();
        for count in [0, 1, 6] {
            let some = claims[..count].to_vec();
            let message = Some(server_message::Message::Tasks(Tasks { claims: some }));
            let expected = ServerMessage { message };
            let written = Written::tasks(pushes[..count].iter().copied());
            assert_eq!(written.bytes(), expected.encode_to_vec());
            assert_eq!(Written::from(&expected).bytes(), written.bytes());
        }
    }
}
