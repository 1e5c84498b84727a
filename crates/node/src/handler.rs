//! What comes from other nodes, and who takes it.
//!
//! The links hand every message to [`Front`], in the order of its connection. It must not wait there: appends
//! go to a sink of their group, which keeps their order; all else is spawned. What is for a group that is not
//! open here yet is refused, and whoever sent it asks again.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use model::{GroupId, NodeId};
use parking_lot::Mutex;
use replica::AppendSink;
use tokio_util::task::TaskTracker;
use wire::peer::PeerKind;
use wire::reply::Refusal;

use crate::any_replica::AnyReplica;
use crate::held_clock::HeldClock;
use crate::inner::Inner;
use crate::life::admin;
use crate::life::standing::{self, Life};
use crate::link::{Handler, Links, ReplyTo, Unheeded};
use crate::{forward, member_peers, quiet, session_news, status};

/// Takes what comes from other nodes.
pub(crate) struct Front {
    life: Arc<Life>,
    held: Arc<HeldClock>,
    links: OnceLock<Links>,
    /// By group, the catalog first; from when on they are open.
    replicas: OnceLock<Vec<Arc<dyn AnyReplica>>>,
    /// From when on there is a whole node.
    inner: OnceLock<Weak<Inner>>,
    /// Appends keep their order within a connection and a group.
    sinks: Mutex<HashMap<(u64, GroupId), Arc<AppendSink>>>,
    tasks: TaskTracker,
}

impl Front {
    pub(crate) fn new(life: Arc<Life>, held: Arc<HeldClock>, tasks: TaskTracker) -> Front {
        Front {
            life,
            held,
            links: OnceLock::new(),
            replicas: OnceLock::new(),
            inner: OnceLock::new(),
            sinks: Mutex::default(),
            tasks,
        }
    }

    /// These are the links that it serves.
    pub(crate) fn serves(&self, links: &Links) {
        let _ = self.links.set(links.clone());
    }

    /// From now on messages of members reach their groups.
    pub(crate) fn opened(&self, replicas: Vec<Arc<dyn AnyReplica>>) {
        let _ = self.replicas.set(replicas);
    }

    /// From now on everything is taken.
    pub(crate) fn started(&self, inner: &Arc<Inner>) {
        let _ = self.inner.set(Arc::downgrade(inner));
    }

    /// The replica that a message between members is for, and the message itself.
    fn for_member(&self, group: GroupId, body: Bytes) -> Result<(&Arc<dyn AnyReplica>, Bytes), String> {
        let replica = self.replicas.get().and_then(|replicas| replicas.get(usize::from(group.0)));
        let replica = replica.ok_or_else(|| not_open(group))?;
        Ok((replica, member_peers::open(body, replica.member())?))
    }

    fn append(&self, group: GroupId, request: u64, body: Bytes, reply: ReplyTo) {
        let (replica, body) = match self.for_member(group, body) {
            Ok(found) => found,
            Err(why) => return reply.send(Err(why)),
        };
        let connection = reply.connection();
        let answers = reply.later();
        let sink = {
            let mut sinks = self.sinks.lock();
            let sink = sinks.entry((connection, group)).or_insert_with(|| {
                let answers = answers.clone();
                Arc::new(replica.appends(Box::new(move |request, answer| {
                    let answer = answer.map_err(|error| error.to_string());
                    answers.send(PeerKind::Append, group, request, answer);
                })))
            });
            sink.clone()
        };
        if !sink.push(request, body) {
            answers.close("it sent more appends than a member may send ahead");
        }
    }

    fn hear_clock(&self, from: NodeId, body: Bytes) {
        if let Some(links) = self.links.get() {
            status::hear_clock(&self.held, links, from, body);
        }
    }

    /// Has what another node asks done, and the answer sent.
    fn spawn<F>(&self, reply: ReplyTo, work: F)
    where
        F: Future<Output = Result<Bytes, String>> + Send + 'static,
    {
        self.tasks.spawn(async move { reply.send(work.await) });
    }
}

fn not_open(group: GroupId) -> String {
    format!("group {group} is not open here yet")
}

impl Handler for Front {
    fn handle(
        &self,
        from: NodeId,
        knows_cluster: bool,
        kind: PeerKind,
        group: GroupId,
        request: u64,
        body: Bytes,
        reply: ReplyTo,
    ) {
        let inner = self.inner.get().and_then(Weak::upgrade);
        match kind {
            PeerKind::Probe => return reply.send(self.life.answer_probe(from, body)),
            PeerKind::Found => {
                let life = self.life.clone();
                return self.spawn(reply, async move { life.answer_found(from, body).await });
            }
            PeerKind::Join => {
                let Some(inner) = inner else { return reply.send(Err("this node is not ready yet".into())) };
                return self.spawn(reply, async move { standing::answer_join(&inner, from, body).await });
            }
            _ if !knows_cluster => {
                return reply.send(Err("only members of this cluster may say that".into()));
            }
            PeerKind::Append => return self.append(group, request, body, reply),
            PeerKind::Vote
            | PeerKind::PreVote
            | PeerKind::Transfer
            | PeerKind::Snapshot
            | PeerKind::Record => {
                let (replica, body) = match self.for_member(group, body) {
                    Ok(found) => found,
                    Err(why) => return reply.send(Err(why)),
                };
                let handled = replica.handle(kind, body);
                return self.spawn(reply, async move { handled.await.map_err(|error| error.to_string()) });
            }
            PeerKind::Status if inner.is_none() => {
                return self.hear_clock(from, body);
            }
            _ => {}
        }
        let inner = match inner {
            Some(inner) => inner,
            None if kind == PeerKind::Propose => {
                return reply.send(Ok(forward::refusal_bytes(&Refusal::Unavailable)));
            }
            None => return reply.send(Err(not_open(group))),
        };
        match kind {
            PeerKind::Propose => {
                let asked = body.clone();
                self.tasks.spawn(async move {
                    let answer = forward::serve_propose(&inner, group, body).await;
                    if let (false, Ok(answer)) = (reply.deliver(answer.clone()), answer) {
                        forward::give_back_unheard(&inner, group, asked, answer);
                    }
                });
            }
            PeerKind::ReadIndex => {
                self.spawn(reply, async move { forward::serve_read_index(&inner, group, body).await });
            }
            PeerKind::SessionNews => session_news::on_news(&inner, from, body),
            PeerKind::SessionAsk => reply.send(Ok(session_news::on_ask(&inner, body))),
            PeerKind::Status => status::on_status(&inner, from, body),
            PeerKind::Quiet => reply.send(quiet::on_words(&inner, from, body)),
            PeerKind::Ask => self.spawn(reply, async move { admin::answer(&inner, body).await }),
            _ => drop(reply),
        }
    }

    fn unheeded(&self, kind: PeerKind, why: Unheeded) -> Option<Bytes> {
        let refusal = match why {
            Unheeded::TooMuch => Refusal::Full,
            Unheeded::Stranger => Refusal::Unavailable,
        };
        (kind == PeerKind::Propose).then(|| forward::refusal_bytes(&refusal))
    }

    fn connected(&self, _from: NodeId, _connection: u64) {}

    fn closed(&self, _from: NodeId, connection: u64) {
        self.sinks.lock().retain(|(of, _), _| *of != connection);
    }
}
