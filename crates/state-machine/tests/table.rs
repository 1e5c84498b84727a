//! The rule for every pair of command and state, as one table.
//!
//! A task is brought into each of the ten states, always with one claim behind it, so that "the last
//! fence" means something everywhere. Then one command is applied. A cell is the state of the task
//! afterwards, `gone` when its record is, or `!code` when the command was rejected and nothing changed.
//! The naive model runs along: the table, the model and the shard must all agree.

mod naive;
mod ops;
mod pair;

use bytes::Bytes;
use model::command::{
    Ack, Claim, ClaimById, ClaimQueue, Dedup, Fail, OnTask, OutboxMessage, Unique, UniqueUntil,
};
use model::{
    Command, Digest, Fence, FreedReason, KeyHash, Millis, NewTask, OnExhausted, QueueName, QueuePolicy,
    QueueSettings, Rejection, Reply, SessionId, ShardId, Start, StateKind, TaskId, WallTime, Wishes,
    WorkerName,
};

use crate::pair::Pair;

/// Columns in the order of `StateKind::ALL`.
const TABLE: &str = "
|                                    | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| enqueue its dedup key              | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| enqueue its dedup key, other work  | !mismatch    | !mismatch    | !mismatch    | !mismatch    | !mismatch    | !mismatch      | !mismatch      | !mismatch      | !mismatch      | !mismatch      |
| enqueue its unique key             | !not_unique  | !not_unique  | !not_unique  | !not_unique  | !not_unique  | done           | dead           | failed         | cancelled      | expired        |
| enqueue its id                     | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| claim                              | delayed      | retrying     | blocked      | claimed      | claimed      | done           | dead           | failed         | cancelled      | expired        |
| claim, queue paused                | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| claim by id                        | !not_ready   | !not_ready   | !not_ready   | claimed      | !not_ready   | !not_ready     | !not_ready     | !not_ready     | !not_ready     | !not_ready     |
| ack, last fence                    | !not_claimed | !not_claimed | !not_claimed | !not_claimed | done         | done           | !already_ended | !already_ended | !already_ended | !already_ended |
| ack, stale fence                   | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| ack, fence never given             | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| fail, last fence                   | !not_claimed | retrying     | !not_claimed | !not_claimed | retrying     | !already_ended | dead           | failed         | !already_ended | !already_ended |
| fail, stale fence                  | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| fail for good, last fence          | !not_claimed | retrying     | !not_claimed | !not_claimed | dead         | !already_ended | dead           | failed         | !already_ended | !already_ended |
| extend, last fence                 | !not_claimed | !not_claimed | !not_claimed | !not_claimed | claimed      | !already_ended | !already_ended | !already_ended | !already_ended | !already_ended |
| extend, stale fence                | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| release, last fence                | !not_claimed | !not_claimed | !not_claimed | !not_claimed | ready        | !already_ended | !already_ended | !already_ended | !already_ended | !already_ended |
| release for a while, last fence    | !not_claimed | !not_claimed | !not_claimed | !not_claimed | delayed      | !already_ended | !already_ended | !already_ended | !already_ended | !already_ended |
| release, stale fence               | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| progress, last fence               | !not_claimed | !not_claimed | !not_claimed | !not_claimed | claimed      | !already_ended | !already_ended | !already_ended | !already_ended | !already_ended |
| progress, stale fence              | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| put back                           | !not_claimed | !not_claimed | !not_claimed | !not_claimed | ready        | !not_claimed   | !not_claimed   | !not_claimed   | !not_claimed   | !not_claimed   |
| put back, stale fence              | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| discard                            | cancelled    | cancelled    | cancelled    | cancelled    | cancelled    | !already_ended | cancelled      | !already_ended | !already_ended | !already_ended |
| discard, stale fence               | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| cancel                             | cancelled    | cancelled    | cancelled    | cancelled    | claimed      | !already_ended | !already_ended | !already_ended | !already_ended | !already_ended |
| requeue                            | !not_ready   | !not_ready   | !not_ready   | !not_ready   | !not_ready   | !already_ended | ready          | ready          | ready          | !already_ended |
| requeue, stale fence               | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token | !stale_token   | !stale_token   | !stale_token   | !stale_token   | !stale_token   |
| purge                              | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| purge, then pulse                  | cancelled    | cancelled    | cancelled    | cancelled    | claimed      | done           | dead           | failed         | cancelled      | expired        |
| end session, silent                | delayed      | retrying     | blocked      | ready        | ready        | done           | dead           | failed         | cancelled      | expired        |
| end session, closed                | delayed      | retrying     | blocked      | ready        | ready        | done           | dead           | failed         | cancelled      | expired        |
| end session, drained               | delayed      | retrying     | blocked      | ready        | ready        | done           | dead           | failed         | cancelled      | expired        |
| end session, another one           | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| set queue                          | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| set queue, old version             | !stale_version | !stale_version | !stale_version | !stale_version | !stale_version | !stale_version | !stale_version | !stale_version | !stale_version | !stale_version |
| drop queue                         | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| deliver its dedup key              | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| delivered                          | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| pulse, nothing due                 | delayed      | retrying     | blocked      | ready        | claimed      | done           | dead           | failed         | cancelled      | expired        |
| pulse, delay backoff deadline due  | ready        | ready        | blocked      | ready        | ready        | done           | dead           | failed         | cancelled      | expired        |
| pulse, expiry and retention due    | expired      | expired      | blocked      | expired      | expired      | gone           | dead           | gone           | gone           | gone           |
| pulse, dead retention due          | gone         | gone         | blocked      | gone         | gone         | gone           | gone           | gone           | gone           | gone           |
";

const LAST: Fence = Fence(2);

fn queue() -> QueueName {
    QueueName::new("mail").expect("a good name")
}

fn worker() -> WorkerName {
    WorkerName::new("w1").expect("a good name")
}

fn id(n: u64) -> TaskId {
    TaskId::new(ShardId::new(1).expect("a good shard"), WallTime::from_millis(1), n)
}

/// The task that the table is about.
const T: u64 = 1;

fn task(n: u64) -> NewTask {
    NewTask {
        id: id(n),
        queue: queue(),
        kind_hash: 0,
        digest: Digest(1),
        priority: 5,
        wishes: None,
        envelope: Bytes::new(),
    }
}

fn subject(state: StateKind) -> NewTask {
    let order_key = (state == StateKind::Blocked).then(|| KeyHash::new(&queue(), "user-7"));
    let soon = state == StateKind::Expired;
    let wishes = Wishes {
        order_key,
        dedup: Some(Dedup { key: KeyHash::new(&queue(), "dedup"), window: Millis::mins(15) }),
        unique: Some(Unique { key: KeyHash::new(&queue(), "unique"), until: UniqueUntil::Final }),
        expires_in: Some(if soon { Millis::secs(1) } else { Millis::hours(1) }),
        ..Wishes::default()
    };
    NewTask { wishes: wishes.boxed(), ..task(T) }
}

fn enqueue(task: NewTask) -> Command {
    Command::Enqueue { tasks: vec![task], atomic: false }
}

fn claim() -> Command {
    let queues = vec![ClaimQueue { name: queue(), weight: 0 }];
    Command::Claim(Claim {
        queues,
        worker: worker(),
        session: Some(SessionId(1)),
        max: 1,
        hold: None,
        request: None,
    })
}

fn ack(fence: Fence) -> Command {
    Command::Ack(Ack { task: id(T), fence, output: Bytes::new(), then: vec![] })
}

fn fail(fence: Fence, fatal: bool) -> Command {
    let (error, detail) = ("broke".to_owned(), String::new());
    Command::Fail(Fail { task: id(T), fence, error, detail, retry_in: None, fatal })
}

fn release(fence: Fence, delay: u64) -> Command {
    Command::Release { task: id(T), fence, delay: Millis(delay) }
}

fn on(fence: Option<Fence>) -> OnTask {
    OnTask { task: id(T), fence }
}

fn set_queue(version: u64, change: impl FnOnce(&mut QueueSettings)) -> Command {
    let mut settings = QueueSettings { version, policy: QueuePolicy::default(), paused: false };
    change(&mut settings);
    Command::SetQueue { queue: queue(), settings }
}

/// A shard with the task in `state`, claimed once under fence 2; fence 1 went to another task.
fn shard_with_task_in(state: StateKind) -> Pair {
    let mut pair = Pair::new(1);
    let does = |pair: &mut Pair, command: Command| {
        pair.apply(command.clone()).unwrap_or_else(|no| panic!("{command:?} was rejected: {no}"));
    };
    let discards = |settings: &mut QueueSettings| settings.policy.on_exhausted = OnExhausted::Discard;
    let policy = set_queue(1, |settings| {
        if state == StateKind::Failed {
            discards(settings)
        }
    });
    let other = Command::Ack(Ack { task: id(9), fence: Fence(1), output: Bytes::new(), then: vec![] });
    for command in [policy, enqueue(task(9)), claim(), other, enqueue(subject(state)), claim()] {
        does(&mut pair, command);
    }
    let steps = match state {
        StateKind::Delayed => vec![release(LAST, 2_000)],
        StateKind::Retrying => vec![fail(LAST, false)],
        StateKind::Ready => vec![release(LAST, 0)],
        StateKind::Claimed => vec![],
        StateKind::Done => vec![ack(LAST)],
        StateKind::Dead | StateKind::Failed => vec![fail(LAST, true)],
        StateKind::Cancelled => vec![Command::Discard(on(None))],
        StateKind::Expired => {
            pair.advance(1_000);
            vec![release(LAST, 0)]
        }
        // Only a requeue leads back here, and it lets the task run however late: it expires no more.
        StateKind::Blocked => {
            let order_key = subject(state).wishes().order_key;
            let start = Start::After(Millis::hours(24));
            let wishes = Wishes { order_key, start, ..Wishes::default() }.boxed();
            let before = NewTask { wishes, ..task(8) };
            vec![Command::Discard(on(None)), enqueue(before), Command::Requeue(on(None))]
        }
    };
    steps.into_iter().for_each(|command| does(&mut pair, command));
    assert_eq!(pair.shard.task(id(T)).map(|task| (task.state, task.fence)), Some((state, LAST)));
    pair
}

/// The outcome of the row's last command.
fn act(pair: &mut Pair, state: StateKind, row: &str) -> Result<Reply, Rejection> {
    let stale = Fence(1);
    let hour = 3_600_000;
    let end = |session, reason| Command::EndSession { worker: worker(), session: SessionId(session), reason };
    let again = |change: fn(&mut NewTask)| {
        let mut again = NewTask { id: id(50), ..subject(state) };
        change(&mut again);
        again
    };
    let pulse = Command::Pulse { limit: 1_000 };
    let command = match row {
        "enqueue its dedup key" => enqueue(again(|_| {})),
        "enqueue its dedup key, other work" => enqueue(again(|task| task.digest = Digest(2))),
        "enqueue its unique key" => enqueue(again(|task| {
            let wishes = Wishes { dedup: None, ..task.wishes().clone() };
            task.wishes = wishes.boxed();
        })),
        "enqueue its id" => enqueue(NewTask { id: id(T), ..task(T) }),
        "claim" => claim(),
        "claim, queue paused" => {
            pair.apply(set_queue(2, |settings| settings.paused = true))?;
            claim()
        }
        "claim by id" => Command::ClaimById(ClaimById {
            task: id(T),
            worker: worker(),
            session: None,
            hold: None,
            request: None,
        }),
        "put back" => Command::PutBack(on(None)),
        "put back, stale fence" => Command::PutBack(on(Some(stale))),
        "discard" => Command::Discard(on(None)),
        "discard, stale fence" => Command::Discard(on(Some(stale))),
        "cancel" => Command::Cancel { task: id(T), reason: "not needed".to_owned() },
        "requeue" => Command::Requeue(on(Some(LAST))),
        "requeue, stale fence" => Command::Requeue(on(Some(stale))),
        "purge" => Command::Purge { queue: queue() },
        "purge, then pulse" => {
            pair.apply(Command::Purge { queue: queue() })?;
            pulse
        }
        "end session, silent" => end(1, FreedReason::Silent),
        "end session, closed" => end(1, FreedReason::Closed),
        "end session, drained" => end(1, FreedReason::Drained),
        "end session, another one" => end(2, FreedReason::Closed),
        "set queue" => set_queue(2, |settings| settings.policy.hold = Millis(100)),
        "set queue, old version" => set_queue(1, |settings| settings.paused = true),
        "drop queue" => Command::DropQueue { queue: queue(), version: 2 },
        "deliver its dedup key" => {
            let message = OutboxMessage { seq: 1, task: again(|_| {}) };
            Command::Deliver { source: ShardId::new(2).expect("a good shard"), messages: vec![message] }
        }
        "delivered" => Command::Delivered { target: ShardId::new(2).expect("a good shard"), upto: 3 },
        "pulse, nothing due" => pulse,
        "pulse, delay backoff deadline due" => {
            pair.advance(60_000);
            pulse
        }
        "pulse, expiry and retention due" => {
            pair.advance(2 * hour);
            pulse
        }
        "pulse, dead retention due" => {
            pair.advance(2 * hour);
            pair.apply(pulse.clone())?;
            pair.advance(31 * 24 * hour);
            pulse
        }
        other => by_token(other),
    };
    pair.apply(command)
}

fn by_token(row: &str) -> Command {
    let (stale, never) = (Fence(1), Fence(77));
    let extend = |fence| Command::Extend { task: id(T), fence, hold: Some(Millis(5_000)) };
    let progress = |fence| Command::Progress { task: id(T), fence, percent: 40, note: "page 4".to_owned() };
    match row {
        "ack, last fence" => ack(LAST),
        "ack, stale fence" => ack(stale),
        "ack, fence never given" => ack(never),
        "fail, last fence" => fail(LAST, false),
        "fail, stale fence" => fail(stale, false),
        "fail for good, last fence" => fail(LAST, true),
        "extend, last fence" => extend(LAST),
        "extend, stale fence" => extend(stale),
        "release, last fence" => release(LAST, 0),
        "release for a while, last fence" => release(LAST, 2_000),
        "release, stale fence" => release(stale, 0),
        "progress, last fence" => progress(LAST),
        "progress, stale fence" => progress(stale),
        other => panic!("no such row: {other}"),
    }
}

fn outcome(state: StateKind, row: &str) -> String {
    let mut pair = shard_with_task_in(state);
    let outcome = act(&mut pair, state, row);
    let rejection = match &outcome {
        Ok(Reply::Enqueued(results)) => results.iter().find_map(|result| result.as_ref().err()).cloned(),
        Ok(_) => None,
        Err(rejection) => Some(rejection.clone()),
    };
    let now = pair.shard.task(id(T)).map(|task| task.state);
    if let Some(rejection) = rejection {
        assert_eq!(now, Some(state), "{row}: rejected, and the task is another");
        let code = rejection.code().to_owned();
        return format!("!{}", code.strip_prefix("dedup_").unwrap_or(&code));
    }
    now.map_or("gone".to_owned(), |state| state.as_str().to_owned())
}

#[test]
fn every_command_does_to_every_state_what_the_table_says() {
    let mut wrong = Vec::new();
    let mut cells = 0;
    for line in TABLE.trim().lines().skip(1) {
        let mut row = line.trim_matches('|').split('|').map(str::trim);
        let what = row.next().expect("a row has a name");
        let expected: Vec<_> = row.collect();
        assert_eq!(expected.len(), StateKind::ALL.len(), "{what}");
        for (state, expected) in StateKind::ALL.into_iter().zip(expected) {
            let outcome = outcome(state, what);
            cells += 1;
            if outcome != expected {
                wrong.push(format!("{what} on a {state} task: {outcome}, the table says {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cells} cells:\n{}", wrong.len(), wrong.join("\n"));
}
