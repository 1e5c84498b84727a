//! Makes connections: accepts those that others dial, and has somebody dial for every peer.
//!
//! A stranger gets no byte: nothing is written before a whole greeting of a node was read, and that has few
//! bytes and little time.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use model::NodeId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::peer::{self, Hello, RefusalCode};

use super::connection::{Connection, Other};
use super::handler::Handler;
use super::network::{Network, Stream};
use super::places::{Host, Places};
use super::table::Shared;
use super::{dial, hello};

/// How long a greeting may take, and its answer.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait when the system has no room for another connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// What it takes to make connections.
#[derive(Clone)]
pub(super) struct Maker {
    pub(super) shared: Arc<Shared>,
    pub(super) network: Arc<dyn Network>,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) stopping: CancellationToken,
    pub(super) tasks: TaskTracker,
}

/// Accepts, and has somebody dial for every peer, until the node stops.
pub(super) async fn run(maker: Maker) {
    let mut wanted = maker.shared.wanted();
    let mut keepers: BTreeMap<NodeId, CancellationToken> = BTreeMap::new();
    let places = Places::default();
    wanted.mark_changed();
    loop {
        tokio::select! {
            biased;
            () = maker.stopping.cancelled() => break,
            changed = wanted.changed() => {
                if changed.is_err() {
                    break;
                }
                let peers: Vec<NodeId> = wanted.borrow_and_update().keys().copied().collect();
                maker.keep(&mut keepers, &peers);
            }
            accepted = maker.network.accept() => match accepted {
                Ok((stream, from)) => maker.greet(stream, from, &places),
                Err(error) => {
                    maker.shared.complaints.warn("everybody", "accept", &format!("cannot accept: {error}"));
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
        }
    }
    maker.shared.stop();
}

impl Maker {
    fn keep(&self, keepers: &mut BTreeMap<NodeId, CancellationToken>, peers: &[NodeId]) {
        keepers.retain(|node, keeper| {
            let is_wanted = peers.contains(node);
            if !is_wanted {
                keeper.cancel();
            }
            is_wanted
        });
        for node in peers {
            keepers.entry(*node).or_insert_with(|| {
                let token = self.stopping.child_token();
                let (maker, node, ended) = (self.clone(), *node, token.clone());
                self.tasks.spawn(async move { ended.run_until_cancelled(dial::keep(maker, node)).await });
                token
            });
        }
    }

    fn greet(&self, stream: Box<dyn Stream>, from: String, places: &Places) {
        let host = Host::of(&from);
        let Some(place) = places.take(&host, self.shared.is_peers_host(&host)) else {
            let text = "a connection was closed: too many connections do not greet as nodes do";
            return self.shared.complaints.warn(without_port(&from), "places", text);
        };
        let maker = self.clone();
        self.tasks.spawn(async move {
            maker.stopping.run_until_cancelled(maker.answer(stream, &from, host)).await;
            drop(place);
        });
    }

    async fn answer(&self, mut stream: Box<dyn Stream>, from: &str, came_from: Host) {
        let complaints = &self.shared.complaints;
        let host = without_port(from);
        let greeting: Hello = match tokio::time::timeout(GREETING_TIMEOUT, hello::read(&mut stream)).await {
            Ok(Ok(greeting)) => greeting,
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return,
            Ok(Err(error)) => {
                let text = format!("a connection did not greet as a node does: {error}");
                return complaints.warn(host, "stranger", &text);
            }
            Err(_) => return complaints.warn(host, "stranger", "a connection did not greet in time"),
        };
        let ours = self.shared.membership();
        let admitted = match hello::judge(&greeting, &self.shared.me, ours.cluster) {
            Ok(mut other) => {
                other.host = Some(came_from);
                self.shared.admit(&other).await.map(|over| (other, over))
            }
            Err(refusal) => Err(refusal),
        };
        let version = peer::common_version(greeting.version_min, greeting.version_max).unwrap_or(0);
        let (answer, admitted) = match admitted {
            Ok(admitted) => (hello::answer(&self.shared.me, ours, version, None), Some(admitted)),
            Err((code, text)) => {
                if code != RefusalCode::Busy {
                    let text = format!("a node at {from} was refused: {text}");
                    complaints.warn(&greeting.node.to_string(), hello::cause(code), &text);
                }
                (hello::answer(&self.shared.me, ours, version, Some((code, text))), None)
            }
        };
        let written = tokio::time::timeout(GREETING_TIMEOUT, hello::write(&mut stream, &answer)).await;
        if let (Ok(Ok(())), Some((other, over))) = (written, admitted) {
            self.install(other, over, stream);
        }
    }

    /// Puts a connection into its place and lets it run. False when it may not have the place.
    pub(super) fn install(&self, other: Other, over: Option<u64>, stream: Box<dyn Stream>) -> bool {
        let Some(connection) = self.shared.install(other, over, self.handler.clone()) else { return false };
        self.shared.open(&connection);
        self.tasks.spawn(carry(self.shared.clone(), connection, stream));
        true
    }
}

/// A stranger has a new port each time.
fn without_port(from: &str) -> &str {
    from.rsplit_once(':').map_or(from, |(host, _)| host)
}

async fn carry(shared: Arc<Shared>, connection: Arc<Connection>, stream: Box<dyn Stream>) {
    let carried = Carried { shared, connection };
    carried.connection.run(stream).await;
}

/// A connection that runs. Whatever ends it, a panic in a handler included, its place is free then.
struct Carried {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.connection.finish(Vec::new());
        self.shared.ended(&self.connection);
    }
}
