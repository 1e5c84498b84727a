//! What a replica must know of its machine beyond [`Machine`]: its commands' bytes, its pulse, its claims.

use bytes::{Bytes, BytesMut};
use model::catalog::{CatalogCommand, CatalogReply};
use model::{Claimed, Command, Reply};
use state_machine::{Catalog, Machine, Shard};
use wire::catalog::CatalogMessage;
use wire::command::CommandMessage;
use wire::entry::{self, Malformed};

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

    /// The claims in a reply, which want their envelopes.
    fn claims(reply: &mut Self::Reply) -> Option<&mut Vec<Claimed>>;
}

impl Codec for Shard {
    fn encode(command: &Command, part: &mut BytesMut) {
        entry::push_command(&CommandMessage::from(command), part);
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

    fn claims(reply: &mut Reply) -> Option<&mut Vec<Claimed>> {
        match reply {
            Reply::Claimed(claims) => Some(claims),
            _ => None,
        }
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

    fn claims(_reply: &mut CatalogReply) -> Option<&mut Vec<Claimed>> {
        None
    }
}
