//! `EnqueueStream`: many enqueues in flight on one stream, each answered by its `seq`.
//!
//! What has arrived goes to the node in one call, and several calls are under way at once: under load the calls
//! grow by themselves. Whoever does not read its results is not read from.
//!
//! Whatever ends a stream, all that was taken from it is answered first: what is left without an answer was never
//! looked at, and may be sent again.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use model::limits;
use node::Node;
use node::call::Given;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Status, Streaming};
use wire::grpc::streams::{Item, ItemTask, WrittenResults};
use wire::http::parse::check_at_most;
use wire::http::{Code, Problem};

use super::enqueue::no_task;
use super::under_way::UnderWay;
use super::{read, status, tell};
use crate::app::App;
use crate::problem::Refusal;

/// Calls of one stream under way at once.
const CALLS_MAX: usize = 16;
/// Tasks in one call, but for a single larger message.
const ITEMS_MAX: usize = 1_000;
/// Bytes of payload in one call, but for a single larger message.
const BYTES_MAX: usize = 1024 * 1024;

/// Answers a stream of items.
pub(super) fn run(app: App, items: Streaming<Item>) -> BoxStream<'static, Result<WrittenResults, Status>> {
    let stopping = Box::pin(app.stopping().clone().cancelled_owned());
    let (node, calls) = (app.node.clone(), UnderWay::default());
    Work { node, items, has_ended: false, end: None, calls, stopping }.boxed()
}

struct Work {
    node: Node,
    items: Streaming<Item>,
    has_ended: bool,
    /// What is said at the end, when it is not a good one.
    end: Option<Status>,
    calls: UnderWay<WrittenResults>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Items that go to the node together.
#[derive(Default)]
struct Batch {
    seqs: Vec<u64>,
    tasks: Vec<Given>,
    bytes: usize,
}

impl Work {
    /// Takes what has arrived. What was wrong with some of it is answered at once.
    fn poll_items(&mut self, context: &mut Context<'_>, refused: &mut WrittenResults) -> Batch {
        let mut batch = Batch::default();
        while !self.has_ended && batch.seqs.len() < ITEMS_MAX && batch.bytes < BYTES_MAX {
            match self.items.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(item))) => {
                    if let Err(refusal) = batch.add_all(item, refused) {
                        (self.has_ended, self.end) = (true, Some(refusal.into()));
                    }
                }
                Poll::Ready(Some(Err(status))) => {
                    (self.has_ended, self.end) = (true, Some(unreadable(status)));
                }
                Poll::Ready(None) => self.has_ended = true,
                Poll::Pending => break,
            }
            if refused.len() >= ITEMS_MAX {
                break;
            }
        }
        batch
    }

    fn call(&mut self, batch: Batch) {
        let node = self.node.clone();
        self.calls.push(async move { batch.enqueue(&node).await });
    }
}

impl Stream for Work {
    type Item = Result<WrittenResults, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let work = &mut *self;
        if !work.has_ended && work.stopping.as_mut().poll(context).is_ready() {
            // What is under way is still answered.
            (work.has_ended, work.end) = (true, Some(stopping()));
        }
        let mut results = WrittenResults::default();
        while !work.has_ended && work.calls.len() < CALLS_MAX {
            let batch = work.poll_items(context, &mut results);
            let is_full = batch.seqs.len() >= ITEMS_MAX || batch.bytes >= BYTES_MAX;
            if !batch.seqs.is_empty() {
                work.call(batch);
            }
            if !is_full {
                break;
            }
        }
        while let Poll::Ready(told) = work.calls.poll_next(context) {
            results.join(told);
        }
        if !results.is_empty() {
            return Poll::Ready(Some(Ok(results)));
        }
        if !work.has_ended || !work.calls.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(work.end.take().map(Err))
    }
}

impl Batch {
    /// Takes in what one message brought.
    fn add_all(&mut self, item: Item, refused: &mut WrittenResults) -> Result<(), Refusal> {
        check_at_most("more", &item.more, limits::ENQUEUE_TASKS_MAX)?;
        self.seqs.reserve(1 + item.more.len());
        self.tasks.reserve(1 + item.more.len());
        self.add(item.seq, item.task, refused);
        for (seq, task) in (1..).map(|n| item.seq.wrapping_add(n)).zip(item.more) {
            self.add(seq, Some(task), refused);
        }
        Ok(())
    }

    fn add(&mut self, seq: u64, task: Option<ItemTask>, refused: &mut WrittenResults) {
        match task.map(read::item) {
            Some(Ok(task)) => {
                self.bytes += task.payload().len();
                self.seqs.push(seq);
                self.tasks.push(task);
            }
            Some(Err(invalid)) => refused.add_error(seq, status::error(Problem::from(invalid))),
            None => refused.add_error(seq, status::error(no_task().into_problem())),
        }
    }

    async fn enqueue(self, node: &Node) -> WrittenResults {
        let (mut tasks, mut seqs) = (self.tasks, self.seqs.into_iter());
        let mut results = WrittenResults::with_room(seqs.len());
        // One message may bring as many as a call takes, and others came before it.
        while !tasks.is_empty() {
            let rest = tasks.split_off(tasks.len().min(limits::ENQUEUE_TASKS_MAX));
            let seqs = seqs.by_ref().take(tasks.len());
            match node.enqueue(std::mem::replace(&mut tasks, rest), false).await {
                Ok(answer) => seqs.zip(&answer.value).for_each(|(seq, told)| match told {
                    Ok(enqueued) => {
                        let (status, state) = tell::words(enqueued);
                        results.add_enqueued(seq, enqueued.id, status, state);
                    }
                    Err(error) => results.add_error(seq, tell::refused(error)),
                }),
                // It is the same for all of them.
                Err(error) => seqs.for_each(|seq| results.add_error(seq, tell::refused(&error))),
            }
        }
        results
    }
}

/// What is said of an item that could not be read. One that is too large is the first without an answer.
fn unreadable(status: Status) -> Status {
    match status.code() {
        tonic::Code::OutOfRange => {
            let text = format!("an item is too large, and ends the stream: {}", status.message());
            Refusal::new(Code::PayloadTooLarge, text).into()
        }
        _ => status,
    }
}

fn stopping() -> Status {
    Refusal::new(Code::Unavailable, "this server stops: connect to another").into()
}
