//! Keeps the link to one peer: dials when there is none, and looks whether its process has ended.
//!
//! The smaller number dials. The larger waits a while for that, then knocks, so that one of them is enough
//! to find the other.

use std::io;
use std::time::Duration;

use model::NodeId;
use tokio::time::Instant;
use wire::peer::{HelloAnswer, RefusalCode};

use super::accept::{GREETING_TIMEOUT, Maker};
use super::hello;

/// How long the larger number leaves the dialling to the smaller.
const KNOCK_AFTER: Duration = Duration::from_millis(300);
/// The first wait after a dial that did not work, and the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A link that held so long is dialled again at once.
const STEADY: Duration = Duration::from_secs(1);
/// How long a dial may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a process that closed a connection is looked for.
const GONE_WITHIN: Duration = Duration::from_millis(100);
/// The wait between two looks. A process that ends closes its connections a moment before its port.
const GONE_RETRY: Duration = Duration::from_millis(3);

/// What came of a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialled {
    /// This process answered, whether or not it wants to talk.
    Process(u64),
    /// Nobody listens there.
    Nobody,
    /// No telling.
    Nothing,
}

/// Keeps the link to `node` for ever.
pub(super) async fn keep(maker: Maker, node: NodeId) {
    let shared = &maker.shared;
    let mut backoff = Duration::ZERO;
    loop {
        let begun = Instant::now();
        let lost = shared.vacant(node).await;
        if begun.elapsed() >= STEADY {
            backoff = Duration::ZERO;
        }
        if let Some(process) = lost {
            look(&maker, node, process).await;
            if shared.connection(node).is_some() {
                continue;
            }
        }
        let patience = if shared.me.node > node { KNOCK_AFTER } else { Duration::ZERO };
        shared.changed(node, jittered(backoff).max(patience)).await;
        if shared.connection(node).is_none() {
            dial(&maker, node).await;
            backoff = (backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        }
    }
}

/// Half to all of it, so that nodes do not dial in step.
fn jittered(backoff: Duration) -> Duration {
    backoff.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

/// Looks whether the process that closed its connection has ended.
async fn look(maker: &Maker, node: NodeId, process: u64) {
    let looking = async {
        loop {
            match dial(maker, node).await {
                Dialled::Process(answered) if answered == process => return,
                Dialled::Process(_) | Dialled::Nobody => return maker.shared.ended_there(node, process),
                Dialled::Nothing => tokio::time::sleep(GONE_RETRY).await,
            }
        }
    };
    let _ = tokio::time::timeout(GONE_WITHIN, looking).await;
}

/// Dials once; a connection that comes of it is put into its place.
async fn dial(maker: &Maker, node: NodeId) -> Dialled {
    let shared = &maker.shared;
    let (peer, complaints) = (node.to_string(), &shared.complaints);
    let Some(address) = shared.address(node) else { return Dialled::Nothing };
    let mut stream = match tokio::time::timeout(DIAL_TIMEOUT, maker.network.dial(address.clone())).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            complaints.warn(&peer, "dial", &format!("node {node} at {address} cannot be reached: {error}"));
            return match error.kind() {
                io::ErrorKind::ConnectionRefused => Dialled::Nobody,
                _ => Dialled::Nothing,
            };
        }
        Err(_) => {
            let ms = DIAL_TIMEOUT.as_millis();
            let text = format!("node {node} at {address} cannot be reached: no answer for {ms} ms");
            complaints.warn(&peer, "dial", &text);
            return Dialled::Nothing;
        }
    };
    let ours = shared.membership();
    let greeting = async {
        hello::write(&mut stream, &hello::hello(&shared.me, ours, node)).await?;
        hello::read::<HelloAnswer>(&mut stream).await
    };
    let answer = match tokio::time::timeout(GREETING_TIMEOUT, greeting).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let text = format!("node {node} at {address} did not answer the greeting: {error}");
            complaints.warn(&peer, "greeting", &text);
            return Dialled::Nothing;
        }
        Err(_) => {
            let text = format!("node {node} at {address} did not answer the greeting in time");
            complaints.warn(&peer, "greeting", &text);
            return Dialled::Nothing;
        }
    };
    let process = answer.process;
    let admitted = match hello::judge_answer(&answer, node, &shared.me, ours.cluster) {
        Ok(other) => shared.admit(&other).await.map(|over| (other, over)),
        Err(refusal) => Err(refusal),
    };
    match admitted {
        Ok((other, over)) => {
            maker.install(other, over, stream);
        }
        Err((RefusalCode::Busy, _)) => {}
        Err((code, text)) => {
            let text = format!("no link to node {node} at {address}: {text}");
            complaints.warn(&peer, hello::cause(code), &text);
        }
    }
    match answer.node == node.0 {
        true => Dialled::Process(process),
        // Another node has the address: this says nothing of the one that was looked for.
        false => Dialled::Nothing,
    }
}
