//! A replica of any group, where it does not matter what the group keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use model::{GroupId, MemberId, NodeId};
use replica::{AppendSink, Codec, Members, Replica, Result, Status, Word};
use tokio::time::Instant;
use wire::peer::PeerKind;

/// Where the answers to appends go: which request, and its answer.
pub(crate) type OnAppended = Box<dyn Fn(u64, Result<Bytes>) + Send + Sync>;

/// A replica of any group. See [`Replica`] for what each of these does.
pub(crate) trait AnyReplica: Send + Sync {
    fn group(&self) -> GroupId;
    fn member(&self) -> MemberId;
    fn leads(&self) -> bool;
    fn leader(&self) -> Option<(MemberId, u64)>;
    fn leader_changed(&self, seen: Option<(MemberId, u64)>) -> BoxFuture<'static, Option<(MemberId, u64)>>;
    fn members(&self) -> Members;
    fn progress(&self) -> BTreeMap<MemberId, u64>;
    fn status(&self) -> Status;
    fn elect(&self) -> BoxFuture<'static, Result<()>>;
    fn ready(&self) -> BoxFuture<'static, Result<()>>;
    fn transfer_to(&self, member: MemberId) -> BoxFuture<'static, Result<()>>;
    fn add_learner(&self, member: MemberId, address: String) -> BoxFuture<'static, Result<()>>;
    fn set_members(
        &self,
        voters: BTreeSet<MemberId>,
        copies: BTreeMap<MemberId, String>,
    ) -> BoxFuture<'static, Result<()>>;
    fn handle(&self, kind: PeerKind, body: Bytes) -> BoxFuture<'static, Result<Bytes>>;
    fn appends(&self, answer: OnAppended) -> AppendSink;
    fn node_gone(&self, node: NodeId);
    fn meet(&self, is_up: &dyn Fn(NodeId) -> bool) -> bool;
    fn keep_quiet(&self) -> Option<(Word, Vec<MemberId>)>;
    fn hear_word(&self, from: NodeId, word: &Word) -> bool;
    fn word_agreed(&self, member: MemberId, word: &Word, said: Instant);
    fn word_refused(&self);
}

/// A replica behind its common face.
pub(crate) fn any<M: Codec>(replica: &Replica<M>) -> Arc<dyn AnyReplica> {
    Arc::new(replica.clone())
}

impl<M: Codec> AnyReplica for Replica<M> {
    fn group(&self) -> GroupId {
        Replica::group(self)
    }

    fn member(&self) -> MemberId {
        Replica::member(self)
    }

    fn leads(&self) -> bool {
        Replica::leads(self)
    }

    fn leader(&self) -> Option<(MemberId, u64)> {
        Replica::leader(self)
    }

    fn leader_changed(&self, seen: Option<(MemberId, u64)>) -> BoxFuture<'static, Option<(MemberId, u64)>> {
        let replica = self.clone();
        async move { replica.leader_changed(seen).await }.boxed()
    }

    fn members(&self) -> Members {
        Replica::members(self)
    }

    fn progress(&self) -> BTreeMap<MemberId, u64> {
        Replica::progress(self)
    }

    fn status(&self) -> Status {
        Replica::status(self)
    }

    fn elect(&self) -> BoxFuture<'static, Result<()>> {
        let replica = self.clone();
        async move { replica.elect().await }.boxed()
    }

    fn ready(&self) -> BoxFuture<'static, Result<()>> {
        let replica = self.clone();
        async move { replica.ready().await }.boxed()
    }

    fn transfer_to(&self, member: MemberId) -> BoxFuture<'static, Result<()>> {
        let replica = self.clone();
        async move { replica.transfer_to(member).await }.boxed()
    }

    fn add_learner(&self, member: MemberId, address: String) -> BoxFuture<'static, Result<()>> {
        let replica = self.clone();
        async move { replica.add_learner(member, &address).await }.boxed()
    }

    fn set_members(
        &self,
        voters: BTreeSet<MemberId>,
        copies: BTreeMap<MemberId, String>,
    ) -> BoxFuture<'static, Result<()>> {
        let replica = self.clone();
        async move { replica.set_members(&voters, &copies).await }.boxed()
    }

    fn handle(&self, kind: PeerKind, body: Bytes) -> BoxFuture<'static, Result<Bytes>> {
        Replica::handle(self, kind, body)
    }

    fn appends(&self, answer: OnAppended) -> AppendSink {
        Replica::appends(self, answer)
    }

    fn node_gone(&self, node: NodeId) {
        Replica::node_gone(self, node);
    }

    fn meet(&self, is_up: &dyn Fn(NodeId) -> bool) -> bool {
        Replica::meet(self, is_up)
    }

    fn keep_quiet(&self) -> Option<(Word, Vec<MemberId>)> {
        Replica::keep_quiet(self)
    }

    fn hear_word(&self, from: NodeId, word: &Word) -> bool {
        Replica::hear_word(self, from, word)
    }

    fn word_agreed(&self, member: MemberId, word: &Word, said: Instant) {
        Replica::word_agreed(self, member, word, said);
    }

    fn word_refused(&self) {
        Replica::word_refused(self);
    }
}
