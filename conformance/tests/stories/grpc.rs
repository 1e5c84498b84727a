//! gRPC: workers on the `Work` stream, everything else by single calls.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use wire::grpc;
use wire::grpc::enqueue_outcome::Outcome as OfEnqueue;
use wire::grpc::outcome::Outcome as Said;
use wire::grpc::outcome_result::Result as Answer;
use wire::grpc::server_message::Message as FromServer;
use wire::grpc::windlass_client::WindlassClient;
use wire::grpc::worker_message::Message as FromWorker;

use crate::face::{Claimed, Enqueued, Face, Outcome, Refused, Says, broken};
use crate::proto::{bytes_of, json_of, known, policy_of, queue_view, task_of, text, view_of};

/// How long something that is expected may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a claim that should get nothing looks.
const MOMENT: Duration = Duration::from_millis(300);
/// How often a stream beats.
const BEAT: Duration = Duration::from_millis(300);

pub(crate) struct Grpc {
    client: WindlassClient<Channel>,
    /// By worker: each has one stream at a time.
    streams: BTreeMap<String, Stream>,
}

/// A worker's stream.
struct Stream {
    say: mpsc::Sender<grpc::WorkerMessage>,
    heard: Arc<Heard>,
    running: AbortHandle,
    seq: u64,
}

/// What the server said, and what is held.
#[derive(Default)]
struct Heard {
    inbox: Mutex<Inbox>,
    news: Notify,
}

#[derive(Default)]
struct Inbox {
    pushed: VecDeque<grpc::Claim>,
    received: u64,
    held: Vec<(String, u64)>,
    results: HashMap<u64, grpc::OutcomeResult>,
    cancelled: HashSet<(String, u64)>,
    is_over: bool,
}

impl Heard {
    /// Waits until something is so, or for as long as may be.
    async fn until<T>(&self, within: Duration, look: impl Fn(&mut Inbox) -> Option<T>) -> Option<T> {
        let began = Instant::now();
        loop {
            let news = self.news.notified();
            if let Some(found) = look(&mut self.inbox.lock().unwrap()) {
                return Some(found);
            }
            let left = within.checked_sub(began.elapsed())?;
            let _ = tokio::time::timeout(left, news).await;
        }
    }

    fn hear(&self, message: FromServer) {
        let mut inbox = self.inbox.lock().unwrap();
        match message {
            FromServer::Tasks(tasks) => {
                for claim in tasks.claims {
                    inbox.received += 1;
                    inbox.held.push((claim.id.clone(), claim.fence));
                    inbox.pushed.push_back(claim);
                }
            }
            FromServer::Results(results) => {
                inbox.results.extend(results.results.into_iter().map(|result| (result.seq, result)));
            }
            FromServer::Beat(answer) => {
                inbox.cancelled.extend(answer.cancel.into_iter().map(|task| (task.id, task.fence)));
            }
            FromServer::Cancel(cancel) => {
                inbox.cancelled.insert((cancel.id, cancel.fence));
            }
            _ => {}
        }
    }
}

impl Grpc {
    pub(crate) async fn connect(url: String) -> Grpc {
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        Grpc { client: WindlassClient::new(channel), streams: BTreeMap::new() }
    }

    /// Opens a worker's stream.
    async fn open(&mut self, worker: &str, queue: &str, hold_ms: Option<u64>) -> Outcome<Stream> {
        let hello = grpc::Hello {
            worker: worker.to_owned(),
            slots: Some(8),
            queues: vec![grpc::QueueChoice { name: queue.to_owned(), weight: None }],
            hold_ms,
            ..Default::default()
        };
        let (say, mut said) = mpsc::channel(64);
        say.try_send(message(FromWorker::Hello(hello))).map_err(broken)?;
        let saying = futures::stream::poll_fn(move |context| said.poll_recv(context));
        let mut hear = self.client.work(saying).await.map_err(|status| code(&status))?.into_inner();
        let heard = Arc::new(Heard::default());
        let (hearing, beats) = (heard.clone(), say.downgrade());
        let running = tokio::spawn(async move {
            let mut beat = tokio::time::interval(BEAT);
            loop {
                tokio::select! {
                    next = hear.message() => match next {
                        Ok(Some(next)) => next.message.into_iter().for_each(|said| hearing.hear(said)),
                        Ok(None) | Err(_) => break,
                    },
                    _ = beat.tick() => {
                        let (held, received) = {
                            let inbox = hearing.inbox.lock().unwrap();
                            (inbox.held.clone(), inbox.received)
                        };
                        let held = held.into_iter().map(|(id, fence)| grpc::HeldTask { id, fence }).collect();
                        let tasks = grpc::HeldTasks { held, received: Some(received) };
                        if let Some(say) = beats.upgrade() {
                            let _ = say.try_send(message(FromWorker::Beat(tasks)));
                        }
                    }
                }
                hearing.news.notify_waiters();
            }
            hearing.inbox.lock().unwrap().is_over = true;
            hearing.news.notify_waiters();
        });
        Ok(Stream { say, heard, running: running.abort_handle(), seq: 0 })
    }

    /// Ends a stream in order, and waits until it has ended.
    async fn goodbye(&mut self, worker: &str) {
        let Some(stream) = self.streams.remove(worker) else { return };
        let _ = stream.say.send(message(FromWorker::Goodbye(grpc::Goodbye {}))).await;
        stream.heard.until(PATIENCE, |inbox| inbox.is_over.then_some(())).await;
    }

    /// Says something of a claim on its stream; nothing when that is over.
    async fn on_stream(&mut self, claim: &Claimed, said: Said) -> Option<Outcome<String>> {
        let stream = self.streams.get_mut(&claim.worker)?;
        stream.seq += 1;
        let seq = stream.seq;
        let outcome = grpc::Outcome { seq, token: claim.token.clone(), outcome: Some(said) };
        let outcomes = grpc::Outcomes { outcomes: vec![outcome], ..Default::default() };
        stream.say.send(message(FromWorker::Outcomes(outcomes))).await.ok()?;
        let look = |inbox: &mut Inbox| match inbox.results.remove(&seq) {
            Some(result) => Some(Some(result)),
            None => inbox.is_over.then_some(None),
        };
        let result = stream.heard.until(PATIENCE, look).await??;
        Some(match result.result {
            Some(Answer::Settled(settled)) => Ok(settled.state),
            Some(Answer::Held(_)) => Ok("held".to_owned()),
            Some(Answer::Error(error)) => Err(Refused(error.code)),
            None => Err(broken("an answer without one")),
        })
    }

    /// Says it by a single call: the stream is over.
    async fn by_call(&mut self, claim: &Claimed, said: Said) -> Outcome<String> {
        let token = claim.token.clone();
        let client = &mut self.client;
        match said {
            Said::Ack(grpc::Done { output, then }) => {
                let request = grpc::AckRequest { token, output, then, claim: None };
                let reply = answer(client.ack(request).await)?;
                reply.settled.map(|settled| settled.state).ok_or_else(|| broken("an ack without an answer"))
            }
            Said::Fail(grpc::Failed { error, detail, retry_in_ms, fatal }) => {
                let request = grpc::FailRequest { token, error, detail, retry_in_ms, fatal };
                answer(client.fail(request).await).map(|settled| settled.state)
            }
            Said::Release(grpc::GivenBack { delay_ms }) => {
                let request = grpc::ReleaseRequest { token, delay_ms };
                answer(client.release(request).await).map(|settled| settled.state)
            }
            Said::Extend(grpc::Extension { hold_ms }) => {
                answer(client.extend(grpc::ExtendRequest { token, hold_ms }).await).map(|_| "held".to_owned())
            }
            Said::Progress(grpc::ProgressNote { percent, note }) => {
                let request = grpc::ProgressRequest { token, percent, note };
                answer(client.progress(request).await).map(|_| "held".to_owned())
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // What is not said goodbye to is cut.
        if !self.heard.inbox.lock().unwrap().is_over {
            self.running.abort();
        }
    }
}

fn message(message: FromWorker) -> grpc::WorkerMessage {
    grpc::WorkerMessage { message: Some(message) }
}

fn answer<T>(outcome: Result<Response<T>, Status>) -> Outcome<T> {
    outcome.map(Response::into_inner).map_err(|status| code(&status))
}

/// The code of a refused call.
fn code(status: &Status) -> Refused {
    let code = status.metadata().get("windlass-code").and_then(|code| code.to_str().ok());
    code.map_or_else(|| broken(status), |code| Refused(code.to_owned()))
}

fn enqueued(reply: grpc::EnqueueReply) -> Enqueued {
    Enqueued { id: reply.id, state: reply.state, is_duplicate: reply.status == "duplicate" }
}

fn claimed(worker: &str, claim: grpc::Claim) -> Claimed {
    Claimed {
        payload: json_of(&claim.payload),
        id: claim.id,
        worker: worker.to_owned(),
        fence: claim.fence,
        attempt: u64::from(claim.attempt),
        token: claim.token,
    }
}

/// What a worker says, as its stream carries it.
fn said_of(says: Says, body: &Value) -> Said {
    match says {
        Says::Ack => {
            known(body, &["output", "then"]);
            let then = body["then"].as_array().into_iter().flatten().map(task_of).collect();
            Said::Ack(grpc::Done { output: bytes_of(&body["output"]), then })
        }
        Says::Fail => {
            known(body, &["error", "detail", "retry_in_ms", "fatal"]);
            Said::Fail(grpc::Failed {
                error: text(&body["error"]).unwrap_or_default(),
                detail: text(&body["detail"]).unwrap_or_default(),
                retry_in_ms: body["retry_in_ms"].as_u64(),
                fatal: body["fatal"] == true,
            })
        }
        Says::Release => {
            Said::Release(grpc::GivenBack { delay_ms: body["delay_ms"].as_u64().unwrap_or_default() })
        }
        Says::Extend => Said::Extend(grpc::Extension { hold_ms: body["hold_ms"].as_u64() }),
        Says::Progress => Said::Progress(grpc::ProgressNote {
            percent: u32::try_from(body["percent"].as_u64().unwrap_or_default()).unwrap_or(u32::MAX),
            note: text(&body["note"]).unwrap_or_default(),
        }),
    }
}

impl Face for Grpc {
    const NAME: &'static str = "grpc";

    async fn enqueue(&mut self, task: &Value) -> Outcome<Enqueued> {
        let request = grpc::EnqueueRequest { task: Some(task_of(task)) };
        answer(self.client.enqueue(request).await).map(enqueued)
    }

    async fn enqueue_many(&mut self, tasks: &[Value]) -> Outcome<Vec<Outcome<Enqueued>>> {
        let request = grpc::EnqueueManyRequest { tasks: tasks.iter().map(task_of).collect(), atomic: false };
        let reply = answer(self.client.enqueue_many(request).await)?;
        let outcome = |result: grpc::EnqueueOutcome| match result.outcome {
            Some(OfEnqueue::Enqueued(reply)) => Ok(enqueued(reply)),
            Some(OfEnqueue::Error(error)) => Err(Refused(error.code)),
            None => Err(broken("an outcome without one")),
        };
        Ok(reply.results.into_iter().map(outcome).collect())
    }

    async fn session(&mut self, _: &str) -> Outcome<()> {
        // Every stream has one.
        Ok(())
    }

    async fn claim(
        &mut self,
        worker: &str,
        queue: &str,
        hold_ms: Option<u64>,
        count: usize,
    ) -> Outcome<Vec<Claimed>> {
        let stream = self.open(worker, queue, hold_ms).await?;
        let more = u32::try_from(count.max(1)).unwrap_or(1);
        stream.say.send(message(FromWorker::Credit(grpc::Credit { more }))).await.map_err(broken)?;
        let enough = count.max(1);
        let within = if count == 0 { MOMENT } else { PATIENCE };
        let look = |inbox: &mut Inbox| (inbox.pushed.len() >= enough || inbox.is_over).then_some(());
        stream.heard.until(within, look).await;
        let pushed = std::mem::take(&mut stream.heard.inbox.lock().unwrap().pushed);
        self.streams.insert(worker.to_owned(), stream);
        if pushed.is_empty() {
            self.goodbye(worker).await;
        }
        Ok(pushed.into_iter().map(|claim| claimed(worker, claim)).collect())
    }

    async fn settle(&mut self, claim: &Claimed, says: Says, body: &Value) -> Outcome<Option<String>> {
        let said = said_of(says, body);
        let outcome = match self.on_stream(claim, said.clone()).await {
            Some(outcome) => outcome,
            None => self.by_call(claim, said).await,
        };
        if says.is_end()
            && let Some(stream) = self.streams.get(&claim.worker)
        {
            let is_idle = {
                let mut inbox = stream.heard.inbox.lock().unwrap();
                inbox.held.retain(|(id, fence)| (id, *fence) != (&claim.id, claim.fence));
                inbox.held.is_empty()
            };
            if is_idle {
                self.goodbye(&claim.worker).await;
            }
        }
        outcome.map(Some)
    }

    async fn told(&mut self, claim: &Claimed) -> Outcome<()> {
        let stream = self.streams.get(&claim.worker).ok_or_else(|| broken("it has no stream"))?;
        let key = (claim.id.clone(), claim.fence);
        let look = |inbox: &mut Inbox| inbox.cancelled.contains(&key).then_some(());
        stream.heard.until(PATIENCE, look).await.ok_or_else(|| broken("it was not told"))
    }

    async fn leave(&mut self, worker: &str) -> Outcome<()> {
        self.goodbye(worker).await;
        Ok(())
    }

    async fn vanish(&mut self, worker: &str) -> Outcome<()> {
        self.streams.remove(worker).map(drop).ok_or_else(|| broken("it has no stream"))
    }

    async fn cancel(&mut self, id: &str, reason: &str) -> Outcome<String> {
        let request = grpc::CancelTaskRequest { id: id.to_owned(), reason: reason.to_owned() };
        answer(self.client.cancel_task(request).await).map(|settled| settled.state)
    }

    async fn requeue(&mut self, id: &str) -> Outcome<String> {
        let request = grpc::TaskIdRequest { id: id.to_owned() };
        answer(self.client.requeue_task(request).await).map(|settled| settled.state)
    }

    async fn pause(&mut self, queue: &str) -> Outcome<()> {
        let request = grpc::QueueNameRequest { queue: queue.to_owned() };
        answer(self.client.pause_queue(request).await).map(drop)
    }

    async fn resume(&mut self, queue: &str) -> Outcome<()> {
        let request = grpc::QueueNameRequest { queue: queue.to_owned() };
        answer(self.client.resume_queue(request).await).map(drop)
    }

    async fn set_queue(&mut self, queue: &str, policy: &Value) -> Outcome<()> {
        answer(self.client.set_queue(policy_of(queue, policy)).await).map(drop)
    }

    async fn task(&mut self, id: &str) -> Outcome<Value> {
        let request = grpc::GetTaskRequest { id: id.to_owned(), ..Default::default() };
        answer(self.client.get_task(request).await).map(view_of)
    }

    async fn queue(&mut self, queue: &str) -> Outcome<Value> {
        let request = grpc::GetQueueRequest { queue: queue.to_owned(), ..Default::default() };
        answer(self.client.get_queue(request).await).map(|queue| queue_view(&queue))
    }

    async fn find(&mut self, queue: &str, kind: &str) -> Outcome<Vec<String>> {
        let (queue, kind) = (Some(queue.to_owned()), Some(kind.to_owned()));
        let request = grpc::ListTasksRequest { queue, kind, ..Default::default() };
        let reply = answer(self.client.list_tasks(request).await)?;
        Ok(reply.tasks.into_iter().map(|task| task.id).collect())
    }

    async fn result(&mut self, id: &str) -> Outcome<(String, Value)> {
        let request = grpc::GetTaskRequest { id: id.to_owned(), wait_ms: Some(30_000), ..Default::default() };
        let task = view_of(answer(self.client.get_task(request).await)?);
        Ok((text(&task["state"]).unwrap_or_default(), task["output"].clone()))
    }
}
