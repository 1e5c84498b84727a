//! Asks other nodes what they know of a cluster. `standing.rs` answers.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{GroupId, NodeId};
use wire::life::{Probe, ProbeAnswer, StandingKind};
use wire::peer::PeerKind;

use crate::link::{LinkError, Links};

/// How long a node that asks another for its standing waits.
pub(crate) const PROBE_WAIT: Duration = Duration::from_millis(500);

/// What a node did not say, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// Nothing is known of it.
    Unheard,
    /// It has heard us, and cannot say yet: it has data.
    HasData,
    /// It has heard us, and does not say. So did older versions while they opened their data.
    Refused,
}

/// Asks all of them at once.
pub(crate) async fn ask(
    links: &Links,
    nodes: &[NodeId],
    probe: &Probe,
) -> BTreeMap<NodeId, Result<ProbeAnswer, Silence>> {
    let body = probe.encode();
    let ask = |node: NodeId| {
        let body = body.clone();
        async move {
            let asked = links.call(node, PeerKind::Probe, GroupId::CATALOG, body, PROBE_WAIT).await;
            let answer = match asked {
                Ok(body) => ProbeAnswer::decode(body).map_err(|_| Silence::Unheard),
                Err(LinkError::Refused(_)) => Err(Silence::Refused),
                Err(LinkError::Unreached(_) | LinkError::Lost) => Err(Silence::Unheard),
            };
            let answer = answer.and_then(|answer| match answer.kind {
                StandingKind::Unopened => Err(Silence::HasData),
                _ => Ok(answer),
            });
            (node, answer)
        }
    };
    futures::future::join_all(nodes.iter().copied().map(ask)).await.into_iter().collect()
}
