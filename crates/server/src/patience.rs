//! A connection's socket, and how long it is waited for where HTTP itself does not say.
//!
//! At the beginning: which HTTP is spoken is told by the first bytes, and until then no other limit of time counts. A
//! connection that says nothing, or only begins to begin, would keep its place for ever. And while we write: whoever
//! does not read its answer would keep it in memory, in the socket or before it (`unread.rs`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::config::ServerConfig;
use crate::unread::Unread;

/// What a connection of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A socket that is not waited for without end.
pub(crate) struct Patient {
    stream: TcpStream,
    /// While it is not known which HTTP is spoken.
    first_words: Option<FirstWords>,
    write_timeout: Duration,
    /// Runs while the other side takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    /// What waits to be read before it comes to the socket.
    unread: Arc<Unread>,
}

struct FirstWords {
    deadline: Pin<Box<Sleep>>,
    /// So much of the preface has come.
    heard: usize,
}

impl Patient {
    /// A socket under the limits of this server.
    pub(crate) fn new(stream: TcpStream, config: &ServerConfig, unread: Arc<Unread>) -> Patient {
        let first_words = FirstWords { deadline: Box::pin(sleep(config.header_timeout)), heard: 0 };
        let (write_timeout, first_words) = (config.write_timeout, Some(first_words));
        Patient { stream, first_words, write_timeout, stalled: None, unread }
    }

    /// What a write came to; one that cannot go on is waited for so long and no longer.
    fn written<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(nothing_taken()))
    }
}

fn nothing_taken() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing of what was written was taken in time")
}

impl FirstWords {
    /// Whether it is known now which HTTP is spoken.
    fn hear(&mut self, words: &[u8]) -> bool {
        let expected = &PREFACE[self.heard..];
        self.heard += words.len();
        // An end is no word of the preface either.
        words.is_empty() || words.len() >= expected.len() || !expected.starts_with(words)
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if read.is_pending() && this.unread.poll_given_up(context).is_ready() {
            return Poll::Ready(Err(nothing_taken()));
        }
        let Some(first_words) = &mut this.first_words else { return read };
        if read.is_pending() {
            ready!(first_words.deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it did not say in time what it speaks",
            )));
        }
        if first_words.hear(&buffer.filled()[before..]) {
            this.first_words = None;
        }
        read
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair(header_timeout: Duration, write_timeout: Duration) -> (Patient, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let config = ServerConfig { header_timeout, write_timeout, ..ServerConfig::default() };
        (Patient::new(stream, &config, Arc::default()), other)
    }

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn whoever_does_not_say_what_it_speaks_is_not_waited_for() {
        for words in [&b""[..], b"P", &PREFACE[..23]] {
            let (mut patient, mut other) = pair(SHORT, LONG).await;
            other.write_all(words).await.unwrap();
            let error = patient.read_to_end(&mut Vec::new()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }

    #[tokio::test]
    async fn whoever_said_it_has_the_time_that_http_gives() {
        for (words, is_said) in [
            (&b"G"[..], true),
            (b"PRI * HTTP/1.1", true),
            (PREFACE, true),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", true),
            (b"PRI", false),
            (&PREFACE[..23], false),
        ] {
            let (mut patient, mut other) = pair(LONG, LONG).await;
            other.write_all(words).await.unwrap();
            let mut heard = vec![0; words.len()];
            patient.read_exact(&mut heard).await.unwrap();
            assert_eq!(patient.first_words.is_none(), is_said, "after {words:?}");
        }
    }

    #[tokio::test]
    async fn whoever_takes_nothing_is_not_written_to_without_end() {
        let (mut patient, other) = pair(LONG, SHORT).await;
        let bytes = vec![0; 64 * 1024];
        let error = loop {
            if let Err(error) = patient.write_all(&bytes).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(other);
    }

    #[tokio::test]
    async fn whoever_takes_slowly_is_written_to() {
        let (mut patient, mut other) = pair(LONG, Duration::from_secs(30)).await;
        const BYTES: usize = 8 * 1024 * 1024;
        let reading = async {
            let (mut taken, mut some) = (0, vec![0; 256 * 1024]);
            while taken < BYTES {
                tokio::time::sleep(Duration::from_millis(1)).await;
                taken += other.read(&mut some).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(async { patient.write_all(&vec![0; BYTES]).await }, reading);
        written.unwrap();
    }
}
