//! `windlass cluster watch`: every node's own view of its groups, as it changes.
//!
//! Each address has its own asker, so that a dead node slows down nobody; one printer puts together what they
//! hear. A node can be known by more than one address and is down only when none of them answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::look;
use crate::client::{Call, Client};
use crate::output::{Format, escape, note, print};

/// How often each node is asked.
const ASK: Duration = Duration::from_millis(200);
/// A node that does not answer by then is down.
const ANSWER_MAX: Duration = Duration::from_millis(1000);
/// How often the cluster is asked for nodes that we do not know.
const DISCOVER: Duration = Duration::from_secs(2);
/// Nodes that we ask; a cluster has a handful.
const ADDRESSES_MAX: usize = 64;

/// What an asker heard.
struct Heard {
    address: String,
    /// Nothing: nobody answered.
    node: Option<NodeSeen>,
}

/// What `GET /v1/node` says, as far as it is needed here.
#[derive(Debug, Deserialize)]
struct NodeSeen {
    id: u64,
    #[serde(default)]
    groups: Vec<GroupSeen>,
}

#[derive(Debug, Deserialize)]
struct GroupSeen {
    id: u16,
    role: String,
    #[serde(default)]
    term: u64,
    leader: Option<u64>,
}

/// One node's part in one group; what a line shows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    role: String,
    leader: Option<u64>,
    term: Option<u64>,
}

/// A change to show.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    node: u64,
    shard: u16,
    part: Part,
}

pub(super) async fn run(
    servers: &str,
    client: Client,
    format: Format,
    limit: Option<Duration>,
) -> Result<()> {
    if format == Format::Csv {
        print("ts,node,shard,role,leader,term")?;
    }
    let (tell, mut heard) = mpsc::channel(ADDRESSES_MAX);
    let mut asked = BTreeSet::new();
    for server in servers.split(',') {
        ask_on(server.trim(), &mut asked, &tell)?;
    }
    let end = limit.map(|limit| Instant::now() + limit);
    let mut discover = interval(DISCOVER);
    discover.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = View::default();
    let mut was_silent = false;
    loop {
        tokio::select! {
            () = async { match end { Some(end) => sleep_until(end).await, None => std::future::pending().await } } => {
                return Ok(());
            }
            Some(told) = heard.recv() => {
                for change in view.take(told) {
                    show(format, &change)?;
                }
                let silent = view.is_silent(asked.len());
                if silent && !was_silent {
                    note("nobody answers: trying on")?;
                }
                was_silent = silent;
            }
            _ = discover.tick() => {
                // One answer is enough, and none is no news: the askers notice.
                let Ok(Ok((_, seen))) = tokio::time::timeout(ANSWER_MAX, look(&client)).await else { continue };
                for address in seen.nodes.iter().map(|node| node.address.as_str()).filter(|a| !a.is_empty()) {
                    ask_on(address, &mut asked, &tell)?;
                }
            }
        }
    }
}

/// Begins to ask at an address, once.
fn ask_on(address: &str, asked: &mut BTreeSet<String>, tell: &mpsc::Sender<Heard>) -> Result<()> {
    let address = address.trim_start_matches("http://").trim_end_matches('/').to_owned();
    if asked.len() >= ADDRESSES_MAX || !asked.insert(address.clone()) {
        return Ok(());
    }
    let client = Client::new(&address, ANSWER_MAX)?;
    let tell = tell.clone();
    tokio::spawn(async move {
        let mut ticks = interval(ASK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let answer = client.call(Call::get("/v1/node").once()).await.ok();
            let node = answer.and_then(|answer| serde_json::from_str(answer.raw()).ok());
            if tell.send(Heard { address: address.clone(), node }).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// What is known so far.
#[derive(Default)]
struct View {
    /// Who was last heard at an address, and whether he still is.
    addresses: BTreeMap<String, (Option<u64>, bool)>,
    parts: BTreeMap<(u64, u16), Part>,
}

impl View {
    /// Takes in what an asker heard; what is new in it.
    fn take(&mut self, heard: Heard) -> Vec<Change> {
        let entry = self.addresses.entry(heard.address).or_default();
        match heard.node {
            Some(node) => {
                *entry = (Some(node.id), true);
                let parts = node.groups.into_iter().map(|group| {
                    let part = Part { role: group.role, leader: group.leader, term: Some(group.term) };
                    (group.id, part)
                });
                parts.filter_map(|(shard, part)| self.set(node.id, shard, part)).collect()
            }
            None => {
                entry.1 = false;
                let Some(node) = entry.0 else { return Vec::new() };
                if self.addresses.values().any(|(who, heard)| *who == Some(node) && *heard) {
                    return Vec::new();
                }
                let shards: Vec<u16> =
                    self.parts.keys().filter(|(of, _)| *of == node).map(|(_, shard)| *shard).collect();
                let down = || Part { role: "down".to_owned(), leader: None, term: None };
                shards.into_iter().filter_map(|shard| self.set(node, shard, down())).collect()
            }
        }
    }

    fn set(&mut self, node: u64, shard: u16, part: Part) -> Option<Change> {
        let before = self.parts.insert((node, shard), part.clone());
        (before.as_ref() != Some(&part)).then_some(Change { node, shard, part })
    }

    /// Whether all of so many addresses were asked and none answers.
    fn is_silent(&self, asked: usize) -> bool {
        self.addresses.len() == asked && self.addresses.values().all(|(_, heard)| !heard)
    }
}

fn show(format: Format, change: &Change) -> Result<()> {
    let ts = format!("{:.3}", jiff::Timestamp::now());
    let (node, shard, part) = (change.node, change.shard, &change.part);
    let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    let (leader, term) = (number(part.leader), number(part.term));
    let role = escape(&part.role);
    match format {
        Format::Csv => print(&format!("{ts},{node},{shard},{role},{leader},{term}")),
        Format::Json | Format::Jsonl => {
            let line = json!({
                "ts": ts, "node": node, "shard": shard, "role": role, "leader": part.leader, "term": part.term,
            });
            print(&line.to_string())
        }
        Format::Table => {
            let shard = if shard == 0 { "catalog".to_owned() } else { format!("shard {shard}") };
            let led = if leader.is_empty() { "no leader".to_owned() } else { format!("led by {leader}") };
            print(&format!("{ts}  node {node:<3} {shard:<10} {role:<10} {led:<10} term {term}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(address: &str, node: u64, role: &str, term: u64) -> Heard {
        let group = GroupSeen { id: 1, role: role.to_owned(), term, leader: Some(1) };
        Heard { address: address.to_owned(), node: Some(NodeSeen { id: node, groups: vec![group] }) }
    }

    fn silence(address: &str) -> Heard {
        Heard { address: address.to_owned(), node: None }
    }

    #[test]
    fn a_line_is_shown_at_the_start_and_at_every_change() {
        let mut view = View::default();
        assert_eq!(view.take(heard("a", 1, "follower", 1)).len(), 1);
        assert_eq!(view.take(heard("a", 1, "follower", 1)), []);
        let change = &view.take(heard("a", 1, "leader", 2))[0];
        assert_eq!((change.node, change.shard, change.part.role.as_str()), (1, 1, "leader"));
        assert_eq!(change.part.term, Some(2));
    }

    #[test]
    fn a_node_is_down_when_none_of_its_addresses_answers() {
        let mut view = View::default();
        view.take(heard("a", 1, "leader", 1));
        assert_eq!(view.take(heard("b", 1, "leader", 1)), []);
        assert_eq!(view.take(silence("a")), []);
        assert!(!view.is_silent(2));
        let down = view.take(silence("b"));
        assert_eq!((down.len(), down[0].part.role.as_str(), down[0].part.term), (1, "down", None));
        assert!(view.is_silent(2));
        assert_eq!(view.take(silence("b")), []);
        assert_eq!(view.take(heard("b", 1, "follower", 3)).len(), 1);
    }
}
