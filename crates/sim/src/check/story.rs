//! Small histories for tests: one call after the other, 10 ms long and 10 ms apart, unless they say otherwise.

use model::{GroupId, ShardId, StateKind, TaskId, WallTime};

use super::{Checker, Promise, Report};
use crate::history::{
    Call, Claim, Counts, Deed, Depth, End, Enqueue, Fault, Got, Hash, Hold, Indexes, Leader, Line, OnTasks,
    Outcome, Queue, Run, Settle, Steady, Then, Totals, Vote,
};

/// What the wall clock says at the beginning.
pub(crate) const WALL_START_MS: u64 = 1_700_000_000_000;

/// A history in the making. The `run` line is line 1.
pub(crate) struct Story {
    lines: Vec<Line>,
    now_ms: u64,
}

/// The call that was just told.
pub(crate) struct Last<'a>(&'a mut Story);

pub(crate) fn id(n: u64) -> TaskId {
    TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(WALL_START_MS), n)
}

fn state_of(word: &str) -> Option<StateKind> {
    Some(StateKind::from_word(word).unwrap())
}

impl Story {
    pub(crate) fn new() -> Story {
        let run =
            Run { wall_start_ms: Some(WALL_START_MS), wall_skew_ms: 0, drift_ppm: 0, ..Run::new("a story") };
        Story { lines: vec![Line::Run(run)], now_ms: 0 }
    }

    /// Task 1 was claimed with fence 1 from 20 to 30 ms, for 30 s.
    pub(crate) fn claimed() -> Story {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story
    }

    fn call(&mut self, deed: Deed) -> Last<'_> {
        let (start_us, end_us) = (self.now_ms * 1000, (self.now_ms + 10) * 1000);
        self.now_ms += 20;
        let (client, outcome, index) = ("w".to_owned(), Outcome::Ok, Indexes::default());
        self.lines.push(Line::Call(Call { client, start_us, end_us, outcome, index, deed }));
        Last(self)
    }

    pub(crate) fn last(&mut self) -> Last<'_> {
        Last(self)
    }

    pub(crate) fn enqueue(&mut self, n: u64) -> Last<'_> {
        self.enqueue_with(n, |_| {})
    }

    pub(crate) fn enqueue_with(&mut self, n: u64, change: impl FnOnce(&mut Enqueue)) -> Last<'_> {
        let mut enqueue = Enqueue {
            queue: "q".to_owned(),
            payload: format!("p{n}"),
            task: Some(id(n)),
            ..Enqueue::default()
        };
        change(&mut enqueue);
        self.call(Deed::Enqueue(enqueue))
    }

    /// A claim for 30 s.
    pub(crate) fn claim(&mut self, n: u64, fence: u64) -> Last<'_> {
        self.claim_with(n, fence, |_| {})
    }

    pub(crate) fn claim_with(&mut self, n: u64, fence: u64, change: impl FnOnce(&mut Claim)) -> Last<'_> {
        let queue = "q".to_owned();
        let got = Got { task: id(n), queue, payload: format!("p{n}"), fence, attempt: 1, hold_ms: None };
        let mut claim = Claim {
            queues: vec!["q".to_owned()],
            worker: "w".to_owned(),
            hold_ms: Some(30_000),
            got: vec![got],
            ..Claim::default()
        };
        change(&mut claim);
        self.call(Deed::Claim(claim))
    }

    pub(crate) fn ack(&mut self, n: u64, fence: u64) -> Last<'_> {
        self.call(Deed::Ack(Settle { state: state_of("done"), ..Settle::of(id(n), fence) }))
    }

    pub(crate) fn fail(&mut self, n: u64, fence: u64, state: &str) -> Last<'_> {
        self.call(Deed::Fail(Settle { state: state_of(state), ..Settle::of(id(n), fence) }))
    }

    pub(crate) fn release(&mut self, n: u64, fence: u64) -> Last<'_> {
        self.call(Deed::Release(Settle { state: state_of("ready"), ..Settle::of(id(n), fence) }))
    }

    pub(crate) fn extend(&mut self, n: u64, fence: u64, hold_ms: u64) -> Last<'_> {
        self.call(Deed::Extend(Hold { task: id(n), fence, hold_ms: Some(hold_ms) }))
    }

    pub(crate) fn progress(&mut self, n: u64, fence: u64) -> Last<'_> {
        self.call(Deed::Progress(Hold { task: id(n), fence, hold_ms: None }))
    }

    fn on(n: u64, state: &str) -> OnTasks {
        OnTasks { task: Some(id(n)), queue: None, state: state_of(state) }
    }

    pub(crate) fn put_back(&mut self, n: u64) -> Last<'_> {
        self.call(Deed::PutBack(Story::on(n, "ready")))
    }

    pub(crate) fn put_back_all(&mut self) -> Last<'_> {
        self.call(Deed::PutBack(OnTasks { queue: Some("q".to_owned()), ..OnTasks::default() }))
    }

    pub(crate) fn discard(&mut self, n: u64) -> Last<'_> {
        self.call(Deed::Discard(Story::on(n, "cancelled")))
    }

    pub(crate) fn cancel(&mut self, n: u64, state: &str) -> Last<'_> {
        self.call(Deed::Cancel(Story::on(n, state)))
    }

    pub(crate) fn requeue(&mut self, n: u64) -> Last<'_> {
        self.call(Deed::Requeue(Story::on(n, "ready")))
    }

    pub(crate) fn remove_worker(&mut self) -> Last<'_> {
        self.call(Deed::EndSession { session: None, worker: Some("w".to_owned()) })
    }

    pub(crate) fn get(&mut self, n: u64, state: &str) -> Last<'_> {
        self.call(Deed::Get { task: id(n), queue: None, payload: None, state: state_of(state) })
    }

    pub(crate) fn counts(&mut self, totals: Totals, depth: Depth) -> Last<'_> {
        self.call(Deed::Counts(Counts { queue: "q".to_owned(), totals, depth }))
    }

    pub(crate) fn queue(&mut self, change: impl FnOnce(&mut Queue)) -> &mut Story {
        let mut queue = Queue { queue: "q".to_owned(), ..Queue::default() };
        change(&mut queue);
        self.lines.push(Line::Queue(queue));
        self
    }

    pub(crate) fn steady(&mut self, session: &str, from_ms: u64, until_ms: u64) -> &mut Story {
        let session = session.to_owned();
        self.lines.push(Line::Steady(Steady { session, from_us: from_ms * 1000, until_us: until_ms * 1000 }));
        self
    }

    pub(crate) fn wrong_clock(&mut self, at_ms: u64, skew_ms: u64) -> &mut Story {
        let (kind, at_us, wall_skew_ms) = ("clock_jump".to_owned(), at_ms * 1000, Some(skew_ms));
        self.lines.push(Line::Fault(Fault { kind, at_us, wall_skew_ms }));
        self
    }

    pub(crate) fn hash(&mut self, node: u64, group: u16, index: u64, hash: &str) -> &mut Story {
        self.lines.push(Line::Hash(Hash { node, group, index, hash: hash.to_owned() }));
        self
    }

    pub(crate) fn vote(
        &mut self,
        node: u64,
        incarnation: u64,
        term: u64,
        voted_for: Option<u64>,
    ) -> &mut Story {
        let at_us = self.now_ms * 1000;
        self.lines.push(Line::Vote(Vote { node, incarnation, group: 1, term, voted_for, at_us }));
        self
    }

    pub(crate) fn leader(&mut self, node: u64, term: u64) -> &mut Story {
        self.lines.push(Line::Leader(Leader { node, group: 1, term, at_us: self.now_ms * 1000 }));
        self
    }

    pub(crate) fn end(&mut self, drained: bool, listed: bool) -> &mut Story {
        self.lines.push(Line::End(End { at_us: self.now_ms * 1000, drained, listed }));
        self
    }

    fn report(&self) -> Report {
        let mut checker = Checker::new();
        for (number, line) in (1..).zip(&self.lines) {
            checker.take(number, line.clone()).unwrap();
        }
        checker.finish()
    }
}

impl Last<'_> {
    fn change(self, change: impl FnOnce(&mut Call)) -> Self {
        match self.0.lines.last_mut() {
            Some(Line::Call(call)) => change(call),
            other => panic!("the last line is no call: {other:?}"),
        }
        self
    }

    /// From when to when, in milliseconds. What is told next comes after it.
    pub(crate) fn at(self, start_ms: u64, end_ms: u64) -> Self {
        self.0.now_ms = self.0.now_ms.max(end_ms + 10);
        self.change(|call| (call.start_us, call.end_us) = (start_ms * 1000, end_ms * 1000))
    }

    pub(crate) fn index(self, index: u64) -> Self {
        self.change(|call| call.index = Indexes::one(GroupId(1), index))
    }

    pub(crate) fn unknown(self) -> Self {
        self.change(|call| call.outcome = Outcome::Unknown)
    }

    pub(crate) fn rejected(self, code: &str) -> Self {
        self.change(|call| call.outcome = Outcome::Rejected(code.to_owned()))
    }

    pub(crate) fn attempt(self, attempt: u32) -> Self {
        self.change(|call| match &mut call.deed {
            Deed::Claim(claim) => claim.got[0].attempt = attempt,
            Deed::Fail(settle) | Deed::Release(settle) => settle.attempt = Some(attempt),
            other => panic!("{other:?} has no attempt"),
        })
    }

    pub(crate) fn got_nothing(self) -> Self {
        self.change(|call| match &mut call.deed {
            Deed::Claim(claim) => claim.got.clear(),
            other => panic!("{other:?} gets nothing"),
        })
    }

    fn settle(self, change: impl FnOnce(&mut Settle)) -> Self {
        self.change(|call| match &mut call.deed {
            Deed::Ack(settle) | Deed::Fail(settle) | Deed::Release(settle) => change(settle),
            other => panic!("{other:?} settles nothing"),
        })
    }

    pub(crate) fn retry_in(self, millis: u64) -> Self {
        self.settle(|settle| settle.retry_in_ms = Some(millis))
    }

    pub(crate) fn fatal(self) -> Self {
        self.settle(|settle| settle.fatal = true)
    }

    pub(crate) fn then(self, n: u64) -> Self {
        let then = Then { queue: "q".to_owned(), payload: format!("p{n}"), ..Then::default() };
        self.settle(|settle| settle.then.push(then))
    }
}

/// The history keeps every promise.
pub(crate) fn held(story: &Story) {
    let report = story.report();
    assert!(report.held(), "{report}");
}

/// The history breaks this promise: what is told of it.
pub(crate) fn broken(story: &Story, promise: Promise) -> String {
    let report = story.report();
    assert!(report.count(promise) > 0, "{promise} should be broken:\n{report}");
    let told = report.violations.iter().filter(|violation| violation.promise == promise);
    told.map(|violation| violation.to_string()).collect::<Vec<_>>().join("\n")
}
