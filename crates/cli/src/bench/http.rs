//! Over HTTP and JSON: a connection carries one request at a time, so what is outstanding is connections.
//!
//! Without a rate a worker acks and claims the next in one call; with one it claims, then acks, so that each has its
//! own time.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::task::JoinSet;

use super::Target;
use super::http1::{Answer, Connection, strings};
use super::load::{Load, Plan};
use super::messages::KIND;
use super::pace::Pace;

/// How long a claim waits for a task.
const WAIT_MS: u64 = 2_000;
/// And one that comes with an ack: the ack's answer waits with it, and at the end of a run there is nothing more to come.
const WAIT_WITH_ACK_MS: u64 = 100;
/// A pause after a refusal, so that a full queue is not asked in a circle.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// Connections on each side.
fn connections(plan: &Plan, target: &Target) -> usize {
    target.connections.unwrap_or(plan.outstanding as usize).max(1)
}

pub(super) fn producing(plan: &Plan, target: &Target) -> usize {
    if plan.producers == 0 { 0 } else { connections(plan, target) }
}

/// Starts all; none of the workers ends unless something is wrong.
pub(super) fn run(target: &Target, load: &Arc<Load>, running: &mut JoinSet<Result<()>>) {
    for n in 0..connections(&load.plan, target) {
        let address = target.address(n);
        if load.plan.workers > 0 {
            let worker = format!("{}-{}", target.prefix, n % load.plan.workers);
            running.spawn_local(work(address, target.queue.clone(), worker, load.clone()));
        }
        if load.plan.producers > 0 {
            let (queue, load) = (target.queue.clone(), load.clone());
            running.spawn_local(async move {
                produce(address, &queue, &load).await?;
                load.producer_ended();
                Ok(())
            });
        }
    }
}

async fn produce(address: SocketAddr, queue: &str, load: &Load) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let path = format!("/v1/queues/{}/tasks", crate::client::escaped(queue));
    let mut pace = Pace::default();
    while let Some(next) = load.next() {
        let from = pace.until(next.due).await;
        let payload = String::from_utf8(load.payload(from))?;
        let one = format!(r#"{{"kind":"{KIND}","payload":{payload}}}"#);
        let body = match load.plan.batch {
            1 => one,
            _ => format!(r#"{{"tasks":[{}]}}"#, vec![one.as_str(); next.tasks as usize].join(",")),
        };
        load.sent(next, from);
        let answer = connection.post(&path, body.as_bytes()).await?;
        let refused = refusals(answer, next.tasks, load);
        load.enqueued_many(from, next.tasks - refused);
        if refused > 0 {
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
    }
    Ok(())
}

/// How many of so many were refused, counted by code.
fn refusals(answer: Answer<'_>, of: u64, load: &Load) -> u64 {
    let codes: Vec<&str> = strings(answer.body, "code").collect();
    if !answer.is_ok {
        load.refused(codes.first().unwrap_or(&"unknown"), of);
        return of;
    }
    codes.iter().for_each(|code| load.refused(code, 1));
    (codes.len() as u64).min(of)
}

async fn work(address: SocketAddr, queue: String, worker: String, load: Arc<Load>) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let claim = |wait_ms| {
        let max = load.plan.batch.min(1000);
        serde_json::json!({ "queues": [queue], "worker": worker, "max": max, "wait_ms": wait_ms }).to_string()
    };
    let (claim, claim_with_ack) = (claim(WAIT_MS), claim(WAIT_WITH_ACK_MS));
    let is_timed = load.plan.rate.is_some();
    let mut tokens: Vec<String> = Vec::new();
    loop {
        let held = tokens.len() as u64;
        let answer = match held {
            0 => connection.post("/v1/claims", claim.as_bytes()).await?,
            _ => {
                let claim = (!is_timed).then_some(claim_with_ack.as_str());
                let body = acks(&tokens, claim)?;
                let sent = Instant::now();
                let answer = connection.post("/v1/claims/ack", body.as_bytes()).await?;
                let refused = refusals(answer, held, &load);
                match is_timed {
                    true => load.acked(std::iter::repeat_n(sent, (held - refused) as usize)),
                    false => load.acked_untimed(held - refused),
                }
                answer
            }
        };
        if !answer.is_ok && held == 0 {
            bail!("claims are refused: {}", String::from_utf8_lossy(answer.body));
        }
        load.received(payloads(answer.body));
        tokens.clear();
        tokens.extend(strings(answer.body, "token").map(str::to_owned));
    }
}

/// The acks of these tokens, and what to claim in the same call.
fn acks(tokens: &[String], claim: Option<&str>) -> Result<String> {
    let mut body = String::from("{");
    match tokens {
        [token] => write!(body, r#""token":"{token}""#)?,
        _ => {
            body.push_str(r#""acks":["#);
            for (n, token) in tokens.iter().enumerate() {
                let comma = if n == 0 { "" } else { "," };
                write!(body, r#"{comma}{{"token":"{token}"}}"#)?;
            }
            body.push(']');
        }
    }
    if let Some(claim) = claim {
        write!(body, r#","claim":{claim}"#)?;
    }
    body.push('}');
    Ok(body)
}

/// The payloads of claimed tasks, each from its first quote on.
fn payloads(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    strings(body, "payload").map(|text| {
        // One byte before the text is its quote.
        let start = text.as_ptr() as usize - body.as_ptr() as usize;
        &body[start - 1..start + text.len()]
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn payloads_are_found_where_they_stand() {
        let body = br#"{"claims":[{"payload":"12x","token":"a"},{"payload":"34x","token":"b"}]}"#;
        assert_eq!(payloads(body).collect::<Vec<_>>(), [&b"\"12x"[..], b"\"34x"]);
    }

    #[test]
    fn acks_are_json_alone_together_and_with_a_claim() {
        let tokens = ["a".to_owned(), "b".to_owned()];
        for (tokens, claim, expected) in [
            (&tokens[..1], None, r#"{"token":"a"}"#),
            (&tokens[..1], Some("{}"), r#"{"token":"a","claim":{}}"#),
            (&tokens[..], Some("{}"), r#"{"acks":[{"token":"a"},{"token":"b"}],"claim":{}}"#),
        ] {
            assert_eq!(acks(tokens, claim).unwrap(), expected);
        }
    }
}
