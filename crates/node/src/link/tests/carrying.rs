//! What a connection carries: both ways, in order, bounded.

use model::MemberId;
use replica::{Pace, Peers};
use wire::peer::{HelloAnswer, PeerKind};

use super::*;
use crate::link::hello;
use crate::link::queue::URGENT_BYTES_MAX;

#[tokio::test]
async fn calls_go_both_ways_at_once_and_find_their_answers() {
    let ((one, _), (two, _)) = tcp_pair().await;
    let calls = (0..500u32).flat_map(|n| [(&one, N2, n), (&two, N1, n)]).map(|(from, to, n)| async move {
        let body = Bytes::copy_from_slice(&n.to_be_bytes());
        let answer = from.links.call(to, PeerKind::Propose, GroupId(3), body.clone(), SOON).await;
        assert_eq!(answer, Ok(body));
    });
    futures::future::join_all(calls).await;
    let large = Bytes::from(vec![7; 30 * 1024 * 1024]);
    let answer = one.links.call(N2, PeerKind::Propose, GroupId(3), large.clone(), SOON).await;
    assert_eq!(answer, Ok(large));
    assert_eq!(one.call(N2, PeerKind::Ask, b"x").await, Err(LinkError::Refused("no".to_owned())));
    let dropped = two.call(N1, PeerKind::SessionAsk, b"x").await;
    assert!(matches!(dropped, Err(LinkError::Refused(_))), "{dropped:?}");

    let stats = one.links.stats()[&N2];
    assert!(stats.frames_out >= 1000 && stats.frames_in >= 1000, "{stats:?}");
    assert!(stats.bytes_out > 30 * 1024 * 1024 && stats.bytes_in > 30 * 1024 * 1024, "{stats:?}");
    assert!(stats.round_trip > Duration::ZERO, "{stats:?}");
    until(|| one.links.stats()[&N2].queued_bytes == 0).await;
}

#[tokio::test]
async fn what_is_sent_comes_in_the_order_of_sending_whatever_its_pace() {
    let ((one, _), (two, _)) = tcp_pair().await;
    let member = MemberId::new(N2, 4);
    let sent: Vec<_> = (0..1000u32)
        .map(|n| {
            let pace = if n % 3 == 0 { Pace::Lazy } else { Pace::Now };
            let body = Bytes::copy_from_slice(&n.to_be_bytes());
            Peers::send(&one.links, member, GroupId(1), PeerKind::Append, body, pace)
        })
        .collect();
    // Polled in another order: the calls decide.
    for (n, sent) in sent.into_iter().enumerate().rev() {
        let answer = sent.await.unwrap().await.unwrap();
        assert_eq!(answer[..], (n as u32).to_be_bytes());
    }
    let got: Vec<Bytes> = two.desk.got.lock().iter().map(|(.., body)| body.clone()).collect();
    assert!(got.iter().enumerate().all(|(n, body)| body[..] == (n as u32).to_be_bytes()));
    assert_eq!(got.len(), 1000);
}

#[tokio::test]
async fn an_append_that_was_told_to_go_is_sent_though_nobody_waits_for_its_answer() {
    let hub = Hub::default();
    let (one, two) = pair(&hub).await;
    let sent = one.links.send(N2, PeerKind::Transfer, GroupId(1), Bytes::from_static(b"x"), Pace::Lazy);
    drop(sent.await.unwrap());
    until(|| two.desk.got.lock().len() == 1).await;
}

#[tokio::test]
async fn bulk_does_not_hold_up_what_is_urgent() {
    let hub = Hub::default();
    let (one, two) = pair(&hub).await;
    let chunk = Bytes::from(vec![0; 256 * 1024]);
    let bulk: Vec<_> = (0..30)
        .map(|_| one.links.send(N2, PeerKind::Snapshot, GroupId(1), chunk.clone(), Pace::Now))
        .collect();
    one.call(N2, PeerKind::Propose, b"urgent").await.unwrap();
    let before = two.desk.got.lock().iter().filter(|(_, _, kind, _)| *kind == PeerKind::Snapshot).count();
    assert!(before < 5, "{before} bulk frames came first");
    for sent in bulk {
        sent.await.unwrap().await.unwrap();
    }
}

/// A node 2 that greets, and then neither reads nor writes.
async fn stuck(hub: &Hub) -> (Process, Box<dyn Stream>) {
    let network = hub.listen("two");
    let one = Process::start(hub.listen("one"), 1, CLUSTER, &[(N2, "two")]);
    let (mut stream, _) = network.accept().await.unwrap();
    hello::read::<wire::peer::Hello>(&mut stream).await.unwrap();
    let me = Identity { node: N2, process: 5, address: String::new() };
    let welcome: HelloAnswer = hello::answer(&me, OURS, 1, None);
    hello::write(&mut stream, &welcome).await.unwrap();
    one.up(N2).await;
    (one, stream)
}

#[tokio::test]
async fn a_slow_reader_does_not_grow_the_senders_memory() {
    let hub = Hub::default();
    let (one, stream) = stuck(&hub).await;
    let body = Bytes::from(vec![0; 1024 * 1024]);
    // Begun, since it is the first; never to be answered.
    let begun = one.links.send(N2, PeerKind::Propose, GroupId(1), body.clone(), Pace::Now).await.unwrap();
    let tell = |body: &Bytes| one.links.tell(N2, PeerKind::Status, GroupId(1), body.clone());
    // The writer takes it in hand.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let told = (0..1000).take_while(|_| tell(&body)).count();
    assert!((60..=64).contains(&told), "{told} MiB were taken");
    let queued = one.links.stats()[&N2].queued_bytes as usize;
    assert!(queued <= URGENT_BYTES_MAX, "{queued} bytes wait");

    let waiting = one.links.send(N2, PeerKind::Propose, GroupId(1), body.clone(), Pace::Now);
    let mut waiting = Box::pin(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err(), "there is no room");
    let late =
        one.links.call(N2, PeerKind::Propose, GroupId(1), body.clone(), Duration::from_millis(50)).await;
    assert!(matches!(late, Err(LinkError::Unreached(_))), "{late:?}");
    // A ping may have come to them.
    let still = one.links.stats()[&N2].queued_bytes as usize;
    assert!(still < queued + body.len(), "what waits outside holds no room: {queued} bytes, then {still}");

    // The process at the other end ends: what was begun is lost, the rest was never sent.
    drop(stream);
    assert_eq!(begun.await, Err(LinkError::Lost));
    assert!(matches!(waiting.await.map(|_| ()), Err(LinkError::Unreached(_))));
}

#[tokio::test]
async fn a_call_that_was_not_begun_in_time_was_not_sent() {
    let hub = Hub::default();
    let (one, _stream) = stuck(&hub).await;
    let large = Bytes::from(vec![0; 1024 * 1024]);
    let patience = Duration::from_millis(100);
    let (first, second) =
        tokio::join!(one.links.call(N2, PeerKind::Propose, GroupId(1), large, patience), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let small = Bytes::from_static(b"x");
            one.links.call(N2, PeerKind::Propose, GroupId(1), small, patience).await
        },);
    assert_eq!(first, Err(LinkError::Lost), "some of it went out");
    assert!(matches!(second, Err(LinkError::Unreached(_))), "{second:?}");
}

#[tokio::test]
async fn a_lone_node_reaches_nobody() {
    let links = Links::alone();
    let call = links.call(N2, PeerKind::Propose, GroupId(1), Bytes::new(), SOON).await;
    assert_eq!(call, Err(LinkError::Unreached("there is no link to node 2".to_owned())));
    assert!(!links.tell(N2, PeerKind::Status, GroupId(1), Bytes::new()));
    assert!(matches!(links.state(N2), LinkState::Down { gone: false, .. }));
    assert!(!links.is_gone(N2) && links.up().is_empty());
}
