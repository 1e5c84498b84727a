//! Runs the steps of a story, one after the other, against one face. This table is what a runner in another language
//! has to write again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use windlass_testing::TestServer;

use crate::face::{Claimed, Enqueued, Face, LOST, Outcome, Refused, Says};
use crate::story::{Step, Story};
use crate::verbs;

/// How long something that is expected may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// A story while it is told.
struct Run<'a, F> {
    face: F,
    server: &'a TestServer,
    tasks: BTreeMap<String, String>,
    /// By task and worker: the newest claim of each pair.
    claims: BTreeMap<String, Claimed>,
    /// How far the server's clock is ahead.
    ahead: Duration,
}

/// Tells a story; which line was not so, if one was not.
pub(crate) async fn run<F: Face>(story: &Story, face: F, server: &TestServer) -> Result<(), String> {
    let mut run =
        Run { face, server, tasks: BTreeMap::new(), claims: BTreeMap::new(), ahead: Duration::ZERO };
    for step in &story.steps {
        run.step(step).await.map_err(|why| {
            format!("{} ({}), line {}:\n    {}\n    {why}", story.name, F::NAME, step.line, step.text)
        })?;
    }
    Ok(())
}

impl<F: Face> Run<'_, F> {
    async fn step(&mut self, step: &Step) -> Result<(), String> {
        verbs::check(step)?;
        if let Some(says) = Says::of(&step.verb) {
            return self.settle(step, says).await;
        }
        match step.verb.as_str() {
            "enqueue" => self.enqueue(step).await,
            "enqueue-many" => self.enqueue_many(step).await,
            "claim" => self.claim(step).await,
            "expect" => self.expect(step).await,
            "expect-queue" => self.expect_queue(step).await,
            "find" => self.find(step).await,
            "newer" => {
                let (newer, older) = (self.claim_of(word(step, 0)?)?.fence, self.claim_of(word(step, 1)?)?);
                if newer > older.fence { Ok(()) } else { Err(format!("{newer} after {}", older.fence)) }
            }
            "name" => {
                self.tasks.insert(word(step, 0)?.to_owned(), word(step, 1)?.to_owned());
                Ok(())
            }
            "advance" => {
                let by = word(step, 0)?.parse().map_err(|error| format!("no milliseconds: {error}"))?;
                self.ahead += Duration::from_millis(by);
                self.server.advance(Duration::from_millis(by));
                Ok(())
            }
            "look" => {
                let id = self.id_of(word(step, 0)?)?;
                let state = self.face.task(&id).await.map(|task| text(&task["state"]));
                same(step, &told(state))
            }
            "result" => {
                let id = self.id_of(word(step, 0)?)?;
                let ended = self.face.result(&id).await;
                let output =
                    |value: &Value| if value.is_null() { String::new() } else { format!(" {value}") };
                same(step, &told(ended.map(|(state, value)| format!("{state}{}", output(&value)))))
            }
            "cancel" => {
                let (id, reason) = (self.id_of(word(step, 0)?)?, text(&step.body["reason"]));
                same(step, &told(self.face.cancel(&id, &reason).await))
            }
            "requeue" => {
                let id = self.id_of(word(step, 0)?)?;
                same(step, &told(self.face.requeue(&id).await))
            }
            "told" => {
                let claim = self.claim_of(word(step, 0)?)?;
                done(self.face.told(&claim).await)
            }
            "session" => done(self.face.session(word(step, 0)?).await),
            "leave" => done(self.face.leave(word(step, 0)?).await),
            "vanish" => done(self.face.vanish(word(step, 0)?).await),
            "pause" => done(self.face.pause(word(step, 0)?).await),
            "resume" => done(self.face.resume(word(step, 0)?).await),
            "set-queue" => done(self.face.set_queue(word(step, 0)?, &step.body).await),
            other => Err(format!("no such verb: {other}")),
        }
    }

    async fn enqueue(&mut self, step: &Step) -> Result<(), String> {
        let outcome = self.face.enqueue(&step.body).await;
        let heard = self.enqueued(word(step, 0)?, outcome);
        same(step, &heard)
    }

    async fn enqueue_many(&mut self, step: &Step) -> Result<(), String> {
        let tasks = step.body.as_array().ok_or("no list of tasks")?;
        let outcomes = self.face.enqueue_many(tasks).await.map_err(|refused| refused.0)?;
        let names: Vec<&str> = word(step, 0)?.split(',').collect();
        if names.len() != outcomes.len() {
            return Err(format!("{} outcomes of {} tasks", outcomes.len(), names.len()));
        }
        let heard: Vec<String> =
            names.into_iter().zip(outcomes).map(|(name, outcome)| self.enqueued(name, outcome)).collect();
        same(step, &heard.join("; "))
    }

    /// What a story calls the outcome; a new task has its name from now on.
    fn enqueued(&mut self, name: &str, outcome: Outcome<Enqueued>) -> String {
        match outcome {
            Err(Refused(code)) => format!("error {code}"),
            Ok(enqueued) if enqueued.is_duplicate => format!("duplicate {}", self.name_of(&enqueued.id)),
            Ok(enqueued) => {
                self.tasks.insert(name.to_owned(), enqueued.id);
                enqueued.state
            }
        }
    }

    async fn claim(&mut self, step: &Step) -> Result<(), String> {
        let (worker, queue) = (word(step, 0)?, word(step, 1)?);
        let expected = step.expected.as_deref().ok_or("a claim says what it gets")?;
        let mut names: Vec<&str> = expected.split(' ').filter(|name| *name != "none").collect();
        let hold_ms = step.body["hold_ms"].as_u64();
        let claims = self.face.claim(worker, queue, hold_ms, names.len()).await.map_err(|no| no.0)?;
        let mut got: Vec<String> = claims.iter().map(|claim| self.name_of(&claim.id)).collect();
        names.sort_unstable();
        got.sort_unstable();
        if got != names {
            return Err(format!("got {got:?}"));
        }
        for claim in claims {
            let task = self.face.task(&claim.id).await.map_err(|refused| refused.0)?;
            let of_task = json!([task["attempt"], task["fence"], task["payload"], task["worker"]]);
            let of_claim = json!([claim.attempt, claim.fence, claim.payload, worker]);
            if of_task != of_claim {
                return Err(format!("the claim says {of_claim}, the task {of_task}"));
            }
            self.claims.insert(format!("{}@{worker}", self.name_of(&claim.id)), claim);
        }
        Ok(())
    }

    async fn settle(&mut self, step: &Step, says: Says) -> Result<(), String> {
        let claim = self.claim_of(word(step, 0)?)?;
        let expected = step.expected.as_deref().ok_or("it says what comes of it")?;
        match self.face.settle(&claim, says, &step.body).await {
            Ok(Some(state)) => same(step, &state)?,
            // The face does not tell: the task does.
            Ok(None) if expected.starts_with("error ") => return Err("it was not refused".into()),
            Ok(None) => {}
            Err(Refused(code)) if code == LOST => {
                let is_so = matches!(expected, "error stale_token" | "error not_claimed");
                return if is_so { Ok(()) } else { Err("the claim is lost".into()) };
            }
            Err(Refused(code)) => return same(step, &format!("error {code}")),
        }
        if says.is_end() { self.until(&claim.id, &json!({"state": expected})).await } else { Ok(()) }
    }

    async fn expect(&mut self, step: &Step) -> Result<(), String> {
        let id = self.id_of(word(step, 0)?)?;
        self.until(&id, &step.body).await
    }

    /// Waits until a task is as expected.
    async fn until(&mut self, id: &str, expected: &Value) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let mut task = self.face.task(id).await.map_err(|refused| refused.0)?;
            for time in ["due", "deadline"] {
                let left = task[time].as_i64().map(|at| at - self.now());
                task[format!("{time}_in_ms")] = json!(left);
            }
            let Err(why) = fits(expected, &task, Depth::Top) else { return Ok(()) };
            if began.elapsed() > PATIENCE {
                return Err(format!("{why}, in {task}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn expect_queue(&mut self, step: &Step) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let queue = self.face.queue(word(step, 0)?).await.map_err(|refused| refused.0)?;
            let Err(why) = fits(&step.body, &queue, Depth::Top) else { return Ok(()) };
            if began.elapsed() > PATIENCE {
                return Err(format!("{why}, in {queue}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Gives a name to the only task of a kind in a queue.
    async fn find(&mut self, step: &Step) -> Result<(), String> {
        let (name, queue, kind) = (word(step, 0)?, word(step, 1)?, word(step, 2)?);
        let began = Instant::now();
        loop {
            let found = self.face.find(queue, kind).await.map_err(|refused| refused.0)?;
            if let [one] = found.as_slice() {
                self.tasks.insert(name.to_owned(), one.clone());
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("found {found:?}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The server's time, in milliseconds since 1970.
    fn now(&self) -> i64 {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        i64::try_from((real + self.ahead).as_millis()).unwrap()
    }

    fn id_of(&self, name: &str) -> Result<String, String> {
        self.tasks.get(name).cloned().ok_or(format!("no task has the name {name}"))
    }

    fn name_of(&self, id: &str) -> String {
        let named = self.tasks.iter().find(|(_, of)| *of == id);
        named.map_or(format!("(unknown {id})"), |(name, _)| name.clone())
    }

    fn claim_of(&self, pair: &str) -> Result<Claimed, String> {
        self.claims.get(pair).cloned().ok_or(format!("nobody made the claim {pair}"))
    }
}

fn word(step: &Step, n: usize) -> Result<&str, String> {
    step.words.get(n).map(String::as_str).ok_or(format!("{} needs {} words", step.verb, n + 1))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn told(outcome: Outcome<String>) -> String {
    outcome.unwrap_or_else(|Refused(code)| format!("error {code}"))
}

fn done(outcome: Outcome<()>) -> Result<(), String> {
    outcome.map_err(|Refused(code)| format!("error {code}"))
}

fn same(step: &Step, heard: &str) -> Result<(), String> {
    let expected = step.expected.as_deref().ok_or("it says what comes of it")?;
    if heard == expected { Ok(()) } else { Err(format!("heard: {heard}")) }
}

/// Whether the fields are those of the task or queue itself, or of something in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Top,
    Below,
}

/// Whether all that is expected is so. Null stands for what is not there, two numbers under `*_in_ms` for a range.
fn fits(expected: &Value, actual: &Value, depth: Depth) -> Result<(), String> {
    let fields = expected.as_object().ok_or("no object is expected")?;
    for (name, wanted) in fields {
        // The fields of a task or a queue are known ones; what they hold is not looked for where it cannot be.
        let is = &actual[name];
        if actual.get(name).is_none() && depth == Depth::Below {
            return Err(format!("{name} is no field of it"));
        }
        let range = if name.ends_with("_in_ms") { wanted.as_array() } else { None };
        match (wanted, range) {
            (_, Some(range)) => {
                let (from, to) = (range[0].as_i64(), range[1].as_i64());
                if !is.as_i64().is_some_and(|is| from <= Some(is) && Some(is) <= to) {
                    return Err(format!("{name} is {is}, not within {wanted}"));
                }
            }
            (Value::Object(_), _) if is.is_object() => fits(wanted, is, Depth::Below)?,
            _ if wanted == is => {}
            _ => return Err(format!("{name} is {is}, not {wanted}")),
        }
    }
    Ok(())
}
