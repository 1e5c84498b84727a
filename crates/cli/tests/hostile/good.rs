//! A client as it should be: it enqueues, claims and acks, one after the other, and must never notice anything.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Between two tasks.
const PACE: Duration = Duration::from_millis(5);
/// The most that one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Runs until it is asked for what it saw.
pub(crate) struct Good {
    stop: Arc<AtomicBool>,
    running: JoinHandle<Vec<Duration>>,
}

impl Good {
    pub(crate) fn start(addr: SocketAddr) -> Good {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let running = std::thread::spawn(move || {
            let mut client = Client::new(addr);
            let mut times = Vec::new();
            while !asked.load(Ordering::Relaxed) {
                client.one_task(&mut times);
                std::thread::sleep(PACE);
            }
            times
        });
        Good { stop, running }
    }

    /// How long each of its requests took.
    pub(crate) fn times(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.running.join().expect("a good client notices nothing")
    }
}

/// One connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn new(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    /// The whole life of a task.
    pub(crate) fn one_task(&mut self, times: &mut Vec<Duration>) {
        let mut post = |path: &str, body: &str, status: u16| {
            let started = Instant::now();
            let (answered, json) = self.post(path, body);
            times.push(started.elapsed());
            assert_eq!(answered, status, "{path}: {json}");
            json
        };
        // Not retained: what thousands of ended tasks take is not the attack's.
        let task = r#"{"kind":"k","payload":{"to":"ada@example.com"},"retention_ms":0}"#;
        post("/v1/queues/good/tasks", task, 201);
        let claimed = post("/v1/claims", r#"{"queues":["good"],"worker":"good","wait_ms":20000}"#, 200);
        let token = claimed["claims"][0]["token"].as_str().unwrap_or_else(|| panic!("no task: {claimed}"));
        post("/v1/claims/ack", &format!(r#"{{"token":"{token}"}}"#), 200);
    }

    pub(crate) fn post(&mut self, path: &str, body: &str) -> (u16, Value) {
        self.ask("POST", path, body)
    }

    pub(crate) fn get(&mut self, path: &str) -> (u16, Value) {
        self.ask("GET", path, "")
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut line, mut length) = (String::new(), 0);
        self.stream.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{path}: {line:?} is no answer"));
        loop {
            line.clear();
            self.stream.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}
