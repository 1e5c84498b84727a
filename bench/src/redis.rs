//! Redis as a queue: LPUSH, LMOVE to a list of what is in progress, LREM when it is done.

use std::net::SocketAddr;

use anyhow::{Result, bail};
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

    /// Puts tasks into the queue with one command.
    pub(crate) async fn push(&mut self, payloads: &[Vec<u8>]) -> Result<()> {
        self.request.clear();
        command(&mut self.request, &[&b"LPUSH"[..], b"queue"], payloads);
        self.send(1).await?;
        Ok(())
    }

    /// Takes up to `max` tasks, one command each in one go. Empty when there are none.
    pub(crate) async fn take(&mut self, max: usize) -> Result<Vec<Vec<u8>>> {
        self.request.clear();
        for _ in 0..max {
            command(&mut self.request, &[b"LMOVE", b"queue", b"running", b"RIGHT", b"LEFT"], &[]);
        }
        let ends = self.send(max).await?;
        let mut start = 0;
        let mut taken = Vec::new();
        for end in ends {
            if let Some(value) = bulk(&self.answer[start..end]) {
                taken.push(value.to_vec());
            }
            start = end;
        }
        Ok(taken)
    }

    /// Removes what is done, one command each in one go.
    pub(crate) async fn done(&mut self, payloads: &[Vec<u8>]) -> Result<()> {
        self.request.clear();
        for payload in payloads {
            // From the tail: the oldest in progress is the likeliest.
            command(&mut self.request, &[b"LREM", b"running", b"-1", payload], &[]);
        }
        self.send(payloads.len()).await?;
        Ok(())
    }

    /// Sends what was gathered and reads so many answers; where each ends.
    async fn send(&mut self, answers: usize) -> Result<Vec<usize>> {
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        let mut ends = Vec::with_capacity(answers);
        let mut from = 0;
        while ends.len() < answers {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                bail!("redis closed the connection");
            }
            while ends.len() < answers
                && let Some(end) = whole(&self.answer, from)?
            {
                ends.push(end);
                from = end;
            }
        }
        Ok(ends)
    }
}

fn command(out: &mut Vec<u8>, words: &[&[u8]], more: &[Vec<u8>]) {
    out.extend_from_slice(format!("*{}\r\n", words.len() + more.len()).as_bytes());
    for word in words.iter().copied().chain(more.iter().map(Vec::as_slice)) {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// The end of the answer that begins at `from`, once it is whole.
fn whole(answer: &[u8], from: usize) -> Result<Option<usize>> {
    let rest = &answer[from..];
    let Some(line) = rest.windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
    match rest.first() {
        Some(b'-') => bail!("redis says {}", String::from_utf8_lossy(&rest[1..line])),
        Some(b'$') => {
            let length: i64 = std::str::from_utf8(&rest[1..line])?.parse()?;
            let end = line + 2 + if length < 0 { 0 } else { length as usize + 2 };
            Ok((rest.len() >= end).then_some(from + end))
        }
        _ => Ok(Some(from + line + 2)),
    }
}

fn bulk(answer: &[u8]) -> Option<&[u8]> {
    let line = answer.windows(2).position(|window| window == b"\r\n")?;
    (answer.len() > line + 2).then(|| &answer[line + 2..answer.len() - 2])
}
