//! Claims: from the best shard first, and parked here, once, while nothing is ready.
//!
//! A claim looks at what each shard has ready, takes promises on the best of it (`lines.rs`) and asks
//! those shards, all at once. Only when nothing is free does it wait, until an offer is made to it: by
//! a shard that says that a queue has something now, by a claim that did not need its promise, or by an
//! enqueue, which makes the claim itself (`ahead.rs`).
//! A waiting claim is in no log, polls nothing, and keeps its place when an offer came to nothing, whether
//! others were faster or the shard has no leader just now.
//!
//! What is ready is read from the copies here, also of shards that are led elsewhere. Such a copy is a moment
//! behind: a promise on it holds until the copy has seen the answer, and when the leader had nothing free the
//! queue of that shard is left alone for a moment (`mutes.rs`).
//!
//! Next: `state-machine/src/shard/claim.rs`, where tasks are given out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use model::command::{Claim as ClaimCommand, ClaimById, ClaimQueue};
use model::{Claimed, Command, KeyHash, Millis, QueueName, Reply, ShardId, limits};
use state_machine::Shard;
use wire::envelope::Envelope;
use wire::reply::ClaimHead;

use crate::call::{Answer, Claim, ClaimByIdCall, ClaimCall};
use crate::error::Error;
use crate::inner::{Inner, Node};
use crate::lines::{Asked, Offer, Share, Stock, Waiter};
use crate::reach::LOOK_EVERY;
use crate::requests::{Turn, request_key};
use crate::route::{Call, LEADER_WAIT};
use crate::session::Session;
use crate::stats::Operation;
use crate::taken::{Carried, Keep, Return, Taken};

/// Rounds in which one claim gathers over the shards. One is enough unless others were faster.
const ROUNDS_MAX: usize = 4;

/// How long a claim that can wait in line waits for a shard's leader. One that cannot waits like everybody.
const LEADER_WAIT_IN_LINE: Duration = Duration::from_millis(200);
/// How long a queue of a shard is left alone whose leader did not answer.
const MUTED_SILENT: Duration = Duration::from_millis(100);
/// How long a claim that has something waits for the other shards that it asked.
const STRAGGLERS_WAIT: Duration = Duration::from_millis(250);
/// How long after its wait a claim hears what it has asked for. What comes later is given back.
const LATE: Duration = Duration::from_secs(2);
/// How long a promise waits for the copy here to see what became of it.
const SEEN_WAIT: Duration = Duration::from_secs(2);
/// How long a claim that found nothing waits for the copies here to be where their leaders are.
const CATCH_UP_WAIT: Duration = Duration::from_millis(500);

/// Promises that are taken back when dropped.
pub(crate) struct Promised {
    pub(crate) inner: Arc<Inner>,
    pub(crate) shares: Vec<Share>,
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
        // A claim that was made already goes on, and is given back.
        if let Some(Offer::Promised(shares)) = self.waiter.close() {
            drop(Promised { inner: self.inner.clone(), shares });
        }
    }
}

/// What every shard is asked of one call.
pub(crate) struct Ask {
    pub(crate) call: ClaimCall,
    pub(crate) request: Option<KeyHash>,
    /// Keeps a repeat of the same request waiting until this one is through.
    turn: Option<Arc<Turn>>,
    pub(crate) session: Option<Arc<Session>>,
    /// Until when one that cannot wait in line looks for leaders.
    leaders_until: tokio::time::Instant,
}

/// What became of a claim at once.
enum Begun {
    Told(Answer<Vec<Claim>>),
    /// Nothing is ready, and it may wait.
    Waits {
        ask: Arc<Ask>,
        until: tokio::time::Instant,
    },
}

/// What became of an offer.
enum Became {
    Told(Result<Vec<Taken>, Error>),
    /// Others were faster, or the reason passes: it waits on.
    Nothing,
    /// It came too late.
    Late,
}

impl Node {
    /// Gives ready tasks to a worker; waits for the first one if asked to.
    pub fn claim(
        &self,
        call: ClaimCall,
    ) -> impl Future<Output = Result<Answer<Vec<Claim>>, Error>> + Send + use<> {
        // What is done before and after a wait is boxed: thousands of claims that wait keep room for their wait only.
        let (inner, begin) = (self.inner.clone(), Box::pin(begin(self.inner.clone(), call)));
        async move {
            match begin.await? {
                Begun::Told(answer) => Ok(answer),
                Begun::Waits { ask, until } => {
                    let taken = inner.wait(&ask, until).await?;
                    inner.told(taken, &ask)
                }
            }
        }
    }

    /// Gives one task, if it is ready.
    pub async fn claim_by_id(&self, call: ClaimByIdCall) -> Result<Answer<Vec<Claim>>, Error> {
        let inner = &self.inner;
        let session = inner.live_session(&call.worker, call.session).await?;
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
        let claim = Call::new::<Shard>(&[command]);
        let taken = Carried::new(async move { asked.claim_in(shard, claim, keep).await }).await?;
        inner.answer(vec![taken], &[], session.as_deref())
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

/// Takes what is ready now.
async fn begin(inner: Arc<Inner>, call: ClaimCall) -> Result<Begun, Error> {
    check(&call)?;
    let session = inner.live_session(&call.worker, call.session).await?;
    if let Some(session) = session.as_ref().filter(|session| !session.may_claim()) {
        return inner.wait_for_nothing(session, call.wait).await.map(Begun::Told);
    }
    let now = tokio::time::Instant::now();
    let until = now + Duration::from(call.wait);
    let mut ask = Ask { call, request: None, turn: None, session, leaders_until: now + LEADER_WAIT };
    if let Some(id) = &ask.call.request_id {
        let request = request_key(&ask.call.worker, id);
        ask.request = Some(request);
        ask.turn = Some(Arc::new(inner.requests.turn(request).await));
        if let Some(taken) = inner.repeat_until(&ask, request, until).await? {
            return inner.told(taken, &ask).map(Begun::Told);
        }
    }
    let taken = match inner.gather(&ask, ask.call.max, None).await {
        Err(error) if ask.call.wait.0 > 0 && is_passing(&error) => Vec::new(),
        taken => taken?,
    };
    if !taken.is_empty() {
        return inner.told(taken, &ask).map(Begun::Told);
    }
    if ask.call.wait.0 > 0 {
        return Ok(Begun::Waits { ask: Arc::new(ask), until });
    }
    let taken = inner.look_again(&ask).await?;
    inner.told(taken, &ask).map(Begun::Told)
}

impl Inner {
    /// What the shards have ready of `queue`, best first.
    fn stocks(&self, queue: &QueueName) -> Vec<Stock> {
        let stocks = self.groups.all().filter(|shard| !self.mutes.is_muted(*shard, queue));
        let mut stocks: Vec<Stock> = stocks.filter_map(|shard| self.stock(shard, queue)).collect();
        stocks.sort_by_key(Stock::rank);
        stocks
    }

    fn stock(&self, shard: ShardId, queue: &QueueName) -> Option<Stock> {
        let hint = self.groups.look(shard, |state| state.ready_hint(queue))?;
        Some(Stock { shard, hint, is_local: self.groups.leads(shard) })
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

    /// Takes promises for another node's claim, on what `shard`, led here, has free.
    pub(crate) fn promise_in(
        self: &Arc<Inner>,
        shard: ShardId,
        queues: &[QueueName],
        want: u32,
    ) -> Option<Promised> {
        let mut shares = Vec::new();
        let mut left = want;
        for queue in queues.iter().take(limits::CLAIM_QUEUES_MAX) {
            let Some(stock) = self.stock(shard, queue) else { continue };
            let promised = self.lines.promise(queue, &[stock], left);
            left -= promised.iter().map(|share| share.count).sum::<u32>();
            shares.extend(promised);
            if left == 0 {
                break;
            }
        }
        (!shares.is_empty()).then(|| Promised { inner: self.clone(), shares })
    }

    /// Looks once more for a claim that cannot wait: what its caller was told by another node may not have
    /// reached the copies here.
    async fn look_again(self: &Arc<Inner>, ask: &Ask) -> Result<Vec<Taken>, Error> {
        if !self.groups.all().all(|shard| self.groups.leads(shard)) {
            self.groups.catch_up(CATCH_UP_WAIT.min(ask.leader_wait())).await;
            let taken = self.gather(ask, ask.call.max, None).await?;
            if !taken.is_empty() {
                return Ok(taken);
            }
        }
        self.nothing(&self.shards_of(&ask.call.queues))
    }

    /// The answer to a claim that got nothing. Only who could have got something knows that there is nothing.
    fn nothing(&self, shards: &[ShardId]) -> Result<Vec<Taken>, Error> {
        if self.is_cut_off(shards) { Err(Error::Unavailable) } else { Ok(Vec::new()) }
    }

    /// Gathers what is ready now, up to `want`. Who has something does not wait long for more: `until` then, or
    /// for [`STRAGGLERS_WAIT`] after the first came.
    async fn gather(
        self: &Arc<Inner>,
        ask: &Ask,
        want: u32,
        mut until: Option<tokio::time::Instant>,
    ) -> Result<Vec<Taken>, Error> {
        let mut gathered = Vec::new();
        let mut left = want;
        for _ in 0..ROUNDS_MAX {
            let Some(promised) = self.promise(&ask.call.queues, left) else { break };
            let take = self.take(ask, promised);
            let taken = match until {
                None => take.await,
                Some(until) => match tokio::time::timeout_at(until, take).await {
                    Ok(taken) => taken,
                    Err(_) => break,
                },
            };
            let count = keep(&mut gathered, taken)?;
            left -= count.min(left);
            if count > 0 {
                until = until.or_else(|| Some(stragglers_until()));
            }
            // A shard that is asked again by the same request would say the same again.
            if left == 0 || (ask.request.is_some() && count > 0) {
                break;
            }
        }
        Ok(gathered)
    }

    /// Waits in line for the first task.
    async fn wait(
        self: &Arc<Inner>,
        ask: &Arc<Ask>,
        until: tokio::time::Instant,
    ) -> Result<Vec<Taken>, Error> {
        let shards = self.shards_of(&ask.call.queues);
        // It may take a look until that is seen at all.
        let long = LEADER_WAIT - LOOK_EVERY;
        let mut cut_off = std::pin::pin!(self.reach.until_cut_off(&shards, long));
        let parked = self.park(&ask.call.queues, ask.call.max, Some(ask.clone()))?;
        loop {
            parked.enter();
            let woken = tokio::select! {
                () = parked.waiter.told.notified() => Woken::Offer,
                () = tokio::time::sleep_until(until) => Woken::Late,
                () = &mut cut_off => Woken::CutOff,
                () = Session::until_no_claims(ask.session.as_deref()) => Woken::Gone,
                () = self.stopping.cancelled() => Woken::Gone,
            };
            parked.leave();
            if let Some(offer) = parked.waiter.take() {
                match Box::pin(self.take_offer(ask, offer, until)).await {
                    Became::Told(taken) => return taken,
                    Became::Nothing => {}
                    Became::Late => break,
                }
            }
            match woken {
                Woken::Gone => return Ok(Vec::new()),
                Woken::CutOff if self.is_cut_off(&shards) => break,
                // A leader was found since the last look.
                Woken::CutOff => cut_off.set(self.reach.until_cut_off(&shards, long)),
                Woken::Offer => {}
                Woken::Late => break,
            }
            if tokio::time::Instant::now() >= until {
                break;
            }
        }
        self.nothing(&shards)
    }

    /// Takes what was offered to one in line.
    async fn take_offer(
        self: &Arc<Inner>,
        ask: &Arc<Ask>,
        offer: Offer,
        until: tokio::time::Instant,
    ) -> Became {
        let take = async {
            match offer {
                Offer::Promised(shares) => self.take(ask, Promised { inner: self.clone(), shares }).await,
                Offer::Asked(asked) => vec![asked.await],
            }
        };
        let Ok(taken) = tokio::time::timeout_at(until + LATE, take).await else { return Became::Late };
        let is_used_up = self.is_used_up(ask, &taken);
        let mut gathered = Vec::new();
        let count = match keep(&mut gathered, taken) {
            Ok(count) => count,
            Err(error) if is_passing(&error) => 0,
            Err(error) => return Became::Told(Err(error)),
        };
        if count == 0 {
            return if is_used_up { Became::Told(Ok(Vec::new())) } else { Became::Nothing };
        }
        let left = ask.call.max - count.min(ask.call.max);
        if left > 0 && ask.request.is_none() {
            let more = self.gather(ask, left, Some(stragglers_until())).await;
            gathered.extend(more.unwrap_or_default());
        }
        Became::Told(Ok(gathered))
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
            let _parked = self.park(&[], 0, None)?;
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
    fn park<'a>(
        self: &'a Arc<Inner>,
        queues: &'a [ClaimQueue],
        want: u32,
        ask: Option<Arc<Ask>>,
    ) -> Result<Parked<'a>, Error> {
        let max = limits::WAITING_CLAIMS_MAX;
        let too_many = Error::TooManyRequests { what: "claims that wait", max: Some(max) };
        let waiter = self.lines.waiter(want, max, ask).ok_or(too_many)?;
        Ok(Parked { inner: self, queues, waiter })
    }

    /// Asks the shards of these promises, all at once. One that has something does not wait long for the
    /// others: what those bring is given back.
    async fn take(self: &Arc<Inner>, ask: &Ask, promised: Promised) -> Vec<Result<Taken, Error>> {
        let mut shards = by_shard(promised);
        if shards.len() == 1 {
            return vec![self.take_in(ask, shards.remove(0)).await];
        }
        let mut asked: FuturesUnordered<_> =
            shards.into_iter().map(|promised| self.take_in(ask, promised)).collect();
        let mut taken = Vec::with_capacity(asked.len());
        let mut until = None;
        loop {
            let next = match until {
                // A caller with a request id may come again for what it was not told of, so that is kept. When it
                // does not come, its session's beats give it back; without one, only the deadline does.
                Some(until) if ask.request.is_none() || ask.session.is_some() => {
                    let Ok(next) = tokio::time::timeout_at(until, asked.next()).await else { break };
                    next
                }
                _ => asked.next().await,
            };
            let Some(some) = next else { break };
            if until.is_none() && some.as_ref().is_ok_and(|taken: &Taken| taken.len() > 0) {
                until = Some(stragglers_until());
            }
            taken.push(some);
        }
        taken
    }

    /// Asks the one shard of these promises.
    pub(crate) fn take_in(self: &Arc<Inner>, ask: &Ask, promised: Promised) -> Asked {
        let shard = promised.shares[0].shard;
        let max = promised.shares.iter().map(|share| share.count).sum();
        let head = ClaimHead::new(ask.call.queues.iter().map(|queue| &queue.name), max);
        let call = Call::new::<Shard>(&[ask.command(max)]).if_free(head).leader_wait(ask.leader_wait());
        let (inner, turn, keep) = (self.clone(), ask.turn.clone(), ask.keep());
        Carried::new(async move {
            let taken = inner.claim_in(shard, call, keep).await;
            inner.keep_promise(shard, promised, taken.as_ref());
            drop(turn);
            taken
        })
    }

    /// Ends promises on a shard that has answered, when the copy here has seen the answer. A leader that had
    /// nothing free, or did not answer, is left alone for a moment.
    fn keep_promise(self: &Arc<Inner>, shard: ShardId, promised: Promised, taken: Result<&Taken, &Error>) {
        let replica = self.groups.shard(shard);
        let index = match taken {
            Ok(taken) if replica.leads() => taken.index,
            Ok(taken) if taken.len() == 0 => {
                self.mute(shard, &promised, Duration::ZERO);
                taken.index
            }
            Ok(taken) => {
                promised.shares.iter().for_each(|share| self.mutes.paid_off(shard, &share.queue));
                taken.index
            }
            Err(_) => {
                self.mute(shard, &promised, MUTED_SILENT);
                return;
            }
        };
        if replica.applied() >= index {
            return;
        }
        let (inner, replica) = (self.clone(), replica.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                // Late or not: a promise does not hold for ever.
                _ = replica.wait_applied(index, SEEN_WAIT) => {}
                () = inner.stopping.cancelled() => {}
            }
            drop(promised);
        });
    }

    /// Leaves the queues of these promises alone in a shard for a moment, then serves them.
    fn mute(self: &Arc<Inner>, shard: ShardId, promised: &Promised, time_min: Duration) {
        for share in &promised.shares {
            let Some((number, time)) = self.mutes.mute(shard, &share.queue, time_min) else { continue };
            let (inner, queue) = (self.clone(), share.queue.clone());
            self.tasks.spawn(async move {
                tokio::select! {
                    () = tokio::time::sleep(time) => {}
                    () = inner.stopping.cancelled() => {}
                }
                if inner.mutes.end(shard, &queue, number) {
                    inner.serve(&queue);
                }
            });
        }
    }

    /// Asks one shard.
    pub(crate) async fn claim_in(
        self: &Arc<Inner>,
        shard: ShardId,
        call: Call,
        keep: Keep,
    ) -> Result<Taken, Error> {
        let since = Instant::now();
        let applied = match self.groups.propose_call(shard, &call).await {
            Ok(mut applied) => applied.pop().expect("one command has one outcome"),
            Err(error) => {
                self.counters.timed(Operation::Claim, since, 0, 1);
                return Err(error);
            }
        };
        match applied.outcome {
            Ok(Reply::Claimed(claims)) => {
                self.counters.timed(Operation::Claim, since, claims.len(), 0);
                Ok(Taken::new(shard, applied.index, claims, &self.returns, keep))
            }
            Ok(_) => unreachable!("a claim is answered by claims"),
            Err(rejection) => {
                self.counters.timed(Operation::Claim, since, 0, 1);
                Err(rejection.into())
            }
        }
    }

    /// Makes the answer, sorted by the order of the queues, then priority, then age.
    fn told(&self, taken: Vec<Taken>, ask: &Ask) -> Result<Answer<Vec<Claim>>, Error> {
        self.answer(taken, &ask.call.queues, ask.session.as_deref())
    }

    fn answer(
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
        let key = |claim: &Claimed| (rank(claim), claim.priority, claim.ready_since, claim.id);
        // Those of one shard mostly are already.
        if !claims.is_sorted_by_key(key) {
            claims.sort_by_cached_key(key);
        }
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
            hold: claim.hold,
            enqueued_at: claim.enqueued_at,
        })
    }
}

impl Ask {
    /// One that can wait in line need not wait for a leader.
    fn leader_wait(&self) -> Duration {
        match self.call.wait.0 {
            0 => self.leaders_until.saturating_duration_since(tokio::time::Instant::now()),
            _ => LEADER_WAIT_IN_LINE,
        }
    }

    /// Whether claims that its caller did not hear of are given back before their deadline.
    pub(crate) fn gives_back(&self) -> bool {
        self.request.is_none() || self.session.is_some()
    }

    pub(crate) fn keep(&self) -> Keep {
        Keep { repeatable: self.request.is_some(), session: self.session.clone() }
    }

    pub(crate) fn command(&self, max: u32) -> Command {
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

/// Why a claim in line looks up.
enum Woken {
    /// There is an offer.
    Offer,
    /// Its time is over.
    Late,
    /// This node has reached no leader for long.
    CutOff,
    /// It may have nothing any more.
    Gone,
}

/// How long one that has something waits for more.
fn stragglers_until() -> tokio::time::Instant {
    tokio::time::Instant::now() + STRAGGLERS_WAIT
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

/// Promises by shard.
fn by_shard(mut promised: Promised) -> Vec<Promised> {
    let mut shards: Vec<Promised> = Vec::new();
    for share in std::mem::take(&mut promised.shares) {
        match shards.iter_mut().find(|promised| promised.shares[0].shard == share.shard) {
            Some(promised) => promised.shares.push(share),
            None => shards.push(Promised { inner: promised.inner.clone(), shares: vec![share] }),
        }
    }
    shards
}

/// Whether a claim that waits goes on waiting: a shard had no leader or no room for it, or its answer was lost. What
/// a lost answer brought is given back by its session's beats, or ends with its deadline.
pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Unavailable | Error::Timeout | Error::TooManyRequests { .. })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_waits_goes_on_when_the_reason_passes() {
        for (error, expected) in [
            (Error::Unavailable, true),
            (Error::Timeout, true),
            (crate::route::full(), true),
            (Error::DiskFull, false),
            (Error::Invalid(String::new()), false),
        ] {
            assert_eq!(is_passing(&error), expected, "{error}");
        }
    }
}
