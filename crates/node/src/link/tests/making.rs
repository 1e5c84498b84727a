//! How connections come to be: who dials, who is let in, who is not.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
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
    let good = hello::hello(&me, CLUSTER, N1);
    for (hello, code, part) in [
        (hello::hello(&me, 0xbad, N1), RefusalCode::OtherCluster, "node 2 is of cluster 0000"),
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
    let _one = Process::start(network, 1, CLUSTER, &[]);
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut [0; 8])).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "one too many is closed at once: {closed:?}");
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

    // It knows the cluster now, but the other does not know that it is part of it.
    two.links.set_cluster(CLUSTER);
    two.up(N1).await;
    let early = two.call(N1, PeerKind::Propose, b"x").await;
    assert!(matches!(early, Err(LinkError::Refused(_))), "{early:?}");
    assert!(one.links.up().is_empty());
    one.set_peers(&[(N2, "two")]);
    one.up(N2).await;
    assert_eq!(two.call(N1, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));

    // And it leaves.
    one.set_peers(&[]);
    until(|| one.links.up().is_empty()).await;
    let late = one.call(N2, PeerKind::Propose, b"x").await;
    assert!(matches!(late, Err(LinkError::Unreached(_))), "{late:?}");
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
