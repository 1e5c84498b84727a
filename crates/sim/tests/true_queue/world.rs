//! Producers, workers and a person at work on the true queue; answers get lost, deeds are late or done twice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use model::{GroupId, ShardId, StateKind, TaskId};
use sim::history::{
    Call, Claim, Counts, Deed, Depth, End, Enqueue, Got, Hash, Hold, Indexes, Leader, Line, OnTasks, Outcome,
    Queue as Rules, Run, Settle, Then, Totals, Vote,
};

use crate::queue::{New, Queue, SHARDS, WINDOW_US};
use crate::random::Random;

const MS: u64 = 1_000;
/// Producers and the person stop then; workers go on until nothing waits.
const BUSY_US: u64 = 30_000_000;
const CLIENTS: usize = 9;
const PRODUCERS: usize = 3;
/// The rest but one are workers; the last is the person.
const PERSON: usize = CLIENTS - 1;

/// What a client asks.
#[derive(Clone, Debug)]
enum Ask {
    Enqueue(New),
    Claim { shard: ShardId, max: usize, hold_us: u64, request: Option<u64>, session: Option<usize> },
    Ack { task: TaskId, fence: u64, then: Vec<New> },
    Fail { task: TaskId, fence: u64, retry_us: u64, fatal: bool },
    Release { task: TaskId, fence: u64, delay_us: u64 },
    Extend { task: TaskId, fence: u64, hold_us: u64 },
    PutBack(TaskId),
    Discard(TaskId),
    Cancel(TaskId),
    Requeue(TaskId),
    Get(TaskId),
    Counts,
    PutBackAll,
    RequeueAll,
    Purge,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Next {
    /// The deed is done.
    Deed(usize),
    /// The client has its answer, or gives up.
    Heard(usize),
    Wake(usize),
    /// A session is lost, and nobody sees it.
    Lose(usize),
}

struct Asked {
    client: usize,
    start: u64,
    ask: Ask,
    /// The answer to the last time that the deed was done, and its index.
    answer: Option<(Outcome, Option<u64>, Deed)>,
    is_lost: bool,
}

/// A claim in a worker's hands.
#[derive(Clone, Copy)]
struct InHand {
    task: TaskId,
    fence: u64,
    payload: u64,
}

pub(crate) struct World {
    random: Random,
    queue: Queue,
    now: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, Next)>>,
    steps: u64,
    asked: Vec<Asked>,
    in_hand: Vec<Vec<InHand>>,
    /// What a producer must ask again, or a worker.
    again: Vec<Option<Ask>>,
    requests: BTreeMap<u64, Vec<(TaskId, u64, u64, u32)>>,
    index: [u64; SHARDS as usize + 1],
    last_entry: [u64; SHARDS as usize + 1],
    payloads: u64,
    /// Tasks that somebody heard of.
    known: Vec<TaskId>,
    lost_percent: u64,
    lines: Vec<Line>,
}

/// The history of a run that kept every promise.
pub(crate) fn history(seed: u64) -> Vec<Line> {
    let mut random = Random::new(seed);
    let lost_percent = [0, 3, 10, 30][random.below(4) as usize];
    let (drift_ppm, wall_skew_ms) = [(0, 0), (0, 0), (1_000, 500), (50_000, 0)][random.below(4) as usize];
    let run = Run {
        shards: SHARDS,
        wall_start_ms: Some(0),
        wall_skew_ms,
        drift_ppm,
        ..Run::new(&format!("true queue, seed {seed}"))
    };
    let rules = Rules { queue: "q".to_owned(), poison_after: Some(5), ..Rules::default() };
    let mut world = World {
        random,
        queue: Queue { drift_ppm, skew_us: wall_skew_ms * MS, ..Queue::default() },
        now: 0,
        agenda: BinaryHeap::new(),
        steps: 0,
        asked: Vec::new(),
        in_hand: vec![Vec::new(); CLIENTS],
        again: vec![None; CLIENTS],
        requests: BTreeMap::new(),
        index: [0; SHARDS as usize + 1],
        last_entry: [0; SHARDS as usize + 1],
        payloads: 0,
        known: Vec::new(),
        lost_percent,
        lines: vec![Line::Run(run), Line::Queue(rules)],
    };
    world.run();
    world.lines
}

impl World {
    fn run(&mut self) {
        for client in 0..CLIENTS {
            let at = self.random.below(200 * MS);
            self.plan(at, Next::Wake(client));
        }
        while let Some(Reverse((now, _, next))) = self.agenda.pop() {
            self.now = now;
            match next {
                Next::Deed(n) => self.deed(n),
                Next::Heard(n) => self.heard(n),
                Next::Wake(client) => self.wake(client),
                Next::Lose(client) => {
                    self.queue.pulse(now);
                    self.queue.lose(now, client);
                }
            }
        }
        self.tell_replicas();
        self.list();
    }

    fn plan(&mut self, at: u64, next: Next) {
        self.steps += 1;
        self.agenda.push(Reverse((at, self.steps, next)));
    }

    // ---- what clients ask ----

    fn wake(&mut self, client: usize) {
        let ask = match self.again[client].take() {
            Some(ask) => Some(ask),
            None if client < PRODUCERS => self.produce(),
            None if client == PERSON => self.meddle(),
            None => self.work(client),
        };
        match ask {
            Some(ask) => self.ask(client, ask),
            // Workers look again while there is something to do.
            None if (PRODUCERS..PERSON).contains(&client) && !self.is_over() => {
                let at = self.now + 100 * MS;
                self.plan(at, Next::Wake(client));
            }
            None => {}
        }
    }

    fn is_over(&self) -> bool {
        let rest = self.agenda.iter().any(|Reverse((_, _, next))| !matches!(next, Next::Wake(_)));
        self.now > BUSY_US && !rest && self.queue.tasks.values().all(|task| task.state.is_ended())
    }

    fn new_task(&mut self) -> New {
        self.payloads += 1;
        let random = &mut self.random;
        New {
            payload: self.payloads,
            order: random.percent(30).then(|| random.below(3)),
            dedup: None,
            delay_us: if random.percent(20) { random.between(1, 3_000) * MS } else { 0 },
            attempts_max: random.between(1, 5) as u32,
        }
    }

    fn produce(&mut self) -> Option<Ask> {
        if self.now > BUSY_US {
            return None;
        }
        let mut new = self.new_task();
        if self.random.percent(40) {
            // A key names a payload: the same key again is the same task again.
            let key = self.random.below(12);
            new =
                New { payload: 1_000_000 + key, order: None, dedup: Some(key), delay_us: 0, attempts_max: 3 };
        }
        Some(Ask::Enqueue(new))
    }

    fn work(&mut self, client: usize) -> Option<Ask> {
        let Some(claim) = self.in_hand[client].pop() else {
            if self.is_over() {
                return None;
            }
            let shard = ShardId::new(self.random.between(1, u64::from(SHARDS) + 1) as u16).unwrap();
            let request = self.random.percent(40).then(|| self.random.next());
            let hold_us = self.random.between(500, 3_000) * MS;
            let session = self.random.percent(20).then_some(client);
            if session.is_some() && self.random.percent(30) {
                let at = self.now + self.random.below(3_000 * MS);
                self.plan(at, Next::Lose(client));
            }
            return Some(Ask::Claim {
                shard,
                max: self.random.between(1, 4) as usize,
                hold_us,
                request,
                session,
            });
        };
        let InHand { task, fence, payload } = claim;
        Some(match self.random.below(10) {
            0 | 1 => Ask::Fail {
                task,
                fence,
                retry_us: self.random.below(2_000) * MS,
                fatal: self.random.percent(10),
            },
            2 => Ask::Release { task, fence, delay_us: self.random.below(3) * 300 * MS },
            3 => {
                self.in_hand[client].push(claim);
                Ask::Extend { task, fence, hold_us: self.random.between(100, 3_000) * MS }
            }
            // Every attempt at a task has the same follow-up.
            _ if payload % 4 == 0 && payload < 1_000_000 && self.now < BUSY_US => {
                let follow_up = New {
                    payload: 2_000_000 + payload,
                    order: (payload % 8 == 0).then_some(1),
                    dedup: None,
                    delay_us: 0,
                    attempts_max: 4,
                };
                Ask::Ack { task, fence, then: vec![follow_up] }
            }
            _ => Ask::Ack { task, fence, then: Vec::new() },
        })
    }

    fn meddle(&mut self) -> Option<Ask> {
        if self.now > BUSY_US {
            return None;
        }
        let Some(&task) = self.random.pick(&self.known) else { return Some(Ask::Counts) };
        Some(match self.random.below(400) {
            n @ 396.. => {
                [Ask::PutBackAll, Ask::RequeueAll, Ask::Purge, Ask::Counts][(n - 396) as usize].clone()
            }
            n => match n % 12 {
                0 => Ask::PutBack(task),
                1 => Ask::Discard(task),
                2 => Ask::Cancel(task),
                3 | 4 => Ask::Requeue(task),
                5..8 => Ask::Counts,
                _ => Ask::Get(task),
            },
        })
    }

    fn ask(&mut self, client: usize, ask: Ask) {
        let n = self.asked.len();
        let is_lost = self.random.percent(self.lost_percent);
        self.asked.push(Asked { client, start: self.now, ask: ask.clone(), answer: None, is_lost });
        let deed = self.now + self.random.between(1, 80 * MS);
        let mut heard = deed + self.random.between(1, 80 * MS);
        if is_lost {
            heard = self.now + 2_000 * MS;
            match self.random.below(3) {
                // Never, at once, or any time later.
                0 => {}
                1 => self.plan(deed, Next::Deed(n)),
                _ => {
                    let late = self.now + self.random.below(8_000 * MS);
                    self.plan(late, Next::Deed(n));
                }
            }
        } else {
            self.plan(deed, Next::Deed(n));
            if self.random.percent(15) && is_repeatable(&ask) {
                // A router that heard nothing from the first leader asks the second.
                let again = deed + self.random.between(1, 500 * MS);
                self.plan(again, Next::Deed(n));
                heard = again + self.random.between(1, 50 * MS);
            }
        }
        self.plan(heard, Next::Heard(n));
    }

    // ---- what the queue does ----

    /// The index of an entry that is made now. Several deeds share one when they come together.
    fn entry(&mut self, shard: ShardId) -> u64 {
        let n = usize::from(shard.number());
        if self.index[n] == 0 || self.now > self.last_entry[n] + 300 {
            self.index[n] += 1;
            self.last_entry[n] = self.now;
        }
        self.index[n]
    }

    fn deed(&mut self, n: usize) {
        self.queue.pulse(self.now);
        let ask = self.asked[n].ask.clone();
        let (outcome, shard, deed) = self.answer(&ask);
        let index = shard.map(|shard| self.entry(shard));
        let before = self.asked[n].answer.take();
        let was_done = before.is_some_and(|(outcome, _, _)| outcome == Outcome::Ok);
        // Who was told no by the second, but not by the first, does not know what happened.
        let outcome = match outcome {
            Outcome::Rejected(_) if was_done => Outcome::Unknown,
            outcome => outcome,
        };
        self.asked[n].answer = Some((outcome, index, deed));
    }

    fn answer(&mut self, ask: &Ask) -> (Outcome, Option<ShardId>, Deed) {
        let now = self.now;
        let said = |result: &Result<StateKind, &str>| match result {
            Ok(_) => Outcome::Ok,
            Err(code) => Outcome::Rejected((*code).to_owned()),
        };
        let mut deed = deed_of(ask);
        let queue = &mut self.queue;
        let (outcome, shard) = match (ask, &mut deed) {
            (Ask::Enqueue(new), Deed::Enqueue(enqueue)) => {
                let (id, duplicate) = queue.enqueue(now, new);
                (enqueue.task, enqueue.duplicate) = (Some(id), duplicate);
                (Outcome::Ok, Some(id.shard()))
            }
            (&Ask::Claim { shard, max, hold_us, request, session }, Deed::Claim(claim)) => {
                let known = request.and_then(|request| self.requests.get(&request));
                let given: Vec<(TaskId, u64, u64, u32)> = match known {
                    Some(known) => {
                        known.iter().filter(|(id, fence, ..)| queue.holds(*id, *fence)).copied().collect()
                    }
                    None => {
                        let given = queue.claim(now, shard, max, hold_us, session);
                        given
                            .iter()
                            .map(|given| (given.task, given.fence, given.payload, given.attempt))
                            .collect()
                    }
                };
                if let Some(request) = request.filter(|_| !given.is_empty()) {
                    self.requests.entry(request).or_insert_with(|| given.clone());
                }
                claim.got = given
                    .iter()
                    .map(|&(task, fence, payload, attempt)| got(task, payload, fence, attempt))
                    .collect();
                (Outcome::Ok, (!given.is_empty()).then_some(shard))
            }
            (Ask::Ack { task, fence, then }, Deed::Ack(ack)) => {
                let result = queue.ack(now, *task, *fence, then);
                ack.state = result.ok();
                (said(&result), Some(task.shard()))
            }
            (&Ask::Fail { task, fence, retry_us, fatal }, Deed::Fail(fail)) => {
                let result = queue.fail(now, task, fence, retry_us, fatal);
                fail.state = result.ok().map(|(state, _)| state);
                fail.attempt = result.ok().map(|(_, attempt)| attempt);
                (said(&result.map(|(state, _)| state)), Some(task.shard()))
            }
            (&Ask::Release { task, fence, delay_us }, Deed::Release(release)) => {
                let result = queue.release(now, task, fence, delay_us);
                release.state = result.ok();
                (said(&result), Some(task.shard()))
            }
            (&Ask::Extend { task, fence, hold_us }, _) => {
                let result = queue.extend(now, task, fence, hold_us).map(|()| StateKind::Claimed);
                (said(&result), Some(task.shard()))
            }
            (&(Ask::PutBack(task) | Ask::Discard(task) | Ask::Cancel(task) | Ask::Requeue(task)), deed) => {
                let (result, on) = match (ask, deed) {
                    (Ask::PutBack(_), Deed::PutBack(on)) => (queue.put_back(now, task), on),
                    (Ask::Discard(_), Deed::Discard(on)) => (queue.discard(now, task), on),
                    (Ask::Cancel(_), Deed::Cancel(on)) => (queue.cancel(now, task), on),
                    (_, Deed::Requeue(on)) => (queue.requeue(task), on),
                    (_, other) => unreachable!("{other:?}"),
                };
                on.state = result.ok();
                (said(&result), Some(task.shard()))
            }
            (Ask::Get(task), Deed::Get { state, .. }) => {
                *state = Some(queue.tasks[task].state);
                (Outcome::Ok, None)
            }
            (Ask::Counts, Deed::Counts(counts)) => {
                let (enqueued, done, failed) = (queue.enqueued, queue.done, queue.failed);
                counts.totals = Totals { enqueued, done, failed, dead: queue.dead, freed: queue.freed };
                let live = queue.tasks.values().filter(|task| !task.state.is_ended()).count() as u64;
                counts.depth = Depth { ready: live, ..Depth::default() };
                (Outcome::Ok, None)
            }
            (Ask::PutBackAll, _) => {
                queue.put_back_all(now);
                (Outcome::Ok, None)
            }
            (Ask::RequeueAll, _) => {
                queue.requeue_all();
                (Outcome::Ok, None)
            }
            (Ask::Purge, _) => {
                queue.purge(now);
                (Outcome::Ok, None)
            }
            (ask, deed) => unreachable!("{ask:?} is no {deed:?}"),
        };
        (outcome, shard, deed)
    }

    // ---- what clients hear ----

    fn heard(&mut self, n: usize) {
        let (client, start, is_lost) = (self.asked[n].client, self.asked[n].start, self.asked[n].is_lost);
        let ask = self.asked[n].ask.clone();
        let answer = if is_lost { None } else { self.asked[n].answer.take() };
        let (outcome, index, deed) = answer.unwrap_or_else(|| (Outcome::Unknown, None, deed_of(&ask)));
        let is_unknown = outcome == Outcome::Unknown;
        let deed = if is_unknown { deed_of(&ask) } else { deed };
        let shard = match &deed {
            Deed::Claim(claim) => claim.got.first().map(|got| got.task.shard()),
            Deed::Enqueue(enqueue) => enqueue.task.map(|task| task.shard()),
            _ => task_of(&ask).map(|task| task.shard()),
        };
        let index = shard.zip(index.filter(|_| !is_unknown));
        let index =
            index.map(|(shard, index)| Indexes::one(GroupId(shard.number()), index)).unwrap_or_default();
        match &deed {
            Deed::Enqueue(enqueue) => self.known.extend(enqueue.task),
            Deed::Claim(claim) => {
                for got in &claim.got {
                    self.known.push(got.task);
                    let payload = got.payload[1..].parse().unwrap();
                    self.in_hand[client].push(InHand { task: got.task, fence: got.fence, payload });
                }
            }
            _ => {}
        }
        if is_unknown && self.random.percent(60) && may_be_asked_again(&ask) {
            self.again[client] = Some(ask);
        }
        let call =
            Call { client: format!("c{client}"), start_us: start, end_us: self.now, outcome, index, deed };
        self.lines.push(Line::Call(call));
        // Now and then somebody sleeps over a deadline.
        let pause = if self.random.percent(5) { 4_000 * MS } else { 300 * MS };
        let at = self.now + self.random.between(1, pause);
        self.plan(at, Next::Wake(client));
    }

    // ---- the end ----

    fn tell_replicas(&mut self) {
        for index in 1..=4u64 {
            for node in 1..=3 {
                self.lines.push(Line::Hash(Hash {
                    node,
                    group: 1,
                    index: index * 1024,
                    hash: format!("{index:x}"),
                }));
                self.lines.push(Line::Vote(Vote {
                    node,
                    incarnation: 0,
                    group: 1,
                    term: index,
                    voted_for: Some(1 + index % 3),
                    at_us: index,
                }));
            }
            self.lines.push(Line::Leader(Leader {
                node: 1 + index % 3,
                group: 1,
                term: index,
                at_us: index,
            }));
        }
    }

    fn list(&mut self) {
        let tasks: Vec<(TaskId, u64, StateKind)> =
            self.queue.tasks.values().map(|task| (task.id, task.new.payload, task.state)).collect();
        let start_us = self.now + MS;
        for (task, payload, state) in tasks {
            let deed = Deed::Get {
                task,
                queue: Some("q".to_owned()),
                payload: Some(format!("p{payload}")),
                state: Some(state),
            };
            let (outcome, index) = (Outcome::Ok, Indexes::default());
            let call =
                Call { client: "list".to_owned(), start_us, end_us: start_us + MS, outcome, index, deed };
            self.lines.push(Line::Call(call));
        }
        self.lines.push(Line::End(End { at_us: start_us + MS, drained: true, listed: true }));
    }
}

fn is_repeatable(ask: &Ask) -> bool {
    match ask {
        Ask::Ack { .. } | Ask::Fail { .. } | Ask::Extend { .. } => true,
        Ask::Enqueue(new) => new.dedup.is_some(),
        Ask::Claim { request, .. } => request.is_some(),
        _ => false,
    }
}

/// What a client may ask again when it heard nothing.
fn may_be_asked_again(ask: &Ask) -> bool {
    is_repeatable(ask) || matches!(ask, Ask::Release { .. })
}

fn task_of(ask: &Ask) -> Option<TaskId> {
    match *ask {
        Ask::Ack { task, .. }
        | Ask::Fail { task, .. }
        | Ask::Release { task, .. }
        | Ask::Extend { task, .. } => Some(task),
        Ask::PutBack(task) | Ask::Discard(task) | Ask::Cancel(task) | Ask::Requeue(task) | Ask::Get(task) => {
            Some(task)
        }
        Ask::Enqueue(_) | Ask::Claim { .. } | Ask::Counts => None,
        Ask::PutBackAll | Ask::RequeueAll | Ask::Purge => None,
    }
}

fn got(task: TaskId, payload: u64, fence: u64, attempt: u32) -> Got {
    Got { task, queue: "q".to_owned(), payload: format!("p{payload}"), fence, attempt, hold_ms: None }
}

/// The call as it is written when nobody answers.
fn deed_of(ask: &Ask) -> Deed {
    let queue = || "q".to_owned();
    let on = |task: TaskId| OnTasks { task: Some(task), ..OnTasks::default() };
    match ask {
        Ask::Enqueue(new) => Deed::Enqueue(Enqueue {
            queue: queue(),
            payload: format!("p{}", new.payload),
            order_key: new.order.map(|key| format!("o{key}")),
            dedup_key: new.dedup.map(|key| format!("d{key}")),
            dedup_window_ms: new.dedup.map(|_| WINDOW_US / MS),
            delay_ms: (new.delay_us > 0).then_some(new.delay_us / MS),
            attempts: Some(new.attempts_max),
            ..Enqueue::default()
        }),
        Ask::Claim { hold_us, request, session, .. } => Deed::Claim(Claim {
            session: session.map(|client| format!("s{client}")),
            queues: vec![queue()],
            worker: "w".to_owned(),
            request: request.map(|request| request.to_string()),
            hold_ms: Some(hold_us / MS),
            ..Claim::default()
        }),
        Ask::Ack { task, fence, then } => {
            let then = then.iter().map(|new| Then {
                queue: queue(),
                payload: format!("p{}", new.payload),
                order_key: new.order.map(|key| format!("o{key}")),
                attempts: Some(new.attempts_max),
                ..Then::default()
            });
            Deed::Ack(Settle { then: then.collect(), ..Settle::of(*task, *fence) })
        }
        Ask::Fail { task, fence, retry_us, fatal } => Deed::Fail(Settle {
            retry_in_ms: Some(retry_us / MS),
            fatal: *fatal,
            ..Settle::of(*task, *fence)
        }),
        Ask::Release { task, fence, delay_us } => {
            Deed::Release(Settle { retry_in_ms: Some(delay_us / MS), ..Settle::of(*task, *fence) })
        }
        Ask::Extend { task, fence, hold_us } => {
            Deed::Extend(Hold { task: *task, fence: *fence, hold_ms: Some(hold_us / MS) })
        }
        Ask::PutBack(task) => Deed::PutBack(on(*task)),
        Ask::Discard(task) => Deed::Discard(on(*task)),
        Ask::Cancel(task) => Deed::Cancel(on(*task)),
        Ask::Requeue(task) => Deed::Requeue(on(*task)),
        Ask::Get(task) => Deed::Get { task: *task, queue: None, payload: None, state: None },
        Ask::Counts => Deed::Counts(Counts { queue: queue(), ..Counts::default() }),
        Ask::PutBackAll => Deed::PutBack(OnTasks { queue: Some(queue()), ..OnTasks::default() }),
        Ask::RequeueAll => Deed::Requeue(OnTasks { queue: Some(queue()), ..OnTasks::default() }),
        Ask::Purge => Deed::Purge { queue: queue() },
    }
}
