//! A small HTTP/2 client for the streams of gRPC: one connection, frames by hand, no more of the protocol than a
//! server of ours speaks. The client shares the machine with the servers, so what it costs is taken from them.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;

/// What every connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The size of a frame's head, and of what stands before a message of gRPC.
const FRAME_HEAD: usize = 9;
const MESSAGE_HEAD: usize = 5;
/// The largest window that there is: nothing here needs to hold a server back.
const WINDOW_MAX: u32 = i32::MAX as u32;
/// What a connection and a stream have before anybody says otherwise.
const WINDOW_DEFAULT: u32 = 65_535;
/// Windows are filled up when so much of them is used.
const WINDOW_USED_MAX: u32 = WINDOW_MAX / 2;
/// Room for one read.
const READ_BYTES: usize = 64 * 1024;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;

/// One connection.
pub(super) struct Connection {
    socket: TcpStream,
    authority: String,
    out: Vec<u8>,
    input: BytesMut,
    streams: Vec<Stream>,
    /// Streams with something to send.
    has_words: Vec<usize>,
    /// What may be sent on the connection, and on a new stream.
    window: i64,
    stream_window: i64,
    frame_max: usize,
    /// What came since the connection's window was filled up.
    received: u32,
}

struct Stream {
    window: i64,
    /// To be sent.
    out: Vec<u8>,
    /// Of a message that is not whole.
    input: BytesMut,
    received: u32,
}

/// A message and the stream that brought it.
pub(super) type Arrived = (usize, Bytes);

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Connection> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let mut connection = Connection {
            socket,
            authority: address.to_string(),
            out: PREFACE.to_vec(),
            input: BytesMut::new(),
            streams: Vec::new(),
            has_words: Vec::new(),
            window: i64::from(WINDOW_DEFAULT),
            stream_window: i64::from(WINDOW_DEFAULT),
            frame_max: 16 * 1024,
            received: 0,
        };
        let mut settings = [0; 6];
        settings[..2].copy_from_slice(&INITIAL_WINDOW_SIZE.to_be_bytes());
        settings[2..].copy_from_slice(&WINDOW_MAX.to_be_bytes());
        frame(&mut connection.out, SETTINGS, 0, 0, &settings);
        frame(&mut connection.out, WINDOW_UPDATE, 0, 0, &(WINDOW_MAX - WINDOW_DEFAULT).to_be_bytes());
        Ok(connection)
    }

    /// Begins a call; its number counts from 0 on this connection.
    pub(super) fn begin(&mut self, path: &str) -> usize {
        // Names by their number in the table that every HTTP/2 has; nothing is kept for the next call.
        let mut block = vec![0x83, 0x86];
        literal(&mut block, &[0x04], path);
        literal(&mut block, &[0x01], &self.authority);
        literal(&mut block, &[0x0f, 0x10], "application/grpc");
        literal(&mut block, &[0x00, 2, b't', b'e'], "trailers");
        let number = self.streams.len();
        frame(&mut self.out, HEADERS, END_HEADERS, id(number), &block);
        let (out, input) = (Vec::new(), BytesMut::new());
        self.streams.push(Stream { window: self.stream_window, out, input, received: 0 });
        number
    }

    /// Gathers a message; it goes out with the next `receive`.
    pub(super) fn send(&mut self, number: usize, message: &impl Message) {
        let stream = &mut self.streams[number];
        if stream.out.is_empty() {
            self.has_words.push(number);
        }
        let length = message.encoded_len();
        stream.out.reserve(MESSAGE_HEAD + length);
        stream.out.push(0);
        stream.out.extend_from_slice(&(length as u32).to_be_bytes());
        message.encode_raw(&mut stream.out);
    }

    /// Sends what was gathered and takes what comes, until something does. Losing a race loses nothing.
    pub(super) async fn receive(&mut self, arrived: &mut Vec<Arrived>) -> Result<()> {
        while arrived.is_empty() {
            self.fill();
            poll_fn(|context| self.poll(context)).await?;
            self.take(arrived)?;
        }
        Ok(())
    }

    /// Puts into frames what the windows let through.
    fn fill(&mut self) {
        let mut has_words = std::mem::take(&mut self.has_words);
        has_words.retain(|&number| {
            let stream = &mut self.streams[number];
            loop {
                let window = usize::try_from(self.window.min(stream.window)).unwrap_or(0);
                let length = stream.out.len().min(window).min(self.frame_max);
                if length == 0 {
                    return !stream.out.is_empty();
                }
                frame(&mut self.out, DATA, 0, id(number), &stream.out[..length]);
                stream.out.drain(..length);
                stream.window -= length as i64;
                self.window -= length as i64;
            }
        });
        self.has_words = has_words;
    }

    /// Writes as much as goes; ready when something was read.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while !self.out.is_empty() {
            match Pin::new(&mut self.socket).poll_write(context, &self.out)? {
                Poll::Ready(count) => drop(self.out.drain(..count)),
                Poll::Pending => break,
            }
        }
        let mut space = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.socket).poll_read(context, &mut buffer))?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Err(anyhow::anyhow!("the server closed the connection")));
        }
        self.input.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }

    /// Takes every whole frame.
    fn take(&mut self, arrived: &mut Vec<Arrived>) -> Result<()> {
        while let Some(head) = self.input.first_chunk::<FRAME_HEAD>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if self.input.len() < FRAME_HEAD + length {
                break;
            }
            self.input.advance(FRAME_HEAD);
            let body = self.input.split_to(length);
            self.took(kind, flags, stream, &body, arrived)?;
        }
        if self.input.is_empty() {
            // Thousands of idle connections keep no room.
            self.input = BytesMut::new();
        }
        Ok(())
    }

    fn took(&mut self, kind: u8, flags: u8, id: u32, body: &[u8], arrived: &mut Vec<Arrived>) -> Result<()> {
        match kind {
            DATA if flags & PADDED == 0 => self.data(id, body, arrived)?,
            DATA => bail!("the server pads its frames: this client does not know how"),
            HEADERS if flags & END_STREAM != 0 => bail!("the server refused or ended stream {id}"),
            SETTINGS if flags & ACK == 0 => self.settings(body)?,
            PING if flags & ACK == 0 => frame(&mut self.out, PING, ACK, 0, body),
            WINDOW_UPDATE => {
                let more = i64::from(number(body)? & WINDOW_MAX);
                match id {
                    0 => self.window += more,
                    id => self.stream(id)?.window += more,
                }
            }
            RST_STREAM => bail!("the server broke stream {id} off"),
            GO_AWAY => bail!("the server goes away: {}", String::from_utf8_lossy(body)),
            _ => {}
        }
        Ok(())
    }

    fn data(&mut self, id: u32, body: &[u8], arrived: &mut Vec<Arrived>) -> Result<()> {
        let number = (id as usize).saturating_sub(1) / 2;
        let stream = self.stream(id)?;
        stream.input.extend_from_slice(body);
        while let Some(head) = stream.input.first_chunk::<MESSAGE_HEAD>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if stream.input.len() < MESSAGE_HEAD + length {
                break;
            }
            stream.input.advance(MESSAGE_HEAD);
            arrived.push((number, stream.input.split_to(length).freeze()));
        }
        if stream.input.is_empty() {
            stream.input = BytesMut::new();
        }
        stream.received += body.len() as u32;
        if stream.received > WINDOW_USED_MAX {
            let used = std::mem::take(&mut stream.received);
            frame(&mut self.out, WINDOW_UPDATE, 0, id, &used.to_be_bytes());
        }
        self.received += body.len() as u32;
        if self.received > WINDOW_USED_MAX {
            let used = std::mem::take(&mut self.received);
            frame(&mut self.out, WINDOW_UPDATE, 0, 0, &used.to_be_bytes());
        }
        Ok(())
    }

    fn settings(&mut self, body: &[u8]) -> Result<()> {
        for setting in body.chunks_exact(6) {
            let value = number(&setting[2..])?;
            match u16::from_be_bytes([setting[0], setting[1]]) {
                INITIAL_WINDOW_SIZE => {
                    let more = i64::from(value) - self.stream_window;
                    self.stream_window += more;
                    self.streams.iter_mut().for_each(|stream| stream.window += more);
                }
                MAX_FRAME_SIZE => self.frame_max = value as usize,
                _ => {}
            }
        }
        frame(&mut self.out, SETTINGS, ACK, 0, &[]);
        Ok(())
    }

    fn stream(&mut self, id: u32) -> Result<&mut Stream> {
        let number = (id as usize).saturating_sub(1) / 2;
        self.streams
            .get_mut(number)
            .with_context(|| format!("the server speaks on stream {id}: who is that?"))
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, id: u32, body: &[u8]) {
    out.reserve(FRAME_HEAD + body.len());
    out.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(body);
}

/// The id of a client's nth stream.
fn id(number: usize) -> u32 {
    2 * number as u32 + 1
}

fn number(body: &[u8]) -> Result<u32> {
    Ok(u32::from_be_bytes(*body.first_chunk().context("a frame that is too short")?))
}

/// A header whose value stands there as it is.
fn literal(block: &mut Vec<u8>, name: &[u8], value: &str) {
    block.extend_from_slice(name);
    // Lengths from 127 on take more than one byte, seven bits in each.
    match value.len().checked_sub(127) {
        None => block.push(value.len() as u8),
        Some(mut rest) => {
            block.push(127);
            while rest >= 128 {
                block.push((rest % 128 + 128) as u8);
                rest /= 128;
            }
            block.push(rest as u8);
        }
    }
    block.extend_from_slice(value.as_bytes());
}
