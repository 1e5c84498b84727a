//! Messages between shards: numbered on each way, so that each counts once.

use model::{Fence, Mutant, NewTask, OutboxMessage, Position, Reply, ShardId, TaskId, mutant};

use super::Shard;
use super::ack::outbox_key;
use super::enqueue::Limits;
use super::record::{Writer, write_new_task};
use crate::effects::Effects;
use crate::machine::Table;

impl Shard {
    /// Takes in follow-ups from another shard. Those that came before are passed over; one that comes
    /// too early ends the batch, and the answer says from where to send again.
    pub(super) fn deliver(
        &mut self,
        at: Position,
        source: ShardId,
        messages: Vec<OutboxMessage>,
        effects: &mut Effects,
    ) -> Reply {
        let mut upto = self.delivered.get(&source).copied().unwrap_or(0);
        for message in messages {
            if message.seq <= upto {
                if mutant::planted(Mutant::OutboxTwice) {
                    let again = TaskId::follow_up(message.task.id, Fence(at.index), at.n, self.id, at.wall);
                    let task = NewTask { id: again, ..message.task };
                    let _ = self.take_in(at, task, Limits::Ignore, effects);
                }
                continue;
            }
            if message.seq != upto + 1 {
                break;
            }
            // A key that is taken means that the work is there already: nothing more to do.
            let _ = self.take_in(at, message.task, Limits::Ignore, effects);
            upto = message.seq;
        }
        self.delivered.insert(source, upto);
        Reply::Upto(upto)
    }

    /// The target has these: the source forgets them.
    pub(super) fn delivered(&mut self, target: ShardId, upto: u64) -> Reply {
        let Some(line) = self.outbox.get_mut(&target) else { return Reply::Done };
        while let Some(message) = line.messages.pop_front_if(|message| message.seq <= upto) {
            let mut w = Writer::default();
            write_new_task(&mut w, &message.task);
            self.outbox_bytes -= message.task.envelope.len() as u64;
            self.journal.delete(Table::Outbox, outbox_key(target, message.seq), &w.0);
        }
        Reply::Done
    }
}
