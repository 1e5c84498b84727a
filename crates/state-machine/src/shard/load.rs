//! Brings a shard back from the records of its checkpoint.

use model::{Digest, Elapsed, KeyHash, Mutant, OutboxMessage, ShardId, StateKind, WallTime, mutant};

use super::execution::{NONE, Slot};
use super::keys::{DedupEntry, Gone};
use super::outcomes::Outcome;
use super::record::{self, Read, Reader};
use super::timers::Timer;
use super::{Counters, Request, Shard, end};
use crate::machine::{Damaged, Table};

impl Shard {
    pub(super) fn load_record(&mut self, table: Table, key: &[u8], value: &[u8]) -> Read<()> {
        match table {
            Table::Meta => self.load_meta(value),
            Table::Queues => self.load_queue(key, value),
            Table::Executions => self.load_execution(key, value),
            Table::Keys => self.load_key(key, value),
            Table::Requests => self.load_request(key, value),
            Table::Outcomes => self.load_outcomes(key, value),
            Table::Outbox => self.load_outbox(key, value),
        }
    }

    fn load_meta(&mut self, value: &[u8]) -> Read<()> {
        let r = &mut Reader(value);
        self.elapsed = Elapsed(r.u64()?);
        self.wall = WallTime::from_millis(r.u64()?);
        r.version()?;
        self.counters = Counters {
            fence: r.u64()?,
            back: r.u64()? as i64,
            front: r.u64()? as i64,
            queue: r.u32()?,
            outcome: r.u64()?,
            first_outcome: r.u64()?,
        };
        if self.counters.outcome == 0 {
            return Err("the number of the next outcome is 0");
        }
        for _ in 0..r.u32()? {
            let target = read_shard(r.u16()?)?;
            self.outbox.entry(target).or_default().last_seq = r.u64()?;
        }
        for _ in 0..r.u32()? {
            let source = read_shard(r.u16()?)?;
            self.delivered.insert(source, r.u64()?);
        }
        self.outcomes.fresh = self.counters.outcome;
        r.end()
    }

    fn load_queue(&mut self, key: &[u8], value: &[u8]) -> Read<()> {
        let no = u32::from_be_bytes(key.try_into().map_err(|_| "a queue's key is not 4 bytes long")?);
        let queue = record::read_queue(no, value)?;
        self.queues.insert(queue);
        self.journal_loaded_queue(no);
        Ok(())
    }

    fn load_execution(&mut self, key: &[u8], value: &[u8]) -> Read<()> {
        let id = end::id_of_key(key)?;
        if id.shard() != self.id {
            return Err("a task belongs to another shard");
        }
        let (execution, claim) = record::read_execution(id, value)?;
        if self.queues.get(execution.queue).is_none() {
            return Err("a task's queue is missing");
        }
        let fence = execution.fence;
        self.extras += u64::from(execution.extra.is_some());
        let slot = self.tasks.insert(execution);
        if let Some(claim) = claim {
            if let Some(session) = claim.session {
                self.sessions.add(session, fence, slot);
            }
            self.claims.insert(slot, claim);
        }
        Ok(())
    }

    fn load_key(&mut self, key: &[u8], value: &[u8]) -> Read<()> {
        let hash = read_key(key)?;
        let r = &mut Reader(value);
        r.version()?;
        let (task, digest) = (r.task()?, Digest(r.u128()?));
        let queue = r.u32()?;
        let state = StateKind::from_number(r.u8()?).ok_or("a state is unknown")?;
        let gone = Gone { queue, state, until: WallTime::from_millis(r.u64()?) };
        r.end()?;
        self.queues.get_mut(queue).ok_or("a key's queue is missing")?.dedup_keys += 1;
        self.journal.add_hash(super::journal::hash_record(Table::Keys, key, value));
        self.wall_timers.set(gone.until.millis(), Timer::Window(hash.into()));
        self.dedup.insert(hash, DedupEntry { task, digest, gone: Some(gone) });
        Ok(())
    }

    fn load_request(&mut self, key: &[u8], value: &[u8]) -> Read<()> {
        let hash = read_key(key)?;
        let request = Request::read(value)?;
        self.journal.add_hash(super::journal::hash_record(Table::Requests, key, value));
        self.elapsed_timers.set(request.until.0, Timer::Request(hash.into()));
        self.requests.insert(hash, request);
        Ok(())
    }

    /// A chunk; its first outcomes may have gone since it was written.
    fn load_outcomes(&mut self, key: &[u8], value: &[u8]) -> Read<()> {
        let first = u64::from_be_bytes(key.try_into().map_err(|_| "a chunk's key is not 8 bytes long")?);
        let r = &mut Reader(value);
        r.version()?;
        let mut last = first;
        while !r.0.is_empty() {
            let rest = r.0;
            let outcome = Outcome::read(r)?;
            if outcome.seq >= self.counters.outcome {
                return Err("an outcome's number was never given");
            }
            last = outcome.seq;
            if outcome.seq < self.counters.first_outcome {
                continue;
            }
            self.journal.add_hash(super::journal::hash_outcome(&rest[..rest.len() - r.0.len()]));
            self.outcomes.push(outcome);
        }
        self.outcomes.chunks.push_back((first, last));
        Ok(())
    }

    fn load_outbox(&mut self, key: &[u8], value: &[u8]) -> Read<()> {
        let (target, seq) = key.split_first_chunk::<2>().ok_or("an outbox key is too short")?;
        let target = read_shard(u16::from_be_bytes(*target))?;
        let seq = u64::from_be_bytes(seq.try_into().map_err(|_| "an outbox key is not 10 bytes long")?);
        let task = record::read_new_task(value)?;
        self.journal.add_hash(super::journal::hash_record(Table::Outbox, key, value));
        self.outbox_bytes += task.envelope.len() as u64;
        self.outbox.entry(target).or_default().messages.push_back(OutboxMessage { seq, task });
        Ok(())
    }

    /// Builds lines, keys and timers from the records.
    pub(super) fn rebuild(&mut self) -> Result<(), Damaged> {
        let mut slots: Vec<Slot> = self.tasks.slots().collect();
        // As each line stands; marked tasks stand purge by purge, line by line.
        slots.sort_unstable_by_key(|&slot| {
            let task = &self.tasks[slot];
            (self.queues[task.queue].purge_of(task), super::lists::list_of(task), task.rank)
        });
        for &slot in &slots {
            self.relink(slot);
        }
        let mut in_order: Vec<(u64, Slot)> = slots.iter().filter_map(|&slot| self.order_seq(slot)).collect();
        in_order.sort_unstable();
        for (_, slot) in in_order {
            self.relink_order(slot);
        }
        let numbers: Vec<_> = self.queues.from(0).map(|queue| queue.no).collect();
        for no in numbers {
            self.arm_retention(no);
        }
        self.journal_loaded(&slots);
        Ok(())
    }

    fn relink(&mut self, slot: Slot) {
        let task = &self.tasks[slot];
        let (no, state, id) = (task.queue, task.state, task.id);
        let dedup = task.dedup();
        let unique = task.unique();
        let own = task.own_retention_end();
        let ended_at = state.is_ended().then(|| task.ended_at());
        let queue = self.queues.at_mut(no);
        let list = queue.list_of(task);
        queue.lists[list].push_back(&mut self.tasks, slot);
        queue.depth.0[state as usize - 1] += 1;
        self.arm(slot);
        if let Some(until) = own {
            self.wall_timers.set(until.millis(), Timer::OwnRetention(id.into()));
        }
        if let Some(dedup) = dedup {
            self.queues.at_mut(no).dedup_keys += 1;
            if !mutant::planted(Mutant::DedupForgotten) {
                self.dedup.insert(dedup.key, DedupEntry { task: id, digest: dedup.digest, gone: None });
            }
            if let Some(ended_at) = ended_at {
                self.wall_timers.set(ended_at.after(dedup.window).millis(), Timer::Window(dedup.key.into()));
            }
        }
        if let Some(unique) = unique {
            self.unique.insert(unique.key, id);
        }
    }

    fn order_seq(&self, slot: Slot) -> Option<(u64, Slot)> {
        let task = &self.tasks[slot];
        let place = task.extra.as_ref()?.order?;
        (!task.state.is_ended()).then_some((place.seq, slot))
    }

    fn relink_order(&mut self, slot: Slot) {
        let Some(key) = self.tasks[slot].order_key() else { return };
        let tail = self.order.get(&key).map_or(NONE, |line| line.tail);
        self.append_to_line(key, tail, slot);
    }
}

fn read_shard(number: u16) -> Read<ShardId> {
    ShardId::new(number).ok_or("a shard's number is none")
}

fn read_key(key: &[u8]) -> Read<KeyHash> {
    let bits: [u8; 16] = key.try_into().map_err(|_| "a key is not 16 bytes long")?;
    Ok(KeyHash(u128::from_be_bytes(bits)))
}
