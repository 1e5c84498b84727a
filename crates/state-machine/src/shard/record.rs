//! Records as bytes: one form for the checkpoint and for the state hash, the same on every replica.
//!
//! Little-endian, fixed order, a version first. `docs/formats/records.md` describes them.

use bytes::Bytes;
use model::command::{Dedup, Unique, UniqueUntil};
use model::policy::{FreedTo, OnExhausted, Recovery, Spread};
use model::{
    Digest, Fence, KeyHash, Millis, NewTask, QueueName, QueueSettings, RetryOverride, RetryPolicy, SessionId,
    Start, StateKind, TaskId, WallTime, Wishes, WorkerName,
};

use super::execution::{ClaimRecord, DedupKey, Execution, Extra, Flags, Last, NONE, OrderPlace, UniqueKey};
use super::queue::{PurgeMark, Queue};
use crate::view::Totals;

/// The version that is written.
const VERSION: u8 = 1;

/// What every execution's record begins with: five bytes, two and two counts, two numbers, six wide ones.
const EXECUTION_HEAD_BYTES: usize = 5 + 2 * 2 + 2 * 4 + 6 * 8;

/// Appends values to a buffer.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).expect("no field is four gigabytes long"));
        self.0.extend_from_slice(value);
    }
    pub(crate) fn str(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }
    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        match value {
            None => self.u8(0),
            Some(value) => {
                self.u8(1);
                write(self, value);
            }
        }
    }
    fn millis(&mut self, value: Millis) {
        self.u64(value.0);
    }
}

/// Takes values from bytes; an error names what was wrong.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

/// Result of reading.
pub(crate) type Read<T> = Result<T, &'static str>;

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or("it is too short")?;
        self.0 = rest;
        Ok(*head)
    }
    pub(crate) fn u8(&mut self) -> Read<u8> {
        Ok(self.take::<1>()?[0])
    }
    pub(crate) fn u16(&mut self) -> Read<u16> {
        Ok(u16::from_le_bytes(self.take()?))
    }
    pub(crate) fn u32(&mut self) -> Read<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    pub(crate) fn u64(&mut self) -> Read<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    pub(crate) fn u128(&mut self) -> Read<u128> {
        Ok(u128::from_le_bytes(self.take()?))
    }
    pub(crate) fn bytes(&mut self) -> Read<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > self.0.len() {
            return Err("a length points past its end");
        }
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(head)
    }
    pub(crate) fn str(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "a text is not UTF-8")
    }
    pub(crate) fn option<T>(&mut self, read: impl FnOnce(&mut Reader<'a>) -> Read<T>) -> Read<Option<T>> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err("an option is neither there nor not"),
        }
    }
    fn millis(&mut self) -> Read<Millis> {
        self.u64().map(Millis)
    }
    fn wall(&mut self) -> Read<WallTime> {
        self.u64().map(WallTime::from_millis)
    }
    fn key(&mut self) -> Read<KeyHash> {
        self.u128().map(KeyHash)
    }
    pub(crate) fn task(&mut self) -> Read<TaskId> {
        TaskId::from_bits(self.u128()?).ok_or("a task id is none")
    }
    fn queue_name(&mut self) -> Read<QueueName> {
        QueueName::new(self.str()?).map_err(|_| "a queue name is none")
    }
    pub(crate) fn version(&mut self) -> Read<()> {
        if self.u8()? == VERSION { Ok(()) } else { Err("its version is newer than this program: upgrade") }
    }
    pub(crate) fn end(&self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err("it is too long") }
    }
}

pub(crate) fn version(w: &mut Writer) {
    w.u8(VERSION);
}

pub(super) fn write_execution(w: &mut Writer, task: &Execution, claim: Option<&ClaimRecord>) {
    // In one piece: every change of a task is hashed in this form.
    let mut head = [0; EXECUTION_HEAD_BYTES];
    head[..5].copy_from_slice(&[
        VERSION,
        task.state as u8,
        task.priority,
        task.last as u8,
        task.flags.state(),
    ]);
    head[5..7].copy_from_slice(&task.attempts.to_le_bytes());
    head[7..9].copy_from_slice(&task.lost_in_row.to_le_bytes());
    head[9..13].copy_from_slice(&task.queue.to_le_bytes());
    head[13..17].copy_from_slice(&task.kind_hash.to_le_bytes());
    let enqueued_at = task.enqueued_at.millis();
    let wide = [task.digest, enqueued_at, task.since, task.when, task.rank as u64, task.fence.0];
    for (to, value) in head[17..].as_chunks_mut::<8>().0.iter_mut().zip(wide) {
        *to = value.to_le_bytes();
    }
    w.0.extend_from_slice(&head);
    w.option(task.extra.as_deref(), write_extra);
    w.option(claim, |w, claim| {
        w.str(claim.worker.as_str());
        w.option(claim.session, |w, session| w.u128(session.0));
        w.millis(claim.hold);
        w.u64(claim.since.millis());
        w.option(claim.progress.as_deref(), |w, (percent, note)| {
            w.u8(*percent);
            w.str(note);
        });
    });
}

fn write_extra(w: &mut Writer, extra: &Extra) {
    w.option(extra.order, |w, order| {
        w.u128(order.key.0);
        w.u64(order.seq);
    });
    w.option(extra.dedup, |w, dedup| {
        w.u128(dedup.key.0);
        w.millis(dedup.window);
        w.u128(dedup.digest.0);
    });
    w.option(extra.unique, |w, unique| {
        w.u128(unique.key.0);
        write_until(w, unique.until);
    });
    w.option(extra.hold, Writer::millis);
    write_retry_override(w, extra.retry);
    w.option(extra.expires_at, |w, at| w.u64(at.millis()));
    w.option(extra.retention, Writer::millis);
    w.option(extra.not_before, |w, at| w.u64(at.millis()));
}

fn write_until(w: &mut Writer, until: UniqueUntil) {
    w.u8(match until {
        UniqueUntil::Claimed => 0,
        UniqueUntil::Final => 1,
    });
}

fn read_until(r: &mut Reader<'_>) -> Read<UniqueUntil> {
    match r.u8()? {
        0 => Ok(UniqueUntil::Claimed),
        1 => Ok(UniqueUntil::Final),
        _ => Err("a unique key's end is unknown"),
    }
}

fn write_retry_override(w: &mut Writer, retry: RetryOverride) {
    w.option(retry.attempts, Writer::u32);
    w.option(retry.base, Writer::millis);
    w.option(retry.cap, Writer::millis);
    w.option(retry.age_max, Writer::millis);
}

fn read_retry_override(r: &mut Reader<'_>) -> Read<RetryOverride> {
    Ok(RetryOverride {
        attempts: r.option(Reader::u32)?,
        base: r.option(Reader::millis)?,
        cap: r.option(Reader::millis)?,
        age_max: r.option(Reader::millis)?,
    })
}

pub(super) fn read_execution(id: TaskId, bytes: &[u8]) -> Read<(Execution, Option<ClaimRecord>)> {
    let r = &mut Reader(bytes);
    r.version()?;
    let state = StateKind::from_number(r.u8()?).ok_or("a state is unknown")?;
    let priority = read_priority(r)?;
    let last = Last::from_number(r.u8()?).ok_or("an outcome is unknown")?;
    let flags = Flags::from_state(r.u8()?);
    let execution = Execution {
        id,
        state,
        priority,
        last,
        flags,
        attempts: r.u16()?,
        lost_in_row: r.u16()?,
        queue: r.u32()?,
        kind_hash: r.u32()?,
        digest: r.u64()?,
        enqueued_at: r.wall()?,
        since: r.u64()?,
        when: r.u64()?,
        rank: r.u64()? as i64,
        fence: Fence(r.u64()?),
        extra: r.option(read_extra)?.map(Box::new),
        prev: NONE,
        next: NONE,
    };
    let claim = r.option(|r| {
        Ok(ClaimRecord {
            worker: WorkerName::new(r.str()?).map_err(|_| "a worker's name is none")?,
            session: r.option(|r| r.u128().map(SessionId))?,
            hold: r.millis()?,
            since: r.wall()?,
            progress: r.option(|r| Ok(Box::new((r.u8()?, r.str()?.to_owned()))))?,
        })
    })?;
    r.end()?;
    if claim.is_some() != (state == StateKind::Claimed) {
        return Err("a claim does not fit its state");
    }
    Ok((execution, claim))
}

fn read_priority(r: &mut Reader<'_>) -> Read<u8> {
    let priority = r.u8()?;
    if priority <= model::limits::PRIORITY_MAX { Ok(priority) } else { Err("a priority is over 9") }
}

fn read_extra(r: &mut Reader<'_>) -> Read<Extra> {
    Ok(Extra {
        order: r.option(|r| Ok(OrderPlace { key: r.key()?, seq: r.u64()?, prev: NONE, next: NONE }))?,
        dedup: r
            .option(|r| Ok(DedupKey { key: r.key()?, window: r.millis()?, digest: Digest(r.u128()?) }))?,
        unique: r.option(|r| Ok(UniqueKey { key: r.key()?, until: read_until(r)? }))?,
        hold: r.option(Reader::millis)?,
        retry: read_retry_override(r)?,
        expires_at: r.option(Reader::wall)?,
        retention: r.option(Reader::millis)?,
        not_before: r.option(Reader::wall)?,
    })
}

pub(super) fn write_queue(w: &mut Writer, queue: &Queue) {
    w.u8(VERSION);
    w.str(queue.name.as_str());
    write_settings(w, &queue.settings);
    let Totals { enqueued, done, failed, dead, freed } = queue.totals;
    for total in [enqueued, done, failed, dead, freed] {
        w.u64(total);
    }
    w.u32(queue.purges.len() as u32);
    for mark in &queue.purges {
        w.u64(mark.after as u64);
        w.u64(mark.before as u64);
    }
    w.u8(queue.dropped.into());
}

pub(super) fn read_queue(no: u32, bytes: &[u8]) -> Read<Queue> {
    let r = &mut Reader(bytes);
    r.version()?;
    let mut queue = Queue::new(r.queue_name()?, no);
    queue.settings = read_settings(r)?;
    queue.totals =
        Totals { enqueued: r.u64()?, done: r.u64()?, failed: r.u64()?, dead: r.u64()?, freed: r.u64()? };
    for _ in 0..r.u32()? {
        queue.purges.push(PurgeMark { after: r.u64()? as i64, before: r.u64()? as i64 });
    }
    queue.dropped = r.u8()? != 0;
    r.end()?;
    Ok(queue)
}

pub(crate) fn write_settings(w: &mut Writer, settings: &QueueSettings) {
    let policy = &settings.policy;
    w.u64(settings.version);
    w.u8(settings.paused.into());
    w.millis(policy.hold);
    w.u32(policy.retry.attempts);
    w.millis(policy.retry.base);
    w.millis(policy.retry.cap);
    w.option(policy.retry.age_max, Writer::millis);
    w.millis(policy.retention);
    w.u64(policy.retained_max);
    w.u64(policy.dead_max);
    w.millis(policy.dead_retention);
    w.u64(policy.dedup_keys_max);
    w.option(policy.tasks_max, Writer::u64);
    w.u64(policy.payload_bytes_max);
    w.u8((policy.recovery == Recovery::Manual).into());
    w.u8((policy.freed_to == FreedTo::Back).into());
    w.u8((policy.on_exhausted == OnExhausted::Discard).into());
    w.u8((policy.spread == Spread::Pinned).into());
    w.u32(policy.poison_after);
}

pub(crate) fn read_settings(r: &mut Reader<'_>) -> Read<QueueSettings> {
    let mut settings = QueueSettings { version: r.u64()?, paused: r.u8()? != 0, ..QueueSettings::default() };
    let policy = &mut settings.policy;
    policy.hold = r.millis()?;
    policy.retry = RetryPolicy {
        attempts: r.u32()?,
        base: r.millis()?,
        cap: r.millis()?,
        age_max: r.option(Reader::millis)?,
    };
    policy.retention = r.millis()?;
    policy.retained_max = r.u64()?;
    policy.dead_max = r.u64()?;
    policy.dead_retention = r.millis()?;
    policy.dedup_keys_max = r.u64()?;
    policy.tasks_max = r.option(Reader::u64)?;
    policy.payload_bytes_max = r.u64()?;
    policy.recovery = if r.u8()? != 0 { Recovery::Manual } else { Recovery::Auto };
    policy.freed_to = if r.u8()? != 0 { FreedTo::Back } else { FreedTo::Front };
    policy.on_exhausted = if r.u8()? != 0 { OnExhausted::Discard } else { OnExhausted::Dead };
    policy.spread = if r.u8()? != 0 { Spread::Pinned } else { Spread::All };
    policy.poison_after = r.u32()?;
    Ok(settings)
}

/// A task on its way to another shard.
pub(super) fn write_new_task(w: &mut Writer, task: &NewTask) {
    w.u8(VERSION);
    w.u128(task.id.bits());
    w.str(task.queue.as_str());
    w.u32(task.kind_hash);
    w.u128(task.digest.0);
    w.u8(task.priority);
    let wishes = task.wishes();
    match wishes.start {
        Start::Now => w.u8(0),
        Start::After(delay) => {
            w.u8(1);
            w.millis(delay);
        }
        Start::At(at) => {
            w.u8(2);
            w.u64(at.millis());
        }
    }
    w.option(wishes.order_key, |w, key| w.u128(key.0));
    w.option(wishes.dedup, |w, dedup| {
        w.u128(dedup.key.0);
        w.millis(dedup.window);
    });
    w.option(wishes.unique, |w, unique| {
        w.u128(unique.key.0);
        write_until(w, unique.until);
    });
    w.option(wishes.hold, Writer::millis);
    write_retry_override(w, wishes.retry);
    w.option(wishes.expires_in, Writer::millis);
    w.option(wishes.retention, Writer::millis);
    w.bytes(&task.envelope);
}

pub(super) fn read_new_task(bytes: &[u8]) -> Read<NewTask> {
    let r = &mut Reader(bytes);
    r.version()?;
    let task = NewTask {
        id: r.task()?,
        queue: r.queue_name()?,
        kind_hash: r.u32()?,
        digest: Digest(r.u128()?),
        priority: read_priority(r)?,
        wishes: read_wishes(r)?.boxed(),
        envelope: Bytes::copy_from_slice(r.bytes()?),
    };
    r.end()?;
    Ok(task)
}

fn read_wishes(r: &mut Reader<'_>) -> Read<Wishes> {
    Ok(Wishes {
        start: match r.u8()? {
            0 => Start::Now,
            1 => Start::After(r.millis()?),
            2 => Start::At(r.wall()?),
            _ => return Err("a start is unknown"),
        },
        order_key: r.option(Reader::key)?,
        dedup: r.option(|r| Ok(Dedup { key: r.key()?, window: r.millis()? }))?,
        unique: r.option(|r| Ok(Unique { key: r.key()?, until: read_until(r)? }))?,
        hold: r.option(Reader::millis)?,
        retry: read_retry_override(r)?,
        expires_in: r.option(Reader::millis)?,
        retention: r.option(Reader::millis)?,
    })
}
