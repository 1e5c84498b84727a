//! A blocking HTTP client that knows several nodes, and repeats only what is safe to repeat.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A node that takes no connection by then is passed over.
const CONNECT_MAX: Duration = Duration::from_millis(500);
/// Between two rounds over all nodes.
const PAUSE: Duration = Duration::from_millis(10);

/// What a node answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
    /// Without the header's name, by which a redirect says where to go.
    pub(crate) location: Option<String>,
}

impl Answer {
    /// The error's code, or nothing.
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    /// Whether asking again, here or elsewhere, may change the answer. With a dedup key, a token or a request id
    /// it also does no harm.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.status, 503 | 504)
    }
}

/// One connection at a time, to the node that answered last.
pub(crate) struct Client {
    addresses: Vec<SocketAddr>,
    current: usize,
    stream: Option<BufReader<TcpStream>>,
    /// How long one node may take for one answer, beyond what the request asks it to wait.
    pub(crate) answer_max: Duration,
    /// A header that goes with every request.
    pub(crate) header: Option<String>,
}

impl Client {
    /// A client that begins with the first of these.
    pub(crate) fn new(addresses: &[SocketAddr]) -> Client {
        assert!(!addresses.is_empty(), "a client needs somebody to talk to");
        let answer_max = Duration::from_secs(3);
        Client { addresses: addresses.to_vec(), current: 0, stream: None, answer_max, header: None }
    }

    /// A client of one node.
    pub(crate) fn of(address: SocketAddr) -> Client {
        Client::new(&[address])
    }

    /// Begins with another one of its nodes, so that clients spread.
    pub(crate) fn beginning_with(mut self, n: usize) -> Client {
        self.current = n % self.addresses.len();
        self
    }

    /// One try at the current node. An error says that nobody knows what became of it.
    pub(crate) fn once(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        wait: Duration,
    ) -> std::io::Result<Answer> {
        let outcome = self.exchange(method, path, body, wait);
        if outcome.is_err() {
            self.stream = None;
        }
        outcome
    }

    /// One GET at the current node.
    pub(crate) fn get(&mut self, path: &str) -> std::io::Result<Answer> {
        self.once("GET", path, "", Duration::ZERO)
    }

    /// Goes on to the next node.
    pub(crate) fn next(&mut self) {
        self.stream = None;
        self.current = (self.current + 1) % self.addresses.len();
    }

    /// Asks one node after the other until one gives an answer that stays, or `within` has passed: then the last thing
    /// that was heard. Only for what is safe to repeat: reads, and writes with a dedup key, a token or a request id.
    pub(crate) fn safe(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
        wait: Duration,
        within: Duration,
    ) -> Result<Answer, String> {
        let deadline = Instant::now() + within;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut tried = 0;
        loop {
            let heard = match self.once(method, path, &body, wait) {
                Ok(answer) if !answer.is_passing() => return Ok(answer),
                Ok(answer) => format!("{answer:?}"),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                return Err(format!("{method} {path}: no answer within {within:?}: {heard}"));
            }
            self.next();
            tried += 1;
            if tried % self.addresses.len() == 0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// A write that is safe to repeat.
    pub(crate) fn post(&mut self, path: &str, body: &Value, within: Duration) -> Result<Answer, String> {
        self.safe("POST", path, body, Duration::ZERO, within)
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str, wait: Duration) -> std::io::Result<Answer> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.addresses[self.current], CONNECT_MAX)?;
            stream.set_nodelay(true)?;
            self.stream = Some(BufReader::new(stream));
        }
        let stream = self.stream.as_mut().unwrap();
        stream.get_ref().set_read_timeout(Some(self.answer_max + wait))?;
        let (length, header) = (body.len(), self.header.as_deref().unwrap_or("X-Test: 1"));
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: test\r\n{header}\r\nContent-Length: {length}\r\n\r\n");
        stream.get_mut().write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())?;
        let answer = read_answer(stream)?;
        if answer.1 {
            self.stream = None;
        }
        Ok(answer.0)
    }
}

/// The answer, and whether the server closes the connection after it.
fn read_answer(stream: &mut BufReader<TcpStream>) -> std::io::Result<(Answer, bool)> {
    let broken = || std::io::Error::other("the connection broke");
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let (mut length, mut location, mut closes) = (0, None, false);
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(broken());
        }
        if line.trim().is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { return Err(broken()) };
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("content-length", value) => length = value.parse().map_err(|_| broken())?,
            ("location", value) => location = Some(value.to_owned()),
            ("connection", value) => closes = value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok((Answer { status, body, location }, closes))
}
