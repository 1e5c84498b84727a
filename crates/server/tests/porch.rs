//! A server before its node is there, and how the node takes over its port.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use model::NodeId;
use node::{Node, NodeConfig, RealDisk, SystemClock, ThreadExecutor};
use server::{Porch, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

async fn get(porch: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(porch).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_server_says_what_it_waits_for_until_its_node_is_there() {
    let config = ServerConfig { listen: "127.0.0.1:0".parse().unwrap(), ..ServerConfig::default() };
    let porch = Porch::open(config.clone(), NodeId(2)).await.unwrap();
    let addr = porch.addr();
    assert!(get(addr, "/livez").await.starts_with("HTTP/1.1 200"));
    porch.waits_for("it waits for nodes 1 and 3");
    let ready = get(addr, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("waits for nodes 1 and 3"), "{ready}");
    assert!(ready.contains("retry-after: 1"), "{ready}");
    let node = get(addr, "/v1/node").await;
    assert!(node.starts_with("HTTP/1.1 200") && node.contains(r#""ready":false"#), "{node}");
    assert!(get(addr, "/v1/queues").await.contains("unavailable"));
    let taken = Porch::open(ServerConfig { listen: addr, ..config }, NodeId(3)).await.err().unwrap();
    assert!(taken.to_string().contains("in use"), "{taken}");

    // More than the porch has places for: whoever says nothing keeps one, and nobody is sent away without a word.
    let mut idle = Vec::new();
    for _ in 0..64 {
        idle.push(TcpStream::connect(addr).await.unwrap());
    }
    let one_more = tokio::spawn(get(addr, "/livez"));
    idle.clear();
    assert!(one_more.await.unwrap().starts_with("HTTP/1.1 200"));

    let dir = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::new(Arc::new(RealDisk::new(dir.path()).unwrap()));
    config.disk_reserve_bytes = 1024 * 1024;
    let node = Node::start(config, Arc::new(SystemClock::new()), Arc::new(ThreadExecutor)).await.unwrap();
    let server = porch.enter(node.clone()).await.unwrap();
    assert_eq!(server.addr(), addr);
    let ready = get(addr, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    server.stop().await;
    node.stop().await.unwrap();
}
