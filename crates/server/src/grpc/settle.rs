//! What workers say of their claims: sorted by what it asks of the node, one call for each kind.
//!
//! Shared by `Settle`, which refuses all of a request when one of it is wrong, and by `Work`, where each
//! outcome stands for itself.

use bytes::Bytes;
use model::{Settled, limits};
use node::Node;
use node::call::{AckCall, Answer, ExtendCall, FailCall, Held, ProgressCall, ReleaseCall};
use wire::grpc;
use wire::grpc::outcome::Outcome;
use wire::grpc::outcome_result::Result as Told;
use wire::grpc::streams::Written;
use wire::http::parse::check_at_most;
use wire::http::settle::{
    ExtendRequest, FailRequest, ProgressRequest, ReleaseRequest, SettleReply, check_output,
};
use wire::http::{Invalid, Ms};

use super::{read, tell};
use crate::http::settle::{done, extend_call, fail_call, failed, progress_call, release_call, released};
use crate::reply::Indexes;

/// Calls of one kind, each with the number that its result carries.
struct Calls<C> {
    seqs: Vec<u64>,
    calls: Vec<C>,
}

impl<C> Default for Calls<C> {
    fn default() -> Calls<C> {
        Calls { seqs: Vec::new(), calls: Vec::new() }
    }
}

impl<C> Calls<C> {
    fn push(&mut self, seq: u64, call: C) {
        self.seqs.push(seq);
        self.calls.push(call);
    }
}

/// Outcomes that were checked, by kind.
#[derive(Default)]
pub(super) struct Sorted {
    acks: Calls<AckCall>,
    fails: Calls<FailCall>,
    extends: Calls<ExtendCall>,
    releases: Calls<ReleaseCall>,
    progress: Calls<ProgressCall>,
}

impl Sorted {
    /// Takes one in, unless it is wrong. Its result will carry `seq`.
    pub(super) fn add(&mut self, seq: u64, outcome: grpc::Outcome) -> Result<(), Invalid> {
        let grpc::Outcome { token, outcome, .. } = outcome;
        match outcome {
            Some(Outcome::Ack(done)) => self.acks.push(seq, ack(token, done.output, done.then)?),
            Some(Outcome::Fail(failed)) => self.fails.push(seq, fail(&token, &failed)?),
            Some(Outcome::Extend(extension)) => self.extends.push(seq, extend(&token, extension.hold_ms)?),
            Some(Outcome::Release(back)) => self.releases.push(seq, release(&token, back.delay_ms)?),
            Some(Outcome::Progress(note)) => self.progress.push(seq, progress(&token, &note)?),
            None => return Err(Invalid::new("an outcome says nothing: give ack, fail or another")),
        }
        Ok(())
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.acks.seqs.len()
            + self.fails.seqs.len()
            + self.extends.seqs.len()
            + self.releases.seqs.len()
            + self.progress.seqs.len()
    }

    /// Does them all, and tells what became of each, in no order. What keeps a claim is proposed before what ends
    /// one: a worker may send both in one breath.
    pub(super) async fn settle<R: Results>(self, node: &Node) -> (R, Indexes) {
        let mut told = All { results: R::with_room(self.len()), indexes: Indexes::default() };
        let Sorted { acks, fails, extends, releases, progress } = self;
        if fails.seqs.is_empty()
            && extends.seqs.is_empty()
            && releases.seqs.is_empty()
            && progress.seqs.is_empty()
        {
            told.settled(acks.seqs, node.ack(acks.calls).await, done);
            return (told.results, told.indexes);
        }
        let (noted, extended, acked, has_failed, given_back) = futures::join!(
            node.progress(progress.calls),
            node.extend(extends.calls),
            node.ack(acks.calls),
            node.fail(fails.calls),
            node.release(releases.calls),
        );
        told.held(progress.seqs, noted);
        told.held(extends.seqs, extended);
        told.settled(acks.seqs, acked, done);
        told.settled(fails.seqs, has_failed, failed);
        told.settled(releases.seqs, given_back, released);
        (told.results, told.indexes)
    }
}

/// Where results go, each with its number.
pub(super) trait Results {
    fn with_room(results: usize) -> Self;

    fn add_settled(&mut self, seq: u64, reply: SettleReply);

    fn add_other(&mut self, seq: u64, told: Told);
}

impl Results for Vec<grpc::OutcomeResult> {
    fn with_room(results: usize) -> Self {
        Vec::with_capacity(results)
    }

    fn add_settled(&mut self, seq: u64, reply: SettleReply) {
        self.add_other(seq, Told::Settled(tell::settled_reply(reply)));
    }

    fn add_other(&mut self, seq: u64, told: Told) {
        self.push(grpc::OutcomeResult { seq, result: Some(told) });
    }
}

impl Results for Written<grpc::OutcomeResults> {
    fn with_room(results: usize) -> Self {
        Written::with_room(results)
    }

    fn add_settled(&mut self, seq: u64, reply: SettleReply) {
        let SettleReply { id, state, attempt, due } = reply;
        Written::add_settled(self, seq, id.0, state.0.as_str(), attempt, due.map(|due| due.0));
    }

    fn add_other(&mut self, seq: u64, told: Told) {
        Written::add_other(self, seq, told);
    }
}

struct All<R> {
    results: R,
    indexes: Indexes,
}

impl<R: Results> All<R> {
    fn settled(
        &mut self,
        seqs: Vec<u64>,
        answers: Vec<Result<Answer<Settled>, node::Error>>,
        reply: impl Fn(&Settled) -> SettleReply,
    ) {
        self.add(seqs, answers, |results, seq, settled| results.add_settled(seq, reply(settled)));
    }

    fn held(&mut self, seqs: Vec<u64>, answers: Vec<Result<Answer<Held>, node::Error>>) {
        self.add(seqs, answers, |results, seq, held| results.add_other(seq, Told::Held(tell::held(held))));
    }

    fn add<T>(
        &mut self,
        seqs: Vec<u64>,
        answers: Vec<Result<Answer<T>, node::Error>>,
        add: impl Fn(&mut R, u64, &T),
    ) {
        for (seq, answer) in seqs.into_iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    self.indexes.add(&answer.indexes);
                    add(&mut self.results, seq, &answer.value);
                }
                Err(error) => self.results.add_other(seq, Told::Error(tell::refused(&error))),
            }
        }
    }
}

/// An ack, checked.
pub(super) fn ack(token: String, output: Bytes, then: Vec<grpc::Task>) -> Result<AckCall, Invalid> {
    check_at_most("then", &then, limits::FOLLOW_UPS_MAX)?;
    check_output(&output)?;
    let output = if output.is_empty() { output } else { read::json("output", &output)? };
    Ok(AckCall { token, output, then: read::tasks("then", then)? })
}

/// A fail, checked.
pub(super) fn fail(token: &str, failed: &grpc::Failed) -> Result<FailCall, Invalid> {
    Ok(fail_call(&FailRequest {
        token: token.into(),
        error: failed.error.as_str().into(),
        detail: Some(failed.detail.as_str().into()),
        retry_in_ms: read::ms("retry_in_ms", failed.retry_in_ms)?,
        fatal: failed.fatal,
    }))
}

/// An extend, checked.
pub(super) fn extend(token: &str, hold_ms: Option<u64>) -> Result<ExtendCall, Invalid> {
    extend_call(&ExtendRequest { token: token.into(), hold_ms: read::ms("hold_ms", hold_ms)? })
}

/// A release, checked.
pub(super) fn release(token: &str, delay_ms: u64) -> Result<ReleaseCall, Invalid> {
    let delay_ms = Some(Ms::check("delay_ms", delay_ms)?);
    Ok(release_call(&ReleaseRequest { token: token.into(), delay_ms }))
}

/// A progress note, checked.
pub(super) fn progress(token: &str, note: &grpc::ProgressNote) -> Result<ProgressCall, Invalid> {
    progress_call(&ProgressRequest {
        token: token.into(),
        percent: note.percent.into(),
        note: Some(note.note.as_str().into()),
    })
}
