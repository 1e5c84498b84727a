//! How connections end, and what is told of it.

use super::super::connection::{Cause, Other};
use super::super::table::Shared;
use super::*;

#[tokio::test]
async fn a_process_that_is_killed_is_gone_at_once_and_comes_back_as_another() {
    let ((mut one, first), (two, second)) = tcp_pair().await;
    assert_eq!(one.event().await, LinkEvent::Up(N2));
    let (killed, lost) = {
        let asking = one.call(N2, PeerKind::ReadIndex, b"never answered");
        let killing = async {
            until(|| two.desk.unanswered.lock().len() == 1).await;
            let killed = tokio::time::Instant::now();
            two.kill().await;
            killed
        };
        let (lost, killed) = tokio::join!(asking, killing);
        (killed, lost)
    };
    assert_eq!(lost, Err(LinkError::Lost));
    assert_eq!(one.event().await, LinkEvent::Down(N2));
    assert_eq!(one.event().await, LinkEvent::Gone(N2));
    let noticed = killed.elapsed();
    assert!(noticed < Duration::from_millis(500), "{noticed:?}, and 50 ms on a quiet machine");
    assert!(matches!(one.links.state(N2), LinkState::Down { gone: true, .. }));
    let unreached = one.call(N2, PeerKind::Propose, b"x").await;
    assert!(matches!(unreached, Err(LinkError::Unreached(_))), "{unreached:?}");

    let (network, _) = Tcp::listen(&second).await;
    let again = Process::start(network, 2, CLUSTER, &[(N1, &first)]);
    assert_eq!(one.event().await, LinkEvent::Up(N2));
    assert!(matches!(one.links.state(N2), LinkState::Up { .. }));
    assert_eq!(again.desk.got.lock().len(), 0);
    assert_eq!(one.call(N2, PeerKind::Propose, b"x").await, Ok(Bytes::from_static(b"x")));
    assert_eq!(one.links.stats()[&N2].connections, 2);
}

#[tokio::test]
async fn the_larger_node_sees_the_smaller_end_as_promptly() {
    let ((one, _), (mut two, _)) = tcp_pair().await;
    assert_eq!(two.event().await, LinkEvent::Up(N1));
    one.kill().await;
    assert_eq!(two.event().await, LinkEvent::Down(N1));
    assert_eq!(two.event().await, LinkEvent::Gone(N1));
}

#[tokio::test]
async fn a_process_that_was_replaced_before_anybody_looked_is_gone_too() {
    let hub = Hub::default();
    let (mut one, two) = pair(&hub).await;
    assert_eq!(one.event().await, LinkEvent::Up(N2));
    // The port goes over from one to the other without a moment between.
    let network = hub.listen("two");
    two.kill().await;
    let _again = Process::start(network, 2, CLUSTER, &[(N1, "one")]);
    assert_eq!(one.event().await, LinkEvent::Down(N2));
    assert_eq!(one.event().await, LinkEvent::Gone(N2));
    assert_eq!(one.event().await, LinkEvent::Up(N2));
    assert!(matches!(one.links.state(N2), LinkState::Up { .. }));
}

#[tokio::test]
async fn silence_is_noticed_and_is_not_taken_for_an_end() {
    let hub = Hub::default();
    let (mut one, mut two) = pair(&hub).await;
    assert_eq!((one.event().await, two.event().await), (LinkEvent::Up(N2), LinkEvent::Up(N1)));
    tokio::time::sleep(Duration::from_millis(1_700)).await;
    assert!(one.events.try_recv().is_err(), "an idle link stays up");

    hub.is_swallowing.store(true, Ordering::Relaxed);
    let begun = tokio::time::Instant::now();
    let asked = one.call(N2, PeerKind::Propose, b"x");
    assert_eq!(asked.await, Err(LinkError::Lost));
    assert_eq!((one.event().await, two.event().await), (LinkEvent::Down(N2), LinkEvent::Down(N1)));
    let noticed = begun.elapsed();
    assert!(noticed > Duration::from_secs(1) && noticed < Duration::from_secs(3), "{noticed:?}");
    assert!(matches!(one.links.state(N2), LinkState::Down { gone: false, .. }));
    assert!(one.events.try_recv().is_err());

    hub.is_swallowing.store(false, Ordering::Relaxed);
    assert_eq!((one.event().await, two.event().await), (LinkEvent::Up(N2), LinkEvent::Up(N1)));
    one.call(N2, PeerKind::Propose, b"x").await.unwrap();
}

#[tokio::test]
async fn the_handler_is_told_of_every_end_and_a_stop_gives_everything_back() {
    let ((one, address), (two, _)) = tcp_pair().await;
    let desk = one.desk.clone();
    assert_eq!(desk.open.lock().len(), 1);
    one.kill().await;
    assert!(desk.open.lock().is_empty());
    assert_eq!(Arc::strong_count(&desk), 1, "no task holds the handler any more");
    let _free = Tcp::listen(&address).await;
    two.kill().await;
}

#[tokio::test]
async fn a_handler_that_panics_costs_the_connection_and_no_more() {
    let hub = Hub::default();
    let (mut one, two) = pair(&hub).await;
    assert_eq!(one.event().await, LinkEvent::Up(N2));
    let waiting = one.links.send(N2, PeerKind::ReadIndex, GroupId(1), Bytes::new(), replica::Pace::Now);
    let waiting = waiting.await.unwrap();
    assert_eq!(one.call(N2, PeerKind::Found, b"panics").await, Err(LinkError::Lost));
    assert_eq!(waiting.await, Err(LinkError::Lost));
    two.up(N1).await;
    one.up(N2).await;
    let again = async {
        while one.call(N2, PeerKind::Propose, b"x").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, again).await.expect("there is a link again");
}

#[tokio::test]
async fn bytes_that_no_node_sends_end_the_connection() {
    use tokio::io::AsyncWriteExt as _;
    let (network, address) = Tcp::listen("127.0.0.1:0").await;
    let mut one = Process::start(network, 1, CLUSTER, &[(N2, "127.0.0.1:1")]);
    let mut stream: Box<dyn Stream> = Box::new(TcpStream::connect(&address).await.unwrap());
    let me = Identity { node: N2, process: 9, address: String::new() };
    super::super::hello::write(&mut stream, &super::super::hello::hello(&me, OURS, N1)).await.unwrap();
    assert_eq!(one.event().await, LinkEvent::Up(N2));
    stream.write_all(&[0xff; 64]).await.unwrap();
    assert_eq!(one.event().await, LinkEvent::Down(N2));
}

#[tokio::test]
async fn a_life_that_is_over_does_not_hide_the_end_of_the_one_that_counts() {
    use super::super::connection::{Cause, Other};
    use super::super::table::Shared;
    let me = Identity { node: N1, process: 1, address: String::new() };
    let shared = Shared::new(me, Arc::new(SystemClock::new()));
    shared.set_membership(OURS);
    shared.set_peers(BTreeMap::from([(N2, "two".to_owned())]), BTreeMap::from([(N2, 3)]));
    let mut events = shared.events();
    let other = |process, incarnation| Other {
        node: N2,
        process,
        is_ours: false,
        knows_cluster: true,
        incarnation: Some(incarnation),
        host: None,
        our_cluster: CLUSTER,
    };
    let desk = Arc::<Desk>::default();
    let counts = shared.install(other(7, 4), None, desk.clone()).unwrap();
    shared.open(&counts);
    counts.close(Cause::Other("its process ended".to_owned()));
    shared.ended(&counts);
    // Before anybody looks, an earlier life of the node comes.
    let over = shared.install(other(8, 3), None, desk).unwrap();
    shared.open(&over);
    let lost = tokio::time::timeout(SOON, shared.vacant(N2)).await.expect("it is looked into");
    assert_eq!(lost, Some(7));
    shared.ended_there(N2, 7);
    let told: Vec<LinkEvent> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    assert_eq!(told, [LinkEvent::Up(N2), LinkEvent::Down(N2), LinkEvent::Gone(N2)]);
    let again = tokio::time::timeout(Duration::from_millis(50), shared.vacant(N2)).await;
    assert!(again.is_err(), "it was looked into once");
}

#[tokio::test]
async fn a_process_that_is_about_to_be_talked_to_again_is_not_gone() {
    let me = Identity { node: N1, process: 1, address: "one".to_owned() };
    let shared = Shared::new(me, Arc::new(SystemClock::new()));
    shared.set_membership(OURS);
    shared.set_peers(BTreeMap::from([(N2, "two".to_owned())]), BTreeMap::new());
    let mut events = shared.events();
    let connect = || {
        let other = Other {
            node: N2,
            process: 2,
            is_ours: false,
            knows_cluster: true,
            incarnation: Some(0),
            host: None,
            our_cluster: CLUSTER,
        };
        shared.install(other, None, Arc::<Desk>::default()).unwrap()
    };
    let first = connect();
    shared.open(&first);
    first.close(Cause::Other("reset".to_owned()));
    first.finish(Vec::new());
    shared.ended(&first);
    assert_eq!(shared.vacant(N2).await, Some(2), "somebody looks whether it has ended");
    // Its port is refused, by a firewall for one; meanwhile it dials itself.
    let second = connect();
    shared.ended_there(N2, 2);
    shared.open(&second);
    let told: Vec<LinkEvent> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    assert_eq!(told, [LinkEvent::Up(N2), LinkEvent::Down(N2), LinkEvent::Up(N2)]);
}
