//! One connection to another node, from its greeting to its end.
//!
//! One task reads and hands on, one writes; both end when it is closed. Then every call that was begun is
//! lost, and every other one unreached.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use model::{GroupId, NodeId};
use parking_lot::Mutex;
use replica::Pace;
use tokio::io::{AsyncReadExt as _, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use wire::peer::{BODY_BYTES_MAX, FrameHeader, FrameRole, PeerKind};

use super::counters::Counters;
use super::frame::Frame;
use super::handler::{Handler, ReplyTo, Unheeded};
use super::links::LinkError;
use super::network::Stream;
use super::places::Host;
use super::queue::{Entry, Lane, NotTaken, Queue};

/// A connection without a byte for so long is closed.
const SILENCE_MAX: Duration = Duration::from_millis(1_500);
/// A connection without a byte for so long is asked whether somebody is there.
const SILENCE_ASKED: Duration = Duration::from_millis(200);
/// A connection is asked so often whatever is heard, to know its round trip.
const ROUND_TRIP_EVERY: Duration = Duration::from_secs(1);
/// How often silence is looked at.
const TICK: Duration = Duration::from_millis(100);
/// Room for one read, unless a larger frame is known to come.
const READ_BYTES: usize = 64 * 1024;
/// With less room than this left, more is made.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Bodies up to this size are copied, so that a small one that is kept does not keep what came with it.
const COPIED_BYTES_MAX: usize = 1024;
/// The most that is made room for at once: memory follows what was sent, not what was announced.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bodies of requests that this node has not answered yet; more are refused.
const HELD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The same while the other side is not known to be of this cluster: anybody may be there.
const STRANGER_HELD_BYTES_MAX: usize = 1024 * 1024;
/// The largest body from such a one.
const STRANGER_BODY_BYTES_MAX: usize = 64 * 1024;

/// Why a connection was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The other side closed it, or its process ended.
    Other(String),
    /// Nothing was heard.
    Silence,
    /// The other side sent what it must not, or does not read.
    Broken(String),
    /// Here, in order: another connection, other peers, another cluster, the stop.
    Here(&'static str),
}

impl Cause {
    pub(super) fn text(&self) -> String {
        match self {
            Cause::Other(text) => text.clone(),
            Cause::Silence => format!("nothing was heard for {} ms", SILENCE_MAX.as_millis()),
            Cause::Broken(text) => text.clone(),
            Cause::Here(text) => (*text).to_owned(),
        }
    }
}

/// Who is at the other end, as both sides said.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub(super) node: NodeId,
    pub(super) process: u64,
    /// Whether this side dialled.
    pub(super) is_ours: bool,
    /// Whether both said the same cluster.
    pub(super) knows_cluster: bool,
    /// Which life of the node it is; nothing while it knows no cluster.
    pub(super) incarnation: Option<u64>,
    /// Where it dialled from, if it did.
    pub(super) host: Option<Host>,
    /// What this side said of its cluster.
    pub(super) our_cluster: u128,
}

impl Other {
    /// Why a life that is over may say nothing.
    pub(super) fn over(&self) -> String {
        let node = self.node;
        format!(
            "node {node} was removed from the cluster, or joined it anew with another disk: stop this process of \
             it; to join again, start it with an empty data directory"
        )
    }
}

/// One connection.
pub(super) struct Connection {
    /// Tells the connections of this process apart.
    pub(super) number: u64,
    pub(super) other: Other,
    queue: Queue,
    calls: Mutex<BTreeMap<u64, oneshot::Sender<Result<Bytes, LinkError>>>>,
    call_next: AtomicU64,
    /// Cancelled when it is closed; why is beside it.
    closing: CancellationToken,
    cause: Mutex<Option<Cause>>,
    handler: Arc<dyn Handler>,
    /// Whether it may carry everything. Behind a lock: what the handler was told.
    is_full: AtomicBool,
    told: Mutex<Told>,
    /// Whether the other side was told to have no place in the cluster any more.
    is_over: AtomicBool,
    born: Instant,
    /// Milliseconds from `born` to the last byte that came.
    heard: AtomicU64,
    /// How often something came.
    reads: AtomicU64,
    ping: Mutex<Ping>,
    /// Bodies of requests that are not answered yet.
    held_bytes: AtomicUsize,
    counters: Arc<Counters>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Connected,
    Closed,
}

#[derive(Default)]
struct Ping {
    number: u64,
    sent: Option<Instant>,
}

impl Connection {
    pub(super) fn new(
        number: u64,
        other: Other,
        handler: Arc<dyn Handler>,
        counters: Arc<Counters>,
    ) -> Arc<Connection> {
        counters.connections.fetch_add(1, Ordering::Relaxed);
        Arc::new(Connection {
            number,
            other,
            queue: Queue::new(),
            calls: Mutex::default(),
            call_next: AtomicU64::new(1),
            closing: CancellationToken::new(),
            cause: Mutex::new(None),
            handler,
            is_full: AtomicBool::new(false),
            told: Mutex::new(Told::Nothing),
            is_over: AtomicBool::new(false),
            born: Instant::now(),
            heard: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            ping: Mutex::default(),
            held_bytes: AtomicUsize::new(0),
            counters,
        })
    }

    /// Carries bytes until it is closed; then all calls have their end.
    pub(super) async fn run(self: &Arc<Connection>, stream: Box<dyn Stream>) {
        // Whatever ends the reader ends the writer.
        let _closing = self.closing.clone().drop_guard();
        let (from, to) = tokio::io::split(stream);
        let writer = tokio::spawn(write(self.clone(), to));
        read(self, from).await;
        let untouched = writer.await.unwrap_or_default();
        self.finish(untouched);
    }

    /// Ends what waits for an answer: calls that were never begun are unreached, all others lost. Doing it
    /// twice does no harm.
    pub(super) fn finish(&self, untouched: Vec<u64>) {
        self.close(Cause::Here("it ended"));
        let never = self.queue.close();
        let text = self.cause().text();
        let mut calls = std::mem::take(&mut *self.calls.lock());
        for call in untouched.into_iter().chain(never) {
            if let Some(caller) = calls.remove(&call) {
                let _ = caller.send(Err(self.unreached(&text)));
            }
        }
        for (_, caller) in calls {
            let _ = caller.send(Err(LinkError::Lost));
        }
        let mut told = self.told.lock();
        self.is_full.store(false, Ordering::Release);
        if std::mem::replace(&mut *told, Told::Closed) == Told::Connected {
            self.handler.closed(self.other.node, self.number);
        }
    }

    /// Lets everything through, and says so to the handler.
    pub(super) fn open_fully(&self) {
        let mut told = self.told.lock();
        if *told == Told::Nothing {
            *told = Told::Connected;
            self.handler.connected(self.other.node, self.number);
            self.is_full.store(true, Ordering::Release);
        }
    }

    /// Whether the other side is a life of its node that is over: what it says is refused with that.
    pub(super) fn set_over(&self, is_over: bool) {
        self.is_over.store(is_over, Ordering::Relaxed);
    }

    /// Whether it carries everything.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    pub(super) fn close(&self, cause: Cause) {
        self.cause.lock().get_or_insert(cause);
        self.closing.cancel();
    }

    pub(super) fn close_broken(&self, why: String) {
        self.close(Cause::Broken(why));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    pub(super) fn cause(&self) -> Cause {
        self.cause.lock().clone().unwrap_or(Cause::Here("it is open"))
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.queue.bytes() as u64
    }

    fn unreached(&self, why: &str) -> LinkError {
        LinkError::Unreached(format!(
            "the link to node {} was closed before it was sent: {why}",
            self.other.node
        ))
    }

    fn allows(&self, kind: PeerKind) -> Result<(), LinkError> {
        match self.is_full() || kind.is_before_cluster() {
            true => Ok(()),
            false => Err(LinkError::Unreached(format!(
                "node {} is not known to be of this cluster yet: the link carries no {kind:?}",
                self.other.node
            ))),
        }
    }

    /// Puts a call into the queue; its place is that of this call.
    pub(super) fn place(
        self: &Arc<Connection>,
        kind: PeerKind,
        group: GroupId,
        body: Bytes,
        pace: Pace,
    ) -> Result<Placed, LinkError> {
        self.allows(kind)?;
        fits(&body)?;
        let request = self.call_next.fetch_add(1, Ordering::Relaxed);
        let (caller, answer) = oneshot::channel();
        self.calls.lock().insert(request, caller);
        let answer = Answer { connection: self.clone(), request, is_taken: false, answer };
        let frame = Frame { kind: kind as u8, role: FrameRole::Request, group, request, body };
        match self.queue.enter(lane(kind), pace, frame) {
            Ok(entry) => Ok(Placed { entry, answer }),
            Err(_) => Err(self.unreached(&self.cause().text())),
        }
    }

    pub(super) fn tell(&self, kind: PeerKind, group: GroupId, body: Bytes) -> bool {
        if self.allows(kind).is_err() || fits(&body).is_err() {
            return false;
        }
        let frame = Frame { kind: kind as u8, role: FrameRole::Tell, group, request: 0, body };
        self.queue.tell(lane(kind), frame).is_ok()
    }

    /// Answers. Whether the queue took it, which is not to say that it arrives.
    pub(super) fn answer(&self, mut frame: Frame) -> bool {
        if fits(&frame.body).is_err() {
            let text = format!("the answer has {} bytes, a frame takes {BODY_BYTES_MAX}", frame.body.len());
            frame = Frame { role: FrameRole::Refusal, body: Bytes::from(text), ..frame };
        }
        let taken = self.queue.answer(frame);
        if taken == Err(NotTaken::Full) {
            self.close_broken("the other side does not read its answers".to_owned());
        }
        taken.is_ok()
    }

    pub(super) fn hold(&self, bytes: usize) {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn release(&self, bytes: usize) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn since_born(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(self.since_born().saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    /// Asks whether somebody is there.
    fn ask(&self) {
        let mut ping = self.ping.lock();
        ping.number += 1;
        ping.sent = Some(Instant::now());
        self.queue.ping(Frame::ping(ping.number, FrameRole::Request));
    }

    /// Whether anything is heard within `patience` after asking.
    pub(super) async fn is_alive(&self, patience: Duration) -> bool {
        let (asked, reads) = (Instant::now(), self.reads.load(Ordering::Relaxed));
        self.ask();
        while !self.is_closed() && asked.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if self.reads.load(Ordering::Relaxed) != reads {
                return !self.is_closed();
            }
        }
        false
    }

    /// Closes a silent connection, asks a quiet one.
    fn watch(&self) {
        let silence = self.silence();
        if silence >= SILENCE_MAX {
            return self.close(Cause::Silence);
        }
        let asked = self.ping.lock().sent.map(|sent| sent.elapsed());
        let is_quiet = silence >= SILENCE_ASKED && asked.is_none_or(|asked| asked >= SILENCE_ASKED);
        if is_quiet || asked.is_none_or(|asked| asked >= ROUND_TRIP_EVERY) {
            self.ask();
        }
    }

    fn take(self: &Arc<Connection>, header: FrameHeader, body: Bytes) {
        let FrameHeader { role, request, .. } = header;
        self.counters.frames_in.fetch_add(1, Ordering::Relaxed);
        match role {
            FrameRole::Request if header.kind == PeerKind::Ping as u8 => {
                self.queue.ping(Frame::ping(request, FrameRole::Answer));
            }
            FrameRole::Answer if header.kind == PeerKind::Ping as u8 => self.answered_ping(request),
            FrameRole::Request | FrameRole::Tell => self.deliver(header, body),
            FrameRole::Answer | FrameRole::Refusal => {
                // Gone when the caller has given up.
                let Some(caller) = self.calls.lock().remove(&request) else { return };
                let _ = caller.send(match role {
                    FrameRole::Answer => Ok(body),
                    _ => Err(LinkError::Refused(String::from_utf8_lossy(&body).into_owned())),
                });
            }
        }
    }

    fn answered_ping(&self, number: u64) {
        let ping = self.ping.lock();
        if let (Some(sent), true) = (ping.sent, ping.number == number) {
            self.counters.round_trip(sent.elapsed());
        }
    }

    fn deliver(self: &Arc<Connection>, header: FrameHeader, body: Bytes) {
        let FrameHeader { group, request, .. } = header;
        let wanted = (header.role == FrameRole::Request).then_some(request);
        let answer = |role, body| {
            if wanted.is_some() {
                self.answer(Frame { kind: header.kind, role, group, request, body });
            }
        };
        let refuse = |text: String| answer(FrameRole::Refusal, text.into());
        let Some(kind) = PeerKind::from_number(header.kind) else {
            return refuse(format!("messages of kind {} are not known here", header.kind));
        };
        // An answer of the handler's says that nothing happened, where it has one.
        let unheeded = |why, text: String| match self.handler.unheeded(kind, why) {
            Some(body) => answer(FrameRole::Answer, body),
            None => refuse(text),
        };
        let knows_cluster = self.is_full();
        if !knows_cluster && !kind.is_before_cluster() {
            let text = match self.is_over.load(Ordering::Relaxed) {
                true => self.other.over(),
                false => format!("the sender is not known here to be of this cluster: no {kind:?}"),
            };
            return unheeded(Unheeded::Stranger, text);
        }
        let held_bytes_max = if knows_cluster { HELD_BYTES_MAX } else { STRANGER_HELD_BYTES_MAX };
        if self.held_bytes.load(Ordering::Relaxed) > held_bytes_max {
            return unheeded(Unheeded::TooMuch, "too much waits to be answered here".to_owned());
        }
        let reply = ReplyTo::new(self, kind, group, wanted, body.len());
        self.handler.handle(self.other.node, knows_cluster, kind, group, request, body, reply);
    }
}

fn lane(kind: PeerKind) -> Lane {
    if kind.is_bulk() { Lane::Bulk } else { Lane::Urgent }
}

fn fits(body: &Bytes) -> Result<(), LinkError> {
    match body.len() {
        0..=BODY_BYTES_MAX => Ok(()),
        bytes => Err(LinkError::Unreached(format!(
            "the message has {bytes} bytes, a frame takes {BODY_BYTES_MAX}"
        ))),
    }
}

/// Reads until the connection is closed, here or there; hands on every frame.
async fn read(connection: &Arc<Connection>, mut from: ReadHalf<Box<dyn Stream>>) {
    let mut buffer = BytesMut::new();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut wanted = READ_BYTES;
    loop {
        if wanted > READ_BYTES || buffer.capacity() - buffer.len() < READ_BYTES_MIN {
            buffer.reserve(wanted);
        }
        tokio::select! {
            biased;
            () = connection.closing.cancelled() => return,
            // Before the tick: what came while this process slept is heard first.
            came = from.read_buf(&mut buffer) => match came {
                Ok(0) => return connection.close(Cause::Other("the other side closed it".to_owned())),
                Ok(bytes) => {
                    connection.heard.store(connection.since_born(), Ordering::Relaxed);
                    connection.reads.fetch_add(1, Ordering::Relaxed);
                    connection.counters.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
                }
                Err(error) => return connection.close(told_by(&error)),
            },
            _ = tick.tick() => connection.watch(),
        }
        match take_frames(connection, &mut buffer) {
            Ok(missing) => wanted = missing.clamp(READ_BYTES, READ_BYTES_MAX),
            Err(why) => return connection.close_broken(why),
        }
    }
}

/// Hands on the frames that are whole. How many bytes the next one misses.
fn take_frames(connection: &Arc<Connection>, buffer: &mut BytesMut) -> Result<usize, String> {
    while let Some(header) = FrameHeader::peek(buffer).map_err(|error| error.to_string())? {
        if header.body_bytes > STRANGER_BODY_BYTES_MAX && !connection.is_full() {
            return Err(format!(
                "a frame of {} bytes from a node that is not known to be of this cluster",
                header.body_bytes
            ));
        }
        let whole = FrameHeader::BYTES + header.body_bytes;
        if buffer.len() < whole {
            return Ok(whole - buffer.len());
        }
        buffer.advance(FrameHeader::BYTES);
        let body = match header.body_bytes {
            0..=COPIED_BYTES_MAX => {
                let body = Bytes::copy_from_slice(&buffer[..header.body_bytes]);
                buffer.advance(header.body_bytes);
                body
            }
            bytes => buffer.split_to(bytes).freeze(),
        };
        connection.take(header, body);
    }
    Ok(0)
}

/// Writes what is queued until the connection is closed. The calls in its hand that it did not begin.
async fn write(connection: Arc<Connection>, mut to: WriteHalf<Box<dyn Stream>>) -> Vec<u64> {
    loop {
        let batch = tokio::select! {
            biased;
            () = connection.closing.cancelled() => return Vec::new(),
            batch = connection.queue.batch() => batch,
        };
        let Some(mut batch) = batch else { return Vec::new() };
        let written = tokio::select! {
            biased;
            () = connection.closing.cancelled() => return batch.untouched().collect(),
            written = batch.write(&mut to) => written,
        };
        if let Err(error) = written {
            connection.close(told_by(&error));
            return batch.untouched().collect();
        }
        connection.queue.written(&batch);
        connection.counters.wrote(batch.bytes(), batch.frames);
    }
}

fn told_by(error: &io::Error) -> Cause {
    match error.kind() {
        // The system gave up on it, as we would: nobody said that the process ended.
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Cause::Silence
        }
        _ => Cause::Other(error.to_string()),
    }
}

/// A call on its way into the queue.
pub(super) struct Placed {
    entry: Entry,
    answer: Answer,
}

impl Placed {
    /// Ready when the queue has taken it.
    pub(super) async fn taken(self) -> Result<Answer, LinkError> {
        let Placed { entry, mut answer } = self;
        if let Entry::Waits(entered) = entry
            && entered.await.is_err()
        {
            return Err(answer.connection.unreached(&answer.connection.cause().text()));
        }
        answer.is_taken = true;
        Ok(answer)
    }
}

/// An answer that will come. Dropped, nobody waits for it any more; the request is sent all the same.
pub(crate) struct Answer {
    connection: Arc<Connection>,
    request: u64,
    /// Whether the queue has the request. One that still waits for room goes with its sender.
    is_taken: bool,
    answer: oneshot::Receiver<Result<Bytes, LinkError>>,
}

impl Answer {
    /// Gives up: what is known of it then.
    pub(super) fn give_up(mut self) -> LinkError {
        if self.connection.queue.take_back(self.request) {
            return LinkError::Unreached(format!(
                "the link to node {} is full: it was not sent in time",
                self.connection.other.node
            ));
        }
        // It may have come at this very moment, and may say more.
        match self.answer.try_recv() {
            Ok(Err(error)) => error,
            _ => LinkError::Lost,
        }
    }
}

impl Future for Answer {
    type Output = Result<Bytes, LinkError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The sender goes without a word only with the whole process's runtime.
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.unwrap_or(Err(LinkError::Lost)))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.connection.calls.lock().remove(&self.request).is_some() && !self.is_taken {
            self.connection.queue.take_back(self.request);
        }
    }
}
