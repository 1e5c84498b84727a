//! A small HTTP/1.1 client: one connection, one request at a time, no parsing beyond what is needed. The client shares
//! the machine with the server in most measurements, so what it costs is taken from there.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Room for an answer of usual size.
const ANSWER_BYTES: usize = 16 * 1024;

/// One connection.
pub(super) struct Connection {
    stream: TcpStream,
    host: String,
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// What the server said.
#[derive(Clone, Copy)]
pub(super) struct Answer<'a> {
    /// A status of 2xx.
    pub(super) is_ok: bool,
    pub(super) body: &'a [u8],
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (request, answer) = (Vec::new(), Vec::with_capacity(ANSWER_BYTES));
        Ok(Connection { stream, host: address.to_string(), request, answer })
    }

    pub(super) async fn post(&mut self, path: &str, body: &[u8]) -> Result<Answer<'_>> {
        self.request.clear();
        let (host, length) = (&self.host, body.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n");
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        let (start, end) = loop {
            self.read().await?;
            if let Some(bounds) = bounds(&self.answer)? {
                break bounds;
            }
        };
        while self.answer.len() < end {
            self.read().await?;
        }
        let is_ok = self.answer.starts_with(b"HTTP/1.1 2");
        Ok(Answer { is_ok, body: &self.answer[start..end] })
    }

    async fn read(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.answer).await? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}

/// Where the body starts and ends, once the head is there.
fn bounds(answer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&answer[..head])?;
    let length = text.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let length = length.context("an answer without a length")??;
    Ok(Some((head + 4, head + 4 + length)))
}

/// The strings that stand after `"name":"` in a body, in order: faster than a parser, and enough here.
pub(super) fn strings<'a>(body: &'a [u8], name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let text = std::str::from_utf8(body).unwrap_or("");
    let marker = format!("\"{name}\":\"");
    let length = marker.len();
    let found: Vec<usize> = text.match_indices(&marker).map(|(at, _)| at + length).collect();
    found.into_iter().map(move |at| &text[at..at + text[at..].find('"').unwrap_or(0)])
}
