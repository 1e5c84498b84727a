//! HTTP/JSON, as any program without an SDK speaks it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::face::{Claimed, Enqueued, Face, Outcome, Refused, Says, broken};

/// How long something that is expected may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a claim that should get nothing looks.
const MOMENT_MS: u64 = 300;
/// How often a worker with a session beats.
const BEAT: Duration = Duration::from_millis(300);

pub(crate) struct Http {
    addr: SocketAddr,
    sessions: BTreeMap<String, Session>,
}

/// A worker's session, and who beats for it.
struct Session {
    id: String,
    held: Arc<Mutex<Vec<(String, u64)>>>,
    beating: AbortHandle,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

impl Http {
    pub(crate) fn new(addr: SocketAddr) -> Http {
        Http { addr, sessions: BTreeMap::new() }
    }

    async fn post(&self, path: &str, body: Value) -> Outcome<Value> {
        ask(self.addr, "POST", path, &body).await
    }

    async fn get(&self, path: &str) -> Outcome<Value> {
        ask(self.addr, "GET", path, &Value::Null).await
    }
}

/// One request; what was answered, or the code of the refusal.
async fn ask(addr: SocketAddr, method: &str, path: &str, body: &Value) -> Outcome<Value> {
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path).header("host", addr.to_string());
    let request = request.body(Full::new(body)).map_err(broken)?;
    let asked = async {
        let stream = TcpStream::connect(addr).await.map_err(broken)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let bytes = body.collect().await.map_err(broken)?.to_bytes();
        Ok((head.status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    };
    let (status, answer) = tokio::time::timeout(PATIENCE * 2, asked).await.map_err(broken)??;
    if status.is_success() { Ok(answer) } else { Err(refused(&answer)) }
}

fn refused(problem: &Value) -> Refused {
    problem["code"].as_str().map_or_else(|| broken(problem), |code| Refused(code.to_owned()))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// As a part of a path.
fn part(name: &str) -> String {
    name.replace(' ', "%20")
}

fn enqueued(answer: &Value) -> Enqueued {
    let is_duplicate = answer["status"] == "duplicate";
    Enqueued { id: text(&answer["id"]), state: text(&answer["state"]), is_duplicate }
}

/// A task without its queue, which is in the path; and that.
fn split(task: &Value) -> (String, Value) {
    let mut task = task.clone();
    let queue = task.as_object_mut().and_then(|task| task.remove("queue"));
    (part(&queue.as_ref().map(text).unwrap_or_default()), task)
}

/// A body with a token.
fn with(mut body: Value, name: &str, value: Value) -> Value {
    if body.is_null() {
        body = json!({});
    }
    body[name] = value;
    body
}

impl Face for Http {
    const NAME: &'static str = "http";

    async fn enqueue(&mut self, task: &Value) -> Outcome<Enqueued> {
        let (queue, task) = split(task);
        Ok(enqueued(&self.post(&format!("/v1/queues/{queue}/tasks"), task).await?))
    }

    async fn enqueue_many(&mut self, tasks: &[Value]) -> Outcome<Vec<Outcome<Enqueued>>> {
        let (queues, tasks): (Vec<String>, Vec<Value>) = tasks.iter().map(split).unzip();
        let answer = self.post(&format!("/v1/queues/{}/tasks", queues[0]), json!({"tasks": tasks})).await?;
        let results = answer["results"].as_array().ok_or_else(|| broken(&answer))?;
        let outcome = |result: &Value| match &result["error"] {
            Value::Null => Ok(enqueued(result)),
            error => Err(refused(error)),
        };
        Ok(results.iter().map(outcome).collect())
    }

    async fn session(&mut self, worker: &str) -> Outcome<()> {
        let registered = self.post("/v1/workers", json!({"id": worker, "slots": 8})).await?;
        let held: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
        let (id, beaten, addr) = (text(&registered["session"]), held.clone(), self.addr);
        let (path, session) = (format!("/v1/workers/{worker}/beat"), id.clone());
        let beating = tokio::spawn(async move {
            loop {
                let running = beaten.lock().unwrap().clone();
                let running: Vec<Value> =
                    running.iter().map(|(id, fence)| json!({"id": id, "fence": fence})).collect();
                // Whoever looks at the claims sees when it does not work.
                let _ = ask(addr, "POST", &path, &json!({"session": session, "running": running})).await;
                tokio::time::sleep(BEAT).await;
            }
        });
        let session = Session { id, held, beating: beating.abort_handle() };
        self.sessions.insert(worker.to_owned(), session);
        Ok(())
    }

    async fn claim(
        &mut self,
        worker: &str,
        queue: &str,
        hold_ms: Option<u64>,
        count: usize,
    ) -> Outcome<Vec<Claimed>> {
        let (mut claims, began) = (Vec::new(), Instant::now());
        loop {
            let wait_ms = if count == 0 { MOMENT_MS } else { 5_000 };
            let max = (count - claims.len()).max(1);
            let mut body = json!({"queues": [queue], "worker": worker, "max": max, "wait_ms": wait_ms});
            if let Some(hold_ms) = hold_ms {
                body["hold_ms"] = json!(hold_ms);
            }
            let session = self.sessions.get(worker);
            if let Some(session) = session {
                body["session"] = json!(session.id);
            }
            let answer = self.post("/v1/claims", body).await?;
            for claim in answer["claims"].as_array().ok_or_else(|| broken(&answer))? {
                let (id, fence) = (text(&claim["id"]), claim["fence"].as_u64().unwrap_or_default());
                if let Some(session) = session {
                    session.held.lock().unwrap().push((id.clone(), fence));
                }
                claims.push(Claimed {
                    id,
                    worker: worker.to_owned(),
                    fence,
                    attempt: claim["attempt"].as_u64().unwrap_or_default(),
                    payload: claim["payload"].clone(),
                    token: text(&claim["token"]),
                });
            }
            if claims.len() >= count || began.elapsed() > PATIENCE {
                return Ok(claims);
            }
        }
    }

    async fn settle(&mut self, claim: &Claimed, says: Says, body: &Value) -> Outcome<Option<String>> {
        let verb = match says {
            Says::Ack => "ack",
            Says::Fail => "fail",
            Says::Release => "release",
            Says::Extend => "extend",
            Says::Progress => "progress",
        };
        let body = with(body.clone(), "token", json!(claim.token));
        let answer = self.post(&format!("/v1/claims/{verb}"), body).await?;
        if !says.is_end() {
            return Ok(Some("held".to_owned()));
        }
        if let Some(session) = self.sessions.get(&claim.worker) {
            session.held.lock().unwrap().retain(|(id, fence)| (id, *fence) != (&claim.id, claim.fence));
        }
        Ok(Some(text(&answer["state"])))
    }

    async fn told(&mut self, claim: &Claimed) -> Outcome<()> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let answer = self.post("/v1/claims/extend", json!({"token": claim.token})).await?;
            if answer["cancel_requested"] == true {
                return Ok(());
            }
        }
        Err(broken("it was not told"))
    }

    async fn leave(&mut self, worker: &str) -> Outcome<()> {
        self.sessions.remove(worker);
        ask(self.addr, "DELETE", &format!("/v1/workers/{worker}"), &Value::Null).await.map(drop)
    }

    async fn vanish(&mut self, worker: &str) -> Outcome<()> {
        self.sessions.remove(worker).map(drop).ok_or_else(|| broken("it has no session"))
    }

    async fn cancel(&mut self, id: &str, reason: &str) -> Outcome<String> {
        let path = format!("/v1/tasks/{id}?reason={}", part(reason));
        Ok(text(&ask(self.addr, "DELETE", &path, &Value::Null).await?["state"]))
    }

    async fn requeue(&mut self, id: &str) -> Outcome<String> {
        Ok(text(&self.post(&format!("/v1/tasks/{id}/requeue"), Value::Null).await?["state"]))
    }

    async fn pause(&mut self, queue: &str) -> Outcome<()> {
        self.post(&format!("/v1/queues/{queue}/pause"), Value::Null).await.map(drop)
    }

    async fn resume(&mut self, queue: &str) -> Outcome<()> {
        self.post(&format!("/v1/queues/{queue}/resume"), Value::Null).await.map(drop)
    }

    async fn set_queue(&mut self, queue: &str, policy: &Value) -> Outcome<()> {
        ask(self.addr, "PUT", &format!("/v1/queues/{queue}"), policy).await.map(drop)
    }

    async fn task(&mut self, id: &str) -> Outcome<Value> {
        let mut task = self.get(&format!("/v1/tasks/{id}")).await?;
        for time in ["due", "deadline"] {
            let at = task[time].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
            task[time] = json!(at.map(|at| at.as_millisecond()));
        }
        let history = task["history"].as_array().cloned().unwrap_or_default();
        task["history"] = history.iter().map(|line| line["event"].clone()).collect();
        Ok(task)
    }

    async fn queue(&mut self, queue: &str) -> Outcome<Value> {
        self.get(&format!("/v1/queues/{queue}")).await
    }

    async fn find(&mut self, queue: &str, kind: &str) -> Outcome<Vec<String>> {
        let answer = self.get(&format!("/v1/tasks?queue={queue}&kind={kind}")).await?;
        let tasks = answer["tasks"].as_array().ok_or_else(|| broken(&answer))?;
        Ok(tasks.iter().map(|task| text(&task["id"])).collect())
    }

    async fn result(&mut self, id: &str) -> Outcome<(String, Value)> {
        let task = self.get(&format!("/v1/tasks/{id}?wait_ms=30000")).await?;
        Ok((text(&task["state"]), task["output"].clone()))
    }
}
