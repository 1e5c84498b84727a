//! Cut links: those that have a quorum go on, those that have none refuse, and all agree when the links are back.
//!
//! Nodes run in network namespaces, with mutual TLS between them, as off loopback they should.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agreement::{Watch, await_same};
use crate::client::Client;
use crate::load::{Load, Shape, shard_of};
use crate::netns::Network;
use crate::rig::{PATIENCE, Rig, until};
use crate::{check, report};

/// How long writes to a shard may fail after a cut that leaves a quorum.
const OUTAGE_MAX: Duration = Duration::from_secs(3);
/// How long a node without a quorum may take to say no: two seconds of its own, and the way.
const REFUSAL_MAX: Duration = Duration::from_millis(2_500);
/// What was sent this soon after a cut may have become an entry: its outcome is unknown, and known to be after
/// [`UNKNOWN_MAX`].
const ON_ITS_WAY: Duration = Duration::from_secs(2);
const UNKNOWN_MAX: Duration = Duration::from_millis(10_500);
/// How long a node may take to know that it is cut off. Until then it says in good faith that nothing is ready.
const NOTICED: Duration = Duration::from_secs(3);
/// How long a cut lasts at least: longer than any lease.
const CUT: Duration = Duration::from_secs(5);
/// Leader changes of one group while a node flaps.
const CHANGES_MAX: usize = 3;
/// How long the links of a flapping node are cut, and then are whole.
const FLAP: Duration = Duration::from_secs(2);
const SHARDS: [u16; 4] = [1, 2, 3, 4];

/// A cluster in its own network. Fields end in this order: no node outlives the network.
struct Site {
    rig: Rig,
    network: Network,
    _certificates: tempfile::TempDir,
}

impl Site {
    /// Three nodes that run, or nothing where there can be no network: then says so.
    fn started(test: &str) -> Option<Site> {
        let network = match Network::new(3) {
            Ok(network) => network,
            Err(why) => {
                crate::skip(test, &why);
                return None;
            }
        };
        let certificates = tempfile::tempdir().unwrap();
        let hosts: Vec<String> = (0..3).map(|n| network.address(n).to_string()).collect();
        let mut flags = crate::tls::certificates(certificates.path(), "site", &hosts);
        flags.push("--insecure".to_owned());
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut rig = Rig::new(3, &flags);
        network.place(&mut rig);
        (0..3).for_each(|n| rig.start(n));
        rig.await_leaders(PATIENCE);
        Some(Site { rig, network, _certificates: certificates })
    }

    fn address(&self, n: usize) -> SocketAddr {
        self.rig.nodes[n].http
    }
}

#[test]
fn a_leader_that_is_cut_off_refuses_and_the_others_go_on() {
    let _alone = crate::alone();
    let Some(mut site) = Site::started("a leader alone") else { return };
    alone(&mut site, |site| site.rig.busiest().0);
}

#[test]
fn a_follower_that_is_cut_off_refuses_and_the_others_go_on() {
    let _alone = crate::alone();
    let Some(mut site) = Site::started("a follower alone") else { return };
    alone(&mut site, |site| {
        // It leads nothing: what it has goes to the next one.
        let victim = 1;
        let mut client = site.rig.client();
        until("it leads nothing", || {
            let leaders = site.rig.await_leaders(PATIENCE);
            for group in leaders.iter().filter(|(_, leader)| **leader == victim).map(|(group, _)| group) {
                let transfer = json!({"shard": group, "node": site.rig.nodes[2].number});
                client.post("/v1/cluster/transfer", &transfer, PATIENCE).unwrap();
            }
            !leaders.values().any(|leader| *leader == victim)
        });
        victim
    });
}

/// Cuts one node off under load, again and again.
fn alone(site: &mut Site, choose: impl Fn(&mut Site) -> usize) {
    let load = Load::start(&site.rig.addresses(), Shape::light());
    let (mut outages, mut refusals) = (Vec::new(), Vec::new());
    for round in 0..crate::rounds(1, 10) {
        load.flow(100);
        let victim = choose(site);
        let address = site.address(victim);
        let kept = enqueue(address, &format!("before-{round}"));
        site.network.isolate(victim);
        let cut = Instant::now();
        refusals.extend(refused(address, &kept, cut));
        let mut first = Vec::new();
        until("writes go on", || {
            first = load.first_writes(cut, &SHARDS).unwrap_or_default();
            !first.is_empty()
        });
        outages.push(first.iter().max().unwrap().duration_since(cut));
        load.flow(100);
        site.network.heal();
        let healed = Instant::now();
        site.rig.await_leaders(PATIENCE);
        println!("healed: all agree on the leaders after {:?}", healed.elapsed());
    }
    let history = load.stop();
    check::all(&history);
    check::counted(&history, &mut site.rig.client());
    check::nothing_failed(&history);
    await_same(&site.rig);
    let (_, worst) = report("without successful writes after a cut", &mut outages);
    assert!(worst <= crate::most(OUTAGE_MAX), "{worst:?}");
    let (_, worst) = report("a refusal of the node that is alone", &mut refusals);
    assert!(worst <= crate::most(REFUSAL_MAX), "{worst:?}");
}

/// A task of another queue; its path.
fn enqueue(address: SocketAddr, key: &str) -> String {
    let task = json!({"kind": "k", "dedup_key": key});
    let enqueued = Client::of(address).post("/v1/queues/kept/tasks", &task, PATIENCE).unwrap();
    format!("/v1/tasks/{}", enqueued.body["id"].as_str().unwrap())
}

/// Asks the node that is alone since then for a while. It says no to all that needs a quorum, and stays open for
/// all else; how long each no took.
fn refused(address: SocketAddr, kept: &str, cut: Instant) -> Vec<Duration> {
    let write = json!({"kind": "k", "dedup_key": format!("alone-{:016x}", rand::random::<u64>())});
    let claim = json!({"queues": ["kept"], "worker": "w", "request_id": "alone"});
    let asks = [
        ("POST", "/v1/queues/kept/tasks", write.to_string()),
        ("GET", kept, String::new()),
        ("POST", "/v1/claims", claim.to_string()),
        ("POST", "/v1/claims", json!({"queues": ["empty"], "worker": "w"}).to_string()),
        ("POST", "/v1/claims", json!({"queues": ["empty"], "worker": "w", "wait_ms": 20_000}).to_string()),
    ];
    let ask_on = &|(method, path, body): &(&str, &str, String)| {
        let (mut client, mut took) = (Client::of(address), Vec::new());
        client.answer_max = Duration::from_secs(20);
        while cut.elapsed() < CUT {
            let sent = Instant::now();
            let answer = client.once(method, path, body, Duration::ZERO).unwrap();
            let what = format!("alone for {:?}: {method} {path}: {answer:?}", sent - cut);
            match answer.status {
                // The two seconds of a claim that waits begin when the node knows.
                503 if body.contains("wait_ms") && sent - cut < NOTICED => {
                    assert!(sent.elapsed() <= crate::most(NOTICED + REFUSAL_MAX), "{what}");
                }
                503 => {
                    took.push(sent.elapsed());
                    // Some say no at once, and are not asked without a pause.
                    std::thread::sleep(Duration::from_millis(50));
                }
                200 if body.contains("empty") && sent - cut < NOTICED => {
                    assert_eq!(answer.body["claims"], json!([]), "{what}");
                    std::thread::sleep(Duration::from_millis(50));
                }
                504 if sent - cut < ON_ITS_WAY => {
                    println!("outcome unknown after {:?}: {what}", sent.elapsed());
                    assert!(sent.elapsed() <= crate::most(UNKNOWN_MAX), "{what}");
                }
                _ => panic!("{what}"),
            }
        }
        took
    };
    let took = std::thread::scope(|scope| {
        let asking: Vec<_> = asks.iter().map(|ask| scope.spawn(move || ask_on(ask))).collect();
        asking.into_iter().flat_map(|asking| asking.join().unwrap()).collect()
    });
    let mut client = Client::of(address);
    assert_eq!(client.get(&format!("{kept}?stale=ok")).unwrap().status, 200);
    assert_eq!(client.get("/v1/node").unwrap().status, 200);
    assert_eq!(client.get("/v1/cluster").unwrap().body["status"], "unavailable");
    assert_eq!(client.get("/readyz").unwrap().status, 503);
    took
}

#[test]
fn two_nodes_that_see_only_the_third_stop_nothing() {
    let _alone = crate::alone();
    let Some(mut site) = Site::started("two nodes that see only the third") else { return };
    let load = Load::start(&site.rig.addresses(), Shape::light());
    let (mut through_third, mut through_all) = (Vec::new(), Vec::new());
    for round in 0..crate::rounds(1, 10) {
        load.flow(100);
        let (first, _) = site.rig.busiest();
        let (second, third) = ((first + 1 + round % 2) % 3, (first + 2 - round % 2) % 3);
        let watch = Watch::start(&site.rig.addresses());
        site.network.cut(&[(first, second)]);
        let cut = Instant::now();
        // Each of the two may say no for what the other leads. The third sees both and serves everything.
        through_third.extend(served(site.address(third), cut + CUT));
        let mut writes = Vec::new();
        until("writes go on", || {
            writes = load.first_writes(cut, &SHARDS).unwrap_or_default();
            !writes.is_empty()
        });
        through_all.push(writes.iter().max().unwrap().duration_since(cut));
        let changes = watch.stop();
        println!("leader changes by group: {changes:?}");
        assert!(changes.values().all(|changes| *changes <= CHANGES_MAX), "{changes:?}");
        site.network.heal();
        site.rig.await_leaders(PATIENCE);
    }
    let history = load.stop();
    check::all(&history);
    check::counted(&history, &mut site.rig.client());
    check::nothing_failed(&history);
    await_same(&site.rig);
    report("without successful writes by clients that try all nodes in turn", &mut through_all);
    let (_, worst) = report("a write by way of the node that sees both", &mut through_third);
    assert!(worst <= crate::most(OUTAGE_MAX), "{worst:?}");
}

/// Writes by way of one node until then, to every shard; how long each took, with all its repeats.
fn served(address: SocketAddr, until: Instant) -> Vec<Duration> {
    let (mut client, mut took, mut shards) = (Client::of(address), Vec::new(), BTreeSet::new());
    while Instant::now() < until {
        let task = json!({"kind": "k", "dedup_key": format!("{:016x}", rand::random::<u64>())});
        let sent = Instant::now();
        let answer = client.post("/v1/queues/served/tasks", &task, PATIENCE).unwrap();
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        took.push(sent.elapsed());
        shards.insert(shard_of(answer.body["id"].as_str().unwrap()));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(shards, SHARDS.into(), "some shard was never written");
    took
}

#[test]
fn a_node_that_flaps_does_not_drag_leadership_along() {
    let _alone = crate::alone();
    let Some(mut site) = Site::started("a node that flaps") else { return };
    let load = Load::start(&site.rig.addresses(), Shape::light());
    load.flow(100);
    let (victim, _) = site.rig.busiest();
    let steady: Vec<SocketAddr> = (0..3).filter(|&n| n != victim).map(|n| site.address(n)).collect();
    let watch = Watch::start(&steady);
    let ends = Instant::now() + Duration::from_secs(crate::rounds(20, 120) as u64);
    while Instant::now() < ends {
        let before = load.written();
        site.network.isolate(victim);
        std::thread::sleep(FLAP);
        site.network.heal();
        std::thread::sleep(FLAP);
        assert!(load.written() > before, "no write went through during {:?}", 2 * FLAP);
    }
    let changes = watch.stop();
    println!("leader changes by group while node {} flapped: {changes:?}", victim + 1);
    site.rig.await_leaders(PATIENCE);
    let history = load.stop();
    check::all(&history);
    check::counted(&history, &mut site.rig.client());
    check::nothing_failed(&history);
    await_same(&site.rig);
    assert!(changes.values().all(|changes| *changes <= CHANGES_MAX), "{changes:?}");
}
