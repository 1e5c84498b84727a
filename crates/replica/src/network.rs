//! How the engine reaches the other members of its group: entries, votes, leadership, checkpoints.
//!
//! Entries are pipelined: they leave in order, a bounded number of them ahead of their answers. A vote that
//! could not be asked for counts as refused, a pre-vote too: the engine's default would grant it. A heartbeat
//! that brings no news may wait for company. Next: `pipeline`, `transfer`, and `receive` on the other side.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream};
use model::MemberId;
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
    RaftNetworkFactory,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendResult, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend};
use parking_lot::Mutex;
use prost::Message;
use wire::peer::PeerKind;
use wire::raft::{Transfer, TransferAnswer, VoteAnswer, VoteAsk, encode};

use crate::codec::Codec;
use crate::machine_store::CheckpointHandle;
use crate::peers::{Pace, PeerAnswer};
use crate::pipeline::{ANSWER_WAIT, Pipeline};
use crate::shared::Shared;
use crate::transfer;
use crate::type_config::{Types, log_id_from_message, log_id_to_message, vote_from_message, vote_to_message};

/// How long until a member that was not reached is tried again, at first and at most.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(200);

/// The ways to all other members.
pub(crate) struct Ways<M: Codec> {
    shared: Arc<Shared<M>>,
    told: BTreeMap<u64, Arc<Told>>,
}

/// What a member was told already, over all ways to it.
#[derive(Default)]
pub(crate) struct Told {
    /// One more than the last committed index.
    committed: AtomicU64,
    /// The answers to what was sent, given up, and may still come.
    owed: Mutex<Vec<PeerAnswer>>,
}

impl Told {
    /// Notes that the member is told this, and says whether it is news.
    pub(crate) fn is_news(&self, committed: Option<u64>) -> bool {
        let next = committed.map_or(0, |index| index + 1);
        self.committed.fetch_max(next, Ordering::Relaxed) < next
    }

    /// Nobody waits for these any more, but what they answer still takes room at the member.
    pub(crate) fn give_up(&self, answers: impl Iterator<Item = PeerAnswer>) {
        self.owed.lock().extend(answers);
    }

    /// Whether the member still owes an answer to what was given up. Wakes the caller when one comes, or the link ends.
    pub(crate) fn is_owed(&self, context: &mut Context<'_>) -> bool {
        let mut owed = self.owed.lock();
        owed.retain_mut(|answer| answer.poll_unpin(context).is_pending());
        !owed.is_empty()
    }
}

impl<M: Codec> Ways<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>) -> Ways<M> {
        Ways { shared, told: BTreeMap::new() }
    }
}

impl<M: Codec> RaftNetworkFactory<Types> for Ways<M> {
    type Network = Way<M>;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Way<M> {
        let told = self.told.entry(target).or_default().clone();
        Way { shared: self.shared.clone(), to: MemberId::from_bits(target), told }
    }
}

/// The way to one member.
pub(crate) struct Way<M: Codec> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) to: MemberId,
    told: Arc<Told>,
}

impl<M: Codec> Way<M> {
    /// Sends a message and waits for the answer.
    pub(crate) async fn call(&self, kind: PeerKind, body: Bytes) -> Result<Bytes, Unreachable<Types>> {
        let Shared { peers, group, .. } = &*self.shared;
        let sent = peers.send(self.to, *group, kind, body, Pace::Now);
        let answer = sent.await.map_err(|error| unreachable(&error))?;
        answer.await.map_err(|error| unreachable(&error))
    }

    /// Sends a message and waits for the answer, which must be an `A`.
    pub(crate) async fn ask<A: Message + Default>(
        &self,
        kind: PeerKind,
        message: &impl Message,
    ) -> Result<A, Unreachable<Types>> {
        let answer = self.call(kind, encode(message)).await?;
        A::decode(answer).map_err(|error| unreachable(&error))
    }

    async fn ask_vote(
        &self,
        kind: PeerKind,
        request: VoteRequest<Types>,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let ask = VoteAsk {
            vote: Some(vote_to_message(&request.vote)),
            last: request.last_log_id.map(log_id_to_message),
            leadership_transfer: request.leadership_transfer,
        };
        let answer: VoteAnswer = self.ask(kind, &ask).await?;
        let vote = vote_from_message(answer.vote.unwrap_or_default());
        Ok(VoteResponse::new(vote, answer.last.map(log_id_from_message), answer.granted))
    }
}

/// The engine's word for a member that did not answer: it waits a little before it tries again.
pub(crate) fn unreachable(error: &(impl std::error::Error + 'static)) -> Unreachable<Types> {
    Unreachable::new(&AnyError::new(error))
}

impl<M: Codec> NetStreamAppend<Types> for Way<M> {
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let pipeline = Pipeline::new(self.shared.clone(), self.to, self.told.clone(), input, ANSWER_WAIT);
        Box::pin(async move {
            let answers: BoxStream<'s, _> = Box::pin(pipeline);
            Ok(answers)
        })
    }
}

impl<M: Codec> NetVote<Types> for Way<M> {
    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_vote(PeerKind::Vote, request).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_vote(PeerKind::PreVote, request).await
    }
}

impl<M: Codec> NetTransferLeader<Types> for Way<M> {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let message = Transfer {
            from: Some(vote_to_message(request.from_leader())),
            to: *request.to_node_id(),
            last: request.last_log_id().map(|id| log_id_to_message(*id)),
        };
        let answer: TransferAnswer = self.ask(PeerKind::Transfer, &message).await?;
        if let Some(vote) = answer.vote_changed {
            let (expected, actual) = (*request.from_leader(), vote_from_message(vote));
            return Ok(Err(TransferLeaderError::VoteChanged { expected, actual }));
        }
        if let Some(matched) = answer.not_flushed {
            let (expected, actual) = (request.last_log_id().copied(), matched.last.map(log_id_from_message));
            return Ok(Err(TransferLeaderError::LogNotFlushed { expected, actual }));
        }
        Ok(Ok(()))
    }
}

impl<M: Codec> NetSnapshot<Types> for Way<M> {
    type SnapshotData = CheckpointHandle<M>;

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, CheckpointHandle<M>>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let sent = transfer::send(self, vote, snapshot.meta.last_log_id);
        tokio::select! {
            sent = sent => sent,
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }
}

impl<M: Codec> NetBackoff<Types> for Way<M> {
    fn backoff(&self) -> Option<Backoff> {
        let grow = |last: &Duration| Some((*last * 2).min(BACKOFF_MAX));
        Some(Backoff::new(std::iter::successors(Some(BACKOFF_MIN), grow)))
    }
}
