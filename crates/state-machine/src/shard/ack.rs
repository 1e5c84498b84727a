//! Ends a task as done, and enqueues what follows it: one command, so that a crash cannot part them.

use model::command::Ack;
use model::{Event, FollowUp, Mutant, OutboxMessage, Position, Rejection, Reply, StateKind, TaskId, mutant};

use super::Shard;
use super::end::{Held, Verb};
use super::enqueue::Limits;
use super::execution::Last;
use super::record::{Writer, write_new_task};
use crate::effects::{Effect, Effects};
use crate::machine::Table;

impl Shard {
    pub(super) fn ack(&mut self, at: Position, ack: Ack, effects: &mut Effects) -> Result<Reply, Rejection> {
        let slot = match self.held(ack.task, ack.fence, Verb::Ack)? {
            Held::Yes(slot) => slot,
            Held::Answered(settled) => {
                if mutant::planted(Mutant::AckCountedTwice)
                    && let Some(slot) = self.tasks.find(ack.task)
                {
                    let no = self.tasks[slot].queue;
                    self.touch_queue(no);
                    self.queues.at_mut(no).totals.done += 1;
                }
                return Ok(Reply::Settled(settled));
            }
        };
        let claim = self.drop_claim(slot);
        self.tasks[slot].last = Last::Acked;
        let no = self.tasks[slot].queue;
        self.touch_queue(no);
        self.queues.at_mut(no).totals.done += 1;
        if !ack.output.is_empty() {
            effects.push_of(slot, Effect::Output { task: ack.task, output: ack.output });
        }
        self.happened(slot, Event::Acked { worker: claim.worker }, effects);
        let settled = model::Settled {
            id: ack.task,
            state: StateKind::Done,
            attempt: u32::from(self.tasks[slot].attempts),
            due: None,
        };
        // The end first: it gives up the keys that a follow-up may want to go on with.
        self.end(at, slot, StateKind::Done, effects);
        for (n, follow_up) in (0..).zip(ack.then) {
            self.follow(at, ack.task, ack.fence, n, follow_up, effects);
        }
        Ok(Reply::Settled(settled))
    }

    fn follow(
        &mut self,
        at: Position,
        source: TaskId,
        fence: model::Fence,
        n: u32,
        follow_up: FollowUp,
        effects: &mut Effects,
    ) {
        let FollowUp { shard, mut task } = follow_up;
        task.id = TaskId::follow_up(source, fence, n, shard, at.wall);
        if shard == self.id {
            // A key that is taken means that the work is there already: nothing more to do.
            let _ = self.take_in(at, task, Limits::Ignore, effects);
            return;
        }
        let line = self.outbox.entry(shard).or_default();
        line.last_seq += 1;
        let message = OutboxMessage { seq: line.last_seq, task };
        let mut w = Writer::default();
        write_new_task(&mut w, &message.task);
        self.journal.put(Table::Outbox, outbox_key(shard, message.seq), w.0);
        self.outbox_bytes += message.task.envelope.len() as u64;
        line.messages.push_back(message);
        effects.push(Effect::Outbox { target: shard });
    }
}

/// Messages lie in the order of target and number.
pub(super) fn outbox_key(target: model::ShardId, seq: u64) -> Vec<u8> {
    let mut key = target.number().to_be_bytes().to_vec();
    key.extend_from_slice(&seq.to_be_bytes());
    key
}
