//! `windlass cluster`: how the nodes are, and what a person does to them.
//!
//! What is asked for takes effect in steps of its own on the servers, so each verb that asks for a change then
//! watches until it is so. Never talks to the peer port. `cluster/watch.rs` has the one verb that goes on for ever.

mod watch;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use futures::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{Call, Client, Repeat};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::json::Json;
use crate::output::{Column, Output, Show, confirm, note, print};
use crate::peers::{check_member, is_loopback};
use crate::span::Span;

/// How often a change that was asked for is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// How long one look at another node may take while a node leaves.
const LEAVE_LOOK_MAX: Duration = Duration::from_secs(3);

/// See the nodes of a cluster, add and remove them, move leaders
#[derive(Args, Debug)]
pub(crate) struct Cluster {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Show nodes, shards and what is not as it should be; exits with 6 when a shard has no leader
    Status,
    /// Show who leads, follows and falls out, as it changes
    ///
    /// Asks every node about itself, five times a second. As CSV: ts,node,shard,role,leader,term, a line for each node
    /// and shard at the start and at every change. Shard 0 is the catalog.
    Watch {
        /// Stop after this time
        #[arg(long = "for", value_name = "TIME")]
        limit: Option<Span>,
    },
    /// Say how to start a new node, and wait until it is part of the cluster
    Join {
        /// The new node's number
        node: u64,
        /// Where the others will reach it
        #[arg(value_name = "HOST:PEER-PORT")]
        address: String,
        /// How long to wait for it
        #[arg(long, value_name = "TIME", default_value = "10m")]
        wait: Span,
    },
    /// Take a node out: its votes move to others, then it is forgotten
    Leave {
        /// The node's number
        node: u64,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// How long to wait until it is gone
        #[arg(long, value_name = "TIME", default_value = "2m")]
        wait: Span,
    },
    /// Let a node vote that so far only has copies
    Promote {
        /// The node's number
        node: u64,
    },
    /// Move the leadership of a shard
    Transfer {
        /// The shard's number; 0 is the catalog
        shard: u16,
        /// The node that shall lead it
        node: u64,
        /// How long to wait until it does
        #[arg(long, value_name = "TIME", default_value = "10s")]
        wait: Span,
    },
    /// Spread the leaders over the nodes now, instead of little by little
    Rebalance,
}

/// What `GET /v1/cluster` says, as far as it is needed here.
#[derive(Debug, Deserialize)]
struct Seen {
    status: String,
    #[serde(default)]
    nodes: Vec<SeenNode>,
    #[serde(default)]
    shards: Vec<SeenShard>,
}

#[derive(Debug, Deserialize)]
struct SeenNode {
    id: u64,
    #[serde(default)]
    address: String,
    #[serde(default)]
    peer_address: String,
    #[serde(default)]
    state: String,
}

#[derive(Debug, Deserialize)]
struct SeenShard {
    id: u16,
    leader: Option<u64>,
}

const NODES: &[Column] = &[
    ("node", "/id", Show::Number),
    ("state", "/state", Show::State),
    ("address", "/address", Show::Plain),
    ("peers", "/peer_address", Show::Plain),
    ("leads", "/leads", Show::Number),
];

const SHARDS: &[Column] = &[
    ("shard", "/id", Show::Number),
    ("leader", "/leader", Show::Number),
    ("term", "/term", Show::Number),
    ("commit", "/commit", Show::Number),
    ("replicas", "/copies", Show::Plain),
];

pub(crate) async fn run(args: Cluster) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    match args.verb {
        Verb::Status => status(&client, output).await,
        Verb::Watch { limit } => {
            let limit = limit.map(Span::duration);
            watch::run(&args.connection.servers()?, client, output.format(), limit).await
        }
        Verb::Join { node, address, wait } => join(&client, output, node, &address, wait.duration()).await,
        Verb::Leave { node, yes, wait } => {
            confirm(yes, &format!("take node {node} out of the cluster"))?;
            leave(&client, output, node, wait.duration()).await
        }
        Verb::Promote { node } => {
            let answer = ask(&client, "promote", &json!({"node": node})).await?;
            output.say(&answer, &format!("node {node} gets its votes as soon as it has caught up"))
        }
        Verb::Transfer { shard, node, wait } => transfer(&client, output, shard, node, wait.duration()).await,
        Verb::Rebalance => {
            let answer = ask(&client, "rebalance", &json!({})).await?;
            output.say(&answer, "leaders move to the nodes that should have them")
        }
    }
}

/// Asks for a change. Each of them can be asked for twice without harm.
async fn ask(client: &Client, verb: &str, body: &Value) -> Result<Json> {
    client.call(Call::post(format!("/v1/cluster/{verb}"), body, Repeat::Safe)).await
}

async fn look(client: &Client) -> Result<(Json, Seen)> {
    let answer = client.get("/v1/cluster").await?;
    let seen = read(&answer)?;
    Ok((answer, seen))
}

fn read(answer: &Json) -> Result<Seen> {
    serde_json::from_str(answer.raw()).context("the answer to GET /v1/cluster cannot be read")
}

async fn status(client: &Client, output: Output) -> Result<()> {
    let (answer, seen) = look(client).await?;
    if output.is_for_people() {
        show(&answer, &seen, output)?;
    } else {
        output.list_in(&answer, "nodes", NODES)?;
    }
    if seen.status == "unavailable" {
        let lost: Vec<String> =
            seen.shards.iter().filter(|s| s.leader.is_none()).map(|s| s.id.to_string()).collect();
        let which = if lost.is_empty() { String::new() } else { format!(": shard {}", lost.join(", ")) };
        return Err(Failure::new(Exit::NoLeader, format!("the cluster is not available{which}")).into());
    }
    Ok(())
}

fn show(answer: &Json, seen: &Seen, output: Output) -> Result<()> {
    let (id, version) = (answer.text("cluster_id").unwrap_or("?"), answer.text("version").unwrap_or("?"));
    print(&format!("{}  cluster {id}, version {version}", seen.status))?;
    for reason in answer.items("reasons") {
        print(&format!("  {}: {}", reason.text("code").unwrap_or("?"), reason.text("text").unwrap_or("")))?;
    }
    print("")?;
    output.list("nodes", &answer.items("nodes"), NODES)?;
    print("")?;
    let shards: Vec<Json> = answer.items("shards").iter().map(with_copies).collect();
    output.list("shards", &shards, SHARDS)
}

/// A shard with its replicas in a few words: where they are, and how far behind.
fn with_copies(shard: &Json) -> Json {
    let copies = shard.items("replicas").into_iter().map(|replica| {
        let (node, lag) = (replica.number("node"), replica.number("lag"));
        let role = replica.text("role").filter(|role| *role == "learner").map_or("", |_| " learner");
        if lag == 0 { format!("{node}{role}") } else { format!("{node}{role} (-{lag})") }
    });
    let copies: Vec<String> = copies.collect();
    let mut value = shard.value().clone();
    value["copies"] = copies.join(", ").into();
    Json::from(value)
}

async fn join(client: &Client, output: Output, node: u64, address: &str, wait: Duration) -> Result<()> {
    let address = check_member(node, address)?;
    let (_, seen) = look(client).await?;
    if seen.nodes.iter().any(|known| known.id == node && known.state == "up") {
        return Err(Failure::new(Exit::Conflict, format!("node {node} is part of the cluster and up")).into());
    }
    let mut members: Vec<(u64, &str)> = (seen.nodes.iter())
        .filter(|known| known.id != node && !known.peer_address.is_empty())
        .map(|known| (known.id, known.peer_address.as_str()))
        .collect();
    if members.is_empty() {
        let message = "no node has a peer port to join at: start one again with --cluster and --peer-listen";
        return Err(Failure::new(Exit::Conflict, message).into());
    }
    members.push((node, &address));
    members.sort_unstable();
    let command = serve_command(node, &address, &members);
    note(&format!(
        "start it, with an empty data directory, on its machine:\n  {command}\nwaiting for node {node} …"
    ))?;
    let joined = |seen: &Seen| seen.nodes.iter().any(|known| known.id == node && known.state == "up");
    let answer = until(&mut [client], wait, &format!("node {node} has not joined"), joined).await?;
    output.say(&answer, &format!("node {node} is part of the cluster"))
}

/// What starts a node on the machine where the others look for it. Its HTTP port is the one before its peer
/// port, as it is by default.
fn serve_command(node: u64, address: &str, members: &[(u64, &str)]) -> String {
    let members: Vec<String> = members.iter().map(|(id, address)| format!("{id}={address}")).collect();
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "7421"));
    let http = port.parse::<u16>().map_or(7420, |port| port.saturating_sub(1).max(1));
    let is_here = is_loopback(address);
    // A name may mean several addresses, so that the node listens on all of them and says the name to others.
    let (bind, advertise) = match address.parse::<SocketAddr>() {
        Ok(_) => (host, String::new()),
        Err(_) if is_here => ("127.0.0.1", String::new()),
        Err(_) => ("0.0.0.0", format!(" --advertise {host}:{http}")),
    };
    // HTTP that others reach needs the one; between nodes it is the files, unless they all do without.
    let guard = match is_here {
        true => String::new(),
        false => {
            // Named as `deploy/certificates.sh` names them.
            let name = host.trim_matches(['[', ']']);
            format!(" --insecure --peer-ca ca.pem --peer-cert {name}.pem --peer-key {name}.key")
        }
    };
    format!(
        "windlass serve --node {node} --data DIR --listen {bind}:{http}{advertise} --peer-listen {bind}:{port} \
         --cluster {}{guard}",
        members.join(",")
    )
}

async fn leave(client: &Client, output: Output, node: u64, wait: Duration) -> Result<()> {
    let (_, seen) = look(client).await?;
    // The one that goes is not told any more how the story ends.
    let others = seen.nodes.iter().filter(|known| known.id != node && !known.address.is_empty());
    let others: Vec<Client> =
        others.filter_map(|known| Client::new(&known.address, LEAVE_LOOK_MAX).ok()).collect();
    // What the others say of themselves may mean nothing here: then we ask where we asked so far.
    let mut watchers: Vec<Watcher> = others.iter().chain([client]).map(Watcher::new).collect();
    // Whoever is not reached now has not seen it yet.
    join_all(watchers.iter_mut().map(|watcher| watcher.look(node))).await;
    ask(client, "leave", &json!({"node": node})).await?;
    let answer = until_gone(&mut watchers, node, wait).await?;
    output.say(&answer, &format!("node {node} has left: its process can be stopped and its data removed"))
}

/// One who is asked whether a node is still there.
struct Watcher<'a> {
    client: &'a Client,
    /// It has seen the node: one that has not may be behind, and not know of it yet.
    has_seen: bool,
}

impl<'a> Watcher<'a> {
    fn new(client: &'a Client) -> Watcher<'a> {
        Watcher { client, has_seen: false }
    }

    /// Looks whether the node is there, as far as this one knows.
    async fn look(&mut self, node: u64) -> Result<(Json, bool)> {
        let call = Call::get("/v1/cluster").once().within(LEAVE_LOOK_MAX);
        let answer = self.client.call(call).await?;
        let seen = read(&answer)?;
        let is_there = seen.nodes.iter().any(|known| known.id == node);
        self.has_seen |= is_there;
        Ok((answer, is_there))
    }
}

/// Looks until somebody who has seen the node does not any more; what was seen then.
async fn until_gone(watchers: &mut [Watcher<'_>], node: u64, wait: Duration) -> Result<Json> {
    let deadline = Instant::now() + wait;
    loop {
        let mut failure = None;
        for n in 0..watchers.len() {
            match watchers[n].look(node).await {
                Ok((answer, false)) if watchers[n].has_seen => return Ok(answer),
                Ok((_, false)) => {}
                Ok((_, true)) => {
                    // From now on this one is asked first.
                    watchers.swap(0, n);
                    failure = None;
                    break;
                }
                Err(e) => failure = Some(e),
            }
        }
        if Instant::now() >= deadline {
            return Err(too_late(&format!("node {node} still has copies or votes"), wait, failure));
        }
        sleep(LOOK).await;
    }
}

fn too_late(not_so: &str, wait: Duration, failure: Option<anyhow::Error>) -> anyhow::Error {
    let why = failure.map_or_else(String::new, |e| format!(" ({e:#})"));
    Failure::new(Exit::Timeout, format!("{not_so} after {wait:?}{why}: see windlass cluster status")).into()
}

async fn transfer(client: &Client, output: Output, shard: u16, node: u64, wait: Duration) -> Result<()> {
    let answer = ask(client, "transfer", &json!({"shard": shard, "node": node})).await?;
    if shard == 0 {
        return output.say(&answer, &format!("the catalog moves to node {node}"));
    }
    let moved = |seen: &Seen| seen.shards.iter().any(|known| known.id == shard && known.leader == Some(node));
    let answer =
        until(&mut [client], wait, &format!("node {node} does not lead shard {shard}"), moved).await?;
    output.say(&answer, &format!("node {node} leads shard {shard}"))
}

/// Looks until it is so, through the first client that is answered and from then on through that one; what was
/// seen then.
async fn until(
    clients: &mut [&Client],
    wait: Duration,
    not_so: &str,
    is_so: impl Fn(&Seen) -> bool,
) -> Result<Json> {
    let deadline = Instant::now() + wait;
    loop {
        // A cluster that changes may be silent for a moment.
        let mut failure = None;
        for n in 0..clients.len() {
            match look(clients[n]).await {
                Ok((answer, seen)) if is_so(&seen) => return Ok(answer),
                Ok(_) => {
                    clients.swap(0, n);
                    failure = None;
                    break;
                }
                Err(e) => failure = Some(e),
            }
        }
        if Instant::now() >= deadline {
            return Err(too_late(not_so, wait, failure));
        }
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn replicas_are_told_in_a_few_words() {
        let shard = json!({"id": 1, "leader": 2, "replicas": [
            {"node": 1, "applied": 5, "lag": 0}, {"node": 2, "applied": 2, "lag": 3},
            {"node": 4, "applied": 5, "lag": 0, "role": "learner"},
        ]});
        assert_eq!(with_copies(&Json::from(shard)).text("copies"), Some("1, 2 (-3), 4 learner"));
    }

    #[test]
    fn the_command_for_a_new_node_is_one_that_serve_takes() {
        let files = tempfile::tempdir().unwrap();
        for (address, is_guarded, advertised) in [
            ("127.0.0.1:7451", false, None),
            ("[::1]:7451", false, None),
            ("localhost:7451", false, None),
            ("10.0.0.4:7421", true, None),
            ("[fd00::4]:7421", true, None),
            ("four:7421", true, Some("four:7420")),
        ] {
            let command = serve_command(4, address, &[(1, "10.0.0.1:7421"), (4, address)]);
            let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(words.iter().any(|word| word == "--insecure"), is_guarded, "{command}");
            for word in words.iter_mut().filter(|word| word.ends_with(".pem") || word.ends_with(".key")) {
                let file = files.path().join(&*word);
                std::fs::write(&file, "").unwrap();
                *word = file.to_str().unwrap().to_owned();
            }
            let crate::Verb::Serve(serve) = crate::Cli::try_parse_from(words).unwrap().verb else {
                panic!("{command}")
            };
            let settings = serve.settings().unwrap();
            assert_eq!(settings.listen.ip().is_loopback(), !is_guarded, "{command}");
            assert_eq!(settings.advertise.as_deref(), advertised, "{command}");
            let peers = settings.peers.unwrap();
            assert_eq!((peers.members[&4].as_str(), peers.tls.is_some()), (address, is_guarded), "{command}");
        }
    }

    #[test]
    fn what_a_newer_server_adds_is_passed_over() {
        let answer =
            r#"{"status":"healthy","new":1,"nodes":[{"id":1,"x":2}],"shards":[{"id":1,"leader":null}]}"#;
        let seen: Seen = serde_json::from_str(answer).unwrap();
        assert_eq!((seen.nodes[0].id, seen.shards[0].leader), (1, None));
    }
}
