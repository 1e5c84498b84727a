//! beanstalkd: put, reserve, delete; many of them in one go where a message carries many.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Producer, Worker, drive};
use crate::load::{Plan, Summary};

/// How long a worker holds a job, in seconds.
const HOLD: u32 = 60;

/// Connections, each with one message in flight.
pub(crate) async fn run(address: SocketAddr, plan: Plan) -> Result<Summary> {
    let (mut producers, mut workers) = (Vec::new(), Vec::new());
    for _ in 0..plan.outstanding {
        if plan.producers > 0 {
            producers.push(Connection::open(address).await?);
        }
        if plan.workers > 0 {
            workers.push(Connection::open(address).await?);
        }
    }
    drive(plan, producers, workers).await
}

struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
    /// Up to here the answer was read.
    read: usize,
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, answer: Vec::new(), read: 0 })
    }

    async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.answer.clear();
        self.read = 0;
        self.stream.write_all(request).await?;
        Ok(())
    }

    async fn more(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.answer).await? == 0 {
            bail!("beanstalkd closed the connection");
        }
        Ok(())
    }

    /// The next line of the answer.
    async fn line(&mut self) -> Result<String> {
        loop {
            let rest = &self.answer[self.read..];
            if let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
                let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                self.read += end + 2;
                return Ok(line);
            }
            self.more().await?;
        }
    }

    /// The body that follows a line, and its end of line.
    async fn body(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.answer.len() < self.read + length + 2 {
            self.more().await?;
        }
        let body = self.answer[self.read..self.read + length].to_vec();
        self.read += length + 2;
        Ok(body)
    }
}

impl Producer for Connection {
    async fn enqueue(&mut self, payload: &[u8], count: u64) -> Result<()> {
        let mut one = format!("put 1024 0 {HOLD} {}\r\n", payload.len()).into_bytes();
        one.extend_from_slice(payload);
        one.extend_from_slice(b"\r\n");
        self.send(&one.repeat(count as usize)).await?;
        for _ in 0..count {
            let line = self.line().await?;
            if !line.starts_with("INSERTED") {
                bail!("beanstalkd says {line}");
            }
        }
        Ok(())
    }
}

impl Worker for Connection {
    type Job = String;

    async fn take(&mut self, max: u64) -> Result<Vec<(String, Vec<u8>)>> {
        // The first waits; the others take what is there.
        let mut request = b"reserve-with-timeout 1\r\n".to_vec();
        request.extend(b"reserve-with-timeout 0\r\n".repeat(max as usize - 1));
        self.send(&request).await?;
        let mut taken = Vec::new();
        for _ in 0..max {
            let line = self.line().await?;
            let mut words = line.split(' ');
            match words.next() {
                Some("RESERVED") => {
                    let id = words.next().context("no id")?.to_owned();
                    let length = words.next().context("no length")?.parse()?;
                    taken.push((id, self.body(length).await?));
                }
                Some("TIMED_OUT") => {}
                _ => bail!("beanstalkd says {line}"),
            }
        }
        Ok(taken)
    }

    async fn ack(&mut self, jobs: Vec<String>) -> Result<()> {
        let request: String = jobs.iter().map(|id| format!("delete {id}\r\n")).collect();
        self.send(request.as_bytes()).await?;
        for _ in jobs {
            let line = self.line().await?;
            if line != "DELETED" {
                bail!("beanstalkd says {line}");
            }
        }
        Ok(())
    }
}
