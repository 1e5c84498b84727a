//! Ack, fail, extend, release and progress, in bulk: one proposal for each shard.
//!
//! Tokens are opened here and nowhere else; a shard sees the fence. Next:
//! `state-machine/src/shard/ack.rs` and its neighbours.

use std::time::Instant;

use model::command::{Ack, Fail};
use model::{Command, Fence, Reply, Settled, ShardId, TaskId, limits};

use crate::call::{AckCall, Answer, ExtendCall, FailCall, Held, ProgressCall, ReleaseCall};
use crate::error::Error;
use crate::inner::{Inner, Node};
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
        let policies = self.inner.policies.all();
        let command = |call: AckCall, task: TaskId, fence: Fence| {
            let bytes = call.output.len();
            if bytes > limits::OUTPUT_BYTES_MAX {
                let (bytes, bytes_max) = (bytes as u64, limits::OUTPUT_BYTES_MAX as u64);
                return Err(Error::PayloadTooLarge { bytes, bytes_max });
            }
            let then = self.inner.follow_ups(task, call.then, &policies)?;
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
                Ok(applied) => {
                    for ((place, task), applied) in places.into_iter().zip(applied) {
                        let indexes = vec![(shard, applied.index)];
                        let answer = applied.outcome.map(|reply| value(task, reply));
                        let answer = answer.map(|value| Answer { value, indexes });
                        results[place] = Some(answer.map_err(Error::from));
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
        let (task, fence) = self.mint.open(token)?;
        self.groups.known(task).map_err(|_| Error::InvalidToken)?;
        Ok((task, fence))
    }

    async fn settle_in(&self, sheet: Sheet) -> (ShardId, Vec<(usize, TaskId)>, SettleOutcome) {
        let applied = self.groups.propose(sheet.shard, sheet.commands).await;
        (sheet.shard, sheet.places, applied)
    }
}

type SettleOutcome = Result<Vec<replica::Applied<Reply>>, Error>;

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
