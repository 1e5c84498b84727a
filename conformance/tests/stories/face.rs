//! What a face must be able to do for a story. The steps themselves are in `run.rs`.

use serde_json::Value;

/// The code of a refusal; of a failure that is none, what went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

pub(crate) type Outcome<T> = Result<T, Refused>;

/// What the SDK says when a claim is another's by now: it does not tell the codes apart.
pub(crate) const LOST: &str = "lost";

/// Something went wrong that is no refusal.
pub(crate) fn broken(what: impl std::fmt::Display) -> Refused {
    Refused(format!("(no refusal: {what})"))
}

/// What became of an enqueue.
#[derive(Clone, Debug)]
pub(crate) struct Enqueued {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) is_duplicate: bool,
}

/// A task in a worker's hands.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) id: String,
    pub(crate) worker: String,
    pub(crate) fence: u64,
    pub(crate) attempt: u64,
    pub(crate) payload: Value,
    /// Empty where the face keeps it to itself.
    pub(crate) token: String,
}

/// What a worker says of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Ack,
    Fail,
    Release,
    Extend,
    Progress,
}

impl Says {
    pub(crate) fn of(verb: &str) -> Option<Says> {
        Some(match verb {
            "ack" => Says::Ack,
            "fail" => Says::Fail,
            "release" => Says::Release,
            "extend" => Says::Extend,
            "progress" => Says::Progress,
            _ => return None,
        })
    }

    /// Whether the claim is over by it.
    pub(crate) fn is_end(self) -> bool {
        matches!(self, Says::Ack | Says::Fail | Says::Release)
    }
}

/// One way to speak to a server.
pub(crate) trait Face {
    /// Its word in `skip`.
    const NAME: &'static str;

    async fn enqueue(&mut self, task: &Value) -> Outcome<Enqueued>;

    /// Tasks of one queue in one call.
    async fn enqueue_many(&mut self, tasks: &[Value]) -> Outcome<Vec<Outcome<Enqueued>>>;

    /// This worker has a session from now on.
    async fn session(&mut self, worker: &str) -> Outcome<()>;

    /// Waits for so many tasks of a queue. With 0 it looks for a moment, and gives what should not have come.
    async fn claim(
        &mut self,
        worker: &str,
        queue: &str,
        hold_ms: Option<u64>,
        count: usize,
    ) -> Outcome<Vec<Claimed>>;

    /// What the task is after it, or `held`; nothing when the face does not tell.
    async fn settle(&mut self, claim: &Claimed, says: Says, body: &Value) -> Outcome<Option<String>>;

    /// Returns when the worker has heard that somebody wants its task stopped.
    async fn told(&mut self, claim: &Claimed) -> Outcome<()>;

    /// The worker goes in order.
    async fn leave(&mut self, worker: &str) -> Outcome<()>;

    /// The worker is heard of no more.
    async fn vanish(&mut self, worker: &str) -> Outcome<()>;

    async fn cancel(&mut self, id: &str, reason: &str) -> Outcome<String>;

    async fn requeue(&mut self, id: &str) -> Outcome<String>;

    async fn pause(&mut self, queue: &str) -> Outcome<()>;

    async fn resume(&mut self, queue: &str) -> Outcome<()>;

    async fn set_queue(&mut self, queue: &str, policy: &Value) -> Outcome<()>;

    /// A task as over HTTP, but `due` and `deadline` in milliseconds since 1970, and of its history the events' words.
    async fn task(&mut self, id: &str) -> Outcome<Value>;

    /// A queue as over HTTP.
    async fn queue(&mut self, queue: &str) -> Outcome<Value>;

    /// The ids of all tasks of a kind in a queue.
    async fn find(&mut self, queue: &str, kind: &str) -> Outcome<Vec<String>>;

    /// Waits for a task's end: its state and output.
    async fn result(&mut self, id: &str) -> Outcome<(String, Value)>;
}
