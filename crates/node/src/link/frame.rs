//! Frames on their way out: one, and as many as go into one write.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf as _, Bytes, BytesMut};
use model::GroupId;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use wire::peer::{FrameHeader, FrameRole, PeerKind};

/// Bodies up to this size are copied next to their header; larger ones are written from where they are.
const COPIED_BYTES_MAX: usize = 4 * 1024;
/// Pieces handed to the socket at once.
const SLICES_MAX: usize = 64;

/// A frame that waits to be written.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) role: FrameRole,
    pub(super) group: GroupId,
    pub(super) request: u64,
    pub(super) body: Bytes,
}

impl Frame {
    pub(super) fn ping(request: u64, role: FrameRole) -> Frame {
        Frame { kind: PeerKind::Ping as u8, role, group: GroupId::CATALOG, request, body: Bytes::new() }
    }

    /// What it takes in queues and on the wire.
    pub(super) fn bytes(&self) -> usize {
        FrameHeader::BYTES + self.body.len()
    }

    /// The number of the call that waits for its answer.
    pub(super) fn call(&self) -> Option<u64> {
        (self.role == FrameRole::Request && self.kind != PeerKind::Ping as u8).then_some(self.request)
    }

    fn header(&self) -> FrameHeader {
        let Frame { kind, role, group, request, .. } = *self;
        FrameHeader { kind, role, group, request, body_bytes: self.body.len() }
    }
}

/// Frames that are written together. Knows at any moment which of them were touched.
#[derive(Debug, Default)]
pub(super) struct Batch {
    parts: VecDeque<Bytes>,
    /// Headers and small bodies that are not a part yet.
    copied: BytesMut,
    /// Calls, and where in the batch they begin.
    calls: Vec<(u64, usize)>,
    bytes: usize,
    accepted: usize,
    pub(super) frames: u64,
    /// What its frames took in the queue of urgent ones, and in that of bulk.
    pub(super) taken: [usize; 2],
}

impl Batch {
    pub(super) fn push(&mut self, frame: Frame) {
        if let Some(call) = frame.call() {
            self.calls.push((call, self.bytes));
        }
        self.bytes += frame.bytes();
        self.frames += 1;
        frame.header().put(&mut self.copied);
        if frame.body.len() <= COPIED_BYTES_MAX {
            self.copied.extend_from_slice(&frame.body);
        } else {
            self.parts.push_back(self.copied.split().freeze());
            self.parts.push_back(frame.body);
        }
    }

    /// Bytes of all its frames.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes all of it, then flushes. Dropped half way, it still knows how far it came.
    pub(super) async fn write(&mut self, out: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        if !self.copied.is_empty() {
            self.parts.push_back(self.copied.split().freeze());
        }
        while !self.parts.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, part) in slices.iter_mut().zip(&self.parts) {
                *slice = IoSlice::new(part);
                count += 1;
            }
            let accepted = out.write_vectored(&slices[..count]).await?;
            if accepted == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.accept(accepted);
        }
        out.flush().await
    }

    fn accept(&mut self, mut bytes: usize) {
        self.accepted += bytes;
        while let Some(part) = self.parts.front_mut() {
            if bytes < part.len() {
                part.advance(bytes);
                return;
            }
            bytes -= part.len();
            self.parts.pop_front();
        }
    }

    /// The calls of which not one byte was handed to the socket.
    pub(super) fn untouched(&self) -> impl Iterator<Item = u64> {
        self.calls.iter().filter(|(_, begins)| *begins >= self.accepted).map(|(call, _)| *call)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;

    /// Takes a few bytes at a time, and only so many in all.
    struct Narrow {
        got: Vec<u8>,
        room: usize,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let n = buf.len().min(7).min(self.room);
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            self.room -= n;
            self.got.extend_from_slice(&buf[..n]);
            Poll::Ready(Ok(n))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn call(request: u64, body: usize) -> Frame {
        let body = Bytes::from(vec![request as u8; body]);
        Frame { kind: PeerKind::Propose as u8, role: FrameRole::Request, group: GroupId(1), request, body }
    }

    fn batch() -> Batch {
        let mut batch = Batch::default();
        for frame in
            [call(1, 10), call(2, COPIED_BYTES_MAX + 1), call(3, 0), Frame::ping(4, FrameRole::Request)]
        {
            batch.push(frame);
        }
        batch
    }

    #[tokio::test]
    async fn frames_are_written_whole_and_in_order() {
        let mut batch = batch();
        let mut out = Narrow { got: Vec::new(), room: usize::MAX };
        batch.write(&mut out).await.unwrap();
        assert_eq!(out.got.len(), batch.bytes());
        let mut got = &out.got[..];
        for (request, body_bytes) in [(1, 10), (2, COPIED_BYTES_MAX + 1), (3, 0), (4, 0)] {
            let header = FrameHeader::peek(got).unwrap().unwrap();
            assert_eq!((header.request, header.body_bytes), (request, body_bytes));
            let body = &got[FrameHeader::BYTES..][..body_bytes];
            assert!(body.iter().all(|byte| *byte == request as u8));
            got = &got[FrameHeader::BYTES + body_bytes..];
        }
        assert!(got.is_empty());
    }

    #[tokio::test]
    async fn a_call_counts_as_sent_from_its_first_byte_on() {
        let second = FrameHeader::BYTES + 10;
        let third = second + FrameHeader::BYTES + COPIED_BYTES_MAX + 1;
        for (room, untouched) in [
            (0, vec![1, 2, 3]),
            (1, vec![2, 3]),
            (second, vec![2, 3]),
            (second + 1, vec![3]),
            (third, vec![3]),
            (third + 1, vec![]),
        ] {
            let mut batch = batch();
            batch.write(&mut Narrow { got: Vec::new(), room }).await.unwrap_err();
            assert_eq!(batch.untouched().collect::<Vec<_>>(), untouched, "room for {room} bytes");
        }
    }
}
