//! P6: what a lost worker held is free again in time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Client;
use crate::server::Server;

const ROUNDS: usize = 30;
const STREAM_ROUNDS: usize = 10;

#[test]
fn tasks_of_a_killed_work_process_are_claimable_within_three_seconds() {
    let _alone = crate::alone();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let mut client = Client::new(server.address);
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let queue = format!("jobs-{round}");
        let task = json!({"kind": "long", "payload": {}, "hold_ms": 60_000});
        let id = client.post(&format!("/v1/queues/{queue}/tasks"), &task).unwrap().body["id"].clone();
        let mut worker = start_worker(&server, &queue, dir.path());
        await_claimed(&mut client, &queue);
        worker.kill().unwrap();
        worker.wait().unwrap();
        let killed = Instant::now();
        let claim = json!({"queues": [queue], "worker": "rescuer", "wait_ms": 20_000});
        let answer = client.post("/v1/claims", &claim).unwrap();
        times.push(killed.elapsed());
        let rescued = &answer.body["claims"][0];
        assert_eq!(rescued["id"], id, "{answer:?}");
        client.post("/v1/claims/ack", &json!({"token": rescued["token"]})).unwrap();
    }
    report("a killed `windlass work`", &mut times, Duration::from_secs(3));
}

#[test]
fn a_broken_session_stream_frees_its_claims_before_silence_does() {
    let _alone = crate::alone();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let mut client = Client::new(server.address);
    let mut times = Vec::new();
    for round in 0..STREAM_ROUNDS {
        let queue = format!("streamed-{round}");
        client
            .post(&format!("/v1/queues/{queue}/tasks"), &json!({"kind": "long", "hold_ms": 60_000}))
            .unwrap();
        let worker = format!("streamer-{round}");
        let registered =
            client.post("/v1/workers", &json!({"id": worker, "slots": 1, "beat_ms": 1000})).unwrap();
        let session = registered.body["session"].as_str().unwrap().to_owned();
        let mut stream = open_stream(&server, &worker, &session);
        let claim = json!({"queues": [queue], "worker": worker, "session": session});
        assert_eq!(client.post("/v1/claims", &claim).unwrap().body["claims"].as_array().unwrap().len(), 1);
        stream.flush().unwrap();
        drop(stream);
        let broken = Instant::now();
        let claim = json!({"queues": [queue], "worker": "rescuer", "wait_ms": 20_000});
        let answer = client.post("/v1/claims", &claim).unwrap();
        times.push(broken.elapsed());
        assert_eq!(answer.body["claims"][0]["attempt"], 2, "{answer:?}");
    }
    report("a broken session stream", &mut times, Duration::from_secs(2));
}

fn report(what: &str, times: &mut [Duration], most: Duration) {
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{what}: claimable again after {median:?} (median), {worst:?} (worst) of {} rounds",
        times.len()
    );
    assert!(worst <= most, "P6: {worst:?}");
}

fn start_worker(server: &Server, queue: &str, dir: &Path) -> Child {
    let handler = dir.join("handler.sh");
    if !handler.exists() {
        std::fs::write(&handler, "#!/bin/sh\nexec sleep 2\n").unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&handler, executable).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args([
            "work",
            "--queue",
            queue,
            "--slots",
            "1",
            "--server",
            &format!("http://{}", server.address),
            "--exec",
        ])
        .arg(&handler)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn await_claimed(client: &mut Client, queue: &str) {
    let start = Instant::now();
    while client.get(&format!("/v1/queues/{queue}")).unwrap().body["depth"]["claimed"] != 1 {
        assert!(start.elapsed() < Duration::from_secs(20), "the worker never claimed");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn open_stream(server: &Server, worker: &str, session: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let path = format!("/v1/workers/{worker}/session?session={session}");
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&first));
    stream
}
