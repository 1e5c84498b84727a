//! How connections come to be: who dials, who is let in, who is not.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use wire::peer::{Hello, HelloAnswer, RefusalCode};

use super::*;
use crate::link::hello;

#[tokio::test]
async fn two_nodes_that_dial_each_other_at_once_end_with_one_connection() {
    let rounds = (0..20u64).map(|round| async move {
        let hub = Hub::default();
        // The larger knocks after 300 ms: let the smaller's dial arrive just then.
        hub.delays.lock().insert("two".to_owned(), Duration::from_millis(290 + round));
        let (one, two) = pair(&hub).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        let open = (one.desk.open.lock().clone(), two.desk.open.lock().clone());
        assert_eq!((open.0.len(), open.1.len()), (1, 1));
        one.call(N2, PeerKind::Propose, b"x").await.unwrap();
        two.call(N1, PeerKind::Propose, b"x").await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!((one.desk.open.lock().clone(), two.desk.open.lock().clone()), open, "it stays");
    });
    futures::future::join_all(rounds).await;
}

#[tokio::test]
async fn the_larger_node_knocks_when_the_smaller_does_not_dial() {
    let hub = Hub::default();
    let one = Process::start(hub.listen("one"), 1, CLUSTER, &[(N2, "nowhere")]);
    let two = Process::start(hub.listen("two"), 2, CLUSTER, &[(N1, "one")]);
    two.up(N1).await;
    one.up(N2).await;
    one.call(N2, PeerKind::Propose, b"x").await.unwrap();
}

/// What the node at `address` says to this hello, and whether it then closes.
async fn greet(address: &str, hello: &Hello) -> HelloAnswer {
    let mut stream: Box<dyn Stream> = Box::new(TcpStream::connect(address).await.unwrap());
    hello::write(&mut stream, hello).await.unwrap();
    tokio::time::timeout(SOON, hello::read(&mut stream)).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_node_that_does_not_fit_is_told_why() {
    let (network, address) = Tcp::listen("127.0.0.1:0").await;
    let _one = Process::start(network, 1, CLUSTER, &[]);
    let me = Identity { node: N2, process: 9, address: "n2:1".to_owned() };
    let good = hello::hello(&me, OURS, N1);
    for (hello, code, part) in [
        (
            hello::hello(&me, Membership { cluster: 0xbad, ..OURS }, N1),
            RefusalCode::OtherCluster,
            "node 2 is of cluster 0000",
        ),
        (Hello { version_min: 8, version_max: 9, ..good.clone() }, RefusalCode::Version, "upgrade the older"),
        (Hello { to: 3, ..good.clone() }, RefusalCode::WrongNode, "looks for node 3"),
        (Hello { node: 1, ..good.clone() }, RefusalCode::SameNumber, "its own number"),
    ] {
        let answer = greet(&address, &hello).await;
        let refusal = answer.refusal.expect(part);
        assert_eq!(refusal.code(), code);
        assert!(refusal.text.contains(part), "{refusal:?}");
    }
    assert_eq!(greet(&address, &good).await.refusal, None);
}

#[tokio::test]
async fn nodes_of_two_clusters_never_link() {
    let hub = Hub::default();
    let one = Process::start(hub.listen("one"), 1, CLUSTER, &[(N2, "two")]);
    let two = Process::start(hub.listen("two"), 2, CLUSTER + 1, &[(N1, "one")]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(one.links.up().is_empty() && two.links.up().is_empty());
    let call = one.call(N2, PeerKind::Probe, b"x").await;
    assert!(matches!(call, Err(LinkError::Unreached(_))), "{call:?}");
}

#[tokio::test]
async fn a_stranger_gets_no_byte_and_little_time() {
    let (network, address) = Tcp::listen("127.0.0.1:0").await;
    let _one = Process::start(network, 1, CLUSTER, &[]);
    let oversized = [b"windlass".as_slice(), &[0, 1, 0, 0]].concat();
    let undecodable = [b"windlass".as_slice(), &[0, 0, 0, 3, 0xff, 0xff, 0xff]].concat();
    let strangers: [&[u8]; 5] =
        [b"", b"windl", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &oversized, &undecodable];
    let all = strangers.map(|words| {
        let address = address.clone();
        async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(words).await.unwrap();
            let mut got = Vec::new();
            // An error is fine: what we sent may not have been read when it was closed.
            let _ = tokio::time::timeout(Duration::from_secs(3), stream.read_to_end(&mut got))
                .await
                .expect("it is closed");
            assert_eq!(got, b"", "for {words:?}");
        }
    });
    futures::future::join_all(all).await;
}

#[tokio::test]
async fn only_so_many_may_be_about_to_greet() {
    let (network, address) = Tcp::listen("127.0.0.1:0").await;
    // The system takes any address in 127/8 for its own.
    let _one = Process::start(network, 1, CLUSTER, &[(N2, "127.0.9.9:1")]);
    let connect = async |host: [u8; 4]| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((host, 0).into()).unwrap();
        socket.connect(address.parse().unwrap()).await.unwrap()
    };
    let is_closed = async |stream: &mut TcpStream| {
        let closed = tokio::time::timeout(Duration::from_millis(500), stream.read(&mut [0; 8])).await;
        matches!(closed, Ok(Ok(0) | Err(_)))
    };
    let mut silent = Vec::new();
    for host in 1..=3 {
        for _ in 0..16 {
            silent.push(connect([127, 0, 0, host]).await);
        }
        if host == 1 {
            assert!(is_closed(&mut connect([127, 0, 0, 1]).await).await, "one too many is closed at once");
        }
    }
    assert!(is_closed(&mut connect([127, 0, 0, 4]).await).await, "hosts without peers leave some places");
    let mut peers = Vec::new();
    for _ in 0..16 {
        peers.push(connect([127, 0, 9, 9]).await);
    }
    assert!(is_closed(&mut connect([127, 0, 9, 9]).await).await, "all places are taken");
    // A peer's host had its places while the others waited.
    assert!(!is_closed(&mut peers[0]).await);
}

#[tokio::test]
async fn a_node_that_is_not_of_the_cluster_yet_may_only_ask_to_be() {
    let hub = Hub::default();
    let one = Process::start(hub.listen("one"), 1, CLUSTER, &[]);
    let two = Process::start(hub.listen("two"), 2, 0, &[(N1, "one")]);
    until(|| two.links.tell(N1, PeerKind::Probe, GroupId::CATALOG, Bytes::new())).await;
    assert_eq!(two.call(N1, PeerKind::Probe, b"who?").await, Ok(Bytes::from_static(b"who?")));
    assert!(one.desk.got.lock().iter().all(|(from, knows_cluster, ..)| *from == N2 && !knows_cluster));
    let early = two.call(N1, PeerKind::Propose, b"x").await;
    assert!(matches!(early, Err(LinkError::Unreached(_))), "{early:?}");
    assert!(two.links.up().is_empty() && one.links.up().is_empty(), "nobody is of one cluster yet");

    // It knows the cluster now: it is part of it, whether or not the other has heard of that.
    two.links.set_cluster(CLUSTER, 0);
    two.up(N1).await;
    one.up(N2).await;
    assert_eq!(two.call(N1, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));
}

#[tokio::test]
async fn two_nodes_of_one_cluster_talk_although_only_one_has_heard_of_the_other() {
    for dialler_is_smaller in [true, false] {
        let (low, high) = match dialler_is_smaller {
            true => (vec![(N2, "two")], vec![]),
            false => (vec![], vec![(N1, "one")]),
        };
        let hub = Hub::default();
        let one = Process::start(hub.listen("one"), 1, CLUSTER, &low);
        let two = Process::start(hub.listen("two"), 2, CLUSTER, &high);
        one.up(N2).await;
        two.up(N1).await;
        assert_eq!(one.call(N2, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));
        assert_eq!(two.call(N1, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));
        // What each learns later of others does not end it.
        let connections = (one.desk.open.lock().clone(), two.desk.open.lock().clone());
        one.set_peers(&[(NodeId(7), "nowhere")]);
        two.set_peers(&[(NodeId(7), "nowhere")]);
        assert_eq!(one.call(N2, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));
        assert_eq!((one.desk.open.lock().clone(), two.desk.open.lock().clone()), connections);
    }
}

#[tokio::test]
async fn a_life_of_a_node_that_is_over_may_only_ask_what_became_of_it() {
    let hub = Hub::default();
    let one = Process::start(hub.listen("one"), 1, CLUSTER, &[]);
    let two = Process::start(hub.listen("two"), 2, 0, &[(N1, "one")]);
    two.links.set_cluster(CLUSTER, 4);
    one.up(N2).await;
    // An older life is over, this one is not.
    one.set_peers_and_over(&[], &[(N2, 3)]);
    assert_eq!(two.call(N1, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));
    one.set_peers_and_over(&[], &[(N2, 4)]);
    until(|| one.links.up().is_empty()).await;
    let late = one.call(N2, PeerKind::Propose, b"x").await;
    assert!(matches!(late, Err(LinkError::Unreached(_))), "{late:?}");
    // It dials again, and hears why nothing else is taken.
    let asking = async {
        while two.call(N1, PeerKind::Probe, b"who?").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, asking).await.expect("it may ask");
    let refused = two.call(N1, PeerKind::Propose, b"x").await;
    let Err(LinkError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("node 2 was removed from the cluster") && why.contains("empty data directory"));
    assert!(one.links.up().is_empty(), "it stays out");
    // The other side of the greeting tells it as well.
    let four = Process::start(hub.listen("four"), 4, CLUSTER, &[(N2, "two")]);
    four.up(N2).await;
    let five = Process::start(hub.listen("five"), 5, CLUSTER, &[]);
    five.set_peers_and_over(&[(N2, "two")], &[(N2, 4)]);
    until(|| five.links.tell(N2, PeerKind::Probe, GroupId::CATALOG, Bytes::new())).await;
    assert!(five.links.up().is_empty());
    // Its next life is welcome.
    two.links.set_cluster(CLUSTER, 5);
    one.up(N2).await;
}

#[tokio::test]
async fn a_node_that_knows_the_cluster_takes_its_place_from_one_that_does_not() {
    let hub = Hub::default();
    let one = Process::start(hub.listen("one"), 1, CLUSTER, &[]);
    let stranger = Process::start(hub.listen("elsewhere"), 2, 0, &[(N1, "one")]);
    until(|| stranger.links.tell(N1, PeerKind::Probe, GroupId::CATALOG, Bytes::new())).await;
    let _two = Process::start(hub.listen("two"), 2, CLUSTER, &[(N1, "one")]);
    one.up(N2).await;
    until(|| !stranger.links.tell(N1, PeerKind::Probe, GroupId::CATALOG, Bytes::new())).await;
}

#[tokio::test]
async fn a_life_that_counts_takes_its_place_from_one_that_is_over() {
    let hub = Hub::default();
    let mut one = Process::start(hub.listen("one"), 1, CLUSTER, &[]);
    one.set_peers_and_over(&[(N2, "nowhere")], &[(N2, 0)]);
    let before = Process::start(hub.listen("elsewhere"), 2, CLUSTER, &[(N1, "one")]);
    before.up(N1).await;
    // What it says is not looked at, and where that means that nothing happened it is told so.
    assert_eq!(before.call(N1, PeerKind::ReadIndex, b"x").await, Ok(Bytes::from_static(b"untouched")));
    let two = Process::start(hub.listen("two"), 2, 0, &[]);
    two.links.set_cluster(CLUSTER, 1);
    two.set_peers(&[(N1, "one")]);
    assert_eq!(one.event().await, LinkEvent::Up(N2), "nobody was there before that counts");
    assert_eq!(one.call(N2, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));
    assert_eq!(two.desk.got.lock().len(), 1);
    until(|| before.links.up().is_empty()).await;
    // It dials again and again, and is refused.
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert!(before.links.up().is_empty());
    assert!(one.events.try_recv().is_err(), "the one that counts stays");
}

#[tokio::test]
async fn a_life_that_is_over_says_nothing_of_the_one_that_counts() {
    let hub = Hub::default();
    let mut one = Process::start(hub.listen("one"), 1, CLUSTER, &[]);
    one.set_peers_and_over(&[(N2, "two")], &[(N2, 0)]);
    let two = Process::start(hub.listen("two"), 2, 0, &[]);
    two.links.set_cluster(CLUSTER, 1);
    assert_eq!(one.event().await, LinkEvent::Up(N2));
    hub.is_swallowing.store(true, Ordering::Relaxed);
    assert_eq!(one.event().await, LinkEvent::Down(N2));
    // The link heals, and the one that is over is faster.
    hub.ports.lock().remove("two");
    hub.is_swallowing.store(false, Ordering::Relaxed);
    let before = Process::start(hub.listen("elsewhere"), 2, CLUSTER, &[(N1, "one")]);
    before.up(N1).await;
    assert!(matches!(one.links.state(N2), LinkState::Down { gone: false, .. }));
    two.set_peers(&[(N1, "one")]);
    assert_eq!(one.event().await, LinkEvent::Up(N2), "and nobody was said to be gone");
}

#[tokio::test]
async fn who_answers_is_told_whether_somebody_may_hear_it() {
    let hub = Hub::default();
    let (one, two) = pair(&hub).await;
    let asked = one.links.send(N2, PeerKind::ReadIndex, GroupId(1), Bytes::new(), replica::Pace::Now);
    let heard = asked.await.unwrap();
    let asked = one.links.send(N2, PeerKind::ReadIndex, GroupId(1), Bytes::new(), replica::Pace::Now);
    let unheard = asked.await.unwrap();
    until(|| two.desk.unanswered.lock().len() == 2).await;
    assert!(two.desk.unanswered.lock().remove(0).deliver(Ok(Bytes::from_static(b"1"))));
    assert_eq!(heard.await, Ok(Bytes::from_static(b"1")));
    one.kill().await;
    until(|| two.links.up().is_empty()).await;
    assert!(!two.desk.unanswered.lock().remove(0).deliver(Ok(Bytes::from_static(b"2"))));
    assert_eq!(unheard.await, Err(LinkError::Lost));
}

#[tokio::test]
async fn a_second_process_under_the_same_number_is_kept_out() {
    let hub = Hub::default();
    let (one, two) = pair(&hub).await;
    let twin = Process::start(hub.listen("elsewhere"), 2, CLUSTER, &[(N1, "one")]);
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert!(twin.links.up().is_empty());
    assert_eq!(one.call(N2, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));
    assert_eq!(two.desk.got.lock().len(), 1, "the first one keeps its place");
}
