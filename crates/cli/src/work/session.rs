//! The worker's session: beats, the held stream, and what the server asks of us through either.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::time::{Instant, interval, sleep};

use super::running::Kill;
use super::{Phase, Worker};
use crate::claim::host;
use crate::client::{Call, Repeat, escaped, with_query};
use crate::exit::{Exit, Failure};

/// What we promise the server; it counts us as lost after two and a half of these.
const BEAT_MS: u64 = 1000;
/// How often we beat: a little more often than promised.
const BEAT: Duration = Duration::from_millis(800);
/// A beat that takes longer than this is as good as none.
const BEAT_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long one of several servers may take for a beat before the next one gets it.
const BEAT_EACH: Duration = Duration::from_millis(500);
/// A server says something on the held stream once a second; one that does not is as good as dead.
const STREAM_SILENCE_MAX: Duration = Duration::from_millis(2500);

/// The id of the session that the server gave us.
#[derive(Default)]
pub(super) struct Session {
    id: Mutex<Option<String>>,
    /// Held by the one that registers: two at once would end each other's sessions.
    turn: tokio::sync::Mutex<()>,
}

impl Session {
    pub(super) fn id(&self) -> Option<String> {
        self.id.lock().expect("nobody panics while holding this lock").clone()
    }

    fn set(&self, id: String) -> bool {
        let mut current = self.id.lock().expect("nobody panics while holding this lock");
        let changed = current.as_ref() != Some(&id);
        *current = Some(id);
        changed
    }
}

/// Registers the worker, going on with the session it has, if it has one. A new session means that the
/// old one's claims are gone: what runs is killed. Does nothing when `seen`, the session that the caller found
/// wanting, has been followed by another.
pub(super) async fn register(worker: &Worker, seen: Option<&str>) -> Result<()> {
    let _turn = worker.session.turn.lock().await;
    let current = worker.session.id();
    if current.as_deref() != seen {
        return Ok(());
    }
    let queues: Vec<&str> = worker.queues.iter().map(|queue| plain_name(queue)).collect();
    let mut body = json!({
        "id": worker.name,
        "host": host(),
        "pid": std::process::id(),
        "slots": worker.slots,
        "queues": queues,
        "labels": {},
        "version": env!("CARGO_PKG_VERSION"),
        "beat_ms": BEAT_MS,
    });
    if let Some(session) = current {
        body["session"] = session.into();
    }
    let answer = worker.client.call(Call::post("/v1/workers", &body, Repeat::Safe)).await?;
    let session = answer.text("session").context("the answer to POST /v1/workers has no session")?;
    if worker.session.set(session.to_owned()) {
        worker.running.kill_all(Kill::Lost);
        tracing::info!(worker = worker.name, session, "registered with {} slots", worker.slots);
    }
    obey(worker, answer.value());
    Ok(())
}

fn plain_name(queue: &str) -> &str {
    match queue.rsplit_once(':') {
        Some((name, weight)) if weight.parse::<u32>().is_ok() => name,
        _ => queue,
    }
}

/// Beats, and holds the stream, for ever.
pub(super) async fn keep(worker: Arc<Worker>) {
    tokio::join!(beat(&worker), hold_stream(&worker));
}

async fn beat(worker: &Worker) {
    let mut ticks = interval(BEAT);
    let mut silent_since: Option<Instant> = None;
    loop {
        ticks.tick().await;
        let session = worker.session.id();
        let body = json!({"session": session, "running": worker.running.beat()});
        let path = format!("/v1/workers/{}/beat", escaped(&worker.name));
        let call = Call::post(path, &body, Repeat::Safe).within(BEAT_TIMEOUT).each(BEAT_EACH);
        let outcome = match worker.client.call(call).await {
            Ok(answer) => {
                obey(worker, answer.value());
                Ok(())
            }
            Err(e) if is_unknown(&e) => register(worker, session.as_deref()).await,
            Err(e) => Err(e),
        };
        match (outcome, silent_since) {
            (Err(e), None) => {
                tracing::warn!("the server does not hear us: {e:#}");
                silent_since = Some(Instant::now());
            }
            (Ok(()), Some(since)) => {
                tracing::info!("the server hears us again after {:?}", since.elapsed());
                silent_since = None;
            }
            _ => {}
        }
    }
}

/// The end of this stream is how the server learns at once that we died, so it is held all the time.
async fn hold_stream(worker: &Worker) {
    loop {
        let path = format!("/v1/workers/{}/session", escaped(&worker.name));
        let session = worker.session.id();
        let path = with_query(&path, &[("session", session.clone())]);
        match worker.client.stream(path).await {
            Ok(mut stream) => {
                let mut lines = Lines::default();
                loop {
                    match stream.next(STREAM_SILENCE_MAX).await {
                        Ok(Some(data)) => lines.push(&data).iter().for_each(|event| obey(worker, event)),
                        Ok(None) => break,
                        Err(silence) => {
                            worker.client.leave(silence.server);
                            break;
                        }
                    }
                }
                tracing::debug!("the session's stream ended: opening it again");
            }
            Err(e) if is_unknown(&e) => {
                if let Err(e) = register(worker, session.as_deref()).await {
                    tracing::debug!("cannot register: {e:#}");
                }
            }
            Err(e) => tracing::debug!("cannot hold the session's stream: {e:#}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn is_unknown(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Failure>().is_some_and(|failure| failure.exit == Exit::NotFound)
}

/// Does what an answer to a beat or an event of the stream says.
fn obey(worker: &Worker, said: &Value) {
    match said.get("state").and_then(Value::as_str) {
        Some("draining") => worker.advance(Phase::Draining),
        Some("stopping") => worker.advance(Phase::Stopping),
        _ => {}
    }
    for cancel in said.get("cancel").and_then(Value::as_array).into_iter().flatten() {
        let id = cancel.get("id").and_then(Value::as_str);
        let fence = cancel.get("fence").and_then(Value::as_u64);
        if let (Some(id), Some(fence)) = (id, fence) {
            worker.running.kill(id, fence, Kill::Cancelled);
        }
    }
}

/// Puts an event stream's bytes together into the JSON of its `data:` lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<Value> {
        self.0.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.0.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            if let Some(data) = line.strip_prefix(b"data:") {
                events.extend(serde_json::from_slice(data).ok());
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_whatever_pieces_they_come_in() {
        let mut lines = Lines::default();
        assert!(lines.push(b": hello\n\nevent: x\ndata: {\"state\":").is_empty());
        let events = lines.push(b"\"draining\"}\n\ndata: {\"a\":1}\n");
        assert_eq!(events, [json!({"state": "draining"}), json!({"a": 1})]);
    }

    #[test]
    fn a_weight_is_not_part_of_a_queues_name() {
        assert_eq!(plain_name("mail:3"), "mail");
        assert_eq!(plain_name("a:b"), "a:b");
    }
}
