//! Redis as a reliable queue: LPUSH, LMOVE to a list of what is in progress (BLMOVE while there is nothing), LREM when
//! it is done.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Producer, Worker, drive};
use crate::load::{Plan, Summary};

/// Digits that tell payloads of one message apart: LREM finds a task by its payload.
const NUMBER_DIGITS: usize = 12;
/// Where they stand: after the quote and the time.
const NUMBER_AT: usize = 17;

/// Connections, each with one message in flight.
pub(crate) async fn run(address: SocketAddr, plan: Plan) -> Result<Summary> {
    let (mut producers, mut workers) = (Vec::new(), Vec::new());
    for n in 0..plan.outstanding {
        if plan.producers > 0 {
            producers.push(Pusher { connection: Connection::open(address).await?, made: n << 32 });
        }
        if plan.workers > 0 {
            workers.push(Mover { connection: Connection::open(address).await?, was_empty: false });
        }
    }
    drive(plan, producers, workers).await
}

struct Pusher {
    connection: Connection,
    made: u64,
}

impl Producer for Pusher {
    async fn enqueue(&mut self, payload: &[u8], count: u64) -> Result<()> {
        let mut payloads = vec![payload.to_vec(); count as usize];
        for payload in &mut payloads {
            self.made += 1;
            let number = format!("{:0NUMBER_DIGITS$}", self.made % 10u64.pow(NUMBER_DIGITS as u32));
            if let Some(place) = payload.get_mut(NUMBER_AT..NUMBER_AT + NUMBER_DIGITS) {
                place.copy_from_slice(number.as_bytes());
            }
        }
        let connection = &mut self.connection;
        connection.request.clear();
        command(&mut connection.request, &[b"LPUSH", b"queue"], &payloads);
        connection.send(1).await?;
        Ok(())
    }
}

struct Mover {
    connection: Connection,
    was_empty: bool,
}

impl Worker for Mover {
    type Job = Vec<u8>;

    async fn take(&mut self, max: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let connection = &mut self.connection;
        connection.request.clear();
        let commands = if self.was_empty || max == 1 {
            command(
                &mut connection.request,
                &[b"BLMOVE", b"queue", b"running", b"RIGHT", b"LEFT", b"1"],
                &[],
            );
            1
        } else {
            for _ in 0..max {
                command(&mut connection.request, &[b"LMOVE", b"queue", b"running", b"RIGHT", b"LEFT"], &[]);
            }
            max as usize
        };
        let ends = connection.send(commands).await?;
        let (mut start, mut taken) = (0, Vec::new());
        for end in ends {
            if let Some(value) = bulk(&connection.answer[start..end]) {
                taken.push((value.to_vec(), value.to_vec()));
            }
            start = end;
        }
        self.was_empty = taken.is_empty();
        Ok(taken)
    }

    async fn ack(&mut self, jobs: Vec<Vec<u8>>) -> Result<()> {
        let connection = &mut self.connection;
        connection.request.clear();
        for payload in &jobs {
            // From the tail: the oldest in progress is the likeliest.
            command(&mut connection.request, &[b"LREM", b"running", b"-1", payload], &[]);
        }
        connection.send(jobs.len()).await?;
        Ok(())
    }
}

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
    if !answer.starts_with(b"$") {
        return None;
    }
    let line = answer.windows(2).position(|window| window == b"\r\n")?;
    (answer.len() > line + 2).then(|| &answer[line + 2..answer.len() - 2])
}
