//! What nearly all entries under load are made of, read and written by hand: enqueues of tasks that ask for nothing, and acks
//! without follow-ups.
//!
//! The bytes are those of the messages in `command` and `new_task`, field for field. Whatever is unusual, damaged bytes
//! included, is left to those: a `None` here says no more than that. Next: `command`.

use bytes::{BufMut, Bytes, BytesMut};
use model::command::Ack;
use model::limits::PRIORITY_MAX;
use model::{Command, Digest, Fence, NewTask, QueueName, TaskId};
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};

use crate::entry::TAG_COMMAND;

/// Keys of fields: number and kind in one byte, as long as the number is below 16.
const COMMAND: u8 = (TAG_COMMAND as u8) << 3 | LENGTH;
const ENQUEUE: u8 = 1 << 3 | LENGTH;
const ENQUEUE_TASK: u8 = 1 << 3 | LENGTH;
const ENQUEUE_ATOMIC: u8 = 2 << 3;
const ACK: u8 = 4 << 3 | LENGTH;
const ACK_TASK: u8 = 1 << 3 | LENGTH;
const ACK_FENCE: u8 = 2 << 3;
const ACK_OUTPUT: u8 = 3 << 3 | LENGTH;
const TASK_ID: u8 = 1 << 3 | LENGTH;
const TASK_QUEUE: u8 = 2 << 3 | LENGTH;
const TASK_KIND_HASH: u8 = 3 << 3 | FIXED32;
const TASK_DIGEST: u8 = 4 << 3 | LENGTH;
const TASK_PRIORITY: u8 = 5 << 3;
/// Number 20, in two bytes.
const TASK_ENVELOPE: [u8; 2] = [(20 << 3 & 0x7f) as u8 | 0x80 | LENGTH, 1];
const BITS_HIGH: u8 = 1 << 3 | FIXED64;
const BITS_LOW: u8 = 2 << 3 | FIXED64;

/// No task is shorter.
const TASK_BYTES_MIN: usize = 32;

const FIXED64: u8 = 1;
const LENGTH: u8 = 2;
const FIXED32: u8 = 5;

/// Adds an enqueue to a part of an entry. Whether it could: every task must ask for nothing.
pub(crate) fn push_enqueue(tasks: &[NewTask], atomic: bool, part: &mut BytesMut) -> bool {
    if tasks.iter().any(|task| task.wishes.is_some()) {
        return false;
    }
    let each: usize = tasks.iter().map(task_bytes).map(|bytes| 1 + counted(bytes)).sum();
    put_heads(ENQUEUE, each + if atomic { 2 } else { 0 }, part);
    for task in tasks {
        part.put_u8(ENQUEUE_TASK);
        encode_varint(task_bytes(task) as u64, part);
        put_task(task, part);
    }
    if atomic {
        part.put_slice(&[ENQUEUE_ATOMIC, 1]);
    }
    true
}

/// Adds an ack to a part of an entry. Whether it could: nothing must follow it.
pub(crate) fn push_ack(ack: &Ack, part: &mut BytesMut) -> bool {
    if !ack.then.is_empty() {
        return false;
    }
    let fence = if ack.fence.0 == 0 { 0 } else { 1 + encoded_len_varint(ack.fence.0) };
    let output = if ack.output.is_empty() { 0 } else { 1 + counted(ack.output.len()) };
    put_heads(ACK, 2 + bits_bytes(ack.task.bits()) + fence + output, part);
    put_bits(ACK_TASK, ack.task.bits(), part);
    if fence > 0 {
        part.put_u8(ACK_FENCE);
        encode_varint(ack.fence.0, part);
    }
    if output > 0 {
        part.put_u8(ACK_OUTPUT);
        encode_varint(ack.output.len() as u64, part);
        part.put_slice(&ack.output);
    }
    true
}

/// Begins a command of a kind whose own fields take so many bytes, and makes room for all of it.
fn put_heads(kind: u8, bytes: usize, part: &mut BytesMut) {
    let command = 1 + counted(bytes);
    part.reserve(1 + counted(command));
    for (key, bytes) in [(COMMAND, command), (kind, bytes)] {
        part.put_u8(key);
        encode_varint(bytes as u64, part);
    }
}

/// So many bytes with their count before them.
pub(crate) fn counted(bytes: usize) -> usize {
    encoded_len_varint(bytes as u64) + bytes
}

fn task_bytes(task: &NewTask) -> usize {
    let kind_hash = if task.kind_hash == 0 { 0 } else { 5 };
    let priority = if task.priority == 0 { 0 } else { 2 };
    let envelope = if task.envelope.is_empty() { 0 } else { 2 + counted(task.envelope.len()) };
    let queue = 1 + counted(task.queue.as_str().len());
    2 + bits_bytes(task.id.bits()) + queue + kind_hash + 2 + bits_bytes(task.digest.0) + priority + envelope
}

fn put_task(task: &NewTask, part: &mut BytesMut) {
    put_bits(TASK_ID, task.id.bits(), part);
    part.put_u8(TASK_QUEUE);
    encode_varint(task.queue.as_str().len() as u64, part);
    part.put_slice(task.queue.as_str().as_bytes());
    if task.kind_hash != 0 {
        part.put_u8(TASK_KIND_HASH);
        part.put_u32_le(task.kind_hash);
    }
    put_bits(TASK_DIGEST, task.digest.0, part);
    if task.priority != 0 {
        debug_assert!(task.priority <= PRIORITY_MAX, "a priority is one byte long");
        part.put_slice(&[TASK_PRIORITY, task.priority]);
    }
    if !task.envelope.is_empty() {
        part.put_slice(&TASK_ENVELOPE);
        encode_varint(task.envelope.len() as u64, part);
        part.put_slice(&task.envelope);
    }
}

fn halves(bits: u128) -> [(u8, u64); 2] {
    [(BITS_HIGH, (bits >> 64) as u64), (BITS_LOW, bits as u64)]
}

fn bits_bytes(bits: u128) -> usize {
    halves(bits).into_iter().filter(|(_, half)| *half != 0).count() * 9
}

fn put_bits(key: u8, bits: u128, part: &mut BytesMut) {
    part.put_slice(&[key, bits_bytes(bits) as u8]);
    for (key, half) in halves(bits).into_iter().filter(|(_, half)| *half != 0) {
        part.put_u8(key);
        part.put_u64_le(half);
    }
}

/// A command from its bytes, sharing envelopes and outputs with them.
pub(crate) fn decode(bytes: &Bytes) -> Option<Command> {
    let mut rest = bytes.as_ref();
    let kind = byte(&mut rest)?;
    let body = piece(&mut rest)?;
    match kind {
        ENQUEUE if rest.is_empty() => enqueue(bytes, body),
        ACK if rest.is_empty() => ack(bytes, body),
        _ => None,
    }
}

fn enqueue(whole: &Bytes, mut rest: &[u8]) -> Option<Command> {
    let (mut tasks, mut atomic) = (Vec::new(), false);
    while !rest.is_empty() {
        match byte(&mut rest)? {
            ENQUEUE_TASK => {
                let body = piece(&mut rest)?;
                if tasks.is_empty() {
                    // They are alike, mostly.
                    tasks.reserve_exact(1 + rest.len() / body.len().max(TASK_BYTES_MIN));
                }
                // So are their queues: one name for all of them.
                let queue = tasks.last().map(|task: &NewTask| &task.queue);
                let task = task(whole, body, queue)?;
                tasks.push(task);
            }
            ENQUEUE_ATOMIC => atomic = byte(&mut rest).filter(|value| *value <= 1)? == 1,
            _ => return None,
        }
    }
    Some(Command::Enqueue { tasks, atomic })
}

fn task(whole: &Bytes, mut rest: &[u8], like: Option<&QueueName>) -> Option<NewTask> {
    let (mut id, mut digest, mut queue) = (None, None, None);
    let (mut kind_hash, mut priority, mut envelope) = (0, 0, Bytes::new());
    let mut last = 0;
    while !rest.is_empty() {
        match next_key(&mut rest, &mut last)? {
            TASK_ID => id = Some(TaskId::from_bits(bits(piece(&mut rest)?)?)?),
            TASK_QUEUE => queue = Some(queue_name(piece(&mut rest)?, like)?),
            TASK_KIND_HASH => kind_hash = u32::from_le_bytes(array(&mut rest)?),
            TASK_DIGEST => digest = Some(Digest(bits(piece(&mut rest)?)?)),
            TASK_PRIORITY => priority = byte(&mut rest).filter(|priority| *priority <= PRIORITY_MAX)?,
            key if key == TASK_ENVELOPE[0] && byte(&mut rest)? == TASK_ENVELOPE[1] => {
                envelope = whole.slice_ref(piece(&mut rest)?);
            }
            _ => return None,
        }
    }
    Some(NewTask { id: id?, queue: queue?, kind_hash, digest: digest?, priority, wishes: None, envelope })
}

pub(crate) fn queue_name(text: &[u8], like: Option<&QueueName>) -> Option<QueueName> {
    match like.filter(|like| like.as_str().as_bytes() == text) {
        Some(like) => Some(like.clone()),
        None => QueueName::new(std::str::from_utf8(text).ok()?).ok(),
    }
}

fn ack(whole: &Bytes, mut rest: &[u8]) -> Option<Command> {
    let (mut task, mut fence, mut output) = (None, 0, Bytes::new());
    let mut last = 0;
    while !rest.is_empty() {
        match next_key(&mut rest, &mut last)? {
            ACK_TASK => task = Some(TaskId::from_bits(bits(piece(&mut rest)?)?)?),
            ACK_FENCE => fence = decode_varint(&mut rest).ok()?,
            ACK_OUTPUT => output = whole.slice_ref(piece(&mut rest)?),
            _ => return None,
        }
    }
    Some(Command::Ack(Ack { task: task?, fence: Fence(fence), output, then: Vec::new() }))
}

fn bits(mut rest: &[u8]) -> Option<u128> {
    let (mut high, mut low) = (0, 0);
    while !rest.is_empty() {
        match byte(&mut rest)? {
            BITS_HIGH => high = u64::from_le_bytes(array(&mut rest)?),
            BITS_LOW => low = u64::from_le_bytes(array(&mut rest)?),
            _ => return None,
        }
    }
    Some(u128::from(high) << 64 | u128::from(low))
}

/// The key of the next field. They stand in the order of their numbers, each at most once.
pub(crate) fn next_key(rest: &mut &[u8], last: &mut u8) -> Option<u8> {
    let key = byte(rest).filter(|key| key > last)?;
    *last = key;
    Some(key)
}

pub(crate) fn byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, others) = rest.split_first()?;
    *rest = others;
    Some(*first)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

/// Bytes with their count before them.
pub(crate) fn piece<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let bytes = usize::try_from(decode_varint(rest).ok()?).ok()?;
    let (first, others) = rest.split_at_checked(bytes)?;
    *rest = others;
    Some(first)
}

#[cfg(test)]
mod tests {
    use model::{FollowUp, Millis, ShardId, WallTime, Wishes};

    use super::*;
    use crate::command::{CommandMessage, decode_any};
    use crate::entry;

    fn task(n: u64, envelope: &'static [u8]) -> NewTask {
        NewTask {
            id: TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(n), n),
            queue: QueueName::new(if n.is_multiple_of(3) { "mail" } else { "reports" }).unwrap(),
            kind_hash: (n as u32) / 2,
            digest: Digest(u128::from(n) << (n % 100)),
            priority: (n % 10) as u8,
            wishes: None,
            envelope: Bytes::from_static(envelope),
        }
    }

    fn derived(command: &Command) -> BytesMut {
        let mut part = BytesMut::new();
        entry::push_command(&CommandMessage::from(command), &mut part);
        part
    }

    fn first(part: BytesMut) -> Bytes {
        entry::commands(part.freeze()).unwrap().remove(0)
    }

    #[test]
    fn an_enqueue_is_written_as_its_message_is_and_read_back() {
        static LONG: [u8; 300] = [7; 300];
        for (tasks, atomic) in [(0, false), (1, true), (30, false), (30, true)] {
            let tasks: Vec<NewTask> =
                (0..tasks).map(|n| task(n, if n % 2 == 0 { &LONG } else { b"" })).collect();
            let command = Command::Enqueue { tasks: tasks.clone(), atomic };
            let mut part = BytesMut::from(&b"before"[..]);
            assert!(push_enqueue(&tasks, atomic, &mut part));
            let part = part.split_off(6);
            assert_eq!(part, derived(&command));
            assert_eq!(decode(&first(part)), Some(command));
        }
    }

    #[test]
    fn an_ack_is_written_as_its_message_is_and_read_back() {
        static LONG: [u8; 300] = [7; 300];
        for (fence, output) in [(0, &b""[..]), (1, b"out"), (300, &LONG), (u64::MAX, b"")] {
            let output = Bytes::from_static(output);
            let ack = Ack { task: task(7, b"").id, fence: Fence(fence), output, then: vec![] };
            let mut part = BytesMut::from(&b"before"[..]);
            assert!(push_ack(&ack, &mut part));
            let (part, command) = (part.split_off(6), Command::Ack(ack));
            assert_eq!(part, derived(&command));
            assert_eq!(decode(&first(part)), Some(command));
        }
    }

    #[test]
    fn whatever_is_read_here_is_what_the_message_says() {
        let tasks = (1..4).map(|n| task(n, b"envelope")).collect();
        let ack = Ack {
            task: task(7, b"").id,
            fence: Fence(300),
            output: Bytes::from_static(b"out"),
            then: vec![],
        };
        let mut read = 0;
        for command in [Command::Enqueue { tasks, atomic: true }, Command::Ack(ack)] {
            let whole = first(derived(&command));
            for (at, flip) in (0..whole.len()).flat_map(|at| (1..=255).map(move |flip| (at, flip))) {
                let mut bytes = whole.to_vec();
                bytes[at] ^= flip;
                let bytes = Bytes::from(bytes);
                if let Some(command) = decode(&bytes) {
                    assert_eq!(decode_any(bytes), Ok(command), "byte {at} flipped by {flip}");
                    read += 1;
                }
            }
        }
        assert!(read > 10_000, "most flips change a value: {read}");
    }

    #[test]
    fn what_is_unusual_is_left_to_the_message() {
        let wishes = Wishes { hold: Some(Millis(1)), ..Wishes::default() }.boxed();
        let tasks = vec![task(1, b"x"), NewTask { wishes, ..task(2, b"") }];
        let mut part = BytesMut::new();
        assert!(!push_enqueue(&tasks, false, &mut part) && part.is_empty());
        assert_eq!(decode(&first(derived(&Command::Enqueue { tasks, atomic: false }))), None);
        let then = vec![FollowUp { shard: ShardId::new(1).unwrap(), task: task(3, b"") }];
        let ack = Ack { task: task(7, b"").id, fence: Fence(1), output: Bytes::new(), then };
        assert!(!push_ack(&ack, &mut part) && part.is_empty());
        assert_eq!(decode(&first(derived(&Command::Pulse { limit: 3 }))), None);
        let whole = first(derived(&Command::Enqueue { tasks: vec![task(1, b"x")], atomic: true }));
        for len in 0..whole.len() {
            assert_eq!(decode(&whole.slice(..len)), None, "cut after {len}");
        }
        let longer = Bytes::from([&whole[..], b"\n\0"].concat());
        assert_eq!(decode(&longer), None, "a second word on the kind");
    }
}
