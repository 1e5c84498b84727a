//! A blocking HTTP client that knows several nodes and keeps its connection. It repeats nothing: that is for whoever
//! writes the history.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A node that takes no connection by then is passed over.
const CONNECT_MAX: Duration = Duration::from_millis(300);
/// How long an answer may take, beyond what the request asks a node to wait.
const ANSWER_MAX: Duration = Duration::from_secs(4);

/// What a node answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
    /// The header `Windlass-Index`, as it is.
    pub(crate) index: String,
}

impl Answer {
    pub(crate) fn is_ok(&self) -> bool {
        matches!(self.status, 200 | 201)
    }

    /// The error's code, or nothing.
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    /// Where the answer stands in one shard, as `shard:index`.
    pub(crate) fn index_of(&self, shard: u16) -> Option<&str> {
        let is_it = |part: &&str| part.split(':').next() == Some(shard.to_string().as_str());
        self.index.split(',').find(is_it)
    }
}

/// One connection at a time, to the node that answered last.
pub(crate) struct Client {
    addresses: Vec<SocketAddr>,
    current: usize,
    stream: Option<BufReader<TcpStream>>,
    answer_max: Duration,
}

impl Client {
    /// A client that begins with the `first` of these.
    pub(crate) fn new(addresses: &[SocketAddr], first: usize) -> Client {
        let current = first % addresses.len();
        Client { addresses: addresses.to_vec(), current, stream: None, answer_max: ANSWER_MAX }
    }

    /// A client of one node that does not wait for long.
    pub(crate) fn quick(address: SocketAddr) -> Client {
        Client { answer_max: Duration::from_millis(800), ..Client::new(&[address], 0) }
    }

    /// Makes sure that there is a connection to somebody. Nothing was sent yet when there is none.
    pub(crate) fn connect(&mut self) -> bool {
        for _ in 0..self.addresses.len() {
            if self.stream.is_some() {
                return true;
            }
            let stream = TcpStream::connect_timeout(&self.addresses[self.current], CONNECT_MAX);
            match stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)) {
                Ok(stream) => self.stream = Some(BufReader::with_capacity(64 * 1024, stream)),
                Err(_) => self.next(),
            }
        }
        self.stream.is_some()
    }

    /// Goes on to the next node.
    pub(crate) fn next(&mut self) {
        self.stream = None;
        self.current = (self.current + 1) % self.addresses.len();
    }

    /// One try at the node that it is connected to. Nothing says that nobody knows what became of it.
    pub(crate) fn call(&mut self, method: &str, path: &str, body: &str, wait: Duration) -> Option<Answer> {
        let answer = self.exchange(method, path, body, wait).ok();
        if answer.as_ref().is_none_or(|answer| answer.status >= 500) {
            self.next();
        }
        answer
    }

    /// A read that is repeated at one node after the other until it is answered, or a while has passed.
    pub(crate) fn look(&mut self, path: &str) -> Option<Answer> {
        for _ in 0..2 * self.addresses.len() {
            if self.connect()
                && let Some(answer) = self.call("GET", path, "", Duration::ZERO)
                && answer.status < 500
            {
                return Some(answer);
            }
        }
        None
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str, wait: Duration) -> io::Result<Answer> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        stream.get_ref().set_read_timeout(Some(self.answer_max + wait))?;
        stream.get_ref().set_write_timeout(Some(self.answer_max))?;
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: rig\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.get_mut().write_all(head.as_bytes())?;
        let (answer, closes) = read_answer(stream)?;
        if closes {
            self.stream = None;
        }
        Ok(answer)
    }
}

/// The answer, and whether the server closes the connection after it.
fn read_answer(stream: &mut BufReader<TcpStream>) -> io::Result<(Answer, bool)> {
    let broken = || io::Error::other("the connection broke");
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let (mut length, mut index, mut closes) = (0, String::new(), false);
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
            ("windlass-index", value) => index = value.to_owned(),
            ("connection", value) => closes = value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok((Answer { status, body, index }, closes))
}
