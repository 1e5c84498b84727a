//! What the server does when callers are large, slow, too many, or gone, and when it stops.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;
use support::{Harness, start, start_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends raw bytes; what comes back until the connection closes or a whole reply is there.
async fn raw(harness: &Harness, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(harness.addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    read_reply(&mut stream).await
}

async fn read_reply(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let reading = async {
        let mut chunk = [0u8; 4096];
        loop {
            let read = stream.read(&mut chunk).await.unwrap_or(0);
            text.extend_from_slice(&chunk[..read]);
            if read == 0 || text.ends_with(b"}") {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading).await.expect("a reply within 20 s");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn a_request_over_the_limit_is_refused_before_it_is_read() {
    let harness = start().await;
    let before = harness.state().await;
    // Only the head is sent: the answer comes all the same.
    let head = "POST /v1/queues/mail/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 33554433\r\n\r\n";
    let reply = raw(&harness, head.as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    assert!(
        reply.contains("\"code\":\"payload_too_large\"") && reply.contains("application/problem+json"),
        "{reply}"
    );
    // A length that is not announced is counted on the way.
    let mut stream = TcpStream::connect(harness.addr).await.unwrap();
    stream
        .write_all(b"POST /v1/queues/mail/tasks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        .await
        .unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let writing = tokio::spawn(async move {
        let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 0x10_0000], b"\r\n"].concat();
        for _ in 0..40 {
            if writer.write_all(&chunk).await.is_err() {
                break;
            }
        }
        writer
    });
    let mut reply = vec![0u8; 12];
    tokio::time::timeout(Duration::from_secs(20), reader.read_exact(&mut reply)).await.unwrap().unwrap();
    assert_eq!(reply, b"HTTP/1.1 413");
    writing.abort();
    assert_eq!(harness.state().await, before);
    harness.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let harness = start_with(|_| {}, |server| server.body_timeout = Duration::from_millis(200)).await;
    let head = "POST /v1/queues/mail/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"kind\":";
    let reply = raw(&harness, head.as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 408") && reply.contains("\"code\":\"request_timeout\""), "{reply}");
    harness.stop().await;
}

#[tokio::test]
async fn a_head_that_does_not_come_closes_the_connection() {
    let harness = start_with(|_| {}, |server| server.header_timeout = Duration::from_millis(200)).await;
    let started = Instant::now();
    let reply = raw(&harness, b"POST /v1/queues/mail/tasks HTTP/1.1\r\nhost: x\r\n").await;
    assert!(!reply.contains("200") && started.elapsed() < Duration::from_secs(10), "{reply}");
    harness.stop().await;
}

#[tokio::test]
async fn a_connection_that_does_not_say_what_it_speaks_is_closed() {
    let harness = start_with(|_| {}, |server| server.header_timeout = Duration::from_millis(200)).await;
    for words in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        assert_eq!(raw(&harness, words).await, "", "after {words:?}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn a_head_over_its_limit_is_refused_before_it_ends() {
    let harness = start().await;
    let head = format!("GET /livez HTTP/1.1\r\nhost: x\r\nlarge: {}", "v".repeat(40 * 1024));
    let reply = raw(&harness, head.as_bytes()).await;
    // What we had still to say may take the answer away with it.
    assert!(reply.starts_with("HTTP/1.1 431") || reply.is_empty(), "{reply}");
    let head = format!("GET /livez HTTP/1.1\r\nhost: x\r\nlarge: {}\r\n\r\n", "v".repeat(30 * 1024));
    let reply = raw(&harness, head.as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    harness.stop().await;
}

#[tokio::test]
async fn a_connection_too_many_is_told_so() {
    let harness = start_with(|_| {}, |server| server.connections_max = 1).await;
    let mut first = TcpStream::connect(harness.addr).await.unwrap();
    first.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(read_reply(&mut first).await.starts_with("HTTP/1.1 200"));
    let mut second = TcpStream::connect(harness.addr).await.unwrap();
    let reply = read_reply(&mut second).await;
    assert!(reply.starts_with("HTTP/1.1 503") && reply.contains("connections"), "{reply}");
    drop(first);
    harness.stop().await;
}

#[tokio::test]
async fn any_content_type_is_taken_as_json_but_not_from_a_page_of_another_site() {
    let harness = start().await;
    let path = "/v1/queues/mail/tasks";
    for kind in ["text/plain", "application/x-www-form-urlencoded", "image/png"] {
        harness.send(Method::POST, path, &[("content-type", kind)], r#"{"kind":"k"}"#).await.expect(201);
    }
    let foreign =
        harness.send(Method::POST, path, &[("origin", "http://evil.example")], r#"{"kind":"k"}"#).await;
    foreign.expect_problem(403, "denied");
    harness.stop().await;
}

#[tokio::test]
async fn wrong_methods_and_unknown_paths_are_problems_too() {
    let harness = start().await;
    for (method, path, status, code) in [
        (Method::DELETE, "/v1/claims", 405, "method_not_allowed"),
        (Method::POST, "/livez", 405, "method_not_allowed"),
        (Method::PUT, "/", 405, "method_not_allowed"),
        (Method::GET, "/v1", 404, "not_found"),
        (Method::GET, "/v1/queues/", 404, "not_found"),
        (Method::OPTIONS, "/nope", 404, "not_found"),
    ] {
        let reply = harness.send(method.clone(), path, &[], "").await;
        reply.expect_problem(status, code);
        assert_eq!(reply.headers.contains_key("allow"), status == 405, "{method} {path}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn http_2_is_spoken_on_the_same_port() {
    let harness = start().await;
    let stream = TcpStream::connect(harness.addr).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::builder()
        .method(Method::POST)
        .uri(format!("http://{}/v1/queues/mail/tasks", harness.addr))
        .body(http_body_util::Full::new(bytes::Bytes::from_static(br#"{"kind":"k"}"#)))
        .unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 201);
    drop(sender);
    harness.stop().await;
}

#[tokio::test]
async fn a_stop_answers_waiting_claims_with_none_and_takes_no_more() {
    let mut harness = start().await;
    let addr = harness.addr;
    let waiting = {
        let stream = TcpStream::connect(addr).await.unwrap();
        tokio::spawn(async move {
            let mut stream = stream;
            let body = r#"{"queues":["mail"],"worker":"w","wait_ms":60000}"#;
            let head = format!(
                "POST /v1/claims HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            read_reply(&mut stream).await
        })
    };
    while harness.node.waiting_claims() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let stopping = Instant::now();
    harness.stop_server().await;
    assert!(stopping.elapsed() < Duration::from_secs(5), "took {:?}", stopping.elapsed());
    let reply = waiting.await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with(r#"{"claims":[]}"#), "{reply}");
    assert!(TcpStream::connect(addr).await.is_err());
    harness.stop().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_takes_no_task_with_it() {
    let harness = start().await;
    let mut stream = TcpStream::connect(harness.addr).await.unwrap();
    let body = r#"{"queues":["mail"],"worker":"gone","wait_ms":60000}"#;
    let head = format!("POST /v1/claims HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    while harness.node.waiting_claims() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(stream);
    while harness.node.waiting_claims() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let claim = harness.claim("mail").await;
    assert_eq!((&claim["id"], &claim["attempt"]), (&json!(id), &json!(1)));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_new_tasks_while_acks_go_on_and_recovers_by_itself() {
    let disk = node::MemDisk::new();
    let data = disk.clone();
    let on_disk = move |config: &mut node::NodeConfig| {
        config.data = std::sync::Arc::new(data);
        config.disk_reserve_bytes = 32 * 1024 * 1024;
        config.log = node::LogOptions { segment_bytes: 4 * 1024 * 1024, ..node::LogOptions::default() };
    };
    let harness = start_with(on_disk, |_| {}).await;
    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let token = harness.claim("mail").await["token"].as_str().unwrap().to_owned();
    let body = r#"{"kind":"k"}"#;
    let until = async |status: u16| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let reply = harness.post("/v1/queues/mail/tasks", body).await;
            if reply.status == status {
                return reply;
            }
            assert!(Instant::now() < deadline, "{}", reply.json);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    disk.set_capacity(Some(disk.used_bytes()));
    until(507).await.expect_problem(507, "disk_full");
    harness.post("/v1/claims/ack", format!(r#"{{"token":"{token}"}}"#)).await.expect(200);
    disk.set_capacity(None);
    until(201).await;
    harness.stop().await;
}
