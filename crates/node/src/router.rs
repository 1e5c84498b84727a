//! Enqueue: each task to its place, one proposal for each shard.
//!
//! Checks sizes and room, gives ids, makes the envelopes' bytes once. Whether a key is taken or a queue
//! is full is for the shard to say. Next: `replica/src/propose.rs`, then
//! `state-machine/src/shard/enqueue.rs`.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Instant;

use bytes::BytesMut;
use model::command::{Dedup, Unique};
use model::{
    Command, Digest, Enqueued, FollowUp, Millis, NewTask, QueueName, QueuePolicy, QueueSettings, Rejection,
    Reply, ShardId, Spread, TaskId, Wishes, limits,
};
use wire::envelope::{Envelope, Header};

use crate::call::{Answer, Given, PlainTask, TaskSpec};
use crate::error::Error;
use crate::inner::{Inner, Node};
use crate::place::{self, Placed};
use crate::stats::Operation;

/// Tasks without keys of one request that stay together in one shard; more are spread.
const TOGETHER_MAX: usize = 256;
/// Tasks in one command, unless they are atomic: a large request must not fill an entry of its own.
const COMMAND_TASKS_MAX: usize = 1_000;
/// Bytes of envelopes in one command, unless they are atomic.
const COMMAND_BYTES_MAX: usize = 1024 * 1024;

/// What a plain envelope has beside kind and payload, at most.
const BESIDE_PAYLOAD: usize = 16;

/// How long tasks without keys go to the same of the shards that are led here.
const NEAR_TURN: Millis = Millis(250);
/// Where more calls than this wait for an entry, another shard is taken: it may use another core.
const CALM_CALLS_MAX: usize = 64;

/// What became of each task.
pub type EnqueueResults = Vec<Result<Enqueued, Error>>;

/// What goes to one shard: tasks and their places in the request.
struct Sheet {
    shard: ShardId,
    tasks: Vec<NewTask>,
    places: Vec<usize>,
}

/// A request's tasks, by shard.
struct Sheets {
    sheets: Vec<Sheet>,
    /// Those that were refused here, by place in the request.
    refused: Vec<(usize, Error)>,
}

impl Node {
    /// Takes tasks in: each with its own outcome, or with `atomic` all or none.
    pub async fn enqueue<T: Into<Given>>(
        &self,
        tasks: Vec<T>,
        atomic: bool,
    ) -> Result<Answer<EnqueueResults>, Error> {
        let since = Instant::now();
        let count = tasks.len();
        let answer = self.inner.enqueue(tasks.into_iter().map(T::into).collect(), atomic).await;
        match &answer {
            Ok(answer) => self.inner.counters.timed_all(Operation::Enqueue, since, &answer.value),
            Err(_) => self.inner.counters.timed(Operation::Enqueue, since, 0, count),
        }
        answer
    }
}

impl Inner {
    async fn enqueue(
        self: &Arc<Inner>,
        tasks: Vec<Given>,
        atomic: bool,
    ) -> Result<Answer<EnqueueResults>, Error> {
        if tasks.is_empty() || tasks.len() > limits::ENQUEUE_TASKS_MAX {
            return Err(Error::Invalid(format!(
                "a request enqueues {} tasks: send 1 to {}",
                tasks.len(),
                limits::ENQUEUE_TASKS_MAX
            )));
        }
        // What an older policy spreads wrongly its shard sends back. What it pins wrongly nobody does, and what it
        // refuses would be refused for good.
        if !self.knows_queues() && self.pins_or_refuses_any(&tasks) {
            Box::pin(self.know_queues()).await?;
        }
        let count = tasks.len();
        let Sheets { sheets, refused } = self.sort(tasks, atomic)?;
        let proposals = sheets.into_iter().map(|sheet| self.enqueue_in(sheet, atomic));
        let mut results = Results::new(count, refused);
        let mut indexes = Vec::new();
        let mut failed = None;
        for (shard, places, outcome) in futures::future::join_all(proposals).await {
            match outcome {
                Ok((index, outcomes)) => {
                    indexes.push((shard, index));
                    results.put(places, outcomes.into_iter().map(|outcome| outcome.map_err(Error::from)));
                }
                Err(error) => {
                    results.put(places, std::iter::repeat_with(|| Err(error.clone())));
                    // Nobody hears that nothing happened when nobody knows of one shard.
                    if failed != Some(Error::Timeout) {
                        failed = Some(error);
                    }
                }
            }
        }
        let value = results.all();
        let errors = value.iter().filter_map(|result| result.as_ref().err());
        if errors.chain(&failed).any(is_moved) {
            // The next try is placed by what the shard knows already.
            Box::pin(self.refresh_settings()).await;
        }
        if let Some(error) = failed
            && (atomic || indexes.is_empty())
        {
            return Err(error);
        }
        Ok(Answer { value, indexes })
    }

    /// Sorts tasks by shard and gives them ids.
    fn sort(&self, tasks: Vec<Given>, atomic: bool) -> Result<Sheets, Error> {
        let policies = self.policies.all();
        let mut refused = Vec::new();
        let mut placed = Vec::with_capacity(tasks.len());
        let mut turns = Turns::Near;
        let (mut bytes, mut last) = (0, None);
        for (place, task) in tasks.iter().enumerate() {
            if let Given::Plain(task) = task {
                bytes += task.kind.as_str().len() + task.payload.len() + BESIDE_PAYLOAD;
            }
            match self.check(task, &policies, &mut last) {
                Ok(policy) => {
                    if policy.tasks_max.is_some() {
                        turns = Turns::Even;
                    }
                    placed.push(place::place(task.keys(), policy.spread, self.groups.count()));
                }
                Err(error) if atomic => return Err(error),
                Err(error) => {
                    refused.push((place, error));
                    placed.push(Placed::default());
                }
            }
        }
        let mut anywhere = self.anywhere(&placed, atomic, turns)?;
        let count = tasks.len();
        let mut ids = self.ids.take(self.clock.wall(), count);
        let mut sheets: Vec<Sheet> = Vec::new();
        let mut passed = refused.iter().map(|(place, _)| *place).peekable();
        let mut envelopes = BytesMut::with_capacity(bytes);
        for (place, (task, placed)) in tasks.into_iter().zip(placed).enumerate() {
            if passed.next_if_eq(&place).is_some() {
                continue;
            }
            let shard = placed.shard.unwrap_or_else(|| anywhere.next());
            let task = new_task(task, &placed, ids.next(shard), &mut envelopes);
            let at = sheets.iter().position(|sheet| sheet.shard == shard).unwrap_or_else(|| {
                // Most requests have one.
                let room = if sheets.is_empty() { count } else { 0 };
                sheets.push(Sheet {
                    shard,
                    tasks: Vec::with_capacity(room),
                    places: Vec::with_capacity(room),
                });
                sheets.len() - 1
            });
            sheets[at].tasks.push(task);
            sheets[at].places.push(place);
        }
        Ok(Sheets { sheets, refused })
    }

    /// Whether a task's queue is pinned or the task may not enter it, by what is known here.
    fn pins_or_refuses_any(&self, tasks: &[Given]) -> bool {
        let policies = self.policies.all();
        let is_spread = |policy: &QueuePolicy| policy.spread != Spread::Pinned;
        let mut last = None;
        !tasks.iter().all(|task| self.check(task, &policies, &mut last).is_ok_and(is_spread))
    }

    /// The policy of the task's queue, if the task may enter it. Most tasks have the queue of the `last` one.
    fn check<'a>(
        &'a self,
        task: &'a Given,
        policies: &'a HashMap<QueueName, QueueSettings>,
        last: &mut Option<(&'a QueueName, &'a QueuePolicy)>,
    ) -> Result<&'a QueuePolicy, Error> {
        let queue = task.queue();
        let at_hand = last.filter(|(last, _)| *last == queue).map(|(_, policy)| policy);
        let policy = match at_hand.or_else(|| policies.get(queue).map(|settings| &settings.policy)) {
            Some(policy) => policy,
            None if self.auto_create => self.policies.default(),
            None => return Err(Rejection::UnknownQueue { queue: queue.clone() }.into()),
        };
        *last = Some((queue, policy));
        let bytes = task.payload().len() as u64;
        if bytes > policy.payload_bytes_max {
            return Err(Error::PayloadTooLarge { bytes, bytes_max: policy.payload_bytes_max });
        }
        Ok(policy)
    }

    /// Where the tasks of a request go that may go anywhere.
    fn anywhere(&self, placed: &[Placed], atomic: bool, turns: Turns) -> Result<Anywhere, Error> {
        let count = self.groups.count();
        let mut fixed = placed.iter().filter_map(|placed| placed.shard);
        if atomic {
            let first = fixed.next();
            if fixed.any(|shard| Some(shard) != first) {
                return Err(Error::NotOneShard);
            }
            let shard = first.unwrap_or_else(|| self.next_shard(turns));
            return Ok(Anywhere { first: shard, count, run: usize::MAX, given: 0 });
        }
        let free = placed.len() - fixed.count();
        // Small requests stay in one entry; large ones use all shards.
        let run = free.div_ceil(usize::from(count)).max(TOGETHER_MAX);
        Ok(Anywhere { first: self.next_shard(turns), count, run, given: 0 })
    }

    /// Whose turn it is. One that is led here saves the way to another node; one without a leader could not
    /// take the task now.
    fn next_shard(&self, turns: Turns) -> ShardId {
        let count = self.groups.count();
        let turn = match turns {
            // All go to one shard for a while: its entries are fewer and larger.
            Turns::Near => self.now().0 / NEAR_TURN.0,
            Turns::Even => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        if turns == Turns::Near {
            // One that is led here without a quorum has no more use for the task than one without a leader.
            let is_near = |shard: &ShardId| self.groups.leads(*shard) && self.reach.is_reached(*shard);
            let load = |shard: ShardId| (shard, self.groups.shard(shard).calls_waiting());
            let near: Vec<(ShardId, usize)> = self.groups.all().filter(is_near).map(load).collect();
            if let Some(shard) = calmest(&near, turn) {
                return shard;
            }
        }
        let in_turn = || (0..u64::from(count)).map(|n| nth_shard(turn + n, count));
        let led = || in_turn().filter(|shard| self.groups.leader_of(*shard).is_some());
        let reached = led().find(|shard| self.reach.is_reached(*shard));
        reached.or_else(|| led().next()).unwrap_or_else(|| nth_shard(turn, count))
    }

    async fn enqueue_in(
        self: &Arc<Inner>,
        sheet: Sheet,
        atomic: bool,
    ) -> (ShardId, Vec<usize>, EnqueueOutcome) {
        let Sheet { shard, tasks, places } = sheet;
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        if let Err(error) = self.room.check(shard) {
            return (shard, places, Err(error));
        }
        let awaited = self.awaited_of(shard, &tasks);
        let commands = if atomic { vec![Command::Enqueue { tasks, atomic }] } else { commands(tasks) };
        let mut proposal = pin!(self.groups.propose(shard, commands));
        let begun = match futures::poll!(&mut proposal) {
            Poll::Ready(applied) => applied,
            Poll::Pending => {
                self.claim_ahead(shard, &awaited);
                proposal.await
            }
        };
        let applied = match begun {
            Ok(applied) => applied,
            Err(error) => return (shard, places, Err(error)),
        };
        let mut index = 0;
        let mut outcomes = Vec::with_capacity(places.len());
        for applied in applied {
            index = index.max(applied.index);
            match applied.outcome {
                Ok(Reply::Enqueued(some)) => outcomes.extend(some),
                Ok(_) => unreachable!("an enqueue is answered by what became of its tasks"),
                Err(rejection) => return (shard, places, Err(rejection.into())),
            }
        }
        for (id, outcome) in ids.iter().zip(&mut outcomes) {
            // An id is new: who has it already is this request, whose first answer was lost on the way.
            if let Ok(enqueued) = outcome
                && enqueued.id == *id
            {
                enqueued.duplicate = false;
            }
        }
        (shard, places, Ok((index, outcomes)))
    }

    /// What an ack enqueues with it. Only its size can be refused.
    pub(crate) fn follow_ups(
        &self,
        source: TaskId,
        then: Vec<TaskSpec>,
        policies: &HashMap<QueueName, QueueSettings>,
    ) -> Result<Vec<FollowUp>, Error> {
        if then.len() > limits::FOLLOW_UPS_MAX {
            return Err(Error::Invalid(format!(
                "an ack has {} follow-ups: send at most {}",
                then.len(),
                limits::FOLLOW_UPS_MAX
            )));
        }
        // As most acks have it: no ids, no clock.
        if then.is_empty() {
            return Ok(Vec::new());
        }
        let mut ids = self.ids.take(self.clock.wall(), then.len());
        let follow_up = |task: TaskSpec| {
            let policy =
                policies.get(&task.queue).map_or(self.policies.default(), |settings| &settings.policy);
            let bytes = task.payload.len() as u64;
            if bytes > policy.payload_bytes_max {
                return Err(Error::PayloadTooLarge { bytes, bytes_max: policy.payload_bytes_max });
            }
            let task = Given::from(task);
            let placed = place::place(task.keys(), policy.spread, self.groups.count());
            let shard = placed.shard.unwrap_or(source.shard());
            Ok(FollowUp { shard, task: new_task(task, &placed, ids.next(shard), &mut BytesMut::new()) })
        };
        then.into_iter().map(follow_up).collect()
    }
}

/// What became of a request's tasks, by their places in it.
enum Results {
    /// Of each, once it is known.
    Each(Vec<Option<Result<Enqueued, Error>>>),
    /// Nothing yet: all may be answered together, in their order.
    None(usize),
    /// Of all of them.
    All(EnqueueResults),
}

impl Results {
    fn new(count: usize, refused: Vec<(usize, Error)>) -> Results {
        if refused.is_empty() {
            return Results::None(count);
        }
        let mut results = vec![None; count];
        for (place, error) in refused {
            results[place] = Some(Err(error));
        }
        Results::Each(results)
    }

    /// Takes in what became of those at these places, which rise.
    fn put(&mut self, places: Vec<usize>, outcomes: impl Iterator<Item = Result<Enqueued, Error>>) {
        if let Results::None(count) = *self {
            if places.len() == count {
                let all: EnqueueResults = outcomes.take(count).collect();
                assert_eq!(all.len(), count, "every task is answered");
                *self = Results::All(all);
                return;
            }
            *self = Results::Each(vec![None; count]);
        }
        let Results::Each(results) = self else { unreachable!("all were answered before") };
        for (place, outcome) in places.into_iter().zip(outcomes) {
            results[place] = Some(outcome);
        }
    }

    fn all(self) -> EnqueueResults {
        let settled = |result: Option<_>| result.expect("every task is in a sheet or was refused");
        match self {
            Results::All(results) => results,
            Results::Each(results) => results.into_iter().map(settled).collect(),
            Results::None(_) => unreachable!("a request has tasks"),
        }
    }
}

/// How tasks without keys are dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turns {
    /// To the shards that are led here, if there are any, one after the other.
    Near,
    /// To all alike: each holds its part of what the queue may hold.
    Even,
}

/// Whose turn it is among shards and how many calls wait in each: the next one that is calm, or the calmest.
fn calmest(near: &[(ShardId, usize)], turn: u64) -> Option<ShardId> {
    let first = (turn % near.len().max(1) as u64) as usize;
    let in_turn = || near[first..].iter().chain(&near[..first]);
    let calm = in_turn().find(|(_, waiting)| *waiting < CALM_CALLS_MAX);
    calm.or_else(|| in_turn().min_by_key(|(_, waiting)| *waiting)).map(|(shard, _)| *shard)
}

/// Whether a task was refused because its queue lives elsewhere since a moment ago.
fn is_moved(error: &Error) -> bool {
    match error {
        Error::Rejected(Rejection::NotAtomic { because, .. }) => matches!(**because, Rejection::Moved { .. }),
        error => matches!(error, Error::Rejected(Rejection::Moved { .. })),
    }
}

type EnqueueOutcome = Result<(u64, Vec<Result<Enqueued, Rejection>>), Error>;

/// Hands out shards to tasks without keys, in runs.
struct Anywhere {
    first: ShardId,
    count: u16,
    run: usize,
    given: usize,
}

impl Anywhere {
    fn next(&mut self) -> ShardId {
        let runs = self.given / self.run;
        self.given += 1;
        nth_shard(u64::from(self.first.number() - 1) + runs as u64, self.count)
    }
}

fn nth_shard(n: u64, count: u16) -> ShardId {
    ShardId::new((n % u64::from(count)) as u16 + 1).expect("a shard of this cluster has a number")
}

/// Splits tasks into commands of bounded size.
fn commands(tasks: Vec<NewTask>) -> Vec<Command> {
    let bytes: usize = tasks.iter().map(|task| task.envelope.len()).sum();
    if tasks.len() <= COMMAND_TASKS_MAX && bytes <= COMMAND_BYTES_MAX {
        return vec![Command::Enqueue { tasks, atomic: false }];
    }
    let mut commands = Vec::new();
    let mut some: Vec<NewTask> = Vec::new();
    let mut bytes = 0;
    for task in tasks {
        let full = some.len() == COMMAND_TASKS_MAX || bytes + task.envelope.len() > COMMAND_BYTES_MAX;
        if full && !some.is_empty() {
            commands.push(Command::Enqueue { tasks: std::mem::take(&mut some), atomic: false });
            bytes = 0;
        }
        bytes += task.envelope.len();
        some.push(task);
    }
    commands.push(Command::Enqueue { tasks: some, atomic: false });
    commands
}

/// Makes the task that a shard takes in. Its envelope may share memory with others.
fn new_task(task: Given, placed: &Placed, id: TaskId, envelopes: &mut BytesMut) -> NewTask {
    let PlainTask { queue, kind, payload, priority } = match task {
        Given::Plain(task) => task,
        Given::Other(task) => return other_task(*task, placed, id),
    };
    Envelope::append_plain(kind.as_str(), &payload, envelopes);
    let envelope = envelopes.split().freeze();
    let digest = Digest::of_envelope(&envelope);
    NewTask { id, queue, kind_hash: kind.hash32(), digest, priority, wishes: None, envelope }
}

/// The same for one that asks for something.
fn other_task(task: TaskSpec, placed: &Placed, id: TaskId) -> NewTask {
    let compared = task
        .dedup
        .is_some()
        .then(|| Digest::new(&task.kind, task.content_type.as_deref().unwrap_or(""), &task.payload));
    let dedup = task.dedup.as_ref().zip(placed.dedup_key);
    let unique = task.unique.as_ref().zip(placed.unique_key);
    let header = |(name, value)| Header { name, value };
    let (kind_hash, dedup, unique) = (
        task.kind.hash32(),
        dedup.map(|(&(_, window), key)| Dedup { key, window }),
        unique.map(|(&(_, until), key)| Unique { key, until }),
    );
    let envelope = Envelope {
        kind: task.kind.as_str().to_owned(),
        payload: task.payload,
        content_type: task.content_type,
        headers: task.headers.into_iter().map(header).collect(),
        order_key: task.order_key,
        dedup_key: task.dedup.map(|(key, _)| key),
        unique_key: task.unique.map(|(key, _)| key),
    }
    .to_bytes();
    NewTask {
        id,
        queue: task.queue,
        kind_hash,
        digest: compared.unwrap_or_else(|| Digest::of_envelope(&envelope)),
        priority: task.priority,
        wishes: Wishes {
            start: task.start,
            order_key: placed.order_key,
            dedup,
            unique,
            hold: task.hold,
            retry: task.retry,
            expires_in: task.expires_in,
            retention: task.retention,
        }
        .boxed(),
        envelope,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_led_here_take_equal_turns_and_the_calmest_comes_first_when_none_is_calm() {
        let shard = |number| ShardId::new(number).unwrap();
        let near = |waiting: [usize; 3]| [1, 2, 9].map(shard).into_iter().zip(waiting).collect::<Vec<_>>();
        let (calm, busy) = (CALM_CALLS_MAX - 1, CALM_CALLS_MAX);
        for (what, waiting, expected) in [
            ("all calm", [calm, 0, calm], [1, 2, 9, 1, 2, 9]),
            ("the second is busy", [0, busy, 0], [1, 9, 9, 1, 9, 9]),
            ("all busy, the last least", [busy + 2, busy + 1, busy], [9; 6]),
        ] {
            let turns = (0..6).map(|turn| calmest(&near(waiting), 3 + turn).unwrap());
            assert_eq!(turns.collect::<Vec<_>>(), expected.map(shard), "{what}");
        }
        assert_eq!(calmest(&[], 7), None);
    }
}
