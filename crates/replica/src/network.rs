//! How a group reaches its other members.
//!
//! Groups have one member for now, so nobody is ever called; whoever is, cannot be reached. A vote that
//! could not be asked for counts as refused, a pre-vote too: the engine's default would grant it.

use std::future::Future;

use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend};

use crate::machine_store::CheckpointHandle;
use crate::type_config::Types;

/// The network of a group without other members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone;

impl RaftNetworkFactory<Types> for Alone {
    type Network = Nobody;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Nobody {
        Nobody { target }
    }
}

/// A member that cannot be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nobody {
    target: u64,
}

impl Nobody {
    fn unreachable(&self) -> Unreachable<Types> {
        Unreachable::new(&AnyError::error(format!("there is no way to member {} from here", self.target)))
    }
}

impl RaftNetworkV2<Types> for Nobody {
    type SnapshotData = CheckpointHandle;

    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn pre_vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: VoteOf<Types>,
        _snapshot: SnapshotOf<Types, CheckpointHandle>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(self.unreachable()))
    }
}
