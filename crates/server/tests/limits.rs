//! What the server does when callers are large, slow, too many, or gone, and when it stops.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use serde_json::json;
use support::{Harness, start, start_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wire::grpc;

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

/// A connection of HTTP/2 that lets so many bytes of each answer come, and when it ends.
async fn http_2(
    harness: &Harness,
    window: u32,
) -> (hyper::client::conn::http2::SendRequest<Full<Bytes>>, tokio::task::JoinHandle<hyper::Result<()>>) {
    let io = hyper_util::rt::TokioIo::new(TcpStream::connect(harness.addr).await.unwrap());
    let executor = hyper_util::rt::TokioExecutor::new();
    let mut builder = hyper::client::conn::http2::Builder::new(executor);
    let (sender, connection) = builder.initial_stream_window_size(window).handshake(io).await.unwrap();
    (sender, tokio::spawn(connection))
}

fn ask(harness: &Harness, path: &str) -> http::Request<Full<Bytes>> {
    http::Request::get(format!("http://{}{path}", harness.addr)).body(Full::default()).unwrap()
}

fn large(harness: &Harness) -> http::Request<Full<Bytes>> {
    ask(harness, "/openapi.json")
}

/// A call of gRPC.
fn call(harness: &Harness, name: &str, message: &impl prost::Message) -> http::Request<Full<Bytes>> {
    let bytes = message.encode_to_vec();
    let framed = [&[0][..], &(bytes.len() as u32).to_be_bytes(), &bytes].concat();
    let request = http::Request::post(format!("http://{}/windlass.v1.Windlass/{name}", harness.addr));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    request.body(Full::from(framed)).unwrap()
}

#[tokio::test]
async fn a_connection_that_reads_none_of_its_answers_is_closed() {
    const PIECE: usize = 4 * 1024;
    let harness = start_with(|_| {}, |server| server.write_timeout = Duration::from_millis(500)).await;
    let payload = "x".repeat(PIECE);
    let id = harness.enqueue("mail", &format!(r#"{{"kind":"k","payload":"{payload}"}}"#)).await;
    let two_pieces = format!("/v1/tasks/{id}");
    let size = harness.get(&two_pieces).await.bytes.len();
    assert!(size > PIECE && size < 2 * PIECE, "{size} bytes are not two pieces");
    let size = harness.get("/openapi.json").await.bytes.len();
    let but_the_last = (size - 1) / PIECE * PIECE;
    assert!(but_the_last > 0, "{size} bytes are no large answer");
    for (what, path, window) in [
        ("nothing of a large one", "/openapi.json", 0),
        ("one byte", "/openapi.json", 1),
        ("all but the last piece", "/openapi.json", but_the_last as u32),
        ("nothing of two pieces", &two_pieces, 0),
    ] {
        let (mut sender, connection) = http_2(&harness, window).await;
        let answer = sender.send_request(ask(&harness, path)).await.unwrap();
        assert_eq!(answer.status(), 200);
        let ended = tokio::time::timeout(Duration::from_secs(30), connection).await;
        ended.unwrap_or_else(|_| panic!("not closed: {what} is taken")).unwrap().unwrap_err();
        drop((answer, sender));
    }
    harness.stop().await;
}

#[tokio::test]
async fn small_calls_do_not_keep_a_connection_whose_large_answers_nobody_reads() {
    let harness = start_with(|_| {}, |server| server.write_timeout = Duration::from_millis(500)).await;
    let (mut sender, connection) = http_2(&harness, 0).await;
    let answer = sender.send_request(large(&harness)).await.unwrap();
    let task = grpc::Task { queue: "mail".to_owned(), kind: "k".to_owned(), ..Default::default() };
    let small = call(&harness, "Enqueue", &grpc::EnqueueRequest { task: Some(task) });
    let deadline = Instant::now() + Duration::from_secs(30);
    while sender.send_request(small.clone()).await.is_ok() {
        assert!(Instant::now() < deadline, "the connection is kept by small calls");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop((answer, connection));
    harness.stop().await;
}

#[tokio::test]
async fn a_claim_whose_answer_nobody_takes_is_given_back() {
    let harness = start().await;
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let queues = vec![grpc::QueueChoice { name: "mail".to_owned(), weight: None }];
    let (worker, hold_ms) = ("w".to_owned(), Some(3_600_000));
    let claim = grpc::ClaimRequest { queues, worker, hold_ms, ..Default::default() };
    let (mut sender, _connection) = http_2(&harness, 0).await;
    // The head has come: the body was asked for, and waits for a window.
    let answer = sender.send_request(call(&harness, "Claim", &claim)).await.unwrap();
    harness.until_state(&id, "claimed").await;
    drop(answer);
    harness.until_state(&id, "ready").await;
    let (mut sender, _connection) = http_2(&harness, 64 * 1024).await;
    let answer = sender.send_request(call(&harness, "Claim", &claim)).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let reply = grpc::ClaimReply::decode(&bytes[5..]).unwrap();
    let ack = json!({"token": reply.claims[0].token}).to_string();
    harness.post("/v1/claims/ack", ack).await.expect(200);
    harness.stop().await;
}

#[tokio::test]
async fn a_connection_that_reads_its_answers_stays_and_gets_all_of_them() {
    let limit = Duration::from_secs(3);
    let harness = start_with(|_| {}, |server| server.write_timeout = limit).await;
    let whole = harness.get("/openapi.json").await.bytes;
    assert!(whole.len() > 64 * 1024, "{} bytes are no large answer", whole.len());
    let (mut sender, connection) = http_2(&harness, 64 * 1024).await;
    for _ in 0..2 {
        let answer = sender.send_request(large(&harness)).await.unwrap();
        assert_eq!(answer.headers()["content-length"], whole.len().to_string().as_str());
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), whole);
        // Longer than an answer may wait: there is none.
        tokio::time::sleep(limit + Duration::from_millis(500)).await;
    }
    drop(sender);
    connection.await.unwrap().unwrap();
    harness.stop().await;
}

#[tokio::test]
async fn answers_that_nobody_reads_have_a_bound_for_each_connection_and_one_for_all() {
    const ALL: usize = 4 * 1024 * 1024;
    const FREE: usize = 256 * 1024;
    const CONNECTIONS: usize = 16;
    let harness = start_with(|_| {}, |server| server.answers_bytes_max = ALL).await;
    let size = harness.get("/openapi.json").await.bytes.len();
    assert!(size < FREE, "{size} bytes: one answer has more than a connection has beside the bound");
    let (mut kept, mut counts, mut senders) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let (mut sender, _) = http_2(&harness, 0).await;
        let before = kept.len();
        loop {
            let answer = sender.send_request(large(&harness)).await.unwrap();
            if answer.status() != 200 {
                assert_eq!(answer.status(), 504);
                break;
            }
            kept.push(answer);
            assert!(kept.len() * size <= ALL + CONNECTIONS * FREE, "no bound holds");
        }
        counts.push(kept.len() - before);
        senders.push(sender);
    }
    // As much as there is for one, and less when the others have taken it.
    let most = (ALL / 8 + FREE) / size;
    assert_eq!(counts[0], most, "{counts:?} answers of {size} bytes");
    assert!(counts[CONNECTIONS - 1] < most, "{counts:?} answers of {size} bytes");
    // Nobody else notices, and what is given up makes room.
    assert_eq!(harness.get("/v1/queues").await.status, 200);
    kept.clear();
    let deadline = Instant::now() + Duration::from_secs(30);
    while senders[0].send_request(large(&harness)).await.unwrap().status() != 200 {
        assert!(Instant::now() < deadline, "an answer that was given up still takes room");
    }
    drop(senders);
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
