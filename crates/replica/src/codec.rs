//! What a replica must know of its machine beyond [`Machine`]: its commands' bytes, its pulse, its claims.

use bytes::{Bytes, BytesMut};
use model::catalog::{CatalogCommand, CatalogReply};
use model::command::Fail;
use model::{Claimed, Command, Millis, Reply, Stand, TaskId};
use state_machine::{Catalog, Machine, Shard, Slot};
use wire::catalog::CatalogMessage;
use wire::entry::{self, Malformed};

/// Until a task whose record could not be had is offered again.
const WITHHELD_PAUSE: Millis = Millis::secs(1);
/// Why a task is dead whose record is damaged on every member.
const DAMAGED_RECORD: &str = "damaged_record: what is kept of this task is damaged on every copy, so nobody can work on it: discard it";

/// Why a claimed task is not given out: what is kept of it is damaged here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// Not every other member could be asked for it.
    ForNow,
    /// No member has it.
    ForGood,
}

/// A machine whose commands can stand in a log.
pub trait Codec: Machine {
    /// Adds a command's bytes to a part of an entry.
    fn encode(command: &Self::Command, part: &mut BytesMut);

    /// A command from its bytes, sharing envelopes with them.
    fn decode(bytes: Bytes) -> Result<Self::Command, Malformed>;

    /// The command that does what is due; nothing for a machine that time does not touch.
    fn pulse(limit: u32) -> Option<Self::Command>;

    /// Whether a command brings work that was not there: it is refused before those that end work.
    fn is_new_work(command: &Self::Command) -> bool;

    /// How far a task has come, if it is there: then something is kept of it.
    fn stand(&self, task: TaskId) -> Option<Stand>;

    /// Where a task lies, if it is there.
    fn slot(&self, task: TaskId) -> Option<Slot>;

    /// How far a task has come, by its row in a checkpoint.
    fn stored_stand(key: &[u8], value: &[u8]) -> Option<Stand>;

    /// The claims in a reply, which want their envelopes.
    fn claims(reply: &mut Self::Reply) -> Option<&mut Vec<Claimed>>;

    /// The command for a claim that is not given out. Without one the claim stays until its hold ends.
    fn withheld(_claim: &Claimed, _why: Withheld) -> Option<Self::Command> {
        None
    }
}

impl Codec for Shard {
    fn encode(command: &Command, part: &mut BytesMut) {
        wire::command::push(command, part);
    }

    fn decode(bytes: Bytes) -> Result<Command, Malformed> {
        wire::command::decode(bytes)
    }

    fn pulse(limit: u32) -> Option<Command> {
        Some(Command::Pulse { limit })
    }

    fn is_new_work(command: &Command) -> bool {
        // What another shard delivers was acknowledged to somebody: it is not new.
        matches!(command, Command::Enqueue { .. })
    }

    fn stand(&self, task: TaskId) -> Option<Stand> {
        Shard::stand(self, task)
    }

    fn slot(&self, task: TaskId) -> Option<Slot> {
        Shard::slot(self, task)
    }

    fn stored_stand(key: &[u8], value: &[u8]) -> Option<Stand> {
        Shard::stored_stand(key, value)
    }

    fn claims(reply: &mut Reply) -> Option<&mut Vec<Claimed>> {
        match reply {
            Reply::Claimed(claims) => Some(claims),
            _ => None,
        }
    }

    fn withheld(claim: &Claimed, why: Withheld) -> Option<Command> {
        let (task, fence) = (claim.id, claim.fence);
        Some(match why {
            Withheld::ForNow => Command::Release { task, fence, delay: WITHHELD_PAUSE },
            Withheld::ForGood => Command::Fail(Fail {
                task,
                fence,
                error: DAMAGED_RECORD.to_owned(),
                detail: String::new(),
                retry_in: None,
                fatal: true,
            }),
        })
    }
}

impl Codec for Catalog {
    fn encode(command: &CatalogCommand, part: &mut BytesMut) {
        entry::push_command(&CatalogMessage::from(command), part);
    }

    fn decode(bytes: Bytes) -> Result<CatalogCommand, Malformed> {
        wire::catalog::decode(bytes)
    }

    fn pulse(_limit: u32) -> Option<CatalogCommand> {
        None
    }

    fn is_new_work(_command: &CatalogCommand) -> bool {
        false
    }

    fn stand(&self, _task: TaskId) -> Option<Stand> {
        None
    }

    fn slot(&self, _task: TaskId) -> Option<Slot> {
        None
    }

    fn stored_stand(_key: &[u8], _value: &[u8]) -> Option<Stand> {
        None
    }

    fn claims(_reply: &mut CatalogReply) -> Option<&mut Vec<Claimed>> {
        None
    }
}
