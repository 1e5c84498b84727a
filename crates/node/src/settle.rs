//! Ack, fail, extend, release and progress, in bulk: one proposal for each shard.
//!
//! Tokens are opened here and nowhere else; a shard sees the fence. Next:
//! `state-machine/src/shard/ack.rs` and its neighbours.

use std::sync::Arc;
use std::time::Instant;

use model::command::{Ack, Fail};
use model::{Command, Fence, FollowUp, Mutant, Rejection, Reply, Settled, ShardId, TaskId, limits, mutant};

use crate::call::{AckCall, Answer, ExtendCall, FailCall, Held, ProgressCall, ReleaseCall};
use crate::error::Error;
use crate::inner::{Inner, Node};
use crate::route::Proposed;
use crate::stats::Operation;

/// What goes to one shard: commands, and their places in the request.
struct Sheet {
    shard: ShardId,
    commands: Vec<Command>,
    places: Vec<(usize, TaskId)>,
}

impl Node {
    /// Ends tasks as done, each with its own outcome.
    pub async fn ack(&self, calls: Vec<AckCall>) -> Vec<Result<Answer<Settled>, Error>> {
        let has_then = |call: &AckCall| !call.then.is_empty();
        if self.inner.knows_queues() || !calls.iter().any(has_then) {
            return self.ack_knowing(calls, Ok(())).await;
        }
        Box::pin(self.ack_knowing_later(calls)).await
    }

    /// The same, while it is not known where follow-ups go: only acks that have some wait for that.
    async fn ack_knowing_later(&self, calls: Vec<AckCall>) -> Vec<Result<Answer<Settled>, Error>> {
        let has_then = |call: &AckCall| !call.then.is_empty();
        let waits: Vec<bool> = calls.iter().map(has_then).collect();
        let (waiting, others): (Vec<_>, Vec<_>) = calls.into_iter().partition(has_then);
        let waiting = async { self.ack_knowing(waiting, self.inner.know_queues().await).await };
        let (waited, others) = tokio::join!(waiting, self.ack_knowing(others, Ok(())));
        let (mut waited, mut others) = (waited.into_iter(), others.into_iter());
        let answer = |waits| if waits { waited.next() } else { others.next() };
        waits.into_iter().map(answer).map(|answer| answer.expect("each call is answered")).collect()
    }

    /// The same, if it is `known` where follow-ups go.
    async fn ack_knowing(
        &self,
        calls: Vec<AckCall>,
        known: Result<(), Error>,
    ) -> Vec<Result<Answer<Settled>, Error>> {
        let policies = self.inner.policies.all();
        let command = |call: AckCall, task: TaskId, fence: Fence| {
            let bytes = call.output.len();
            if bytes > limits::OUTPUT_BYTES_MAX {
                let (bytes, bytes_max) = (bytes as u64, limits::OUTPUT_BYTES_MAX as u64);
                return Err(Error::PayloadTooLarge { bytes, bytes_max });
            }
            if !call.then.is_empty() {
                known.clone()?;
            }
            let mut then = self.inner.follow_ups(task, call.then, &policies)?;
            if mutant::planted(Mutant::ThenOutside) {
                self.inner.enqueue_apart(std::mem::take(&mut then));
            }
            Ok(Command::Ack(Ack { task, fence, output: call.output, then }))
        };
        self.inner.settle(Operation::Ack, calls, |call| &call.token, command, settled).await
    }

    /// Ends attempts, each with its own outcome.
    pub async fn fail(&self, calls: Vec<FailCall>) -> Vec<Result<Answer<Settled>, Error>> {
        let command = |call: FailCall, task, fence| {
            let FailCall { error, detail, retry_in, fatal, .. } = call;
            Ok(Command::Fail(Fail { task, fence, error, detail, retry_in, fatal }))
        };
        self.inner.settle(Operation::Fail, calls, |call| &call.token, command, settled).await
    }

    /// Takes tasks back without an attempt.
    pub async fn release(&self, calls: Vec<ReleaseCall>) -> Vec<Result<Answer<Settled>, Error>> {
        let command =
            |call: ReleaseCall, task, fence| Ok(Command::Release { task, fence, delay: call.delay });
        self.inner.settle(Operation::Release, calls, |call| &call.token, command, settled).await
    }

    /// Moves deadlines; tells which tasks are to be cancelled.
    pub async fn extend(&self, calls: Vec<ExtendCall>) -> Vec<Result<Answer<Held>, Error>> {
        let command = |call: ExtendCall, task, fence| Ok(Command::Extend { task, fence, hold: call.hold });
        self.inner.settle(Operation::Extend, calls, |call| &call.token, command, held).await
    }

    /// Notes how far tasks are.
    pub async fn progress(&self, calls: Vec<ProgressCall>) -> Vec<Result<Answer<Held>, Error>> {
        let command = |call: ProgressCall, task, fence| {
            Ok(Command::Progress { task, fence, percent: call.percent, note: call.note })
        };
        self.inner.settle(Operation::Progress, calls, |call| &call.token, command, held).await
    }
}

impl Inner {
    async fn settle<C, T: Clone>(
        &self,
        operation: Operation,
        calls: Vec<C>,
        token: impl Fn(&C) -> &String,
        command: impl Fn(C, TaskId, Fence) -> Result<Command, Error>,
        value: impl Fn(TaskId, Reply) -> T,
    ) -> Vec<Result<Answer<T>, Error>> {
        let since = Instant::now();
        let mut results: Vec<Option<Result<Answer<T>, Error>>> = Vec::with_capacity(calls.len());
        let mut sheets: Vec<Sheet> = Vec::new();
        for (place, call) in calls.into_iter().enumerate() {
            results.push(None);
            let opened = self.open(token(&call));
            match opened.and_then(|(task, fence)| Ok((task, command(call, task, fence)?))) {
                Ok((task, command)) => put(&mut sheets, place, task, command),
                Err(error) => results[place] = Some(Err(error)),
            }
        }
        let proposals = sheets.into_iter().map(|sheet| self.settle_in(sheet));
        for (shard, places, applied) in futures::future::join_all(proposals).await {
            match applied {
                Ok(Proposed { applied, sure }) => {
                    for (n, ((place, task), applied)) in places.into_iter().zip(applied).enumerate() {
                        let indexes = vec![(shard, applied.index)];
                        let answer = applied.outcome.map(|reply| value(task, reply));
                        let answer = answer.map(|value| Answer { value, indexes });
                        let tries = if n < sure { Tries::One } else { Tries::Several };
                        results[place] =
                            Some(answer.map_err(|rejection| told_no(operation, tries, rejection)));
                    }
                }
                Err(error) => {
                    for (place, _) in places {
                        results[place] = Some(Err(error.clone()));
                    }
                }
            }
        }
        let settled = |result: Option<_>| result.expect("every call is in a sheet or was refused");
        let results: Vec<_> = results.into_iter().map(settled).collect();
        self.counters.timed_all(operation, since, &results);
        results
    }

    /// Opens a token of this cluster.
    fn open(&self, token: &str) -> Result<(TaskId, Fence), Error> {
        let (task, fence) = self.mint.open(token).ok_or(Error::InvalidToken)?;
        self.groups.known(task).map_err(|_| Error::InvalidToken)?;
        Ok((task, fence))
    }

    /// What [`Mutant::ThenOutside`] does with follow-ups.
    fn enqueue_apart(self: &Arc<Inner>, then: Vec<FollowUp>) {
        for FollowUp { shard, task } in then {
            let (inner, enqueue) = (self.clone(), Command::Enqueue { tasks: vec![task], atomic: false });
            self.tasks.spawn(async move { inner.groups.propose_one(shard, enqueue).await });
        }
    }

    async fn settle_in(&self, sheet: Sheet) -> (ShardId, Vec<(usize, TaskId)>, SettleOutcome) {
        let proposed = self.groups.propose_surely(sheet.shard, sheet.commands).await;
        (sheet.shard, sheet.places, proposed)
    }
}

type SettleOutcome = Result<Proposed<Reply>, Error>;

/// How often a command was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tries {
    One,
    /// Nobody knows what the first of them did.
    Several,
}

/// What a caller is told of a rejection.
///
/// A fail that counted may have sent its task into a backoff, and the next claim, a cancel or an expiry may have come
/// before the second try: its rejection does not say that nothing changed. Nor does that of an extension, which may
/// have brought the deadline nearer. An ack's answer is kept for longer than anybody tries, and of a note nothing is
/// left once the claim is over.
fn told_no(operation: Operation, tries: Tries, rejection: Rejection) -> Error {
    match (operation, tries) {
        (Operation::Fail | Operation::Extend, Tries::Several) => Error::Timeout,
        _ => rejection.into(),
    }
}

fn put(sheets: &mut Vec<Sheet>, place: usize, task: TaskId, command: Command) {
    let shard = task.shard();
    match sheets.iter_mut().find(|sheet| sheet.shard == shard) {
        Some(sheet) => {
            sheet.commands.push(command);
            sheet.places.push((place, task));
        }
        None => sheets.push(Sheet { shard, commands: vec![command], places: vec![(place, task)] }),
    }
}

fn settled(_: TaskId, reply: Reply) -> Settled {
    match reply {
        Reply::Settled(settled) => settled,
        _ => unreachable!("what ends a claim is answered by what became of the task"),
    }
}

fn held(id: TaskId, reply: Reply) -> Held {
    match reply {
        Reply::Held { deadline, cancel_requested } => Held { id, deadline, cancel_requested },
        _ => unreachable!("what keeps a claim is answered by its deadline"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::WallTime;

    #[test]
    fn a_fail_or_an_extension_that_may_have_counted_is_not_called_undone() {
        let id = TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1), 1);
        let stale = || Rejection::StaleToken { id, given: Fence(1), current: Fence(2) };
        for (operation, tries, expected) in [
            (Operation::Fail, Tries::One, Error::from(stale())),
            (Operation::Fail, Tries::Several, Error::Timeout),
            (Operation::Ack, Tries::Several, stale().into()),
            (Operation::Extend, Tries::One, stale().into()),
            (Operation::Extend, Tries::Several, Error::Timeout),
            (Operation::Progress, Tries::Several, stale().into()),
            (Operation::Release, Tries::One, stale().into()),
        ] {
            assert_eq!(told_no(operation, tries, stale()), expected, "{operation:?} {tries:?}");
        }
    }
}
