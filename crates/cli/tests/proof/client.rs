//! A blocking HTTP client that tells apart "refused" from "no answer".

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// One connection, opened again after an error.
pub(crate) struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Client {
        Client { address, stream: None }
    }

    pub(crate) fn get(&mut self, path: &str) -> std::io::Result<Answer> {
        self.send("GET", path, "")
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> std::io::Result<Answer> {
        self.send("POST", path, &body.to_string())
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<Answer> {
        let outcome = self.exchange(method, path, body);
        if outcome.is_err() {
            self.stream = None;
        }
        outcome
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<Answer> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            self.stream = Some(BufReader::new(stream));
        }
        let stream = self.stream.as_mut().unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n");
        stream.get_mut().write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())?;
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let broken = || std::io::Error::other("the connection broke");
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
        let mut length = 0;
        loop {
            line.clear();
            stream.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().map_err(|_| broken())?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
    }
}
