//! Claims: from the best shard first, and parked here, once, while nothing is ready.
//!
//! A claim looks at what each shard has ready, takes promises on the best of it (`lines.rs`) and asks
//! those shards, all at once. Only when nothing is free does it wait, until an offer is made to it: by
//! a shard that says that a queue has something now, or by a claim that did not need its promise.
//! A waiting claim is in no log, polls nothing, and keeps its place when an offer came to nothing.
//!
//! Next: `state-machine/src/shard/claim.rs`, where tasks are given out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::command::{Claim as ClaimCommand, ClaimById, ClaimQueue};
use model::{Claimed, Command, KeyHash, Millis, QueueName, Reply, ShardId, WorkerName, limits};
use wire::envelope::Envelope;

use crate::call::{Answer, Claim, ClaimByIdCall, ClaimCall};
use crate::error::Error;
use crate::inner::{Inner, Node};
use crate::lines::{Share, Stock, Waiter};
use crate::requests::Turn;
use crate::session::Session;
use crate::stats::Operation;
use crate::taken::{Carried, Keep, Return, Taken};

/// Rounds in which one claim gathers over the shards. One is enough unless others were faster.
const ROUNDS_MAX: usize = 4;

/// Promises that are taken back when dropped.
struct Promised {
    inner: Arc<Inner>,
    shares: Vec<Share>,
}

impl Drop for Promised {
    fn drop(&mut self) {
        for queue in self.inner.lines.take_back(&self.shares) {
            self.inner.serve(&queue);
        }
    }
}

/// One that stands in line until it is dropped.
struct Parked<'a> {
    inner: &'a Arc<Inner>,
    queues: &'a [ClaimQueue],
    waiter: Arc<Waiter>,
}

impl Parked<'_> {
    fn enter(&self) {
        for queue in self.queues {
            self.inner.lines.enter(&queue.name, &self.waiter);
        }
        // What became ready before we stood in line told nobody.
        for queue in self.queues {
            self.inner.serve(&queue.name);
        }
    }

    fn leave(&self) {
        for queue in self.queues {
            self.inner.lines.leave(&queue.name, &self.waiter);
        }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.leave();
        self.inner.lines.gone();
        if let Some(shares) = self.waiter.close() {
            drop(Promised { inner: self.inner.clone(), shares });
        }
    }
}

/// What every shard is asked of one call.
struct Ask<'a> {
    call: &'a ClaimCall,
    request: Option<KeyHash>,
    /// Keeps a repeat of the same request waiting until this one is through.
    turn: Option<Arc<Turn>>,
    session: Option<Arc<Session>>,
}

impl Node {
    /// Gives ready tasks to a worker; waits for the first one if asked to.
    pub async fn claim(&self, call: ClaimCall) -> Result<Answer<Vec<Claim>>, Error> {
        check(&call)?;
        let inner = &self.inner;
        let session = inner.sessions.live(&call.worker, call.session)?;
        if let Some(session) = session.as_ref().filter(|session| !session.may_claim()) {
            return inner.wait_for_nothing(session, call.wait).await;
        }
        let mut ask = Ask { call: &call, request: None, turn: None, session };
        if let Some(id) = &call.request_id {
            let request = request_key(&call.worker, id);
            ask.request = Some(request);
            ask.turn = Some(Arc::new(inner.requests.turn(request).await));
            if let Some(taken) = inner.repeat(&ask, request).await? {
                return inner.told(taken, &call.queues, ask.session.as_deref());
            }
        }
        let mut taken = inner.gather(&ask, call.max).await?;
        if taken.is_empty() && call.wait.0 > 0 {
            taken = inner.wait(&ask).await?;
        }
        inner.told(taken, &call.queues, ask.session.as_deref())
    }

    /// Gives one task, if it is ready.
    pub async fn claim_by_id(&self, call: ClaimByIdCall) -> Result<Answer<Vec<Claim>>, Error> {
        let inner = &self.inner;
        let session = inner.sessions.live(&call.worker, call.session)?;
        let request = call.request_id.as_ref().map(|id| request_key(&call.worker, id));
        let command = Command::ClaimById(ClaimById {
            task: call.task,
            worker: call.worker,
            session: call.session,
            hold: call.hold,
            request,
        });
        inner.groups.known(call.task)?;
        let (asked, shard) = (inner.clone(), call.task.shard());
        let keep = Keep { repeatable: request.is_some(), session: session.clone() };
        let taken = Carried::new(async move { asked.claim_in(shard, command, keep).await }).await?;
        inner.told(vec![taken], &[], session.as_deref())
    }

    /// Takes back claims whose answer could not be delivered. No attempt is used up.
    pub fn give_back(&self, claims: &[Claim]) {
        for claim in claims {
            let _ = self.inner.returns.send(Return { task: claim.id, fence: claim.fence });
        }
    }

    /// How many claims wait at this node.
    pub fn waiting_claims(&self) -> usize {
        self.inner.lines.waiting()
    }
}

impl Inner {
    /// What the shards have ready of `queue`, best first.
    fn stocks(&self, queue: &QueueName) -> Vec<Stock> {
        let mut stocks = Vec::new();
        for shard in self.groups.all() {
            if let Some(hint) = self.groups.look(shard, |state| state.ready_hint(queue)) {
                stocks.push(Stock { shard, hint });
            }
        }
        stocks.sort_by_key(|stock| (stock.hint.priority, stock.hint.since));
        stocks
    }

    /// Offers what is ready of `queue` to those who wait for it.
    pub(crate) fn serve(&self, queue: &QueueName) {
        if self.lines.has_waiters(queue) {
            let stocks = self.stocks(queue);
            if !stocks.is_empty() {
                self.lines.serve(queue, &stocks);
            }
        }
    }

    /// Takes promises on up to `want` tasks.
    fn promise(self: &Arc<Inner>, queues: &[ClaimQueue], want: u32) -> Option<Promised> {
        let mut shares = Vec::new();
        let mut left = want;
        for queue in in_turn(queues) {
            let promised = self.lines.promise(&queue.name, &self.stocks(&queue.name), left);
            left -= promised.iter().map(|share| share.count).sum::<u32>();
            shares.extend(promised);
            if left == 0 {
                break;
            }
        }
        (!shares.is_empty()).then(|| Promised { inner: self.clone(), shares })
    }

    /// Gathers what is ready now, up to `want`.
    async fn gather(self: &Arc<Inner>, ask: &Ask<'_>, want: u32) -> Result<Vec<Taken>, Error> {
        let mut gathered = Vec::new();
        let mut left = want;
        for _ in 0..ROUNDS_MAX {
            let Some(promised) = self.promise(&ask.call.queues, left) else { break };
            let taken = self.take(ask, promised).await;
            let count = keep(&mut gathered, taken)?;
            left -= count.min(left);
            // A shard that is asked again by the same request would say the same again.
            if left == 0 || (ask.request.is_some() && count > 0) {
                break;
            }
        }
        Ok(gathered)
    }

    /// Waits in line for the first task.
    async fn wait(self: &Arc<Inner>, ask: &Ask<'_>) -> Result<Vec<Taken>, Error> {
        let until = tokio::time::Instant::now() + Duration::from(ask.call.wait);
        let parked = self.park(&ask.call.queues, ask.call.max)?;
        loop {
            parked.enter();
            let woken = tokio::select! {
                () = parked.waiter.told.notified() => true,
                () = tokio::time::sleep_until(until) => false,
                () = Session::until_no_claims(ask.session.as_deref()) => false,
                () = self.stopping.cancelled() => false,
            };
            parked.leave();
            if let Some(shares) = parked.waiter.take() {
                let taken = self.take(ask, Promised { inner: self.clone(), shares }).await;
                let mut gathered = Vec::new();
                let count = keep(&mut gathered, taken)?;
                if count > 0 {
                    let left = ask.call.max - count.min(ask.call.max);
                    if left > 0 && ask.request.is_none() {
                        gathered.extend(self.gather(ask, left).await.unwrap_or_default());
                    }
                    return Ok(gathered);
                }
            }
            if !woken || tokio::time::Instant::now() >= until {
                return Ok(Vec::new());
            }
        }
    }

    /// The answer to a worker that drains or stops: nothing, but not before its wait is over. It would
    /// ask again and again otherwise.
    async fn wait_for_nothing(
        self: &Arc<Inner>,
        session: &Session,
        wait: Millis,
    ) -> Result<Answer<Vec<Claim>>, Error> {
        if wait.0 > 0 {
            // In no line, but counted as one that waits.
            let _parked = self.park(&[], 0)?;
            tokio::select! {
                () = tokio::time::sleep(wait.into()) => {}
                () = session.until_over() => {}
                () = self.stopping.cancelled() => {}
            }
        }
        if session.is_over() {
            return Err(Error::UnknownWorker { worker: session.name.clone() });
        }
        Ok(Answer { value: Vec::new(), indexes: Vec::new() })
    }

    /// A place for one that waits.
    fn park<'a>(self: &'a Arc<Inner>, queues: &'a [ClaimQueue], want: u32) -> Result<Parked<'a>, Error> {
        let max = limits::WAITING_CLAIMS_MAX;
        let too_many = Error::TooManyRequests { what: "claims that wait", max: Some(max) };
        let waiter = self.lines.waiter(want, max).ok_or(too_many)?;
        Ok(Parked { inner: self, queues, waiter })
    }

    /// Asks the shards of these promises, all at once.
    fn take(
        self: &Arc<Inner>,
        ask: &Ask<'_>,
        promised: Promised,
    ) -> impl Future<Output = Vec<Result<Taken, Error>>> + use<> {
        let mut counts: Vec<(ShardId, u32)> = Vec::new();
        for share in &promised.shares {
            match counts.iter_mut().find(|(shard, _)| *shard == share.shard) {
                Some((_, count)) => *count += share.count,
                None => counts.push((share.shard, share.count)),
            }
        }
        let commands: Vec<(ShardId, Command)> =
            counts.into_iter().map(|(shard, max)| (shard, ask.command(max))).collect();
        let (inner, turn, keep) = (self.clone(), ask.turn.clone(), ask.keep());
        Carried::new(async move {
            let asked =
                commands.into_iter().map(|(shard, command)| inner.claim_in(shard, command, keep.clone()));
            let taken = futures::future::join_all(asked).await;
            drop((promised, turn));
            taken
        })
    }

    /// Asks one shard.
    async fn claim_in(
        self: &Arc<Inner>,
        shard: ShardId,
        command: Command,
        keep: Keep,
    ) -> Result<Taken, Error> {
        let since = Instant::now();
        match self.groups.propose_one(shard, command).await {
            Ok((index, Reply::Claimed(claims))) => {
                self.counters.timed(Operation::Claim, since, claims.len(), 0);
                Ok(Taken::new(shard, index, claims, &self.returns, keep))
            }
            Ok(_) => unreachable!("a claim is answered by claims"),
            Err(error) => {
                self.counters.timed(Operation::Claim, since, 0, 1);
                Err(error)
            }
        }
    }

    /// Asks the shards that know this request; nothing when none does.
    async fn repeat(self: &Arc<Inner>, ask: &Ask<'_>, request: KeyHash) -> Result<Option<Vec<Taken>>, Error> {
        let looks = self.groups.all().map(|shard| async move {
            let known = self.groups.read(shard, |state| state.knows_request(request)).await?;
            Ok::<_, Error>(known.then_some(shard))
        });
        let known: Vec<Option<ShardId>> = futures::future::try_join_all(looks).await?;
        let mut taken = Vec::new();
        for shard in known.into_iter().flatten() {
            taken.push(self.claim_in(shard, ask.command(ask.call.max), ask.keep()).await?);
        }
        Ok((!taken.is_empty()).then_some(taken))
    }

    /// Makes the answer, sorted by the order of the queues, then priority, then age.
    fn told(
        &self,
        taken: Vec<Taken>,
        queues: &[ClaimQueue],
        session: Option<&Session>,
    ) -> Result<Answer<Vec<Claim>>, Error> {
        // A session that ended meanwhile may have been freed before these claims were made.
        if let Some(session) = session.filter(|session| session.is_over()) {
            taken.into_iter().for_each(Taken::give_back);
            return Err(Error::UnknownWorker { worker: session.name.clone() });
        }
        let mut indexes = Vec::with_capacity(taken.len());
        let mut claims: Vec<Claimed> = Vec::new();
        for taken in taken {
            indexes.push((taken.shard, taken.index));
            claims.extend(taken.told());
        }
        let rank = |claim: &Claimed| queues.iter().position(|queue| queue.name == claim.queue);
        claims.sort_by_cached_key(|claim| (rank(claim), claim.priority, claim.ready_since, claim.id));
        let mut value = Vec::with_capacity(claims.len());
        for claim in claims {
            value.push(self.claim_of(claim)?);
        }
        Ok(Answer { value, indexes })
    }

    fn claim_of(&self, claim: Claimed) -> Result<Claim, Error> {
        let envelope = Envelope::from_bytes(claim.envelope).map_err(|error| {
            tracing::error!(task = %claim.id, %error, "the envelope of a claimed task cannot be read");
            Error::Broken(format!("task {}: its envelope is damaged: run windlass check", claim.id))
        })?;
        Ok(Claim {
            id: claim.id,
            queue: claim.queue,
            envelope,
            priority: claim.priority,
            attempt: claim.attempt,
            token: self.mint.token(claim.id, claim.fence),
            fence: claim.fence,
            deadline: claim.deadline_wall,
            enqueued_at: claim.enqueued_at,
        })
    }
}

impl Ask<'_> {
    fn keep(&self) -> Keep {
        Keep { repeatable: self.request.is_some(), session: self.session.clone() }
    }

    fn command(&self, max: u32) -> Command {
        Command::Claim(ClaimCommand {
            queues: self.call.queues.clone(),
            worker: self.call.worker.clone(),
            session: self.call.session,
            max,
            hold: self.call.hold,
            request: self.request,
        })
    }
}

fn check(call: &ClaimCall) -> Result<(), Error> {
    if call.queues.is_empty() || call.queues.len() > limits::CLAIM_QUEUES_MAX {
        return Err(Error::Invalid(format!(
            "a claim names {} queues: name 1 to {}",
            call.queues.len(),
            limits::CLAIM_QUEUES_MAX
        )));
    }
    if call.max == 0 || call.max > limits::CLAIM_MAX {
        return Err(Error::Invalid(format!("max is {}: ask for 1 to {}", call.max, limits::CLAIM_MAX)));
    }
    Ok(())
}

/// Keeps what was taken; an error only when there is nothing else. How many claims came.
fn keep(gathered: &mut Vec<Taken>, taken: Vec<Result<Taken, Error>>) -> Result<u32, Error> {
    let mut count = 0;
    let mut failed = None;
    for taken in taken {
        match taken {
            Ok(taken) => {
                count += taken.len() as u32;
                if taken.len() > 0 {
                    gathered.push(taken);
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if gathered.is_empty() => Err(error),
        _ => Ok(count),
    }
}

/// The queues in the order in which this claim prefers them: as given, or drawn by weight.
fn in_turn(queues: &[ClaimQueue]) -> Vec<&ClaimQueue> {
    let mut order: Vec<&ClaimQueue> = queues.iter().collect();
    if queues.len() > 1 && queues.iter().any(|queue| queue.weight > 0) {
        // Exponential times with the weights as rates: the first comes first in proportion to its weight.
        let time = |queue: &&ClaimQueue| -rand::random::<f64>().ln() / f64::from(queue.weight.max(1));
        let mut drawn: Vec<(f64, &ClaimQueue)> = order.iter().map(|queue| (time(queue), *queue)).collect();
        drawn.sort_by(|a, b| a.0.total_cmp(&b.0));
        order = drawn.into_iter().map(|(_, queue)| queue).collect();
    }
    order
}

/// A request id, told apart by its worker.
fn request_key(worker: &WorkerName, id: &str) -> KeyHash {
    let mut hasher = blake3::Hasher::new();
    // A worker's name holds no NUL.
    hasher.update(worker.as_str().as_bytes()).update(&[0]).update(id.as_bytes());
    let mut bytes = [0u8; 16];
    hasher.finalize_xof().fill(&mut bytes);
    KeyHash(u128::from_be_bytes(bytes))
}
