//! Producers whose servers stop or fall silent, and tasks that no server takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::{Client, Error, NewTask};
use windlass_testing::TestServer;

use crate::support::{Double, Proxy, soon, start};

/// What a server takes in one message.
const REQUEST_BYTES_MAX: usize = 32 * 1024 * 1024;

fn large() -> NewTask {
    NewTask::raw("numbers", "large", vec![b' '; REQUEST_BYTES_MAX])
}

fn is_too_large<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> bool {
    outcome.as_ref().is_err_and(|error| error.code() == Some("payload_too_large"))
}

#[tokio::test]
async fn a_task_that_is_too_large_is_refused_alone() {
    let (server, client) = start().await;
    let enqueues = (0..20).map(|n| {
        let client = client.clone();
        async move {
            match n == 7 {
                true => client.enqueue_raw(large().dedup_key("large")).await.map(drop),
                false => client.enqueue(Double(n)).await.map(drop),
            }
        }
    });
    let outcomes = soon(futures::future::join_all(enqueues)).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        assert!(if n == 7 { is_too_large(outcome) } else { outcome.is_ok() }, "{n}: {outcome:?}");
    }
    let tasks = [Double(1).into(), large(), Double(2).into()];
    let outcomes = soon(client.enqueue_many(tasks)).await.unwrap();
    assert!(outcomes[0].is_ok() && is_too_large(&outcomes[1]) && outcomes[2].is_ok(), "{outcomes:?}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn enqueues_without_a_key_survive_a_server_that_stops_in_order() {
    let mut server = TestServer::start().await.unwrap();
    let second = server.second_address().await.unwrap();
    let addresses = [server.url(), second.url()];
    // Of so many some are connected to the one that stops.
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Client::connect(&addresses[..]).await.unwrap());
    }
    let is_stopped = Arc::new(AtomicBool::new(false));
    let producers = clients.iter().cloned().map(|client| {
        let is_stopped = is_stopped.clone();
        async move {
            let mut count = 0;
            while !is_stopped.load(Ordering::Relaxed) {
                let enqueues = (0..50).map(|n| client.enqueue(Double(n)).into_future());
                for outcome in futures::future::join_all(enqueues).await {
                    outcome.unwrap();
                    count += 1;
                }
            }
            count
        }
    });
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.stop_listening().await;
        is_stopped.store(true, Ordering::Relaxed);
    };
    let (counts, ()) = soon(async { tokio::join!(futures::future::join_all(producers), stopping) }).await;
    let depth = clients[0].admin().queue("numbers").await.unwrap().depth.unwrap();
    assert_eq!(depth.ready, counts.iter().sum::<u64>(), "each once");
    second.stop().await;
}

#[tokio::test]
async fn an_enqueue_is_repeated_elsewhere_when_its_server_falls_silent() {
    let (server, _) = start().await;
    let proxy = Proxy::to(&server).await;
    let addresses = [proxy.url.clone(), server.url()];
    // The first address is drawn.
    let through = loop {
        let client = Client::connect(&addresses[..]).await.unwrap();
        if proxy.accepted() > 0 {
            break client;
        }
    };
    soon(through.enqueue(Double(1))).await.unwrap();
    proxy.deafen();
    let again = soon(through.enqueue(Double(2)).dedup_key("two")).await.unwrap();
    assert!(!again.is_duplicate(), "the first try was not heard");
    server.stop().await.unwrap();
}
