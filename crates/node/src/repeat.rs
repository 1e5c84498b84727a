//! Which commands may be asked again when nobody knows whether they were done.
//!
//! A command may when a second time changes nothing and is answered like the first, or (a fail) by a rejection that
//! nobody is told as such (`settle.rs`). Everything else is asked once, and a caller who gets no answer is told so.
//! Next: `route.rs`, which asks.

use model::catalog::CatalogCommand;
use model::command::Dedup;
use model::{Command, limits};
use replica::{Applied, Codec};
use state_machine::{Catalog, Shard};
use wire::entry::Malformed;
use wire::reply::AppliedMessage;

/// A machine whose commands may be asked of another node.
pub(crate) trait Routed: Codec {
    /// Whether a second time changes nothing, and whoever asked can be told what is true after it.
    fn is_repeatable(command: &Self::Command) -> bool;

    /// What became of a command, as a message.
    fn to_message(applied: &Applied<Self::Reply>) -> AppliedMessage;

    /// What became of a command, from its message.
    fn from_message(message: AppliedMessage) -> Result<Applied<Self::Reply>, Malformed>;
}

impl Routed for Shard {
    fn is_repeatable(command: &Command) -> bool {
        match command {
            // The last fence gets its stored answer, a session ends once, messages have numbers, settings
            // have versions.
            Command::Ack(_)
            | Command::Fail(_)
            | Command::Extend { .. }
            | Command::Progress { .. }
            | Command::EndSession { .. }
            | Command::Deliver { .. }
            | Command::Delivered { .. }
            | Command::SetQueue { .. }
            | Command::DropQueue { .. } => true,
            Command::Claim(claim) => claim.request.is_some(),
            Command::ClaimById(claim) => claim.request.is_some(),
            // The id alone is not enough: a task that ended meanwhile may be forgotten already, and would run
            // again. Its dedup key is not.
            Command::Enqueue { tasks, .. } => {
                tasks.iter().all(|task| outlives_a_repeat(task.wishes().dedup.as_ref()))
            }
            // A second release or action finds another state, and would be answered as if the first had not
            // been; a second purge cancels what came since.
            Command::Release { .. }
            | Command::PutBack(_)
            | Command::Discard(_)
            | Command::Cancel { .. }
            | Command::Requeue(_)
            | Command::Purge { .. }
            | Command::Pulse { .. } => false,
        }
    }

    fn to_message(applied: &Applied<Self::Reply>) -> AppliedMessage {
        AppliedMessage::of_shard(applied.index, &applied.outcome)
    }

    fn from_message(message: AppliedMessage) -> Result<Applied<Self::Reply>, Malformed> {
        Ok(Applied { index: message.index, outcome: message.shard()? })
    }
}

/// Whether a dedup key is remembered for longer than anybody asks again.
fn outlives_a_repeat(dedup: Option<&Dedup>) -> bool {
    dedup.is_some_and(|dedup| dedup.window >= limits::OUTCOME_KEPT)
}

impl Routed for Catalog {
    fn is_repeatable(command: &CatalogCommand) -> bool {
        // The first cluster counts, a try to join has its number, an address is what it is. The rest names
        // the version that it changes, or is answered by its own.
        matches!(
            command,
            CatalogCommand::Init(_)
                | CatalogCommand::Found { .. }
                | CatalogCommand::AddNode { .. }
                | CatalogCommand::SetNode { .. }
        )
    }

    fn to_message(applied: &Applied<Self::Reply>) -> AppliedMessage {
        AppliedMessage::of_catalog(applied.index, &applied.outcome)
    }

    fn from_message(message: AppliedMessage) -> Result<Applied<Self::Reply>, Malformed> {
        Ok(Applied { index: message.index, outcome: message.catalog()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::command::{Ack, Claim, ClaimById, Fail, OnTask};
    use model::{
        Digest, Fence, FreedReason, KeyHash, Millis, NewTask, QueueName, QueueSettings, SessionId, ShardId,
        TaskId, WallTime, Wishes, WorkerName,
    };

    fn task() -> TaskId {
        TaskId::new(shard(), WallTime::from_millis(1), 1)
    }

    fn shard() -> ShardId {
        ShardId::new(1).unwrap()
    }

    fn queue() -> QueueName {
        QueueName::new("mail").unwrap()
    }

    fn worker() -> WorkerName {
        WorkerName::new("w1").unwrap()
    }

    fn enqueue(windows: &[Option<Millis>]) -> Command {
        let new_task = |window: &Option<Millis>| NewTask {
            id: task(),
            queue: queue(),
            kind_hash: 0,
            digest: Digest(0),
            priority: 5,
            wishes: Wishes {
                dedup: window.map(|window| Dedup { key: KeyHash(1), window }),
                ..Wishes::default()
            }
            .boxed(),
            envelope: bytes::Bytes::new(),
        };
        Command::Enqueue { tasks: windows.iter().map(new_task).collect(), atomic: false }
    }

    fn claim(request: Option<KeyHash>) -> Command {
        let (worker, session, hold) = (worker(), None, None);
        Command::Claim(Claim { queues: Vec::new(), worker, session, max: 1, hold, request })
    }

    fn claim_by_id(request: Option<KeyHash>) -> Command {
        let (worker, session, hold) = (worker(), None, None);
        Command::ClaimById(ClaimById { task: task(), worker, session, hold, request })
    }

    #[test]
    fn what_counts_twice_or_is_answered_otherwise_the_second_time_is_not_repeated() {
        let (task, fence, window) = (task(), Fence(1), Some(Millis::mins(15)));
        let on = OnTask { task, fence: None };
        let fail =
            Fail { task, fence, error: String::new(), detail: String::new(), retry_in: None, fatal: false };
        let end =
            Command::EndSession { worker: worker(), session: SessionId(1), reason: FreedReason::Silent };
        let settings = QueueSettings::default();
        for (what, command, is_repeatable) in [
            ("ack", Command::Ack(Ack { task, fence, output: bytes::Bytes::new(), then: Vec::new() }), true),
            ("fail", Command::Fail(fail), true),
            ("extend", Command::Extend { task, fence, hold: None }, true),
            ("progress", Command::Progress { task, fence, percent: 1, note: String::new() }, true),
            ("end of a session", end, true),
            ("deliver", Command::Deliver { source: shard(), messages: Vec::new() }, true),
            ("delivered", Command::Delivered { target: shard(), upto: 1 }, true),
            ("settings", Command::SetQueue { queue: queue(), settings }, true),
            ("claim", claim(None), false),
            ("claim with a request id", claim(Some(KeyHash(1))), true),
            ("claim by id", claim_by_id(None), false),
            ("claim by id with a request id", claim_by_id(Some(KeyHash(1))), true),
            ("enqueue", enqueue(&[None]), false),
            ("enqueue with a dedup key", enqueue(&[window]), true),
            ("only some have one", enqueue(&[window, None]), false),
            ("a key that goes with its task", enqueue(&[Some(Millis(0))]), false),
            ("release", Command::Release { task, fence, delay: Millis(0) }, false),
            ("put back", Command::PutBack(on), false),
            ("discard", Command::Discard(on), false),
            ("requeue", Command::Requeue(on), false),
            ("cancel", Command::Cancel { task, reason: String::new() }, false),
            ("purge", Command::Purge { queue: queue() }, false),
        ] {
            assert_eq!(Shard::is_repeatable(&command), is_repeatable, "{what}");
        }
        let set = CatalogCommand::SetQueue { queue: queue(), settings: QueueSettings::default() };
        assert!(!Catalog::is_repeatable(&set), "a second time it is a stale version");
    }
}
