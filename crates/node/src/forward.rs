//! What other nodes ask of the groups that this node leads.
//!
//! Commands come encoded and go to the replica as they are, once all of them are understood. A claim is looked at
//! first: when nothing is free for it, it is answered without an entry in the log. Every "no" says whether
//! something may have happened. The other side is `route.rs`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Command, GroupId, NodeId, Reply, ShardId, TaskId};
use prost::Message;
use replica::{Applied, Codec as _, Piece, Replica};
use state_machine::Shard;
use wire::entry::Malformed;
use wire::reply::{ClaimHead, PieceMessage, Propose, ProposeAnswer, ReadIndex, ReadIndexAnswer, Refusal};

use crate::error::Error;
use crate::inner::{Inner, Node};
use crate::repeat::Routed;
use crate::route::refusal_of;
use crate::taken::Return;
use crate::waiting::Promised;

/// Bytes of envelopes in one answer: a frame takes them and what is around them.
const ANSWER_BYTES_MAX: usize = 40 * 1024 * 1024;
/// What a claim takes beside its envelope, at most.
const CLAIM_BYTES: usize = 256;
/// The longest that another node may have this one wait.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// Does another node's commands, as the leader of `group`. An error when the body is no such message.
pub(crate) async fn serve_propose(inner: &Arc<Inner>, group: GroupId, body: Bytes) -> Result<Bytes, String> {
    let propose = Propose::decode(body).map_err(|error| error.to_string())?;
    let answer = match ShardId::new(group.0) {
        None => {
            let catalog = &inner.groups.catalog;
            match received(catalog, &propose) {
                Ok(pieces) => {
                    let (done, refusal) = propose_here(catalog, &pieces, &propose).await;
                    answer_of(catalog, &done, refusal.as_ref())
                }
                Err(refusal) => refused(&refusal, catalog.applied()),
            }
        }
        Some(shard) if shard.number() > inner.groups.count() => refused(&Refusal::Unavailable, 0),
        Some(shard) => serve_shard(inner, shard, &propose).await,
    };
    Ok(wire::bytes_of(&answer))
}

/// Tells another node which index a read must have seen, as the leader of `group`.
pub(crate) async fn serve_read_index(
    inner: &Arc<Inner>,
    group: GroupId,
    body: Bytes,
) -> Result<Bytes, String> {
    let asked = ReadIndex::decode(body).map_err(|error| error.to_string())?;
    let outcome = match ShardId::new(group.0) {
        None => index_of(&inner.groups.catalog, asked).await,
        Some(shard) if shard.number() > inner.groups.count() => Err(Refusal::Unavailable),
        Some(shard) => index_of(inner.groups.shard(shard), asked).await,
    };
    Ok(wire::bytes_of(&ReadIndexAnswer::new(outcome)))
}

async fn index_of<M: Routed>(replica: &Replica<M>, asked: ReadIndex) -> Result<u64, Refusal> {
    if asked.is_hint {
        return if replica.leads() { Ok(replica.applied()) } else { Err(not_leader(replica)) };
    }
    let patience = Duration::from_millis(asked.patience_ms).min(PATIENCE_MAX);
    match tokio::time::timeout(patience, replica.read_index()).await {
        Ok(index) => index.map_err(refusal_of),
        Err(_) => Err(Refusal::Unavailable),
    }
}

fn not_leader<M: Routed>(replica: &Replica<M>) -> Refusal {
    Refusal::NotLeader { leader: replica.leader().map(|(leader, _)| leader.node().0) }
}

/// The answer to commands that were not even looked at. Nothing happened, which a refusal of the link does not say.
pub(crate) fn refusal_bytes(refusal: &Refusal) -> Bytes {
    wire::bytes_of(&refused(refusal, 0))
}

fn refused(refusal: &Refusal, applied: u64) -> ProposeAnswer {
    ProposeAnswer::new(Vec::new(), Some(refusal), applied)
}

async fn serve_shard(inner: &Arc<Inner>, shard: ShardId, propose: &Propose) -> ProposeAnswer {
    let replica = inner.groups.shard(shard);
    if !replica.leads() {
        return refused(&not_leader(replica), replica.applied());
    }
    let pieces = match received(replica, propose) {
        Ok(pieces) => pieces,
        Err(refusal) => return refused(&refusal, replica.applied()),
    };
    // This node's own room counts too: the one that asked looked only at its own.
    if pieces.iter().all(|piece| piece.is_new_work)
        && let Err(error) = inner.room.check(shard)
    {
        return refused(&no_room(&error), replica.applied());
    }
    let promised = match &propose.claim {
        None => None,
        Some(head) => match promised(inner, shard, head) {
            Ok(Some(promised)) => Some(promised),
            Ok(None) => return nothing_free(replica),
            Err(error) => {
                tracing::warn!(%shard, %error, "a claim of another node that is not understood");
                return refused(&Refusal::Unavailable, replica.applied());
            }
        },
    };
    let (mut done, refusal) = propose_here(replica, &pieces, propose).await;
    drop(promised);
    for claim in over(&mut done, ANSWER_BYTES_MAX) {
        // Fails only when the node has stopped: then the deadline frees the claim.
        let _ = inner.returns.send(claim);
    }
    answer_of(replica, &done, refusal.as_ref())
}

/// The pieces of another node, each command understood: one that is not must not reach a log, where it would end
/// every member of the group that applies it.
fn received<M: Routed>(replica: &Replica<M>, propose: &Propose) -> Result<Vec<Piece>, Refusal> {
    let pieces: Result<Vec<Piece>, String> = propose.pieces.iter().map(piece::<M>).collect();
    pieces.map_err(|error| {
        tracing::warn!(group = %replica.group(), error, "commands of another node that are none: refused");
        Refusal::Unavailable
    })
}

fn piece<M: Routed>(message: &PieceMessage) -> Result<Piece, String> {
    let piece = Replica::<M>::received(message.bytes.clone()).map_err(|error| error.to_string())?;
    match piece.commands == message.commands {
        true => Ok(piece),
        false => Err(format!("{} commands that are said to be {}", piece.commands, message.commands)),
    }
}

async fn propose_here<M: Routed>(
    replica: &Replica<M>,
    pieces: &[Piece],
    propose: &Propose,
) -> (Vec<Applied<M::Reply>>, Option<Refusal>) {
    let patience = Duration::from(propose.patience()).min(PATIENCE_MAX);
    let (done, error) = replica.propose_pieces(pieces, patience).await;
    (done, error.map(refusal_of))
}

fn answer_of<M: Routed>(
    replica: &Replica<M>,
    done: &[Applied<M::Reply>],
    refusal: Option<&Refusal>,
) -> ProposeAnswer {
    ProposeAnswer::new(done.iter().map(M::to_message).collect(), refusal, replica.applied())
}

/// Takes out the claims whose envelopes are too much for one answer: they are given back.
fn over(done: &mut [Applied<Reply>], bytes_max: usize) -> Vec<Return> {
    let mut bytes = 0;
    let mut over = Vec::new();
    for applied in done {
        let Ok(Reply::Claimed(claims)) = &mut applied.outcome else { continue };
        claims.retain(|claim| {
            bytes += claim.envelope.len() + CLAIM_BYTES;
            if bytes > bytes_max {
                over.push(Return { task: claim.id, fence: claim.fence });
            }
            bytes <= bytes_max
        });
    }
    over
}

/// Gives back what was claimed for another node that hears no answer any more.
pub(crate) fn give_back_unheard(inner: &Inner, group: GroupId, propose: Bytes, answer: Bytes) {
    if group == GroupId::CATALOG {
        return;
    }
    match unheard(propose, answer) {
        Ok(claims) => claims.into_iter().for_each(|claim| {
            // Fails only when the node has stopped: then the deadline frees the claim.
            let _ = inner.returns.send(claim);
        }),
        Err(error) => tracing::warn!(%group, %error, "an answer that nobody heard is not understood"),
    }
}

/// The claims in an answer that nobody comes for. Who has a request id asks again and finds them, and a session's
/// beats give back what they do not list.
fn unheard(propose: Bytes, answer: Bytes) -> Result<Vec<Return>, Malformed> {
    let mut commands = Vec::new();
    for piece in Propose::decode(propose)?.pieces {
        for command in wire::entry::commands(piece.bytes)? {
            commands.push(Shard::decode(command)?);
        }
    }
    let mut claims = Vec::new();
    // What is done is done from the first on.
    for (command, applied) in commands.iter().zip(ProposeAnswer::decode(answer)?.done) {
        let is_lost = match command {
            Command::Claim(claim) => claim.request.is_none() && claim.session.is_none(),
            Command::ClaimById(claim) => claim.request.is_none() && claim.session.is_none(),
            _ => false,
        };
        if let (true, Ok(Reply::Claimed(claimed))) = (is_lost, applied.shard()?) {
            claims.extend(claimed.iter().map(|claim| Return { task: claim.id, fence: claim.fence }));
        }
    }
    Ok(claims)
}

fn promised(inner: &Arc<Inner>, shard: ShardId, head: &ClaimHead) -> Result<Option<Promised>, Malformed> {
    Ok(inner.promise_in(shard, &head.names()?, head.max))
}

/// The answer to a claim that gets nothing, without an entry: as of what is applied here.
fn nothing_free(replica: &Replica<Shard>) -> ProposeAnswer {
    let index = replica.applied();
    let nothing = Applied { index, outcome: Ok(Reply::Claimed(Vec::new())) };
    ProposeAnswer::new(vec![Shard::to_message(&nothing)], None, index)
}

fn no_room(error: &Error) -> Refusal {
    match *error {
        Error::MemoryFull { bytes, bytes_max } => Refusal::MemoryFull { bytes, bytes_max },
        _ => Refusal::DiskFull,
    }
}

impl Node {
    /// Who leads a shard, as far as this node knows.
    pub fn leader_of(&self, shard: ShardId) -> Option<NodeId> {
        (shard.number() <= self.inner.groups.count()).then(|| self.inner.groups.leader_of(shard)).flatten()
    }

    /// Where a request about `task` had better go, for a caller that follows redirects: the HTTP address
    /// of the leader, unless that is this node or not known.
    pub fn redirect_for(&self, task: TaskId) -> Option<String> {
        let leader = self.leader_of(task.shard()).filter(|leader| *leader != self.inner.node)?;
        self.inner.http_address(leader)
    }

    /// The HTTP address of a shard's leader, unless that is this node or not known.
    pub fn leader_address(&self, shard: ShardId) -> Option<String> {
        let leader = self.leader_of(shard).filter(|leader| *leader != self.inner.node)?;
        self.inner.http_address(leader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use model::command::{Claim, ClaimById};
    use model::{Claimed, Elapsed, Fence, KeyHash, QueueName, SessionId, WallTime, WorkerName};

    /// A command of a version that does not exist yet.
    #[derive(Clone, PartialEq, Message)]
    struct Unknown {
        #[prost(uint32, tag = "9999")]
        something: u32,
    }

    #[test]
    fn a_command_that_is_not_understood_is_refused_at_the_door() {
        let pulses = Replica::<Shard>::encode(&vec![Command::Pulse { limit: 1 }; 2]).remove(0).bytes;
        let mut unknown = BytesMut::from(&pulses[..]);
        wire::entry::push_command(&Unknown { something: 1 }, &mut unknown);
        for (what, bytes, commands, expected) in [
            ("two", pulses.clone(), 2, Ok(2)),
            ("one more than it says", pulses.clone(), 1, Err(())),
            ("none", Bytes::new(), 0, Err(())),
            ("cut", pulses.slice(..pulses.len() - 1), 2, Err(())),
            ("one of them unknown", unknown.freeze(), 3, Err(())),
        ] {
            let message = PieceMessage { bytes, commands, is_new_work: true };
            let understood = piece::<Shard>(&message).map(|piece| (piece.commands, piece.is_new_work));
            assert_eq!(understood.map_err(|_| ()), expected.map(|commands| (commands, false)), "{what}");
        }
    }

    fn claimed(n: u64, bytes: usize) -> Claimed {
        Claimed {
            id: TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1), n),
            queue: QueueName::new("mail").unwrap(),
            priority: 5,
            attempt: 1,
            fence: Fence(n),
            deadline: Elapsed(1),
            deadline_wall: WallTime::from_millis(1),
            hold: model::Millis(1),
            enqueued_at: WallTime::from_millis(1),
            ready_since: WallTime::from_millis(1),
            envelope: vec![0; bytes].into(),
        }
    }

    fn asked(commands: &[Command]) -> Bytes {
        let message = |piece: Piece| PieceMessage {
            bytes: piece.bytes,
            commands: piece.commands,
            is_new_work: piece.is_new_work,
        };
        let pieces = Replica::<Shard>::encode(commands).into_iter().map(message).collect();
        Propose { pieces, patience_ms: 1, claim: None }.encode_to_vec().into()
    }

    #[test]
    fn claims_whose_answer_nobody_hears_are_given_back_unless_somebody_comes_for_them() {
        let claim = |session: Option<u128>, request: Option<u128>| {
            Command::Claim(Claim {
                queues: Vec::new(),
                worker: WorkerName::new("w1").unwrap(),
                session: session.map(SessionId),
                max: 2,
                hold: None,
                request: request.map(KeyHash),
            })
        };
        let by_id = Command::ClaimById(ClaimById {
            task: claimed(1, 0).id,
            worker: WorkerName::new("w1").unwrap(),
            session: None,
            hold: None,
            request: None,
        });
        let two = || Applied { index: 1, outcome: Ok(Reply::Claimed(vec![claimed(1, 9), claimed(2, 9)])) };
        let none = || Applied { index: 1, outcome: Ok(Reply::Claimed(Vec::new())) };
        let done = || Applied { index: 1, outcome: Ok(Reply::Done) };
        let pulse = || Command::Pulse { limit: 1 };
        for (what, commands, answers, expected) in [
            ("nobody comes", vec![claim(None, None)], vec![two()], vec![1, 2]),
            ("one task", vec![by_id], vec![two()], vec![1, 2]),
            ("a session's beats do not list them", vec![claim(Some(1), None)], vec![two()], vec![]),
            ("its caller comes again", vec![claim(None, Some(1))], vec![two()], vec![]),
            ("there are none", vec![claim(None, None)], vec![none()], vec![]),
            ("the second of two", vec![pulse(), claim(None, None)], vec![done(), two()], vec![1, 2]),
            ("it was not done", vec![pulse(), claim(None, None)], vec![done()], vec![]),
        ] {
            let refusal = (answers.len() < commands.len()).then_some(Refusal::Unavailable);
            let done = answers.iter().map(Shard::to_message).collect();
            let answer = ProposeAnswer::new(done, refusal.as_ref(), 1).encode_to_vec();
            let unheard = unheard(asked(&commands), answer.into()).unwrap();
            assert_eq!(unheard.iter().map(|claim| claim.fence.0).collect::<Vec<_>>(), expected, "{what}");
        }
    }

    #[test]
    fn commands_that_are_not_looked_at_say_that_nothing_happened() {
        let answer = ProposeAnswer::decode(refusal_bytes(&Refusal::Full)).unwrap();
        assert_eq!((answer.refusal(), answer.done.len()), (Some(Refusal::Full), 0));
    }

    #[test]
    fn claims_that_do_not_fit_into_one_answer_are_given_back() {
        let applied = |claims| Applied { index: 1, outcome: Ok(Reply::Claimed(claims)) };
        let mut done = [
            applied(vec![claimed(1, 1_000), claimed(2, 1_000)]),
            Applied { index: 1, outcome: Ok(Reply::Done) },
            applied(vec![claimed(3, 1_000)]),
        ];
        let over = over(&mut done, 2_700);
        assert_eq!(over.iter().map(|claim| claim.fence).collect::<Vec<_>>(), [Fence(3)]);
        assert_eq!(done[2].outcome, Ok(Reply::Claimed(Vec::new())));
    }
}
