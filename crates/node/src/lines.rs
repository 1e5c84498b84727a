//! Who waits for which queue, and what is promised to whom.
//!
//! Each queue has a line: those who wait, in the order of their tickets, and how many ready tasks of each
//! shard are spoken for by claims under way. Whoever finds tasks that are not spoken for gives them to
//! the line first and takes the rest. A ready task thus wakes as many as can use it, and nobody else.
//!
//! Pure bookkeeping: no shard is asked and nothing is awaited here. Next: `waiting.rs`.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};

use futures::FutureExt as _;
use model::{Millis, QueueName, ShardId};
use parking_lot::Mutex;
use state_machine::view::ReadyHint;
use tokio::sync::Notify;

use crate::error::Error;
use crate::taken::{Carried, Taken};
use crate::waiting::Ask;

/// So much older must a task of a shard that is led elsewhere be, to come before one that is led here.
const LOCAL_FIRST: Millis = Millis(50);
/// How many of a line are looked at for what is about to come: the first, not all.
const AHEAD_LOOKS_MAX: usize = 100;
/// Locks over which the queues are spread.
const STRIPES: usize = 64;

/// So many tasks of a queue in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) queue: QueueName,
    pub(crate) shard: ShardId,
    pub(crate) count: u32,
}

/// What a shard has ready of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stock {
    pub(crate) shard: ShardId,
    pub(crate) hint: ReadyHint,
    /// This node leads the shard.
    pub(crate) is_local: bool,
}

impl Stock {
    /// The smallest comes first: by priority, then by age, but what is led here before what is older by
    /// no more than [`LOCAL_FIRST`]. A task that waits longer elsewhere is not passed over for ever.
    pub(crate) fn rank(&self) -> (u8, u64) {
        let handicap = if self.is_local { 0 } else { LOCAL_FIRST.0 };
        (self.hint.priority, self.hint.since.millis().saturating_add(handicap))
    }
}

/// A claim that was made for one that waits.
pub(crate) type Asked = Carried<Result<Taken, Error>>;

/// What one that waits is given.
pub(crate) enum Offer {
    /// Tasks that it may ask for.
    Promised(Vec<Share>),
    /// The claim, made already.
    Asked(Asked),
}

/// One that waits. Its ticket is its place in every line.
pub(crate) struct Waiter {
    ticket: u64,
    want: u32,
    /// What it asks of the shards; nothing for one that only waits.
    pub(crate) ask: Option<Arc<Ask>>,
    hand: Mutex<Hand>,
    /// Told when there is an offer.
    pub(crate) told: Notify,
}

/// What one that waits has in hand.
#[derive(Default)]
enum Hand {
    #[default]
    Empty,
    /// An offer that it did not take yet.
    Holds(Offer),
    /// It takes none any more.
    Closed,
}

impl Waiter {
    /// Accepts an offer and is told, unless there is one or it is gone.
    fn accept(&self, offer: Offer) -> Result<(), Offer> {
        self.hold(offer)?;
        self.told.notify_one();
        Ok(())
    }

    fn hold(&self, offer: Offer) -> Result<(), Offer> {
        let mut hand = self.hand.lock();
        match *hand {
            Hand::Empty => {
                *hand = Hand::Holds(offer);
                Ok(())
            }
            Hand::Holds(_) | Hand::Closed => Err(offer),
        }
    }

    /// Accepts a claim that was made for it, and begins it: its command is in the inbox. It is told when the answer is
    /// there; before that it could only wait on. If it is gone, the claim is given back.
    pub(crate) fn accept_asked(self: Arc<Waiter>, mut asked: Asked) {
        let bell = Arc::new(Bell { waiter: self, has_rung: AtomicBool::new(false) });
        // Not under the lock of the hand: whatever it does may make offers.
        let asked = match asked.poll_unpin(&mut Context::from_waker(&bell.clone().into())) {
            Poll::Ready(taken) => {
                bell.has_rung.store(true, Ordering::Release);
                Carried::new(std::future::ready(taken))
            }
            Poll::Pending => asked,
        };
        let accepted = bell.waiter.hold(Offer::Asked(asked));
        // It was told already, and found nothing in its hand.
        if accepted.is_ok() && bell.has_rung.load(Ordering::Acquire) {
            bell.waiter.told.notify_one();
        }
    }

    /// Whether a claim may be made in its name: not when an offer of another of its queues was faster, and not
    /// when what it has gone without hearing of would be kept for it until a deadline.
    fn may_be_asked_for(&self) -> bool {
        let is_given_back = self.ask.as_ref().is_none_or(|ask| ask.gives_back());
        is_given_back && matches!(*self.hand.lock(), Hand::Empty)
    }

    /// Takes the offer, if there is one.
    pub(crate) fn take(&self) -> Option<Offer> {
        let mut hand = self.hand.lock();
        match std::mem::take(&mut *hand) {
            Hand::Holds(offer) => Some(offer),
            other => {
                *hand = other;
                None
            }
        }
    }

    /// Takes the last offer and no more after it.
    pub(crate) fn close(&self) -> Option<Offer> {
        match std::mem::replace(&mut *self.hand.lock(), Hand::Closed) {
            Hand::Holds(offer) => Some(offer),
            Hand::Empty | Hand::Closed => None,
        }
    }
}

/// Tells one that waits that the claim made for it is answered.
struct Bell {
    waiter: Arc<Waiter>,
    has_rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.has_rung.store(true, Ordering::Release);
        self.waiter.told.notify_one();
    }
}

#[derive(Default)]
struct Line {
    /// By ticket.
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// Ready tasks that claims under way were promised, by shard.
    promised: HashMap<ShardId, u32>,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.promised.is_empty()
    }

    fn free(&self, stock: &Stock) -> u32 {
        let promised = self.promised.get(&stock.shard).copied().unwrap_or(0);
        u32::try_from(stock.hint.count).unwrap_or(u32::MAX).saturating_sub(promised)
    }

    /// Promises up to `want` of what `stocks`, best first, have free.
    fn promise(&mut self, queue: &QueueName, stocks: &[Stock], want: u32) -> Vec<Share> {
        let mut shares = Vec::new();
        let mut left = want;
        for stock in stocks {
            let count = self.free(stock).min(left);
            if count == 0 {
                continue;
            }
            *self.promised.entry(stock.shard).or_default() += count;
            shares.push(Share { queue: queue.clone(), shard: stock.shard, count });
            left -= count;
            if left == 0 {
                break;
            }
        }
        shares
    }

    fn take_back(&mut self, shares: &[Share]) {
        for share in shares {
            if let Some(promised) = self.promised.get_mut(&share.shard) {
                *promised = promised.saturating_sub(share.count);
                if *promised == 0 {
                    self.promised.remove(&share.shard);
                }
            }
        }
    }

    /// Offers what is free to those who wait, in the order of their tickets.
    fn serve(&mut self, queue: &QueueName, stocks: &[Stock]) {
        while let Some((&ticket, waiter)) = self.waiters.first_key_value() {
            let waiter = waiter.clone();
            let shares = self.promise(queue, stocks, waiter.want);
            if shares.is_empty() {
                return;
            }
            self.waiters.remove(&ticket);
            if let Err(Offer::Promised(shares)) = waiter.accept(Offer::Promised(shares)) {
                // Another of its queues was faster.
                self.take_back(&shares);
            }
        }
    }

    /// Promises `count` tasks that `shard` is about to have to those who wait, in the order of their tickets.
    fn ahead(&mut self, queue: &QueueName, shard: ShardId, count: u32) -> Vec<(Arc<Waiter>, Share)> {
        let (mut first, mut left) = (Vec::new(), count);
        let looked_at = self.waiters.values().take(AHEAD_LOOKS_MAX);
        for waiter in looked_at.filter(|waiter| waiter.may_be_asked_for()) {
            if left == 0 {
                break;
            }
            let count = waiter.want.min(left);
            left -= count;
            first.push((waiter.clone(), Share { queue: queue.clone(), shard, count }));
        }
        for (waiter, share) in &first {
            self.waiters.remove(&waiter.ticket);
            *self.promised.entry(shard).or_default() += share.count;
        }
        first
    }
}

/// All lines of a node.
pub(crate) struct Lines {
    stripes: Vec<Mutex<HashMap<QueueName, Line>>>,
    hasher: RandomState,
    tickets: AtomicU64,
    waiting: AtomicUsize,
}

impl Lines {
    pub(crate) fn new() -> Lines {
        Lines {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            tickets: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether somebody waits for `queue`.
    pub(crate) fn has_waiters(&self, queue: &QueueName) -> bool {
        self.waiting() > 0 && self.with(queue, |line| line.is_some_and(|line| !line.waiters.is_empty()))
    }

    /// The queues that somebody waits for.
    pub(crate) fn awaited(&self) -> Vec<QueueName> {
        let of_stripe = |stripe: &Mutex<HashMap<QueueName, Line>>| {
            let lines = stripe.lock();
            let awaited = lines.iter().filter(|(_, line)| !line.waiters.is_empty());
            awaited.map(|(queue, _)| queue.clone()).collect::<Vec<_>>()
        };
        self.stripes.iter().flat_map(of_stripe).collect()
    }

    /// Promises up to `want` tasks of `queue` to the caller, after those who wait. `stocks`: best first.
    pub(crate) fn promise(&self, queue: &QueueName, stocks: &[Stock], want: u32) -> Vec<Share> {
        if stocks.is_empty() {
            return Vec::new();
        }
        let mut lines = self.stripe(queue).lock();
        let line = lines.entry(queue.clone()).or_default();
        line.serve(queue, stocks);
        line.promise(queue, stocks, want)
    }

    /// Offers `stocks`, best first, to those who wait for `queue`.
    pub(crate) fn serve(&self, queue: &QueueName, stocks: &[Stock]) {
        if let Some(line) = self.stripe(queue).lock().get_mut(queue) {
            line.serve(queue, stocks);
        }
    }

    /// Promises `count` tasks that `shard` is about to have of `queue` to those who wait for it.
    pub(crate) fn ahead(&self, queue: &QueueName, shard: ShardId, count: u32) -> Vec<(Arc<Waiter>, Share)> {
        let mut lines = self.stripe(queue).lock();
        lines.get_mut(queue).map(|line| line.ahead(queue, shard, count)).unwrap_or_default()
    }

    /// Takes promises back: their claims were answered, or never made. The queues that somebody waits
    /// for, who may now get something.
    pub(crate) fn take_back(&self, shares: &[Share]) -> Vec<QueueName> {
        let mut awaited = Vec::new();
        for share in shares {
            let mut lines = self.stripe(&share.queue).lock();
            let Some(line) = lines.get_mut(&share.queue) else { continue };
            line.take_back(std::slice::from_ref(share));
            if !line.waiters.is_empty() && !awaited.contains(&share.queue) {
                awaited.push(share.queue.clone());
            }
            if line.is_empty() {
                lines.remove(&share.queue);
            }
        }
        awaited
    }

    /// A waiter with a new ticket, in no line yet. Nothing when `max` wait already.
    pub(crate) fn waiter(&self, want: u32, max: usize, ask: Option<Arc<Ask>>) -> Option<Arc<Waiter>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        Some(Arc::new(Waiter { ticket, want, ask, hand: Mutex::default(), told: Notify::new() }))
    }

    /// Puts a waiter into the line of `queue`, at the place of its ticket.
    pub(crate) fn enter(&self, queue: &QueueName, waiter: &Arc<Waiter>) {
        let mut lines = self.stripe(queue).lock();
        lines.entry(queue.clone()).or_default().waiters.insert(waiter.ticket, waiter.clone());
    }

    /// Takes a waiter out of the line of `queue`.
    pub(crate) fn leave(&self, queue: &QueueName, waiter: &Waiter) {
        let mut lines = self.stripe(queue).lock();
        if let Some(line) = lines.get_mut(queue) {
            line.waiters.remove(&waiter.ticket);
            if line.is_empty() {
                lines.remove(queue);
            }
        }
    }

    /// A waiter waits no more.
    pub(crate) fn gone(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn with<T>(&self, queue: &QueueName, look: impl FnOnce(Option<&Line>) -> T) -> T {
        look(self.stripe(queue).lock().get(queue))
    }

    fn stripe(&self, queue: &QueueName) -> &Mutex<HashMap<QueueName, Line>> {
        &self.stripes[self.hasher.hash_one(queue) as usize % STRIPES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::WallTime;
    use tokio::sync::oneshot;

    fn queue() -> QueueName {
        QueueName::new("mail").unwrap()
    }

    fn stock(shard: u16, count: u64) -> Stock {
        let hint = ReadyHint { priority: 5, since: WallTime::from_millis(1), count };
        Stock { shard: ShardId::new(shard).unwrap(), hint, is_local: true }
    }

    #[test]
    fn what_is_led_here_comes_first_unless_another_waits_much_longer() {
        // (shard, priority, since, local)
        for (what, stocks, expected) in [
            ("the older", vec![(1, 5, 1_010, true), (2, 5, 1_000, true)], vec![2, 1]),
            ("here, though a little younger", vec![(1, 5, 1_000, false), (2, 5, 1_049, true)], vec![2, 1]),
            ("elsewhere, being much older", vec![(1, 5, 1_000, false), (2, 5, 1_051, true)], vec![1, 2]),
            ("priority before place", vec![(1, 5, 1_000, true), (2, 4, 2_000, false)], vec![2, 1]),
            ("the older of two elsewhere", vec![(1, 5, 1_001, false), (2, 5, 1_000, false)], vec![2, 1]),
        ] {
            let stock = |(shard, priority, since, is_local)| Stock {
                shard: ShardId::new(shard).unwrap(),
                hint: ReadyHint { priority, since: WallTime::from_millis(since), count: 1 },
                is_local,
            };
            let mut stocks: Vec<Stock> = stocks.into_iter().map(stock).collect();
            stocks.sort_by_key(Stock::rank);
            assert_eq!(
                stocks.iter().map(|stock| stock.shard.number()).collect::<Vec<_>>(),
                expected,
                "{what}"
            );
        }
    }

    fn counts(shares: &[Share]) -> Vec<(u16, u32)> {
        shares.iter().map(|share| (share.shard.number(), share.count)).collect()
    }

    #[test]
    fn what_is_promised_is_not_promised_again() {
        let lines = Lines::new();
        let first = lines.promise(&queue(), &[stock(1, 3), stock(2, 1)], 2);
        assert_eq!(counts(&first), [(1, 2)]);
        let second = lines.promise(&queue(), &[stock(1, 3), stock(2, 1)], 5);
        assert_eq!(counts(&second), [(1, 1), (2, 1)]);
        assert!(lines.promise(&queue(), &[stock(1, 3), stock(2, 1)], 5).is_empty());
        assert!(lines.take_back(&first).is_empty());
        assert_eq!(counts(&lines.promise(&queue(), &[stock(1, 3)], 5)), [(1, 2)]);
    }

    #[test]
    fn one_ready_task_wakes_one_waiter_and_the_first_one() {
        let lines = Lines::new();
        let waiters: Vec<_> = (0..3).map(|_| lines.waiter(1, 10, None).unwrap()).collect();
        // Entering late does not cost the place.
        for waiter in waiters.iter().rev() {
            lines.enter(&queue(), waiter);
        }
        lines.serve(&queue(), &[stock(1, 1)]);
        assert!(waiters[0].take().is_some());
        assert!(waiters[1].take().is_none() && waiters[2].take().is_none());
        lines.serve(&queue(), &[stock(1, 1)]);
        assert!(waiters[1].take().is_none(), "the task is promised to the first");
        lines.serve(&queue(), &[stock(1, 2)]);
        assert!(waiters[1].take().is_some());
    }

    #[test]
    fn who_waits_comes_before_who_arrives() {
        let lines = Lines::new();
        let waiter = lines.waiter(1, 10, None).unwrap();
        lines.enter(&queue(), &waiter);
        assert!(lines.promise(&queue(), &[stock(1, 1)], 1).is_empty());
        assert!(matches!(waiter.take(), Some(Offer::Promised(shares)) if counts(&shares) == [(1, 1)]));
    }

    #[test]
    fn what_is_about_to_come_is_promised_to_who_waits_and_to_nobody_else() {
        let lines = Lines::new();
        let shard = ShardId::new(1).unwrap();
        assert!(lines.ahead(&queue(), shard, 1).is_empty(), "nobody waits");
        let waiters: Vec<_> = (0..3).map(|_| lines.waiter(2, 10, None).unwrap()).collect();
        waiters.iter().for_each(|waiter| lines.enter(&queue(), waiter));
        // The first has an offer of another of its queues already.
        assert!(waiters[0].accept(Offer::Promised(Vec::new())).is_ok());
        let first = lines.ahead(&queue(), shard, 3);
        assert_eq!(
            first.iter().map(|(waiter, share)| (waiter.ticket, share.count)).collect::<Vec<_>>(),
            [(1, 2), (2, 1)]
        );
        assert!(lines.promise(&queue(), &[stock(1, 3)], 3).is_empty(), "all three are spoken for");
        assert_eq!(counts(&lines.promise(&queue(), &[stock(1, 4)], 3)), [(1, 1)]);
        let shares: Vec<Share> = first.into_iter().map(|(_, share)| share).collect();
        assert!(lines.take_back(&shares).is_empty());
        assert_eq!(counts(&lines.promise(&queue(), &[stock(1, 4)], 3)), [(1, 3)]);
    }

    #[tokio::test]
    async fn one_for_whom_a_claim_was_made_is_told_when_it_is_answered_and_not_before() {
        let lines = Lines::new();
        let is_told = |waiter: &Waiter| waiter.told.notified().now_or_never().is_some();
        let holds_an_answer = |waiter: &Waiter| match waiter.take() {
            Some(Offer::Asked(asked)) => asked.now_or_never().is_some(),
            _ => false,
        };
        let waiter = lines.waiter(1, 10, None).unwrap();
        let (answer, answered) = oneshot::channel();
        waiter.clone().accept_asked(Carried::new(async move { answered.await.unwrap() }));
        assert!(!is_told(&waiter), "it could only wait on");
        assert!(answer.send(Err(Error::Unavailable)).is_ok());
        assert!(is_told(&waiter) && holds_an_answer(&waiter));

        waiter.clone().accept_asked(Carried::new(std::future::ready(Err(Error::Unavailable))));
        assert!(is_told(&waiter) && holds_an_answer(&waiter), "answered at once");

        waiter.close();
        let (answer, answered) = oneshot::channel();
        waiter.clone().accept_asked(Carried::new(async move { answered.await.unwrap() }));
        assert!(!is_told(&waiter) && waiter.take().is_none(), "it has gone");
        assert!(answer.send(Err(Error::Unavailable)).is_ok(), "and the claim goes on without it");
    }

    #[test]
    fn a_waiter_that_left_gets_no_offer_and_its_share_is_free() {
        let lines = Lines::new();
        let (gone, stays) = (lines.waiter(1, 10, None).unwrap(), lines.waiter(1, 10, None).unwrap());
        lines.enter(&queue(), &gone);
        lines.enter(&queue(), &stays);
        assert!(gone.close().is_none());
        lines.serve(&queue(), &[stock(1, 1)]);
        assert!(stays.take().is_some());
        assert!(lines.waiter(1, 2, None).is_none(), "two wait already");
    }
}
