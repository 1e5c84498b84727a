//! A small HTTP/1.1 client: one connection, one request at a time, no parsing beyond what is needed.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection.
pub(crate) struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, request: Vec::new(), answer: Vec::with_capacity(64 * 1024) })
    }

    /// Sends a POST and gives the answer's body; any status but 2xx is an error.
    pub(crate) async fn post(&mut self, path: &str, body: &[u8]) -> Result<&[u8]> {
        let head = format!("POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {}\r\n\r\n", body.len());
        self.exchange(&head, body).await
    }

    /// Sends a GET.
    pub(crate) async fn get(&mut self, path: &str) -> Result<&[u8]> {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n"), b"").await
    }

    async fn exchange(&mut self, head: &str, body: &[u8]) -> Result<&[u8]> {
        self.request.clear();
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        let (start, end) = loop {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                bail!("the server closed the connection");
            }
            if let Some(bounds) = bounds(&self.answer)? {
                break bounds;
            }
        };
        while self.answer.len() < end {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                bail!("the server closed the connection");
            }
        }
        if !self.answer.starts_with(b"HTTP/1.1 2") {
            bail!("{}", String::from_utf8_lossy(&self.answer));
        }
        Ok(&self.answer[start..end])
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
pub(crate) fn strings<'a>(body: &'a [u8], name: &str) -> impl Iterator<Item = &'a str> {
    let text = std::str::from_utf8(body).unwrap_or("");
    let marker = format!("\"{name}\":\"");
    let length = marker.len();
    let found: Vec<usize> = text.match_indices(&marker).map(|(at, _)| at + length).collect();
    found.into_iter().map(move |at| &text[at..at + text[at..].find('"').unwrap_or(0)])
}
