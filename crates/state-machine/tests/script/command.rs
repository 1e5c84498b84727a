//! The words of a script, made into commands.

use bytes::Bytes;
use model::command::{
    Ack, Claim, ClaimById, ClaimQueue, Dedup, Fail, OnTask, OutboxMessage, Unique, UniqueUntil,
};
use model::{
    Command, Digest, FollowUp, FreedReason, FreedTo, KeyHash, Millis, NewTask, OnExhausted, QueuePolicy,
    QueueSettings, Recovery, RetryOverride, SessionId, Spread, Start, TaskId, WallTime, Wishes, WorkerName,
};

use super::words::Words;
use super::{Script, queue, shard};
use crate::pair::WALL;

impl Script {
    pub(super) fn command(&mut self, verb: &str, words: &mut Words<'_>) {
        match verb {
            "enqueue" => self.enqueue(words),
            "claim" => self.claim(words),
            "claim-by-id" => self.claim_by_id(words),
            "ack" => self.ack(words),
            "fail" => self.fail(words),
            "extend" | "release" | "progress" => self.by_token(verb, words),
            "put-back" | "discard" | "cancel" | "requeue" => self.by_hand(verb, words),
            "queue" => self.set_queue(words),
            "deliver" => self.deliver(words),
            _ => self.rest(verb, words),
        }
    }

    fn rest(&mut self, verb: &str, words: &mut Words<'_>) {
        let command = match verb {
            "purge" => Command::Purge { queue: queue(words.bare().unwrap_or("mail")) },
            "drop-queue" => {
                let name = queue(words.bare().unwrap_or("mail"));
                let version =
                    words.number_option("version").unwrap_or(self.pair.model.settings(&name).version + 1);
                Command::DropQueue { queue: name, version }
            }
            "end-session" => Command::EndSession {
                worker: worker(words.next("a worker")),
                session: session(words.next("a session")),
                reason: reason(words.next("a reason")),
            },
            "delivered" => Command::Delivered {
                target: shard(words.number_option("to").expect("to=SHARD") as u16),
                upto: words.number_option("upto").expect("upto=NUMBER"),
            },
            "pulse" => Command::Pulse { limit: words.number_option("limit").unwrap_or(2_000) as u32 },
            other => panic!("no such verb: {other}"),
        };
        self.apply(verb, &[], command);
    }

    /// One task with its facts, or several plain ones; `;` parts tasks of one command.
    fn enqueue(&mut self, words: &mut Words<'_>) {
        let atomic = words.flag("atomic");
        let (mut tasks, mut names) = (Vec::new(), Vec::new());
        for mut part in words.split_at(";") {
            let mut these = vec![part.next("a task").to_owned()];
            while let Some(name) = part.bare() {
                these.push(name.to_owned());
            }
            let ids: Vec<_> = these.iter().map(|name| self.id(name)).collect();
            let task = new_task(&mut part, ids[0]);
            assert!(part.is_empty(), "what is {:?}?", part.rest());
            tasks.extend(ids.into_iter().map(|id| NewTask { id, ..task.clone() }));
            names.extend(these);
        }
        self.apply("enqueue", &names, Command::Enqueue { tasks, atomic });
    }

    fn claim(&mut self, words: &mut Words<'_>) {
        let worker = worker(words.next("a worker"));
        let of = |part: &str| match part.split_once(':') {
            Some((name, weight)) => {
                ClaimQueue { name: queue(name), weight: super::words::number(weight) as u32 }
            }
            None => ClaimQueue { name: queue(part), weight: 0 },
        };
        let queues = words.option("queues").unwrap_or("mail").split(',').map(of).collect();
        let claim = Claim {
            queues,
            worker,
            session: words.option("session").map(session),
            max: words.number_option("max").unwrap_or(1) as u32,
            hold: words.duration_option("hold"),
            request: words.option("request").map(request),
        };
        self.apply("claim", &[], Command::Claim(claim));
    }

    fn claim_by_id(&mut self, words: &mut Words<'_>) {
        let task = self.id(words.next("a task"));
        let claim = ClaimById {
            task,
            worker: worker(words.next("a worker")),
            session: words.option("session").map(session),
            hold: words.duration_option("hold"),
            request: words.option("request").map(request),
        };
        self.apply("claim-by-id", &[], Command::ClaimById(claim));
    }

    /// `ack t1 … then t2 queue=audit … then t3 shard=2 …`
    fn ack(&mut self, words: &mut Words<'_>) {
        let mut parts = words.split_at("then").into_iter();
        let mut first = parts.next().expect("there is always one part");
        let task = self.id(first.next("a task"));
        let fence = self.fence(&mut first, task);
        let output = Bytes::from(first.option("output").unwrap_or("").to_owned());
        let wall = WallTime::from_millis(WALL + self.pair.times().1);
        let mut then = Vec::new();
        for (n, mut part) in (0..).zip(parts) {
            let name = part.next("a task");
            let to = shard(part.number_option("shard").unwrap_or(1) as u16);
            let id = TaskId::follow_up(task, fence, n, to, wall);
            self.name(name, id);
            then.push(FollowUp { shard: to, task: new_task(&mut part, TaskId::new(to, wall, 0)) });
            assert!(part.is_empty(), "what is {:?}?", part.rest());
        }
        assert!(first.is_empty(), "what is {:?}?", first.rest());
        self.apply("ack", &[], Command::Ack(Ack { task, fence, output, then }));
    }

    fn fail(&mut self, words: &mut Words<'_>) {
        let task = self.id(words.next("a task"));
        let fence = self.fence(words, task);
        let error = words.option("error").unwrap_or("it broke").to_owned();
        let (retry_in, fatal) = (words.duration_option("retry_in"), words.flag("fatal"));
        let detail = String::new();
        self.apply("fail", &[], Command::Fail(Fail { task, fence, error, detail, retry_in, fatal }));
    }

    fn by_token(&mut self, verb: &str, words: &mut Words<'_>) {
        let task = self.id(words.next("a task"));
        let fence = self.fence(words, task);
        let command = match verb {
            "extend" => Command::Extend { task, fence, hold: words.duration_option("hold") },
            "release" => {
                Command::Release { task, fence, delay: words.duration_option("delay").unwrap_or(Millis(0)) }
            }
            _ => Command::Progress {
                task,
                fence,
                percent: words.number_option("percent").unwrap_or(0) as u8,
                note: words.option("note").unwrap_or("").to_owned(),
            },
        };
        self.apply(verb, &[], command);
    }

    fn by_hand(&mut self, verb: &str, words: &mut Words<'_>) {
        let task = self.id(words.next("a task"));
        let fence = words.number_option("fence").map(model::Fence);
        let on = OnTask { task, fence };
        let command = match verb {
            "put-back" => Command::PutBack(on),
            "discard" => Command::Discard(on),
            "requeue" => Command::Requeue(on),
            _ => Command::Cancel { task, reason: words.option("reason").unwrap_or("not needed").to_owned() },
        };
        self.apply(verb, &[], command);
    }

    fn deliver(&mut self, words: &mut Words<'_>) {
        let source = shard(words.number_option("from").expect("from=SHARD") as u16);
        let mut messages = Vec::new();
        for mut part in words.split_at(";") {
            let id = self.id(part.next("a task"));
            let seq = part.number_option("seq").expect("seq=NUMBER");
            messages.push(OutboxMessage { seq, task: new_task(&mut part, id) });
            assert!(part.is_empty(), "what is {:?}?", part.rest());
        }
        self.apply("deliver", &[], Command::Deliver { source, messages });
    }

    fn set_queue(&mut self, words: &mut Words<'_>) {
        let name = queue(words.bare().unwrap_or("mail"));
        let version = self.pair.model.settings(&name).version + 1;
        let version = words.number_option("version").unwrap_or(version);
        let paused = words.flag("paused");
        let policy = policy(words);
        let settings = QueueSettings { policy, paused, version };
        self.apply("queue", &[], Command::SetQueue { queue: name, settings });
    }
}

fn new_task(words: &mut Words<'_>, id: TaskId) -> NewTask {
    let queue = queue(words.option("queue").unwrap_or("mail"));
    let key = |words: &mut Words<'_>, what| words.option(what).map(|key| KeyHash::new(&queue, key));
    let start = match (words.duration_option("delay"), words.duration_option("run_at")) {
        (Some(delay), _) => Start::After(delay),
        (_, Some(at)) => Start::At(WallTime::from_millis(WALL + at.0)),
        _ => Start::Now,
    };
    let until = match words.option("until") {
        Some("claimed") => UniqueUntil::Claimed,
        None | Some("final") => UniqueUntil::Final,
        Some(other) => panic!("until={other}?"),
    };
    let window = words.duration_option("window").unwrap_or(Millis::mins(15));
    let payload = words.option("payload").unwrap_or("");
    NewTask {
        id,
        kind_hash: 0,
        digest: Digest(payload.bytes().map(u128::from).sum()),
        priority: words.number_option("priority").unwrap_or(5) as u8,
        wishes: Wishes {
            start,
            order_key: key(words, "order"),
            dedup: key(words, "dedup").map(|key| Dedup { key, window }),
            unique: key(words, "unique").map(|key| Unique { key, until }),
            hold: words.duration_option("hold"),
            retry: RetryOverride {
                attempts: words.number_option("attempts").map(|n| n as u32),
                base: words.duration_option("base"),
                cap: words.duration_option("cap"),
                age_max: words.duration_option("age_max"),
            },
            expires_in: words.duration_option("expires"),
            retention: words.duration_option("retention"),
        }
        .boxed(),
        envelope: Bytes::from(payload.to_owned()),
        queue,
    }
}

fn policy(words: &mut Words<'_>) -> QueuePolicy {
    let mut policy = QueuePolicy::default();
    let set = |field: &mut Millis, value: Option<Millis>| *field = value.unwrap_or(*field);
    set(&mut policy.hold, words.duration_option("hold"));
    set(&mut policy.retry.base, words.duration_option("base"));
    set(&mut policy.retry.cap, words.duration_option("cap"));
    set(&mut policy.retention, words.duration_option("retention"));
    set(&mut policy.dead_retention, words.duration_option("dead_retention"));
    policy.retry.age_max = words.duration_option("age_max");
    policy.retry.attempts = words.number_option("attempts").map_or(policy.retry.attempts, |n| n as u32);
    policy.retained_max = words.number_option("retained_max").unwrap_or(policy.retained_max);
    policy.dead_max = words.number_option("dead_max").unwrap_or(policy.dead_max);
    policy.dedup_keys_max = words.number_option("dedup_keys_max").unwrap_or(policy.dedup_keys_max);
    policy.tasks_max = words.number_option("tasks_max");
    policy.poison_after = words.number_option("poison_after").map_or(policy.poison_after, |n| n as u32);
    if words.option("recovery") == Some("manual") {
        policy.recovery = Recovery::Manual;
    }
    if words.option("freed_to") == Some("back") {
        policy.freed_to = FreedTo::Back;
    }
    if words.option("on_exhausted") == Some("discard") {
        policy.on_exhausted = OnExhausted::Discard;
    }
    if words.option("shards") == Some("1") {
        policy.spread = Spread::Pinned;
    }
    policy
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).expect("a good worker name")
}

/// `s7` is session 7.
pub(super) fn session(name: &str) -> SessionId {
    SessionId(u128::from(super::words::number(name.trim_start_matches('s'))))
}

fn request(name: &str) -> KeyHash {
    KeyHash::new(&queue("requests"), name)
}

fn reason(word: &str) -> FreedReason {
    let all = FreedReason::ALL.into_iter().find(|reason| reason.as_str() == word);
    all.unwrap_or_else(|| panic!("no such reason: {word}"))
}
